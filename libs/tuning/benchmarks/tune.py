"""Tuning from cold: seconds, and what the winner gains over the default, for row kernels.

    python libs/tuning/benchmarks/tune.py [--out tune.json] [--workers 8]

Layer norm and softmax over rows in bf16, with the schedules that a generator would try: a program
holds one or more rows whole, or walks over one in blocks. The first candidate is the default.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from triton_rt import Cache, CompilePool, KernelParam, KernelSource
from tuning import Candidate, Options, TunedKernel, TuningPool, TuningStore, Work, autotune

HEAD = "import triton\nimport triton.language as tl\nConst = tl.constexpr\n\n@triton.jit\n"

NORM_PERSISTENT = """def layer_norm(x, w, b, y, rows, R: Const, C: Const, B: Const):
    row = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    i = tl.arange(0, B)[None, :]
    m = (row < rows) & (i < C)
    v = tl.load(x + row * C + i, m, other=0.0).to(tl.float32)
    mean = tl.sum(v, 1)[:, None] / C
    d = tl.where(i < C, v - mean, 0.0)
    r = tl.rsqrt(tl.sum(d * d, 1)[:, None] / C + 1e-5)
    g = tl.load(w + i, i < C, other=0.0).to(tl.float32)
    o = tl.load(b + i, i < C, other=0.0).to(tl.float32)
    tl.store(y + row * C + i, d * r * g + o, m)
"""

NORM_LOOPED = """def layer_norm(x, w, b, y, rows, R: Const, C: Const, B: Const):
    row = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    s = tl.zeros([R, B], tl.float32)
    q = tl.zeros([R, B], tl.float32)
    for at in range(0, C, B):
        i = at + tl.arange(0, B)[None, :]
        v = tl.load(x + row * C + i, (row < rows) & (i < C), other=0.0).to(tl.float32)
        s += v
        q += v * v
    mean = tl.sum(s, 1)[:, None] / C
    r = tl.rsqrt(tl.sum(q, 1)[:, None] / C - mean * mean + 1e-5)
    for at in range(0, C, B):
        i = at + tl.arange(0, B)[None, :]
        m = (row < rows) & (i < C)
        v = tl.load(x + row * C + i, m, other=0.0).to(tl.float32)
        g = tl.load(w + i, i < C, other=0.0).to(tl.float32)
        o = tl.load(b + i, i < C, other=0.0).to(tl.float32)
        tl.store(y + row * C + i, (v - mean) * r * g + o, m)
"""

SOFTMAX_PERSISTENT = """def softmax(x, y, rows, R: Const, C: Const, B: Const):
    row = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    i = tl.arange(0, B)[None, :]
    m = (row < rows) & (i < C)
    v = tl.load(x + row * C + i, m, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 1)[:, None])
    tl.store(y + row * C + i, e / tl.sum(e, 1)[:, None], m)
"""


@dataclass(frozen=True)
class Shape:
    rows: int
    columns: int


def candidates(op: str, shape: Shape) -> list[Candidate]:
    """The default (one row a program, four warps), then the others."""
    names = ("x", "w", "b", "y") if op == "layer_norm" else ("x", "y")
    params = tuple(KernelParam(n, "*bf16", n == "y", aligned=True) for n in names)
    params += (KernelParam("rows", "i32", aligned=True),)
    whole = 1 << (shape.columns - 1).bit_length()
    work = Work(bytes=2 * 2 * shape.rows * shape.columns, flops=8 * shape.rows * shape.columns)

    def make(text: str, rows: int, block: int, warps: int, work: Work = work) -> Candidate:
        constants = (("R", rows), ("C", shape.columns), ("B", block))
        source = KernelSource(op, HEAD + text, params, constants, num_warps=warps)
        return Candidate(source, -(-shape.rows // rows), work)

    text = NORM_PERSISTENT if op == "layer_norm" else SOFTMAX_PERSISTENT
    tiles = [(1, 4), (1, 1), (1, 2), (1, 8), (1, 16), (2, 2), (2, 4), (2, 8), (4, 4), (4, 8)]
    tiles += [(8, 8), (8, 16)]
    out = [make(text, r, whole, w) for r, w in tiles]
    if op == "layer_norm":
        # Reads its rows twice, and the second time from L2 at best.
        twice = Work(bytes=3 * 2 * shape.rows * shape.columns, flops=work.flops)
        out += [make(NORM_LOOPED, r, b, 4, twice) for r, b in ((1, 512), (1, 1024), (4, 256))]
    return out


def arguments(op: str, shape: Shape) -> tuple[Any, ...]:
    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, device="cuda").bfloat16()

    x = draw(shape.rows, shape.columns)
    y = torch.empty_like(x)
    if op == "layer_norm":
        return (x, draw(shape.columns), draw(shape.columns), y, shape.rows)
    return (x, y, shape.rows)


def expected(op: str, args: tuple[Any, ...]) -> torch.Tensor:
    x = args[0].double()
    if op == "softmax":
        return x.softmax(-1)
    w, b = args[1].double(), args[2].double()
    return torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, 1e-5)


def describe(candidate: Candidate) -> str:
    constants = dict(candidate.source.constants)
    looped = "for at" in candidate.source.text
    kind = f"looped {constants['B']}" if looped else "persistent"
    return f"{kind}, {constants['R']} rows, {candidate.source.num_warps} warps"


def one(
    op: str, shape: Shape, workers: int, folder: Path, tuner: TuningPool | None
) -> dict[str, Any]:
    options = candidates(op, shape)
    args = arguments(op, shape)
    torch.cuda.synchronize()
    cache = Cache(folder / "kernels", 1 << 30)
    store = TuningStore(folder / "tuning")
    held = torch.cuda.memory_allocated()
    with CompilePool(workers) as pool:
        began = time.perf_counter()
        kernel = TunedKernel(options, cache=cache, pool=pool, store=store, tuner=tuner)
        kernel(*args)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    assert torch.cuda.memory_allocated() == held, "memory is held after tuning"
    tuned = next(iter(kernel.tuned.values()))
    error = (args[-2].double() - expected(op, args)).norm() / expected(op, args).norm()
    assert error < 1e-2, f"{op}: relative error {error}"

    began = time.perf_counter()
    again = TunedKernel(options, cache=cache, store=store)
    again(*args)
    torch.cuda.synchronize()
    warm = time.perf_counter() - began

    # Every candidate to the end, to judge the race and the model by.
    pairs = [(k, c.grid) for k, c in zip(kernel.kernels, options, strict=True)]
    full = [autotune([p], args, options=Options(repeats=20)).times[0] for p in pairs]  # type: ignore[list-item]
    works = [c.work for c in options]
    model = autotune(pairs, args, work=works, options=Options(deterministic=True))  # type: ignore[arg-type]
    best = min(range(len(full)), key=full.__getitem__)
    rank = sorted(range(len(full)), key=model.times.__getitem__).index(best)
    bytes_moved = 4 * shape.rows * shape.columns
    return {
        "op": op,
        **asdict(shape),
        "candidates": len(options),
        "cold_seconds": seconds,
        "tuning_seconds": tuned.seconds,
        "stored_seconds": warm,
        "default_ms": full[0],
        "winner": describe(options[tuned.winner]),
        "winner_ms": full[tuned.winner],
        "winner_against_default": full[0] / full[tuned.winner],
        "winner_against_best": full[tuned.winner] / full[best],
        "winner_tb_per_s": bytes_moved / full[tuned.winner] / 1e9,
        "model_choice": describe(options[model.winner]),
        "model_choice_against_best": full[model.winner] / full[best],
        "model_rank_of_best": rank,
        "model_pruned": len(tuned.pruned),
        "runs": list(tuned.runs),
        "ms": [round(t, 5) if t < math.inf else None for t in full],
        "model_ms": [round(t, 5) if t < math.inf else None for t in model.times],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--quick", action="store_true", help="the smallest shape only")
    arguments = parser.parse_args()
    shapes = [("layer_norm", Shape(16384, 768)), ("layer_norm", Shape(16384, 4096))]
    shapes += [("softmax", Shape(16384, 1024)), ("softmax", Shape(16384, 4096))]
    results = []
    with TuningPool() as tuner, tempfile.TemporaryDirectory() as folder:
        runs = [(op, shape, None) for op, shape in shapes[: 1 if arguments.quick else None]]
        for number, (op, shape, where) in enumerate([*runs, (*shapes[0], tuner)]):
            cold = Path(folder) / str(number)
            result = one(op, shape, arguments.workers, cold, where)
            result["where"] = "in process" if where is None else "in a worker"
            results.append(result)
            print(
                f"{op} {shape.rows}x{shape.columns} {result['where']}: {result['candidates']} "
                f"candidates in {result['cold_seconds']:.2f} s from cold, "
                f"{1e3 * result['stored_seconds']:.1f} ms from the store; default "
                f"{result['default_ms']:.4f} ms, {result['winner']} {result['winner_ms']:.4f} ms "
                f"({result['winner_against_default']:.2f}x, {result['winner_tb_per_s']:.2f} TB/s), "
                f"best of all x{result['winner_against_best']:.3f}, model's choice "
                f"x{result['model_choice_against_best']:.3f}"
            )
    record = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "results": results}
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
