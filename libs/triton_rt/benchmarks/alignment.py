"""In-place addition on tensors that are aligned, and off by one element: eager, LazyKernel, and a
kernel shifted to aligned accesses, overlapping the launch before it or not.

    python libs/triton_rt/benchmarks/alignment.py [--out alignment.json]

4096 x 4096 of fp16; microseconds of the GPU for one call: the median over rounds of a CUDA graph
with calls on tensors in turn that exceed the L2 cache together. Needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from triton_rt import KernelParam, KernelSource, LazyKernel, PeeledKernel

N = 4096 * 4096
TENSORS = 8
REPEAT = 5  # passes over the tensors in a graph
ROUNDS = 41

Overlap = Literal["early", "late"] | None
SHAPES: tuple[tuple[int, int, Overlap], ...] = (
    (1024, 4, None),
    (1024, 4, "late"),
    (2048, 8, None),
    (2048, 8, "late"),
    (2048, 8, "early"),
)

HEADER = "import triton\nimport triton.language as tl\n\n@triton.jit\n"
INDEX = "    i = tl.program_id(0) * B + tl.arange(0, B)\n"
PARAMS = {
    "x": KernelParam("x", "*f16", mutated=True, aligned=True),
    "y": KernelParam("y", "*f16", aligned=True),
    "n": KernelParam("n", "i32", aligned=True),
}


def source(name: str, block: int, warps: int) -> KernelSource:
    """`x += 1` or `x += y`."""
    if name == "x += 1":
        names = ("x", "n")
        body = "    tl.store(x + i, tl.load(x + i, i < n) + 1, i < n)\n"
    else:
        names = ("x", "y", "n")
        body = "    tl.store(x + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)\n"
    text = f"{HEADER}def add({', '.join(names)}, B: tl.constexpr):\n{INDEX}{body}"
    params = tuple(PARAMS[n] for n in names)
    return KernelSource("add", text, params, (("B", block),), num_warps=warps)


def graph_of(call: Callable[[int], None]) -> torch.cuda.CUDAGraph:
    """Calls on each tensor in turn, captured."""
    for i in range(TENSORS):
        call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(TENSORS * REPEAT):
            call(i % TENSORS)
    return graph


def measure(calls: dict[str, Callable[[int], None]]) -> dict[str, float]:
    """Median microseconds of one call, the candidates taking turns."""
    graphs = {name: graph_of(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end) * 1000 / (TENSORS * REPEAT))
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def run(name: str, block: int, warps: int, overlap: Overlap) -> dict[str, float]:
    bases = [torch.randn(N + 8, device="cuda", dtype=torch.float16) for _ in range(2 * TENSORS)]
    aligned = [b[:N] for b in bases]
    off = [b[1 : N + 1] for b in bases]
    made = source(name, block, warps)
    plain, peeled = LazyKernel(made), PeeledKernel(made, overlap=overlap)
    grid = (-(-N // block),)

    def eager(views: list[torch.Tensor]) -> Callable[[int], object]:
        if name == "x += 1":
            return lambda i: views[i].add_(1)
        return lambda i: views[i].add_(views[TENSORS + i])

    def ours(kernel: LazyKernel, views: list[torch.Tensor]) -> Callable[[int], None]:
        if name == "x += 1":
            return lambda i: kernel.launch(grid, views[i], N)
        return lambda i: kernel.launch(grid, views[i], views[TENSORS + i], N)

    for kernel in (plain, peeled):
        check = [b.clone() for b in bases]
        ours(kernel, [b[1 : N + 1] for b in check])(0)
        expected = bases[0].clone()
        expected[1 : N + 1] += 1 if name == "x += 1" else off[TENSORS]
        assert torch.equal(check[0], expected), "wrong numbers"
        del check
    out = measure(
        {
            "eager, aligned": _void(eager(aligned)),
            "eager, off by one": _void(eager(off)),
            "aligned": ours(peeled, aligned),
            "off by one, plain": ours(plain, off),
            "off by one, shifted": ours(peeled, off),
        }
    )
    for value in bases:
        value.zero_()
    return out


def _void(call: Callable[[int], object]) -> Callable[[int], None]:
    def run(i: int) -> None:
        call(i)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "alignment.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("alignment.py needs a CUDA GPU")
    record = {}
    for name in ("x += 1", "x += y"):
        for block, warps, overlap in SHAPES:
            times = run(name, block, warps, overlap)
            title = f"{name}, block {block}, {warps} warps, overlap {overlap}"
            record[title] = times
            print(f"{title} (us)")
            for what, value in times.items():
                print(
                    f"  {what:22}{value:8.2f}  {value / times['aligned']:.3f} of aligned"
                    f"  {value / times['eager, aligned']:.3f} of eager, aligned"
                )
    options.out.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), **record}, indent=2))


if __name__ == "__main__":
    main()
