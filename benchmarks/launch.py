"""Host cost of one launch: raw cuLaunchKernel from a C loop, triton_rt, Triton's kernel[grid] and
compiled kernel, Inductor's static launcher; and how long a `Binary` takes to be ready.

    python benchmarks/launch.py [--out launch.json] [--calls 20000]

Microseconds a call, the median of several rounds, all launchers taking turns within a round, with
the queue drained between turns and never full. Needs a CUDA GPU. Half of the arguments are tensors,
half are integers.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton

from triton_rt import (
    Binary,
    Kernel,
    KernelParam,
    KernelSource,
    LazyKernel,
    Target,
    compile,
    load_jit,
)
from triton_rt.launch import Entry, dispatch, native
from triton_rt.launch.dispatch import PythonDispatcher

BATCH = 500  # launches between synchronisations: below the depth of the driver's queue


def source(count: int) -> KernelSource:
    """A kernel that does nothing with `count` arguments, pointers and integers in turn."""
    params = tuple(KernelParam(f"p{i}", "*f32" if i % 2 == 0 else "i32") for i in range(count))
    names = ", ".join(p.name for p in params)
    text = f"import triton\nimport triton.language as tl\n@triton.jit\ndef nothing({names}):\n"
    text += "    tl.static_assert(True)\n"
    return KernelSource("nothing", text, params, num_warps=1)


def batch(call: Callable[[], None]) -> float:
    """Microseconds of one call in a batch."""
    begin = time.perf_counter()
    for _ in range(BATCH):
        call()
    spent = time.perf_counter() - begin
    torch.cuda.synchronize()
    return spent / BATCH * 1e6


def raw_batch(entry: Entry, count: int) -> Callable[[], float]:
    """Microseconds of cuLaunchKernel in a C loop of a batch."""
    module = native.extension()
    assert module is not None, "the native launcher did not build"
    stream = torch.cuda.current_stream().cuda_stream
    values = bytes(8 * (count + 2))

    def run() -> float:
        args = (entry.function, stream, entry.threads, entry.shared_bytes, values, BATCH)
        spent: float = module.time_raw(*args) / 1000
        torch.cuda.synchronize()
        return spent

    return run


def static_launcher(compiled: Any, args: list[Any]) -> Callable[[], None]:
    """Inductor's launcher of a kernel that Triton compiled, called as Inductor's wrappers do."""
    from torch._inductor.runtime.static_triton_launcher import StaticallyLaunchedCudaKernel

    with tempfile.NamedTemporaryFile(suffix=".cubin", delete=False) as file:
        file.write(compiled.asm["cubin"])
    compiled._cubin_path = file.name
    kernel = StaticallyLaunchedCudaKernel(compiled)
    kernel.load_kernel(torch.cuda.current_device())
    stream = torch._C._cuda_getCurrentRawStream
    return lambda: kernel.run(1, 1, 1, stream(0), *args)


def measure(count: int, calls: int) -> dict[str, float]:
    kernel_source = source(count)
    tensor = torch.zeros(64, device="cuda")
    args: list[Any] = [tensor if i % 2 == 0 else 32 + i for i in range(count)]
    kernel = LazyKernel(kernel_source)
    kernel(1, *args)
    binary = kernel.binary(alignment=kernel.alignment(*args))
    entry = Entry.load(binary, torch.cuda.current_device())
    launch = kernel.launch
    slow = PythonDispatcher("nothing", kernel_source.params, lambda a, d: entry, lambda *a: None)
    jit = load_jit(kernel_source)
    jit[(1,)](*args)
    compiled = jit.warmup(*args, grid=(1,))
    runner = compiled[(1, 1, 1)]
    turns: dict[str, Callable[[], float]] = {"cuLaunchKernel in C": raw_batch(entry, count)}
    calls_of = {
        "kernel.launch(grid, ...)": lambda: launch((1,), *args),
        "kernel(grid, ...)": lambda: kernel((1,), *args),
        "inductor static launcher": static_launcher(compiled, args),
        "triton compiled[grid]": lambda: runner(*args),
        "triton kernel[grid]": lambda: jit[(1,)](*args),
        "ctypes launcher": lambda: slow((1,), *args),
        "empty python call": lambda: nothing((1,), *args),
    }
    turns |= {name: functools.partial(batch, call) for name, call in calls_of.items()}
    rounds: dict[str, list[float]] = {name: [] for name in turns}
    torch.cuda.synchronize()
    for number in range(max(3, calls // BATCH)):
        for name, turn in turns.items():
            if name != "ctypes launcher" or number < 5:
                rounds[name].append(turn())
    return {name: statistics.median(values[1:]) for name, values in rounds.items()}


def ready(rounds: int = 60) -> dict[str, float]:
    """Median milliseconds from a `Binary` to a kernel that is ready to launch, and of a launch
    right after; every time of another module."""
    out = {}
    kernels = {"nothing, 8 arguments": source(8), "matmul 128x128": MATMUL}
    for name, kernel_source in kernels.items():
        binary = compile(kernel_source, alignment=0)
        times, data = [], binary.to_bytes()
        reading = []
        for _ in range(rounds):
            begin = time.perf_counter()
            fresh = Binary.from_bytes(data)
            reading.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            kernel = Kernel(fresh)
            kernel.load(0)
            times.append(time.perf_counter() - begin)
            kernel.unload()
        out[f"ready, {name} ({len(binary.cubin)} bytes)"] = statistics.median(times) * 1e3
        out[f"from_bytes, {name}"] = statistics.median(reading) * 1e3
    return out


MATMUL = KernelSource(
    "matmul",
    """
import triton
import triton.language as tl

@triton.jit
def matmul(a, b, c, k):
    i = tl.arange(0, 128)
    j = tl.arange(0, 64)
    acc = tl.zeros((128, 128), tl.float32)
    for at in range(0, k, 64):
        x = tl.load(a + i[:, None] * k + at + j[None, :])
        y = tl.load(b + (at + j)[:, None] * 128 + i[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + i[:, None] * 128 + i[None, :], acc)
""",
    (
        KernelParam("a", "*bf16"),
        KernelParam("b", "*bf16"),
        KernelParam("c", "*f32", mutated=True),
        KernelParam("k", "i32"),
    ),
    num_warps=8,
)


def nothing(grid: Any, *args: Any) -> None:
    """What calling a Python function with these arguments costs by itself."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "launch.json")
    parser.add_argument("--calls", type=int, default=20_000)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/launch.py needs a CUDA GPU")
    assert dispatch.native.extension() is not None
    results = {count: measure(count, options.calls) for count in (0, 8, 24)}
    counts = list(results)
    print(f"{torch.cuda.get_device_name()}, {Target.current()}; microseconds a launch, host side")
    print(f"{'':28}" + "".join(f"{c:>4} args" for c in counts))
    for name in results[0]:
        print(f"{name:28}" + "".join(f"{results[c][name]:9.2f}" for c in counts))
    over = [
        results[c]["kernel.launch(grid, ...)"] - results[c]["cuLaunchKernel in C"] for c in counts
    ]
    print(f"{'launch() over raw':28}" + "".join(f"{o:9.2f}" for o in over))
    times = [results[c]["triton kernel[grid]"] / results[c]["kernel(grid, ...)"] for c in counts]
    print(f"{'kernel[grid] / kernel(grid)':28}" + "".join(f"{t:9.2f}" for t in times))
    loading = ready()
    for name, value in loading.items():
        print(f"{name}: {value:.3f} ms")
    record = {
        "gpu": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "microseconds": results,
        "milliseconds": loading,
    }
    options.out.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
