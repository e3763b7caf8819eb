"""A callable from a CUDA graph: eager, torch.cuda.graph by hand, and GraphedCallable.

    python libs/cuda_graphs/benchmarks/graphs.py [--out graphs.json]

Microseconds a call, host and GPU together: the median over rounds of calls back to back, all
ways taking turns. `chain` is 20 launches of a small kernel of ours, `overlapped` and `early` the
same with overlapped launches; `mlp` is 8 x (matmul, bias, GELU) of torch on 32 x 512 bf16. In
place: the same tensors at every call. Moving: a tensor of another address at every call, which a
graph by hand copies in with `static.copy_(x)`. Needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cuda_graphs import Buckets, GraphedCallable, GraphPool, Lending
from triton_rt import (
    KernelParam,
    KernelSource,
    LazyKernel,
    overlapped,
)

BATCH, ROUNDS = 200, 25
MOVING = 4  # tensors that take turns

ADD = KernelSource(
    "add",
    """
import triton
import triton.language as tl

@triton.jit
def add(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, i < n) + 1, i < n)
""",
    (KernelParam("x", "*f32"), KernelParam("y", "*f32", mutated=True), KernelParam("n", "i32")),
    (("B", 1024),),
)

Function = Callable[[torch.Tensor], torch.Tensor]


def chain(source: KernelSource = ADD) -> tuple[Function, list[torch.Tensor]]:
    kernel = LazyKernel(source)
    n = 1 << 16

    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            y = torch.empty_like(x)
            kernel.launch(n // 1024, x, y, n)
            x = y
        return x

    return fn, [torch.randn(n, device="cuda") for _ in range(MOVING)]


def mlp() -> tuple[Function, list[torch.Tensor]]:
    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16) / 16

    layers = [(make(512, 512), make(512)) for _ in range(8)]

    def fn(x: torch.Tensor) -> torch.Tensor:
        for w, b in layers:
            x = torch.nn.functional.gelu(torch.addmm(b, x, w))
        return x

    return fn, [make(32, 512) for _ in range(MOVING)]


def by_hand(fn: Function, static: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    fn(static)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = fn(static)
    return graph, out


def turns(calls: dict[str, Callable[[int], Any]]) -> dict[str, float]:
    """Median microseconds of one call of a batch."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for i in range(2 * MOVING):
            call(i)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for i in range(BATCH):
                call(i)
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - begin) / BATCH * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(fn: Function, xs: list[torch.Tensor]) -> dict[str, float]:
    x, static = xs[0], xs[0].clone()
    graph, _ = by_hand(fn, x)
    fed, fed_out = by_hand(fn, static)
    place = GraphedCallable(fn)
    bare = GraphedCallable(fn, lending=Lending((0,)))
    moved = GraphedCallable(fn)
    moved_bare = GraphedCallable(fn, lending=Lending((0,)))
    buckets = Buckets((x.shape[0],), inputs={0: 0}, outputs={0: 0})
    padded = GraphedCallable(fn, buckets=buckets, lending=Lending((0,)))

    def feed(i: int) -> torch.Tensor:
        static.copy_(xs[i % MOVING])
        fed.replay()
        return fed_out

    out = turns(
        {
            "eager": lambda i: fn(x),
            "in place, by hand": lambda i: graph.replay(),
            "in place, GraphedCallable, results not copied": lambda i: bare(x),
            "in place, GraphedCallable": lambda i: place(x),
            "moving, eager": lambda i: fn(xs[i % MOVING]),
            "moving, by hand": feed,
            "moving, GraphedCallable, results not copied": lambda i: moved_bare(xs[i % MOVING]),
            "moving, GraphedCallable": lambda i: moved(xs[i % MOVING]),
            "in a bucket, GraphedCallable, results not copied": lambda i: padded(xs[i % MOVING]),
        }
    )
    for graphed in (place, bare, moved, moved_bare, padded):
        for value in xs:
            torch.testing.assert_close(graphed(value), fn(value))
    begin = time.perf_counter()
    fresh = GraphedCallable(fn)
    fresh(x)
    fresh(x)
    torch.cuda.synchronize()
    out["first two calls, capture included"] = (time.perf_counter() - begin) * 1e6
    return out


def memory(shared: bool) -> int:
    """Bytes reserved for four graphs of large intermediates, with one pool or one each."""
    x = torch.randn(4096, 4096, device="cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    pool = GraphPool()
    kept = []
    for k in range(4):
        graphed = GraphedCallable(
            lambda x, k=k: (x.exp() * x.cos() + k).sum(0), pool=pool if shared else None
        )
        for _ in range(2):
            graphed(x)
        kept.append(graphed)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "graphs.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("graphs.py needs a CUDA GPU")
    record: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    with torch.no_grad():
        ways = {
            "chain": chain,
            "overlapped": lambda: chain(overlapped(ADD)),
            "early": lambda: chain(overlapped(ADD, early=True)),
            "mlp": mlp,
        }
        for name, make in ways.items():
            record[name] = measure(*make())
    print(f"{'microseconds a call':52}" + "".join(f"{n:>12}" for n in ways))
    for way in record["chain"]:
        print(f"{way:52}" + "".join(f"{record[n][way]:12.2f}" for n in ways))
    record["bytes of four graphs"] = {"own pools": memory(False), "one pool": memory(True)}
    print("bytes of four graphs:", record["bytes of four graphs"])
    options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
