"""Host cost of one launch: raw cuLaunchKernel from a C loop, triton_rt, Triton's kernel[grid].

    python benchmarks/launch.py [--out launch.json] [--calls 20000]

Microseconds a call, the median of several rounds, with the queue drained between rounds and never
full. Needs a CUDA GPU. Half of the arguments are tensors, half are integers.
"""

from __future__ import annotations

import argparse
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

from triton_rt import KernelParam, KernelSource, LazyKernel, Target, load_jit
from triton_rt.launch import Entry, dispatch, native
from triton_rt.launch.dispatch import PythonDispatcher

ROUNDS = 15
BATCH = 500  # launches between synchronisations: below the depth of the driver's queue


def source(count: int) -> KernelSource:
    """A kernel that does nothing with `count` arguments, pointers and integers in turn."""
    params = tuple(KernelParam(f"p{i}", "*f32" if i % 2 == 0 else "i32") for i in range(count))
    names = ", ".join(p.name for p in params)
    text = f"import triton\nimport triton.language as tl\n@triton.jit\ndef nothing({names}):\n"
    text += "    tl.static_assert(True)\n"
    return KernelSource("nothing", text, params, num_warps=1)


def per_call(call: Callable[[], None], calls: int) -> float:
    """Median microseconds of one call over rounds of batches."""
    call()
    torch.cuda.synchronize()
    rounds = []
    for _ in range(ROUNDS):
        spent = 0.0
        batches = max(1, calls // BATCH // ROUNDS)
        for _ in range(batches):
            begin = time.perf_counter()
            for _ in range(BATCH):
                call()
            spent += time.perf_counter() - begin
            torch.cuda.synchronize()
        rounds.append(spent / (batches * BATCH))
    return statistics.median(rounds) * 1e6


def raw(entry: Entry, count: int) -> float:
    """Median microseconds of cuLaunchKernel in a C loop."""
    module = native.extension()
    assert module is not None, "the native launcher did not build"
    stream = torch.cuda.current_stream().cuda_stream
    values = bytes(8 * (count + 2))
    out = []
    for _ in range(ROUNDS):
        args = (entry.function, stream, entry.threads, entry.shared_bytes, values, BATCH)
        out.append(module.time_raw(*args) / 1000)
        torch.cuda.synchronize()
    return statistics.median(out)


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
    torch.cuda.synchronize()
    return {
        "cuLaunchKernel in C": raw(entry, count),
        "kernel.launch(grid, ...)": per_call(lambda: launch((1,), *args), calls),
        "kernel(grid, ...)": per_call(lambda: kernel((1,), *args), calls),
        "ctypes launcher": per_call(lambda: slow((1,), *args), max(BATCH, calls // 10)),
        "triton kernel[grid]": per_call(lambda: jit[(1,)](*args), max(BATCH, calls // 5)),
        "empty python call": per_call(lambda: nothing((1,), *args), calls),
    }


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
    record = {
        "gpu": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "microseconds": results,
    }
    options.out.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
