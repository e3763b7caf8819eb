"""Host time of launches with tensor descriptors, ours and Triton's, in microseconds.

Run on a machine with a Hopper GPU: `python libs/triton_rt/benchmarks/tma.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

import triton_rt as rt
from triton_rt.tma.encode import encode
from triton_rt.tma.layout import MapLayout

HEAD = "import triton\nimport triton.language as tl\n@triton.jit\n"
HOST = "def host(x, y):\n    y.store([0, 0], x.load([0, 0]))\n"
DEVICE = """def device(x, y, n):
    a = tl.make_tensor_descriptor(x, [n, 64], [64, 1], [16, 64])
    b = tl.make_tensor_descriptor(y, [n, 64], [64, 1], [16, 64])
    b.store([0, 0], a.load([0, 0]))
"""
POINTERS = """def pointers(x, y, n):
    i = tl.arange(0, 1024)
    tl.store(y + i, tl.load(x + i, i < n), i < n)
"""


def source(name: str, body: str, **kinds: str) -> rt.KernelSource:
    params = tuple(rt.KernelParam(n, k, mutated=n == "y") for n, k in kinds.items())
    return rt.KernelSource(name, HEAD + body, params)


def host_time(call: Callable[[], object], count: int = 1000, rounds: int = 7) -> float:
    """Microseconds a call, of the fastest round; the device is idle before each."""
    for _ in range(20):
        call()
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, time.perf_counter() - begin)
    torch.cuda.synchronize()
    return 1e6 * best / count


def main() -> None:
    x, y = torch.randn(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda")
    desc = "tensordesc<f32[16,64]>"
    host = rt.LazyKernel(source("host", HOST, x=desc, y=desc))
    device = rt.LazyKernel(source("device", DEVICE, x="*f32", y="*f32", n="i32"))
    pointers = rt.LazyKernel(source("pointers", POINTERS, x="*f32", y="*f32", n="i32"))
    block = (16, 64)
    xm, ym = rt.TensorMap(x, block), rt.TensorMap(y, block)
    xt, yt = (TensorDescriptor.from_tensor(t, [16, 64]) for t in (x, y))
    plain_host, plain_device = rt.load_jit(host.source), rt.load_jit(device.source)
    layout = MapLayout.of_block("f32", block)
    at = x.data_ptr()
    out = {
        "two pointers, ours": host_time(lambda: pointers.launch((1,), x, y, 64)),
        "two TensorMaps, ours": host_time(lambda: host.launch((1,), xm, ym)),
        "two TensorMaps made anew, ours": host_time(
            lambda: host.launch((1,), rt.TensorMap(x, block), rt.TensorMap(y, block))
        ),
        "two TensorDescriptors, ours": host_time(lambda: host.launch((1,), xt, yt)),
        "two TensorDescriptors, kernel[grid]": host_time(lambda: plain_host[(1,)](xt, yt)),
        "made in the kernel, ours": host_time(lambda: device.launch((1,), x, y, 64)),
        "one map, uncached": host_time(
            lambda: encode.__wrapped__(at, (64, 64), (64, 1), layout, False)
        ),
    }
    with rt.Workspace(2).use():
        out["made in the kernel, ours, Workspace"] = host_time(
            lambda: device.launch((1,), x, y, 64)
        )
    triton.set_allocator(lambda n, a, s: torch.empty(n, dtype=torch.uint8, device="cuda"))
    out["made in the kernel, kernel[grid]"] = host_time(lambda: plain_device[(1,)](x, y, 64))
    assert torch.equal(x[:16], y[:16])
    print(json.dumps({k: round(v, 2) for k, v in out.items()}, indent=1))


if __name__ == "__main__":
    main()
