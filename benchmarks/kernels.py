"""Memory-bound work through `torch.compile`: eager, Inductor and compile_cli in one run.

    python benchmarks/kernels.py [--only softmax norm] [--out kernels.json] [--processes 14]
    python benchmarks/kernels.py --cases odd_cases block_cases [--seconds 130] [--part 0/2]
    python benchmarks/kernels.py --cases kernel_cases odd_cases --guesses

Processes compile the cases, which are shuffled, and take turns on the GPU: what is measured is
measured alone. Times are medians between CUDA events of calls whose host work is hidden behind a
spinning kernel, after L2 was overwritten; the three interleaved, inputs changing. With `--whole`
they are those of whole calls on an idle GPU. The bytes are those of inputs and results, each moved
once (`bytes_of`), and the fraction is of what a copy in the same run moves; its mean is printed for
the rows that memory bounds, too (`IN_ORDER`). A case that fails or is wrong is a row that says so,
and the exit code is 1.

`--tune` is our option of that name, off unless asked for. What was measured of the schedules of a
row's kernels is printed below it, with the time of the guesses over that of the fastest, and at the
end the share of rows where that is at most 1.05. With `--guesses` nothing else is measured, and
matmuls are the vendor's.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config
import torch.utils._pytree as pytree
from kernel_cases import Case
from torch import Tensor

import planner.schedules.tuning as schedules
import tuning
from compile_cli import pipeline
from compile_cli.hosts import Prepared
from compile_cli.result import CompiledGraph
from planner.schedules.chosen import Chosen

BACKENDS = ("inductor", "compile_cli")
REPEATS = 11
NEAR = 1.05  # a guess of schedules within this factor of the fastest is as good
# Rows that memory bounds: families that go over all elements in order, without random numbers,
# whose arithmetic is as long. What is scanned, windowed or picked by data waits for more.
IN_ORDER = ("reduce", "softmax", "norm", "pointwise")
DRAWN = ("dropout", "rand", "bernoulli")
LONG = 300_000  # microseconds that the calls of one row and backend may take
SPIN = 4_000_000  # cycles: longer than the host takes for a call with its gradient


def too_long(*_: Any) -> None:
    raise TimeoutError("did not compile in 90 seconds")


def callable_of(case: Case, run: Callable[..., Any]) -> Callable[..., Any]:
    if not case.grad:
        return run

    def both(*args: Any) -> tuple[Tensor, ...]:
        leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
        out = run(*args)
        seed = torch.ones_like(out) if out.dim() == 0 else seeds(out)
        return torch.autograd.grad(out, leaves, seed)

    return both


_SEEDS: dict[Any, dict[torch.dtype, Tensor]] = {}


def seeds(like: Tensor) -> Tensor:
    """Gradients of a result, the same ones in each type."""
    if like.shape not in _SEEDS:
        _SEEDS.clear()
        _SEEDS[like.shape] = {like.dtype: torch.randn_like(like)}
    made = _SEEDS[like.shape]
    if like.dtype not in made:
        made[like.dtype] = next(iter(made.values())).to(like.dtype)
    return made[like.dtype]


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
    """Where the spin was over before the host was done, which other processes may have held up, a
    longer one tries again."""
    for longer in (1, 16) if spin else (1,):
        flush.zero_()
        torch.cuda._sleep(spin * longer) if spin else torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        late = begin.query()
        end.record()
        end.synchronize()
        if not late:
            break
    return float(begin.elapsed_time(end)) * 1e3


def copy_rate(flush: Tensor) -> float:
    """Bytes a microsecond that a copy reads and writes."""
    a, b = (torch.empty(1 << 30, dtype=torch.int8, device="cuda") for _ in range(2))
    return (2 << 30) / statistics.median(event_us(lambda: a.copy_(b), flush) for _ in range(9))


def moved(args: Any, out: Any) -> int:
    leaves = [x for x in pytree.tree_leaves((args, out)) if isinstance(x, Tensor)]
    return sum(x.numel() * x.element_size() for x in leaves)


def bytes_of(case: Case, args: Any, want: Any) -> int:
    """Of inputs and results. With gradients those of a result and of its gradient, too, and what
    the backward pass reads of the forward one: what eager keeps, at most the inputs once more."""
    if not case.grad:
        return moved(args, want)
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = case.run(*args)
    again = min(sum(kept.values()), moved(args, ()))
    return moved(args, want) + 2 * moved((), out) + again


def wrong(case: Case, args: tuple[Any, ...], want: Any, got: Any) -> str:
    """What is wrong with results, if anything: nothing is with another draw of random numbers, nor
    with one that is about as near to it in float64 as eager's is."""
    for a, b in zip(pytree.tree_leaves(want), pytree.tree_leaves(got), strict=True):
        if a.dtype != b.dtype or a.shape != b.shape or a.stride() != b.stride():
            return f"{b.dtype} {tuple(b.shape)} {b.stride()}"
    # cuDNN takes TF32, as torch lets it, where it has such a kernel: of one layout, not of another.
    tf32 = case.family in ("conv", "up")
    allowed = [4 if tf32 and x.dtype is torch.float32 else 1 for x in pytree.tree_leaves(got)]
    errors, eager = off(want, got), callable_of(case, case.run)
    bad = [n for n, error in enumerate(errors) if not error <= allowed[n]]
    if bad:
        again = off(want, eager(*given(case, args)))
        bad = [n for n in bad if again[n] <= 1]
    with contextlib.suppress(RuntimeError):  # no such operator, or no memory
        if bad:
            exact = eager(*given(case, tuple(map(_wide, args))))
            ours, theirs = off(exact, got), off(exact, want)
            limits = [max(1, 3 * x) if math.isfinite(x) else 1 for x in theirs]
            bad = [n for n in bad if not ours[n] <= limits[n]]
    return f"off by {max(errors[n] for n in bad):.3g} times the tolerance" if bad else ""


def off(want: Any, got: Any) -> list[float]:
    """The largest error of each result, in parts of what is allowed beside its largest number."""
    errors = []
    for a, b in zip(pytree.tree_leaves(want), pytree.tree_leaves(got), strict=True):
        if a.is_complex():
            a, b = (torch.view_as_real(t.resolve_conj()) for t in (a, b))
        x, y = a.double(), b.double()
        error = (x - y).where((x != y) & ~(x.isnan() & y.isnan()), 0).abs()
        scale = x.where(x.isfinite(), 0).abs()
        loose = 2e-2 if b.element_size() == 2 else 1e-3
        some = b.numel() > 0
        errors.append((error.max() / loose / scale.max().clamp(min=1e-6)).item() if some else 0.0)
    return errors


def _wide(x: Any) -> Any:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    return x.detach().double().requires_grad_(x.requires_grad)


def bench(case: Case, rate: float, turn: Turn, options: argparse.Namespace) -> dict[str, Any]:
    with turn:
        sets = [inputs(case) for _ in range(1 if options.guesses else 2)]
    calls = {"eager": callable_of(case, case.run)}
    row: dict[str, Any] = {"family": case.family, "name": case.name}
    want = None
    if not options.guesses:
        with turn:
            want = calls["eager"](*given(case, sets[0]))
            row["bytes"] = bytes_of(case, given(case, sets[0]), want)
    for backend in BACKENDS[options.guesses :]:
        start = time.perf_counter()
        signal.alarm(90)
        try:
            call = compiled(case, backend, tune=options.tune, jobs=1, **options.ours)
            got = call(*given(case, sets[0]))
            turn.begin()  # what compares them takes the GPU longer than what they are
            if want is not None and (text := wrong(case, sets[0], want, got)):
                row.setdefault("wrong", {})[backend] = text
            calls[backend] = call
        except Exception as error:  # a compiler's failure is a row
            text = (str(error).splitlines() or [repr(error)])[0]
            row.setdefault("failed", {})[backend] = text[:200]
        signal.alarm(0)
        turn.end()
        row[f"{backend}_s"] = time.perf_counter() - start
    row |= tuned()
    del want
    if options.guesses:
        return row
    times: dict[str, list[float]] = {name: [] for name in calls}
    with turn:
        flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
        for repeat in range(REPEATS):
            for name, call in calls.items():
                if repeat > 2 and min(times[name]) * repeat > LONG:
                    continue  # the median of few calls tells as much of one that takes so long
                args = sets[repeat % 2]
                spin = 0 if options.whole else SPIN
                times[name].append(event_us(lambda c=call, a=args: c(*a), flush, spin))
        del flush
    row |= {name: statistics.median(values) for name, values in times.items()}
    row["fraction"] = row["bytes"] / rate / row.get("compile_cli", math.inf)
    return row


def given(case: Case, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What may be written to is a copy."""
    return tuple(x.clone() for x in args) if "place" in case.name else args


class Turn:
    """One process at a time has the GPU: `with turn`, or from `begin` to `end`."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w")
        self.held = False

    def begin(self) -> None:
        if not self.held:
            fcntl.flock(self.file, fcntl.LOCK_EX)
            self.held = True

    def end(self) -> None:
        if self.held:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            self.held = False
            fcntl.flock(self.file, fcntl.LOCK_UN)

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()


def measure_in_turns(turn: Turn, whole: bool) -> None:
    """What a compilation times, configs of Inductor's or schedules of ours, has the GPU for itself,
    its arguments included; so have first calls. whole: the host's work is measured, too, which
    nothing is added to."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    def begins(first: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            turn.begin()
            return first(*args, **more)

        return run

    def ends(last: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            with turn:
                return last(*args, **more)

        return run

    def in_turn(*args: Any, **more: Any) -> CompiledGraph:
        graph = compile_graph(*args, **more)  # which may write to what it alone holds
        return replace(graph, run=Prepared(graph.run, lambda _: turn.begin()))

    if not whole:
        compile_graph, pipeline.compile_graph = pipeline.compile_graph, in_turn
        CachingAutotuner.run = begins(CachingAutotuner.run)
    schedules.arguments = begins(schedules.arguments)  # type: ignore[attr-defined]  # a module's
    tuning.autotune = ends(tuning.autotune)
    CachingAutotuner.autotune_to_one_config = ends(CachingAutotuner.autotune_to_one_config)


def work(cases: list[Case], folder: Path, rate: float, options: argparse.Namespace) -> None:
    """Measures cases that no other process has begun with, as long as there is time."""
    signal.signal(signal.SIGALRM, too_long)
    keep_graphs()
    turn = Turn(folder / "turn")
    measure_in_turns(turn, options.whole)
    for number, case in enumerate(cases):
        if time.time() > options.end:
            return
        try:
            (folder / f"case{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        try:
            row = bench(case, rate, turn, options)
        except Exception as error:  # not even eager runs it
            row = {"family": case.family, "name": case.name, "failed": {"eager": repr(error)[:200]}}
            turn.end()
        with (folder / "rows").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(line(row), flush=True)


def line(row: dict[str, Any]) -> str:
    text = "".join(f"{row.get(n, math.nan):9.1f}" for n in ("eager", *BACKENDS))
    ours, peers = row.get("compile_cli"), [row[n] for n in ("eager", "inductor") if n in row]
    ratio = min(peers) / ours if ours and peers else math.nan
    notes = [f"{k} {row[k]}" for k in ("wrong", "failed") if k in row]
    name, of_copy = f"{row['family']}: {row['name']}", row.get("fraction", math.nan)
    text = f"{name:38}{text}{ratio:7.2f}{of_copy:8.2f} "
    if "guess" in row:
        notes += [f"\n    guess / fastest {row['guess']:.3f}", *row["schedules"]]
    return text + "\n      ".join(notes)


def chosen(cases: str, only: list[str]) -> list[Case]:
    listed: list[Case] = importlib.import_module(cases).CASES
    return [c for c in listed if not only or any(o in (c.family, c.name) for o in only)]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", nargs="+", default=["kernel_cases"], help="modules beside this")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--tune", choices=("auto", "off", "max"), default="off")
    parser.add_argument("--guesses", action="store_true", help="of schedules alone; tune is max")
    parser.add_argument("--whole", action="store_true", help="the host's work is part of a time")
    parser.add_argument("--seconds", type=float, default=3600, help="no case is begun afterwards")
    parser.add_argument("--part", default="0/1", help="which of several runs this one is")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.ours = {"gemm": "extern"} if options.guesses else {}
    options.tune = "max" if options.guesses else options.tune
    options.end = time.time() + options.seconds
    cases = [c for module in options.cases for c in chosen(module, options.only)]
    random.Random(0).shuffle(cases)
    part, parts = map(int, options.part.split("/"))
    cases = cases[part::parts]
    if options.work:
        work(cases, Path(options.work[0]), float(options.work[1]), options)
        return 0
    rate = copy_rate(torch.empty(256 << 20, dtype=torch.int8, device="cuda"))
    torch.cuda.empty_cache()
    print(f"copy {rate / 1e6:.2f} TB/s, torch {torch.__version__}")
    print(f"{'':38}{'eager':>9}{'Inductor':>9}{'ours':>9}{'/best':>7}{'of copy':>8}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [sys.executable, *sys.argv, "--work", folder, str(rate)]
        workers = [subprocess.Popen(command, env=environment) for _ in range(options.processes)]
        for worker in workers:
            worker.wait()
        lines = (Path(folder) / "rows").read_text().splitlines()
    rows = [json.loads(text) for text in lines]
    if options.out:
        options.out.write_text(json.dumps({"copy": rate, "rows": rows}, indent=1))
    both = [r for r in rows if "compile_cli" in r and "inductor" in r]
    for peer in ("eager", "inductor") if both else ():
        ratios = [r[peer] / r["compile_cli"] for r in both]
        print(f"{peer} / ours: {statistics.geometric_mean(ratios):.3f} over {len(ratios)} rows,"
              f" {sum(x < 0.97 for x in ratios)} below 0.97")  # fmt: skip
    bound = [r for r in both if r["family"] in IN_ORDER and not any(n in r["name"] for n in DRAWN)]
    for what, some in (("", both), (f", {', '.join(IN_ORDER)} without random numbers", bound)):
        if some:
            mean = statistics.geometric_mean(r["fraction"] for r in some)
            print(f"of the copy: {mean:.3f} over {len(some)} rows{what}")
    guesses = [r["guess"] for r in rows if "guess" in r]
    if guesses:
        near = sum(g <= NEAR for g in guesses)
        print(f"guessed schedules within {NEAR - 1:.0%} of the fastest: {near} of {len(guesses)} "
              f"rows ({near / len(guesses):.0%})")  # fmt: skip
    return int(any("failed" in r or "wrong" in r for r in rows))


if __name__ == "__main__":
    sys.exit(main())
