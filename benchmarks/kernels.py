"""Memory-bound work through `torch.compile`: eager, Inductor and compile_cli in one run.

    python benchmarks/kernels.py [--only softmax norm] [--out kernels.json] [--processes 8]
                                 [--tune max]
    python benchmarks/kernels.py --cases block_cases

Times are medians between CUDA events of calls whose host work is hidden behind a spinning kernel,
after L2 was overwritten; the three interleaved, inputs changing. With `--whole` they are those of
whole calls on an idle GPU. The bytes are those of inputs and results, each moved once, and the
fraction is of what a copy in the same run moves. A case that fails or is wrong is a row that says
so, and the exit code is 1.

`--tune` is our option of that name, off unless asked for: else all candidates of all kernels are
compiled before the first row, which takes minutes. What was measured of the schedules of a row's
kernels is printed below it, with the time of the guesses over that of the fastest, and at the end
the share of rows where that is at most 1.05.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config
import torch.utils._pytree as pytree
from kernel_cases import Case
from torch import Tensor

import gemm_templates
import tuning
from compile_cli import pipeline
from compile_cli.result import CompiledGraph
from planner.schedules.chosen import Chosen

BACKENDS = ("inductor", "compile_cli")
REPEATS = 11
NEAR = 1.05  # a guess of schedules within this factor of the fastest is as good
LONG = 300_000  # microseconds that the calls of one row and backend may take
SPIN = 3_000_000  # cycles: longer than the host takes for a call with its gradient


def too_long(*_: Any) -> None:
    raise TimeoutError("did not compile in a minute")


def callable_of(case: Case, run: Callable[..., Any]) -> Callable[..., Any]:
    if not case.grad:
        return run

    def both(*args: Any) -> tuple[Tensor, ...]:
        leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
        out = run(*args)
        seed = torch.ones_like(out) if out.dim() == 0 else seeds(out)
        return torch.autograd.grad(out, leaves, seed)

    return both


_SEEDS: dict[Any, Tensor] = {}


def seeds(like: Tensor) -> Tensor:
    key = like.shape, like.dtype
    if key not in _SEEDS:
        _SEEDS.clear()
        _SEEDS[key] = torch.randn_like(like)
    return _SEEDS[key]


def inputs(case: Case) -> tuple[Any, ...]:
    made = case.make()
    if case.grad:
        return tuple(x.requires_grad_() if x.is_floating_point() else x for x in made)
    return made


def compiled(case: Case, backend: str, **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    ours = options if backend == "compile_cli" else None
    dynamic = case.name.startswith("dynamic")
    run = torch.compile(case.run, backend=backend, dynamic=dynamic, options=ours)
    return callable_of(case, run)


_GRAPHS: list[CompiledGraph] = []
_compile_graph = pipeline.compile_graph


def _keeping(*args: Any, **more: Any) -> CompiledGraph:
    _GRAPHS.append(_compile_graph(*args, **more))
    return _GRAPHS[-1]


def keep_graphs() -> None:
    """From here on, graphs are compiled anew and kept: what was decided for them is printed. Not as
    this is imported: transformers imports what is called kernels."""
    torch._functorch.config.enable_autograd_cache = False
    pipeline.compile_graph = _keeping  # type: ignore[attr-defined]  # a module has any attribute


def tuned() -> dict[str, Any]:
    """What was measured of the schedules of the graphs compiled since the last call: the time of
    all guesses over that of the fastest, and a line for each kernel."""
    found = [(n, c) for graph in _GRAPHS for (n, _), c in graph.schedules.items() if c.times]
    _GRAPHS.clear()
    if not found:
        return {}
    guess = sum(dict(c.times)[c.guess] for _, c in found)
    return {"guess": guess / sum(_best(c) for _, c in found),
            "schedules": [f"{name}: {c}" for name, c in found]}  # fmt: skip


def _best(chosen: Chosen) -> float:
    return min(seconds for _, seconds in chosen.times)


def event_us(call: Callable[[], Any], flush: Tensor, spin: int = SPIN) -> float:
    flush.zero_()
    torch.cuda._sleep(spin) if spin else torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def copy_rate(flush: Tensor) -> float:
    """Bytes a microsecond that a copy reads and writes."""
    a, b = (torch.empty(1 << 30, dtype=torch.int8, device="cuda") for _ in range(2))
    return (2 << 30) / statistics.median(event_us(lambda: a.copy_(b), flush) for _ in range(9))


def moved(args: Any, out: Any) -> int:
    leaves = [x for x in pytree.tree_leaves((args, out)) if isinstance(x, Tensor)]
    return sum(x.numel() * x.element_size() for x in leaves)


def wrong(want: Any, got: Any) -> str:
    for a, b in zip(pytree.tree_leaves(want), pytree.tree_leaves(got), strict=True):
        if a.dtype != b.dtype or a.shape != b.shape or a.stride() != b.stride():
            return f"{b.dtype} {tuple(b.shape)} {b.stride()}"
        x, y = a.double(), b.double()
        scale = x.abs().max().item() if x.numel() else 0.0
        error = (x - y).abs().max().item() if x.numel() else 0.0
        loose = 2e-2 if a.dtype in (torch.bfloat16, torch.float16) else 1e-3
        if not error <= loose * max(scale, 1e-6):
            return f"off by {error:.3g} of {scale:.3g}"
    return ""


def bench(case: Case, rate: float, flush: Tensor, tune: str, spin: int) -> dict[str, Any]:
    sets = [inputs(case) for _ in range(2)]
    calls = {"eager": callable_of(case, case.run)}
    row: dict[str, Any] = {"family": case.family, "name": case.name}
    want = calls["eager"](*[x.clone() if "place" in case.name else x for x in sets[0]])
    row["bytes"] = moved(sets[0], want) + (moved((), want) if case.grad else 0)
    for backend in BACKENDS:
        start = time.perf_counter()
        signal.alarm(60)
        try:
            call = compiled(case, backend, tune=tune)
            got = call(*[x.clone() if "place" in case.name else x for x in sets[0]])
            torch.cuda.synchronize()
            if "dropout" not in case.name and (text := wrong(want, got)):
                row.setdefault("wrong", {})[backend] = text
            calls[backend] = call
        except Exception as error:  # a compiler's failure is a row
            row.setdefault("failed", {})[backend] = str(error).splitlines()[0][:200]
        signal.alarm(0)
        row[f"{backend}_s"] = time.perf_counter() - start
    row |= tuned()
    del want
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(REPEATS):
        for name, call in calls.items():
            if repeat > 2 and min(times[name]) * repeat > LONG:
                continue  # the median of few calls tells as much of one that takes so long
            args = sets[repeat % 2]
            times[name].append(event_us(lambda c=call, a=args: c(*a), flush, spin))
    row |= {name: statistics.median(values) for name, values in times.items()}
    row["fraction"] = row["bytes"] / rate / row.get("compile_cli", math.inf)
    return row


def warm(part: int, processes: int, cases: list[Case], tune: str) -> None:
    """Compiles a part of the cases, so that caches are warm: compiling is not what is measured. All
    candidates are compiled, and none is measured, while other processes use the GPU; what is
    measured of matmuls and convolutions all the same is forgotten when the process ends."""

    def refuse(*args: Any, **more: Any) -> tuning.Tuned:
        raise tuning.errors.TuningError("other processes use the GPU")

    def forget(store: gemm_templates.Store, key: str, record: dict[str, Any]) -> None:
        store._memory[key] = record

    tuning.autotune = refuse
    gemm_templates.Store.put = forget  # type: ignore[method-assign]
    tune = "off" if tune == "off" else "max"
    for case in cases[part::processes]:
        for backend in BACKENDS:
            signal.alarm(60)
            try:
                compiled(case, backend, tune=tune, jobs=2)(*inputs(case))
            except Exception as error:
                print(backend, case.name, str(error).splitlines()[0][:100])
            signal.alarm(0)


def chosen(cases: str, only: list[str]) -> list[Case]:
    listed: list[Case] = importlib.import_module(cases).CASES
    return [c for c in listed if not only or any(o in (c.family, c.name) for o in only)]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default="kernel_cases", help="a module beside this one")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--tune", choices=("auto", "off", "max"), default="off")
    parser.add_argument("--whole", action="store_true", help="the host's work is part of a time")
    parser.add_argument("--warm", type=int)
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, too_long)
    keep_graphs()
    cases = chosen(options.cases, options.only)
    if options.warm is not None:
        warm(options.warm, options.processes, cases, options.tune)
        return 0
    command = [sys.executable, __file__, "--processes", str(options.processes), "--tune",
               options.tune, "--cases", options.cases, "--only", *options.only]  # fmt: skip
    parts = [subprocess.Popen([*command, "--warm", str(n)]) for n in range(options.processes)]
    for part in parts:
        part.wait()
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    rate = copy_rate(flush)
    print(f"copy {rate / 1e6:.2f} TB/s, torch {torch.__version__}")
    rows = []
    print(f"{'':38}{'eager':>9}{'Inductor':>9}{'ours':>9}{'/best':>7}{'of copy':>8}")
    for case in cases:
        row = bench(case, rate, flush, options.tune, 0 if options.whole else SPIN)
        torch.cuda.empty_cache()
        rows.append(row)
        ours, best = row.get("compile_cli"), min(row["eager"], row.get("inductor", math.inf))
        text = "".join(f"{row.get(n, math.nan):9.1f}" for n in ("eager", *BACKENDS))
        ratio = best / ours if ours else math.nan
        note = " ".join(f"{k} {row[k]}" for k in ("wrong", "failed") if k in row)
        print(f"{case.family + ': ' + case.name:38}{text}{ratio:7.2f}{row['fraction']:8.2f} {note}",
              flush=True)  # fmt: skip
        if "guess" in row:
            print(f"    guess / fastest {row['guess']:.3f}", *row["schedules"], sep="\n      ")
        if options.out:
            options.out.write_text(json.dumps({"copy": rate, "rows": rows}, indent=1))
    both = [r for r in rows if "compile_cli" in r and "inductor" in r]
    for peer in ("eager", "inductor"):
        ratios = [r[peer] / r["compile_cli"] for r in both]
        print(f"{peer} / ours: {statistics.geometric_mean(ratios):.3f} over {len(ratios)} rows,"
              f" {sum(x < 0.97 for x in ratios)} below 0.97")  # fmt: skip
    guesses = [r["guess"] for r in rows if "guess" in r]
    if guesses:
        near = sum(g <= NEAR for g in guesses)
        print(f"guessed schedules within {NEAR - 1:.0%} of the fastest: {near} of {len(guesses)} "
              f"rows ({near / len(guesses):.0%})")  # fmt: skip
    print(f"of the copy: {statistics.geometric_mean(r['fraction'] for r in both):.3f}")
    return int(any("failed" in r or "wrong" in r for r in rows))


if __name__ == "__main__":
    sys.exit(main())
