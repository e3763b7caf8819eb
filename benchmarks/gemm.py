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
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

import gemm_templates as g
from gemm_templates.chosen import Task
from gemm_templates.grouped import grouped_task
from gemm_templates.ops import linear, matmul
from gemm_templates.ops.padded import padded_mm
from gemm_templates.ops.run import Kind, is_odd
from gemm_templates.scaled import scaled_task
from triton_rt import Cache, CompilePool

ROUNDS = 11
MOST_SETS, MOST_CALLS = 800, 20
BURST = 200e-6  # s, what a burst takes at least
BF16, F16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn


@dataclass(frozen=True)
class Case:
    """task: the product of tensors that `make(device)` gives. eager: the same by torch.

    floor: least seconds by arithmetic and by bytes, each input read and each output written once.
    public: the function to call where it may pad the operands.
    """

    name: str
    make: Callable[[str], tuple[Any, ...]]
    task: Callable[..., Task]
    eager: Callable[..., torch.Tensor]
    floor: tuple[float, float]
    public: Callable[..., torch.Tensor] | None = None


@dataclass(frozen=True)
class Group:
    """bar: what the geometric mean of the ratios is to be; least: what each one is."""

    name: str
    bar: float | None
    cases: Callable[[bool], list[Case]]
    least: float = 0.0


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


def task_of(kind: Kind, options: tuple[Any, ...], *tensors: Any) -> Task:
    shape, dtype = kind.shape(tensors, options)
    out = torch.empty(shape, dtype=dtype, device=next(t.device for t in tensors if t is not None))
    problem = kind.problem(tensors, options, out)
    return Task(problem, kind.inputs(tensors, options, out),
                lambda t: kind.extern(tensors, options, None))  # fmt: skip


def floor_of(flops: float, moved: float, rate: float) -> tuple[float, float]:
    return flops / rate, moved / 4.8e12


def random(device: str, *shape: int, dtype: torch.dtype = BF16, scale: float = 1.0) -> torch.Tensor:
    if device == "meta":
        return torch.empty(shape, dtype=dtype, device="meta")
    made = torch.randn(shape, dtype=torch.float32, device=device) * scale
    return made.to(dtype)


def product(name: str, m: int, n: int, k: int, dtype: torch.dtype = BF16) -> Case:
    """`x @ w.T`, as a linear layer has it."""

    def make(device: str) -> tuple[Any, ...]:
        return random(device, m, k, dtype=dtype), random(device, n, k, dtype=dtype, scale=k**-0.5)

    return Case(
        name, make, lambda x, w: task_of(matmul.MM, (None,), x, w.t()),
        lambda x, w: torch.mm(x, w.t()),
        floor_of(2 * m * n * k, 2 * (m * k + k * n + m * n), 989e12),
        lambda x, w: g.mm(x, w.t()),
    )  # fmt: skip


def fused(end: str, m: int, n: int, k: int) -> Case:
    def make(device: str) -> tuple[Any, ...]:
        last = (m, n) if end == "residual" else (n,)
        return (
            random(device, m, k), random(device, n, k, scale=k**-0.5), random(device, *last)
        )  # fmt: skip

    def task(x: torch.Tensor, w: torch.Tensor, last: torch.Tensor) -> Task:
        if end == "residual":
            return task_of(matmul.ADDMM, (None, 1.0, 1.0), last, x, w.t())
        return task_of(linear.LINEAR_ACT, (end,), x, w, last)

    def eager(x: torch.Tensor, w: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        if end == "residual":
            return F.linear(x, w) + last
        return linear.TORCH_ACTIVATIONS[end](F.linear(x, w, last))

    more = m * n if end == "residual" else n
    moved = 2 * (m * k + k * n + m * n + more)
    return Case(f"{end} {m}x{n}x{k}", make, task, eager, floor_of(2 * m * n * k, moved, 989e12))


def gated(m: int, n: int, k: int) -> Case:
    def make(device: str) -> tuple[Any, ...]:
        return (
            random(device, m, k), random(device, n, k, scale=k**-0.5),
            random(device, n, k, scale=k**-0.5),
        )  # fmt: skip

    def eager(x: torch.Tensor, w1: torch.Tensor, w3: torch.Tensor) -> torch.Tensor:
        return F.silu(F.linear(x, w1)) * F.linear(x, w3)

    return Case(
        f"silu pair {m}x{n}x{k}", make,
        lambda x, w1, w3: task_of(linear.GATED_LINEAR, ("silu",), x, w1, w3), eager,
        floor_of(4 * m * n * k, 2 * (m * k + 2 * k * n + m * n), 989e12),
    )  # fmt: skip


def fp8(m: int, n: int, k: int) -> Case:
    """Row-wise scales, fast accumulation on both sides."""

    def make(device: str) -> tuple[Any, ...]:
        return (
            random(device, m, k, dtype=FP8), random(device, n, k, dtype=FP8),
            random(device, m, 1, dtype=torch.float32).abs(),
            random(device, 1, n, dtype=torch.float32).abs(),
        )  # fmt: skip

    def eager(a: Any, b: Any, sa: Any, sb: Any) -> torch.Tensor:
        return torch._scaled_mm(a, b.t(), sa, sb, out_dtype=BF16, use_fast_accum=True)

    return Case(
        f"row-wise {m}x{n}x{k}", make,
        lambda a, b, sa, sb: scaled_task(a, b.t(), sa, sb, use_fast_accum=True), eager,
        floor_of(2 * m * n * k, m * k + k * n + 2 * m * n + 4 * (m + n), 1979e12),
    )  # fmt: skip


def batched(batch: int, m: int, n: int, k: int) -> Case:
    def make(device: str) -> tuple[Any, ...]:
        return random(device, batch, m, k), random(device, batch, k, n)

    return Case(
        f"{batch}x{m}x{n}x{k}", make, lambda a, b: task_of(matmul.BMM, (None,), a, b), torch.bmm,
        floor_of(2 * batch * m * n * k, 2 * batch * (m * k + k * n + m * n), 989e12),
    )  # fmt: skip


def grouped(sizes: list[int], n: int, k: int) -> Case:
    total = sum(sizes)

    def make(device: str) -> tuple[Any, ...]:
        ends = torch.tensor(sizes).cumsum(0).to(torch.int32)
        weights = random(device, len(sizes), n, k, scale=k**-0.5)
        return random(device, total, k), weights, ends.to(device)

    name = f"{len(sizes)}x{min(sizes)}" + (f"..{max(sizes)}" if min(sizes) != max(sizes) else "")
    return Case(
        f"{name}x{n}x{k}", make,
        lambda a, w, offs: grouped_task(a, w.transpose(1, 2), offs),
        lambda a, w, offs: torch._grouped_mm(a, w.transpose(1, 2), offs=offs),
        floor_of(2 * total * n * k, 2 * (total * (n + k) + len(sizes) * n * k), 989e12),
    )  # fmt: skip


NK = ((4096, 4096), (12288, 4096), (4096, 14336), (32000, 4096))


def squares(quick: bool) -> list[Case]:
    sizes = (1024, 4096) if quick else (1024, 1536, 2048, 3072, 4096, 6144, 8192)
    return [product(f"{s} square", s, s, s) for s in sizes]


def odd(quick: bool) -> list[Case]:
    return [product(f"{s} square", s, s, s) for s in ((4097,) if quick else (4095, 4097))]


def odd_views(quick: bool) -> list[Case]:
    """The result a part of a wider matrix, as Inductor's is; else it is contiguous, as eager's."""

    def public(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return padded_mm(x, w.t(), torch.mm, contiguous=False)

    return [replace(case, public=public) for case in odd(quick)]


def rows(*counts: int) -> Callable[[bool], list[Case]]:
    def cases(quick: bool) -> list[Case]:
        shapes = [(m, n, k) for m in counts for n, k in (NK[:1] if quick else NK)]
        return [product(f"{m}x{n}x{k}", m, n, k) for m, n, k in shapes]

    return cases


def split_k(quick: bool) -> list[Case]:
    sizes = (16, 64) if quick else (16, 32, 48, 64)
    lengths = (8192, 32768) if quick else range(4096, 32768 + 1, 4096)
    found = [product(f"{s}x{s}x{k} f16", s, s, k, F16) for s in sizes for k in lengths]
    large = [(128, 128, 65536), (256, 256, 65536), (512, 512, 131072)]
    return found + [product(f"{m}x{n}x{k}", m, n, k) for m, n, k in large[: 1 if quick else 3]]


def endings(quick: bool) -> list[Case]:
    shapes = [(16384, 3072, 768), (16384, 768, 768), (4096, 4096, 4096), (8192, 4096, 1024)]
    return [fused(end, *s) for s in (shapes[:1] if quick else shapes)
            for end in ("gelu", "relu", "residual")]  # fmt: skip


def pairs(quick: bool) -> list[Case]:
    shapes = [(4096, 14336, 4096), (8192, 3072, 1024), (2048, 11008, 4096), (64, 14336, 4096)]
    return [gated(*s) for s in (shapes[1:2] if quick else shapes)]


def fp8_rows(quick: bool) -> list[Case]:
    shapes = [(4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096), (64, 4096, 4096),
              (64, 14336, 4096)]  # fmt: skip
    return [fp8(*s) for s in (shapes[:1] if quick else shapes)]


def batches(quick: bool) -> list[Case]:
    shapes = [(64, 1024, 1024, 64), (16, 2048, 2048, 512)]
    return [batched(*s) for s in (shapes[:1] if quick else shapes)]


def groups_of_rows(quick: bool) -> list[Case]:
    mixed = [512, 768, 1024, 1280, 1536, 1792, 2048, 640]
    sizes = [mixed, [512] * 8, [1024] * 8, [2048] * 8]
    return [grouped(s, 4096, 4096) for s in (sizes[:1] if quick else sizes)]


GROUPS = (
    Group("plain", 1.00, squares, 0.97),
    Group("skinny", 1.05, rows(1, 8, 64), 0.97),
    Group("rows", 1.00, rows(512, 2048), 0.97),
    Group("odd", 1.00, odd, 0.97),
    Group("odd_views", 1.00, odd_views, 0.97),
    Group("split_k", 1.50, split_k),
    Group("fused", 1.12, endings),
    Group("gated", 1.10, pairs),
    Group("fp8", 1.00, fp8_rows),
    Group("bmm", 1.05, batches),
    Group("grouped", None, groups_of_rows),
)


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
