"""Our matmuls against cuBLAS (and Inductor), group by group: tables, and a JSON file.

    python benchmarks/gemm.py                         # everything, beside eager
    python benchmarks/gemm.py --quick                 # a few shapes of each group
    python benchmarks/gemm.py --group skinny,split_k  # some groups
    python benchmarks/gemm.py --inductor plain,fused  # max-autotune, too, for these groups
    python benchmarks/gemm.py --inductor split_k/4    # for each fourth case of a group
    python benchmarks/gemm.py --json gemm.json
    python benchmarks/gemm.py --inductor all --peer-cache peer --compile-only --budget 500
    python benchmarks/gemm.py --inductor all --peer-cache peer    # then takes no time to compile

"ours" is what the public function runs: the template that `choose` took, or the vendor's call.
Every time is a median over bursts of calls, the candidates in turns. Each call has other inputs,
which rotate through four times the L2 cache; a burst is timed from event to event, with the host
ahead, and divided by its calls (`--calls 1`: each call between events of its own). Eager is torch's
function, and kernels of its own for what follows. A ratio is the better of eager and Inductor over
ours; a group's is the geometric mean. Inductor's subprocesses are off, and a shape whose
compilation takes longer than `--cap` seconds ends Inductor's part of that group. `--tune-ms 20`
has Inductor run each of its candidates for 20 ms in place of its 100: a fifth of the time. What it
compiles is kept in `--peer-cache`, in as many runs with `--compile-only` as that takes (about 17
minutes for all), so that one run has every case beside it.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from gemm_cases import GROUPS, Case, Group

import gemm_templates as g
from gemm_templates.ops.run import is_odd
from triton_rt import Cache, CompilePool

ROUNDS = 11
MOST_SETS, MOST_CALLS = 800, 20
BURST = 200e-6  # s, what a burst takes at least


@dataclass
class Row:
    group: str
    case: str
    ours_us: float
    eager_us: float
    inductor_us: float | None
    template_us: float | None
    chosen: str
    best_template: str
    floor_us: float
    bound: str
    tflops: float
    choose_s: float
    inductor_s: float | None
    calls: int
    times_us: dict[str, float] = field(default_factory=dict)
    predicted_us: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return min(x for x in (self.eager_us, self.inductor_us) if x) / self.ours_us


def clock(runs: list[Callable[[int], object]], sets: int, calls: int) -> list[float]:
    """Median seconds of a call of each: bursts of `calls` in turns, over rotating inputs. The GPU
    waits until the host has queued a burst."""
    for run in runs:
        for i in range(sets):
            run(i)
    torch.cuda.synchronize()
    host = 0.0
    for run in runs:
        began = time.perf_counter()
        for i in range(calls):
            run(i % sets)
        host = max(host, time.perf_counter() - began)
        torch.cuda.synchronize()
    cycles = int((1.5 * host + 60e-6) * 2.2e9)
    place = calls
    seconds: list[list[float]] = [[] for _ in runs]
    for number in range(ROUNDS):
        events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in runs]
        for turn in range(len(runs)):
            i = (number + turn) % len(runs)
            torch.cuda._sleep(cycles)
            events[i][0].record()
            for _ in range(calls):
                runs[i](place % sets)
                place += 1
            events[i][1].record()
        torch.cuda.synchronize()
        for times, (start, end) in zip(seconds, events, strict=True):
            times.append(start.elapsed_time(end) * 1e-3 / calls)
    return [median(times) for times in seconds]


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.info = g.device_info("cuda")
        # One core is left to the process that measures.
        self.pool = CompilePool(max(1, (os.cpu_count() or 2) - 1))
        self.cache = Cache(folder / "kernels")
        self.store = g.Store(folder / "choices")
        self.build = functools.partial(g.bind, pool=self.pool, cache=self.cache)

    def prefetch(self, cases: list[Case]) -> list[Any]:
        problems = [case.task(*case.make("meta")).problem for case in cases]
        known = [p for p in problems if p is not None]
        return g.prefetch(known, pool=self.pool, cache=self.cache, store=self.store)

    def row(self, group: str, case: Case, inductor: bool) -> Row:
        size = sum(t.numel() * t.element_size() for t in case.make("meta"))
        sets = min(max(3, math.ceil(4 * self.info.l2_bytes / size)), MOST_SETS)
        calls = self.options.calls or min(max(round(BURST / max(case.floor)), 1), MOST_CALLS)
        inputs = [case.make("cuda") for _ in range(sets)]
        tasks = [case.task(*tensors) for tensors in inputs]
        task = tasks[0]
        began = time.perf_counter()
        choice = g.choose(
            task.problem, task.examples or task.inputs, task.extern, store=self.store,
            build=self.build, force=True,
        )  # fmt: skip
        choose_s = time.perf_counter() - began
        times = dict(choice.times)
        times.pop("extern", None)
        best = min(times, key=lambda label: times[label]) if times else ""
        configs = {c.label: c.config for c in choice.candidates}

        def ours(label: str) -> Callable[[int], object]:
            config = configs[label]
            if case.public and is_odd(task.problem):
                public = case.public
                return lambda i: public(*inputs[i])
            if config is None:
                return lambda i: tasks[i].extern(tasks[i].inputs)
            bound = self.build(task.problem, config)
            return lambda i: bound(tasks[i].inputs)

        taken = choice.from_python()
        chosen = "extern" if taken is None else str(taken)
        runs = [ours(chosen), lambda i: case.eager(*inputs[i])]
        if best and best != chosen:
            runs.append(ours(best))
        inductor_s = None
        if inductor:
            compiled, inductor_s = self.inductor(case, inputs[0])
            runs.append(lambda i: compiled(*inputs[i]))
        seconds = clock(runs, sets, calls)
        template = seconds[0] if best == chosen else seconds[2] if best else None
        flops, moved = case.floor
        return Row(
            group, case.name, seconds[0] * 1e6, seconds[1] * 1e6,
            seconds[-1] * 1e6 if inductor else None, template and template * 1e6, chosen, best,
            max(case.floor) * 1e6, "flops" if flops >= moved else "bytes",
            task.problem.flops / seconds[0] / 1e12, choose_s, inductor_s, calls,
            {label: t * 1e6 for label, t in choice.times},
            {c.label: c.predicted * 1e6 for c in choice.candidates}, dict(choice.failures),
        )  # fmt: skip

    def compile_peer(self, group: str, case: Case) -> float:
        """Seconds until Inductor has compiled the case, and a line that says so."""
        seconds = self.inductor(case, case.make("cuda"))[1]
        torch.cuda.empty_cache()
        print(f"{group:<10}{case.name:<30}{seconds:>7.1f} s", flush=True)
        return seconds

    def inductor(self, case: Case, tensors: tuple[Any, ...]) -> tuple[Callable[..., Any], float]:
        from torch._inductor import config

        config.inductor_default_autotune_rep = self.options.tune_ms
        config.inductor_default_autotune_warmup = max(1, self.options.tune_ms // 4)
        torch._dynamo.reset()  # cases share code: each would count as a recompilation
        compiled = torch.compile(case.eager, mode="max-autotune-no-cudagraphs", dynamic=False)
        began = time.perf_counter()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled(*tensors)
        torch.cuda.synchronize()
        return compiled, time.perf_counter() - began


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def summary(group: Group, found: list[Row], seconds: float) -> dict[str, Any]:
    ratio, worst = mean([r.ratio for r in found]), min(r.ratio for r in found)
    alone = [min(x for x in (r.eager_us, r.inductor_us) if x) / r.template_us
             for r in found if r.template_us]  # fmt: skip
    # To two decimals: where the vendor's call is taken, both sides are the same call.
    met = (group.bar is None or round(ratio, 2) >= group.bar) and round(worst, 2) >= group.least
    return {
        "group": group.name, "cases": len(found), "ratio": ratio, "worst": worst, "bar": group.bar,
        "least": group.least, "met": met, "template_alone": mean(alone),
        "worst_alone": min(alone, default=float("nan")), "seconds": seconds,
        "against": "eager and Inductor" if any(r.inductor_us for r in found) else "eager",
    }  # fmt: skip


def printed(row: Row) -> str:
    inductor = f"{row.inductor_us:.1f}" if row.inductor_us else "-"
    alone = f"{row.template_us:.1f}" if row.template_us else "-"
    return (
        f"{row.case:<30}{row.floor_us:>8.1f}{row.ours_us:>9.1f}{row.eager_us:>9.1f}{inductor:>10}"
        f"{row.ratio:>7.2f}{alone:>10}{row.tflops:>8.0f}{row.choose_s:>7.2f}  {row.chosen}"
    )


def chosen_groups(names: str) -> Iterator[Group]:
    known = {group.name: group for group in GROUPS}
    for name in names.split(",") if names and names != "all" else known:
        if name not in known:
            sys.exit(f"--group {name}: expected some of {','.join(known)}")
        yield known[name]


def every_of(names: str) -> dict[str, int]:
    """`plain,split_k/4` -> {"plain": 1, "split_k": 4}; `all`: each case of each group."""
    parts = [name.partition("/") for name in names.split(",") if name]
    every = {name: int(count or 1) for name, _, count in parts}
    if "all" in every:
        return {group.name: 1 for group in GROUPS}
    return (
        {group.name: every[group.name] for group in chosen_groups(",".join(every))} if every else {}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("gemm.json"))
    parser.add_argument("--group", default="", help="names with commas between; default: all")
    parser.add_argument("--quick", action="store_true", help="a few shapes of each group")
    parser.add_argument("--inductor", default="", help="groups to compare with Inductor, or 'all'")
    parser.add_argument("--cap", type=float, default=60.0, help="seconds of Inductor for a shape")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds of Inductor altogether")
    parser.add_argument("--tune-ms", type=int, default=100, help="Inductor's, for a candidate")
    parser.add_argument("--peer-cache", type=Path, help="where what Inductor compiles is kept")
    parser.add_argument("--compile-only", action="store_true", help="Inductor's, and no more")
    parser.add_argument("--calls", type=int, default=0, help="of a burst; 0: by the floor")
    parser.add_argument("--cache", type=Path, help="where kernels are kept; default: nowhere")
    options = parser.parse_args()
    peers = every_of(options.inductor)
    os.environ.setdefault("TORCHINDUCTOR_AUTOTUNE_IN_SUBPROC", "0")
    if options.peer_cache:
        # Graphs, with the code of what was chosen; not the kernels of all candidates beside it.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(options.peer_cache.resolve())
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TRITON_CACHE_DIR", str(Path(folder) / "triton"))
        (compile_only if options.compile_only else run)(options, peers, Path(folder))


def compile_only(options: argparse.Namespace, peers: dict[str, int], folder: Path) -> None:
    bench = Bench(options, folder)
    spent, left, failed = 0.0, 0, 0
    for group in chosen_groups(",".join(peers)):
        for case in group.cases(options.quick)[:: peers[group.name]]:
            if spent >= options.budget:
                left += 1
                continue
            try:
                spent += bench.compile_peer(group.name, case)
            except Exception as error:  # of one case; its line says so
                failed += 1
                print(f"ERROR {group.name} {case.name}: {type(error).__name__}: {error}")
    bench.pool.close()
    print(f"{spent:.0f} s of Inductor; {left} cases left, {failed} failed")
    sys.exit(1 if failed else 0)


def run(options: argparse.Namespace, peers: dict[str, int], folder: Path) -> None:
    bench = Bench(options, folder)
    if options.cache:
        bench.cache = Cache(options.cache)
        bench.build = functools.partial(g.bind, pool=bench.pool, cache=bench.cache)
    print(f"{bench.info.name}, torch {torch.__version__}, cuda {torch.version.cuda}", flush=True)
    errors: list[str] = []
    plans = []
    for group in chosen_groups(options.group):  # all compile from now on, side by side
        cases = group.cases(options.quick)
        ready: list[Any] = []
        for case in cases:
            try:
                ready += bench.prefetch([case])
            except Exception as error:  # of one case; listed at the end
                errors.append(
                    f"{group.name} {case.name}: prefetch: {type(error).__name__}: {error}"
                )
        plans.append((group, cases, ready))
    print(f"{sum(len(ready) for *_, ready in plans)} kernels to compile", flush=True)
    rows_found: list[Row] = []
    summaries = []
    spent = 0.0
    for group, cases, ready in plans:
        began = time.perf_counter()
        wait(ready)
        compiled = time.perf_counter() - began
        print(f"\n{group.name}: waited {compiled:.1f} s for {len(ready)} kernels\n"
              f"{'case':<30}{'floor':>8}{'ours us':>9}{'eager':>9}{'inductor':>10}{'ratio':>7}"
              f"{'template':>10}{'TFLOP/s':>8}{'choose':>7}  chosen", flush=True)  # fmt: skip
        found = []
        inductor = group.name in peers
        for number, case in enumerate(cases):
            peer = inductor and number % peers[group.name] == 0 and spent < options.budget
            try:
                row = bench.row(group.name, case, peer)
            except Exception as error:  # of one case; listed at the end
                errors.append(f"{group.name} {case.name}: {type(error).__name__}: {error}")
                traceback.print_exc()
                continue
            found.append(row)
            print(printed(row), flush=True)
            spent += row.inductor_s or 0.0
            inductor &= (row.inductor_s or 0.0) <= options.cap
            torch.cuda.empty_cache()
        if found:
            summaries.append(summary(group, found, time.perf_counter() - began))
        else:
            errors.append(f"{group.name}: nothing was measured")
        rows_found += found
    bench.pool.close()
    print(f"\n{'group':<10}{'cases':>6}{'ratio':>7}{'bar':>6}{'worst':>7}{'least':>7}  verdict"
          f"{'alone':>8}{'worst':>7}{'s':>7}  against")  # fmt: skip
    for s in summaries:
        bar = f"{s['bar']:.2f}" if s["bar"] else "-"
        least = f"{s['least']:.2f}" if s["least"] else "-"
        print(f"{s['group']:<10}{s['cases']:>6}{s['ratio']:>7.3f}{bar:>6}{s['worst']:>7.3f}"
              f"{least:>7}  {'ok' if s['met'] else 'short':<7}{s['template_alone']:>8.3f}"
              f"{s['worst_alone']:>7.3f}{s['seconds']:>7.1f}  {s['against']}")  # fmt: skip
    print("alone: our best template, the vendor's call excluded; on the squares the bar is 0.92")
    for error in errors:
        print(f"ERROR {error}")
    result = {
        "device": bench.info.name, "torch": torch.__version__, "groups": summaries,
        "rows": [{**vars(r), "ratio": r.ratio} for r in rows_found], "errors": errors,
    }  # fmt: skip
    options.json.write_text(json.dumps(result, indent=1))
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
