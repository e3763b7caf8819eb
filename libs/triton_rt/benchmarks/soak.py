"""Long runs that must not grow: launches, loads and unloads, threads, processes.

    python soak.py [--launches N] [--loads N] [--thread-launches N] [--processes N]

Host memory is the resident set (VmRSS), device memory what the driver reports as used; both are
sampled after a warm-up and at the end, and growth past a few megabytes is a failure. Needs a GPU;
prints a line of JSON for each part, and exits with 1 if one fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from triton_rt import Kernel, KernelParam, KernelSource, LazyKernel, compile

#: Bytes of growth that allocators may show without a leak: a leak of one byte a launch is 10 MB.
HOST_SLACK = 4 << 20
DEVICE_SLACK = 4 << 20

SOURCE = KernelSource(
    "add_one",
    """
import triton
import triton.language as tl

@triton.jit
def add_one(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, i < n) + 1, i < n)
""",
    (KernelParam("x", "*f32"), KernelParam("y", "*f32", mutated=True), KernelParam("n", "i32")),
    (("B", 128),),
    num_warps=1,
)


def host_bytes() -> int:
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmRSS")


def device_bytes() -> int:
    """Memory in use on the GPU, by anyone."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def watched(name: str, count: int, warm: int, step: Callable[[int], None]) -> dict[str, Any]:
    """Runs `step(times)` to warm up, then for the whole count; compares memory."""
    step(warm)
    torch.cuda.synchronize()
    host, device, begin = host_bytes(), device_bytes(), time.perf_counter()
    step(count)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    grown = (host_bytes() - host, device_bytes() - device)
    return {
        "part": name,
        "count": count,
        "seconds": round(seconds, 2),
        "microseconds_each": round(seconds / max(1, count) * 1e6, 3),
        "host_growth": grown[0],
        "device_growth": grown[1],
        "ok": grown[0] < HOST_SLACK and grown[1] < DEVICE_SLACK,
    }


def launches(count: int) -> dict[str, Any]:
    """One kernel over and over, variants by alignment in turn."""
    kernel = LazyKernel(SOURCE)
    x, y = torch.zeros(512, device="cuda"), torch.zeros(512, device="cuda")
    views = [(x, y, 128), (x[1:], y, 128), (x, y[3:], 97)]

    def step(times: int) -> None:
        launch = kernel.launch
        for _ in range(times // 3 + 1):
            for a, b, n in views:
                launch(1, a, b, n)

    return watched("launches", count, 100_000, step)


def loads(count: int) -> dict[str, Any]:
    """A module loaded, launched and unloaded each time."""
    binary = compile(SOURCE, alignment=0)
    x, y = torch.zeros(128, device="cuda"), torch.zeros(128, device="cuda")

    def step(times: int) -> None:
        for i in range(times):
            kernel = Kernel(binary)
            kernel.load(0)
            if i % 100 == 0:
                kernel(1, x, y, 128)
            kernel.unload()

    return watched("loads", count, 500, step)


def threads(count: int, n: int = 8, streams: int = 4) -> dict[str, Any]:
    """Threads that share a kernel, on fewer streams than threads; every result is checked."""
    kernel = LazyKernel(SOURCE)
    lanes = [torch.cuda.Stream() for _ in range(streams)]
    wrong: list[str] = []

    def work(index: int, times: int) -> None:
        with torch.cuda.stream(lanes[index % streams]):
            x = torch.zeros(2048, device="cuda")
            for i in range(times):
                kernel.launch(16, x, x, 2048 - index)
                if i % 5000 == 4999:
                    expected = torch.zeros(2048)
                    expected[: 2048 - index] = i + 1
                    if not torch.equal(x.cpu(), expected):
                        wrong.append(f"thread {index}, launch {i}")
            lanes[index % streams].synchronize()

    def step(times: int) -> None:
        workers = [threading.Thread(target=work, args=(i, times // n)) for i in range(n)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    # Each thread's first steps take a heap of their own, so warm up with as many threads.
    out = watched("threads", count, 40_000, step)
    return {**out, "threads": n, "streams": streams, "wrong": wrong, "ok": out["ok"] and not wrong}


_PROCESS = """
import sys, torch, triton_rt as rt
from dataclasses import replace
sys.path.insert(0, sys.argv[2])
from soak import SOURCE
cache = rt.Cache(sys.argv[1], 1 << 30)
x = torch.arange(2048., device="cuda")
for block in (64, 128, 256, 512):
    kernel = rt.LazyKernel(replace(SOURCE, constants=(("B", block),)), cache=cache)
    y = torch.zeros_like(x)
    kernel(-(-2048 // block), x, y, 2048)
    assert torch.equal(y, x + 1)
print(cache.misses)
"""


def processes(n: int) -> dict[str, Any]:
    """Processes that compile the same four kernels into one store at once."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _PROCESS, folder, str(Path(__file__).parent)]
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(n)
        ]
        results = [(*p.communicate(), p.returncode) for p in running]
    errors = [err[-500:] for _, err, code in results if code]
    return {
        "part": "processes",
        "count": n,
        "seconds": round(time.perf_counter() - begin, 2),
        "errors": errors,
        "ok": not errors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=10_000_000)
    parser.add_argument("--loads", type=int, default=100_000)
    parser.add_argument("--thread-launches", type=int, default=400_000)
    parser.add_argument("--processes", type=int, default=8)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("soak.py needs a CUDA GPU")
    parts = [
        (launches, options.launches),
        (loads, options.loads),
        (threads, options.thread_launches),
        (processes, options.processes),
    ]
    failed = False
    for part, count in parts:
        if count:
            result = part(count)
            print(json.dumps(result), flush=True)
            failed |= not result["ok"]
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main()
