"""Which schedule runs a kernel: what is measured, kept and looked up; what goes wrong meanwhile."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import compile_cli
import triton_rt
import tuning
from aten_lowering import lower_with_report
from compile_cli import pipeline
from compile_cli.errors import UnknownOption
from compile_cli.options import Options
from loop_ir import FuseOptions, Kernel, fuse, parse_kernel
from planner import select
from planner.kernels import Kernels, expected_variants, kernel_source
from planner.program import assemble
from planner.schedules import tuning as schedule_tuning
from planner.schedules.arguments import arguments, places, why_not
from planner.schedules.chosen import Chosen, label
from planner.schedules.proposals import candidate_schedules, default_schedule
from planner.schedules.tuning import ScheduleTuner
from triton_emit import emit
from triton_rt.errors import CompileFailed, OutOfSharedMemory, TritonRTError
from tuning.errors import CandidateCrashed, CorruptTuningRecord
from wrapper_ir import DefineKernel, If
from wrapper_ir.analysis import walk
from wrapper_ir.passes import DedupeKernels

ROWS, COLUMNS = 64, 4096  # two megabytes of f32, read and written

Times = Callable[[int, str], "float | TritonRTError"]


class Clock(tuning.TuningPool):
    """A bench whose times are made up: of the candidates by number and text."""

    def __init__(self, times: Times) -> None:
        super().__init__(("cpu",))
        self.times = times
        self.measured: list[list[str]] = []

    @contextmanager
    def session(self, task: Any, ready: Any) -> Iterator[Any]:
        self.measured.append([kernel.source.name for kernel, _ in task.candidates])
        self.args, self.options, self.candidates = task.args, task.options, task.candidates
        yield self

    def measure(self, indices: Sequence[int], runs: int) -> Iterator[tuple[int, Any]]:
        for i in indices:
            outcome = self.times(i, self.candidates[i][0].source.text)
            yield i, outcome if isinstance(outcome, TritonRTError) else [outcome] * runs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Times], Clock]:
    """`clock(times)`: from now on schedules are chosen as on a GPU, by these times (ms), in no
    time: however busy the machine is, some is left."""
    now = schedule_tuning.perf_counter()
    monkeypatch.setattr(schedule_tuning, "perf_counter", lambda: now)

    def start(times: Times) -> Clock:
        pool = Clock(times)

        def made(*args: Any) -> ScheduleTuner:
            return ScheduleTuner(*args, pool=pool)

        monkeypatch.setattr(pipeline, "ScheduleTuner", made)
        return pool

    return start


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def compiled(options: dict[str, Any], model: Any = softmax, *sizes: int, **more: Any) -> Any:
    args = (torch.randn(sizes or (ROWS, COLUMNS)),)
    return compile_cli.compile(model, args, options={**options, **more})


def only(model: Any) -> Chosen:
    (chosen,) = model.graph.schedules.values()
    return chosen


def third(i: int, text: str) -> float:
    return 1.0 if i == 2 else 2.0 + i


@pytest.mark.parametrize("emit", ["fx", pytest.param("cpp", marks=pytest.mark.slow)])
def test_on_the_arguments_of_the_first_call(
    options: dict[str, Any], clock: Any, fresh_dynamo: None, emit: str
) -> None:
    """A graph is compiled when it is called, and measured on what it is given, where that lies;
    places in memory that are computed from such data exist."""
    pool = clock(third)

    def picked(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x[i // 2], -1)

    def places() -> set[int]:
        return {a.data_ptr() for a in pool.args if isinstance(a, torch.Tensor)}

    x, i = torch.randn(ROWS, COLUMNS), torch.arange(ROWS) + 3
    options = {**options, "emit": emit, "tune_at": "first_call"}
    run = torch.compile(picked, backend="compile_cli", fullgraph=True, options=options)
    torch.testing.assert_close(run(x, i), picked(x, i))
    assert {x.data_ptr(), i.data_ptr()} <= places()
    x, i = torch.randn(2 * ROWS, COLUMNS), i + 1
    compile_cli.compile(picked, (x, i), options=options)
    assert {x.data_ptr(), i.data_ptr()} <= places()


def test_the_fastest_runs(options: dict[str, Any], clock: Any) -> None:
    pool = clock(third)
    model = compiled(options)
    chosen = only(model)
    assert chosen.how == "measured" and len(pool.measured) == 1
    assert chosen.schedule == chosen.times[2][0] != chosen.guess == chosen.times[0][0]
    assert chosen.lost == pytest.approx(1.0)
    (define,) = [op for op in model.graph.program.ops if isinstance(op, DefineKernel)]
    assert define.num_warps == chosen.schedule.num_warps
    x = torch.randn(ROWS, COLUMNS)
    torch.testing.assert_close(model(x), softmax(x))
    text = model.graph.explain()
    assert f"{label(chosen.schedule)} 1000.0 us (measured)" in text
    assert f"{label(chosen.guess)} 2000.0 us" in text


def test_a_kernel_seen_before_is_looked_up(options: dict[str, Any], clock: Any) -> None:
    clock(third)
    first = only(compiled(options))
    again = clock(lambda i, text: pytest.fail("measured"))
    chosen = only(compiled(options, lambda other: torch.softmax(other, -1)))
    assert chosen.how == "stored" and not again.measured
    assert (chosen.schedule, chosen.times) == (first.schedule, first.times)
    other = clock(third)
    compiled(options, softmax, ROWS * 2, COLUMNS)  # of other sizes it was not seen
    assert len(other.measured) == 1


def test_what_was_measured_of_more_serves_for_less(options: dict[str, Any], clock: Any) -> None:
    clock(third)
    most = only(compiled(options, tune="max"))
    clock(lambda i, text: pytest.fail("measured"))
    few = only(compiled(options))
    assert few.how == "stored" and few.times == most.times and len(few.times) > 4


def test_alike_kernels_are_measured_once(options: dict[str, Any], clock: Any) -> None:
    pool = clock(third)
    args = (torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS))
    model = compile_cli.compile(
        lambda x, y: (x.cumsum(-1), y.cumsum(-1)), args, options={**options, "fuse": False}
    )
    assert len(pool.measured) == 1 and len(model.graph.schedules) == 2
    assert len({id(chosen) for chosen in model.graph.schedules.values()}) == 1


@pytest.mark.parametrize(
    ("model", "size", "more", "why"),
    [
        (softmax, (8, 64), {}, None),
        (softmax, (), {"tune": "off"}, "guesses (tune=off)"),
        (softmax, (), {"emit": "hop"}, "guesses (Triton compiles what hop launches)"),
        (lambda x: x * 2, (), {}, "pointwise, in the order of memory"),
        (lambda x: x * 2, (), {"tune": "max"}, "measured"),
    ],
)
def test_what_is_measured(
    options: dict[str, Any], clock: Any, model: Any, size: Any, more: dict[str, Any], why: str
) -> None:
    pool = clock(third)
    graph = compiled(options, model, *size, **more).graph
    assert bool(pool.measured) == (why == "measured")
    assert why is None or why in graph.explain()
    assert (why is None) == ("schedules" not in graph.explain())


def test_nothing_is_measured_where_results_must_not_change(
    options: dict[str, Any], clock: Any
) -> None:
    pool = clock(third)
    torch.use_deterministic_algorithms(True)
    try:
        text = compiled(options).graph.explain()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not pool.measured and "deterministic" in text


def test_without_a_gpu_the_guess_is_taken(options: dict[str, Any]) -> None:
    graph = compiled(options, tune="max").graph
    assert not graph.schedules and "schedules" not in graph.explain()


def test_noise_is_no_gain(options: dict[str, Any], clock: Any) -> None:
    clock(lambda i, text: 1.0 if i else 1.015)
    chosen = only(compiled(options))
    assert chosen.schedule == chosen.guess and chosen.lost == pytest.approx(0.015)


# ---- faults


@pytest.mark.parametrize("error", [OutOfSharedMemory("too large"), CandidateCrashed("gone")])
def test_a_candidate_that_fails_is_out(
    options: dict[str, Any], clock: Any, error: TritonRTError
) -> None:
    clock(lambda i, text: error if i == 1 else 2.0 - 0.1 * i)
    chosen = only(compiled(options))
    ((schedule, why),) = chosen.failures
    assert schedule == chosen.times[1][0] and type(error).__name__ in why
    assert chosen.schedule not in (schedule, chosen.guess)
    assert f"{label(schedule)} failed: {type(error).__name__}" in str(chosen)


def test_where_all_fail_the_guess_is_taken(options: dict[str, Any], clock: Any) -> None:
    clock(lambda i, text: OutOfSharedMemory("too large"))
    chosen = only(compiled(options))
    assert chosen.schedule == chosen.guess and "OutOfSharedMemory" in chosen.why


def test_a_folder_that_cannot_be_written_to(
    options: dict[str, Any], clock: Any, own_cache: Path
) -> None:
    own_cache.mkdir(parents=True, exist_ok=True)
    (own_cache / "schedules").write_text("no folder")
    clock(third)
    with pytest.warns(UserWarning, match="tuning results .* not written") as said:
        chosen = only(compiled(options))
        compiled(options, softmax, ROWS * 2, COLUMNS)
    assert chosen.how == "measured" and chosen.schedule != chosen.guess
    assert len({str(w.message) for w in said if "tuning" in str(w.message)}) == 1


def test_a_damaged_record_is_measured_again(
    options: dict[str, Any], clock: Any, own_cache: Path
) -> None:
    clock(third)
    compiled(options)
    (record,) = (own_cache / "schedules").rglob("*.json")
    record.write_text(record.read_text().replace("1.0", "9.0", 1))
    pool = clock(third)
    with pytest.warns(CorruptTuningRecord):
        assert only(compiled(options)).how == "measured"
    assert len(pool.measured) == 1


# ---- compiling and time


def kernel_of(model: Any) -> Kernel:
    (kernel,) = [n for n in model.graph.fused.nodes if isinstance(n, Kernel)]
    return kernel


@pytest.fixture
def started(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[ScheduleTuner, Any, Kernel]:
    """A tuner that waits for the candidates of a kernel to be compiled, in no time."""
    kernel = kernel_of(compiled(options))
    settings = Options.from_mapping({**options, "jobs": 2})
    tuner = ScheduleTuner(settings, Kernels(settings), Clock(third))
    monkeypatch.setattr(schedule_tuning, "perf_counter", lambda now=tuner.began: now)
    tuner.start([(kernel, {})])
    (job,) = tuner._jobs.values()
    job.futures = {i: Future() for i in range(len(job.schedules))}
    return tuner, job, kernel


def done(future: Future[Any], error: Exception | None = None) -> None:
    future.set_exception(error) if error is not None else future.set_result(None)


def test_what_is_compiled_ahead_is_what_runs(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CUDA graph where there is no GPU: of each text and alignment that the program launches, one
    is compiled ahead, measured or not, that of the winner among them, and no text by two names."""
    asked: list[tuple[triton_rt.KernelSource, int | None]] = []

    def prefetch(self: triton_rt.LazyKernel, target: Any = None, alignment: Any = None) -> Any:
        asked.append((self.source, alignment))
        future: Future[Any] = Future()
        done(future)
        return future

    def autotune(candidates: Any, args: Any, **settings: Any) -> tuning.Tuned:
        measured.append((candidates, args))
        assert settings["options"].overwritten == ("out0",)
        return tuning.Tuned(2, (4.0, 3.0, 1.0, math.inf), ((3, "CompileFailed"),))

    def model(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [*(softmax(x) for x in tensors), *(t.sin() for t in tensors), tensors[0].exp()]

    measured: list[Any] = []
    monkeypatch.setattr(triton_rt.LazyKernel, "prefetch", prefetch)
    monkeypatch.setattr(tuning, "autotune", autotune)
    monkeypatch.setattr(
        schedule_tuning, "arguments", lambda kernel, args, hints, _: [kernel.axes[0].extent, *args]
    )
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a GPU")
    monkeypatch.setattr(ScheduleTuner, "_why_not", lambda self: "")
    monkeypatch.setattr(ScheduleTuner, "_has_room", lambda self, job: True)
    settings = Options.from_mapping({**options, "jobs": 64})
    rows = (ROWS, ROWS, 4 * ROWS)
    with FakeTensorMode():
        args = [torch.empty(n, COLUMNS, device="cuda") for n in rows]
        gm = make_fx(model)(*args)
    graph = fuse(lower_with_report(gm).graph, FuseOptions(horizontal=False, vertical=False))
    kernels = Kernels(settings)
    tuner = ScheduleTuner(settings, kernels)
    with kernels.compiling():
        tuner.start(select.measured_sizes(graph, settings, {}))
        tuner.measure()
    nameless = {
        (s.text.replace(f"def {s.name}(", "def k("), s.constants, s.num_warps, mask)
        for s, mask in asked
    }
    assert len(nameless) == len(set(asked))
    assert [args[0] for _, args in measured] == [4 * ROWS, ROWS]  # what moves most first
    for candidates, given in measured:
        assert {grid for _, grid in candidates} == {(int(given[0]), 1, 1)}
    plans = select.select(
        graph, settings, lambda *_: None, lambda *_: pytest.fail(), {}, tuner, tuner.emit
    )
    program = DedupeKernels().run(assemble(graph, plans))
    variants = [(kernel_source(define), mask) for define, mask in expected_variants(program)]
    assert len(variants) >= 3 and set(variants) <= set(asked)


@pytest.mark.parametrize("tune", ["auto", "max"])
def test_the_end_of_a_compilation_waits_for_no_candidate(
    options: dict[str, Any], started: Any, tune: str
) -> None:
    """They are jobs of a pool that nobody closes, which has half of the workers; all that `max`
    starts is measured."""
    kernel = started[2]
    settings = Options.from_mapping({**options, "tune": tune, "jobs": 6})
    kernels = Kernels(settings)
    tuner = ScheduleTuner(settings, kernels, Clock(third))
    with kernels.compiling():
        tuner.start([(kernel, {})])
        (job,) = tuner._jobs.values()
        guess, *others = (k.pool for k in job.kernels)
        assert guess is kernels.pool and others
        assert all((pool is guess) == (tune == "max") for pool in others)


def test_a_candidate_that_does_not_compile_is_out(started: Any) -> None:
    tuner, job, kernel = started
    for i, future in job.futures.items():
        done(future, CompileFailed("ptxas", "too many registers", "") if i == 1 else None)
    tuner.measure()
    (chosen,) = tuner.chosen.values()
    assert "CompileFailed" in dict(chosen.failures)[job.schedules[1]]
    assert chosen.schedule == job.schedules[3] == tuner(kernel, {})


def test_what_is_not_compiled_in_time_is_left_for_later(started: Any, own_cache: Path) -> None:
    tuner, job, kernel = started
    done(job.futures[0])
    tuner.began -= 1.0  # so that there is a share of it
    tuner.measure()
    (chosen,) = tuner.chosen.values()
    assert chosen.why == "no time left" and tuner(kernel, {}) == default_schedule(kernel, {})
    assert not list((own_cache / "schedules").rglob("*.json"))


@pytest.mark.parametrize("more", [{}, {"emit": "cpp"}])
def test_a_first_compilation_may_not_wait(
    started: Any, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    """A short one, and one that has a C++ compiler to wait for, do not even wait for the guess;
    candidates begin to compile at the end, for the next time."""
    tuner, job, kernel = started
    tuner.options = replace(tuner.options, **more)
    tuner.began -= 10.0 if more else 0.0
    job.futures = {0: Future()}
    begun: list[Future[Any]] = []
    monkeypatch.setattr(schedule_tuning, "prefetch", lambda *_: begun.append(Future()) or begun[-1])
    tuner.measure()
    (chosen,) = tuner.chosen.values()
    assert chosen.why == "no time left" and tuner(kernel, {}) == default_schedule(kernel, {})
    assert not begun
    tuner.finish()
    assert len(begun) == 1  # of two workers, half


def test_a_longer_one_waits_for_the_guess_alone(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner, job, _ = started
    tuner.began -= 2.0
    job.futures = {0: Future()}

    def prefetch(*_: Any) -> Future[Any]:
        assert job.futures[0].done()
        return Future()  # nobody ends it

    monkeypatch.setattr(schedule_tuning, "prefetch", prefetch)
    threading.Timer(0.05, done, (job.futures[0],)).start()
    tuner.measure()
    (chosen,) = tuner.chosen.values()
    assert chosen.why == "no time left" and len(job.futures) == 2


def test_measuring_ends_when_its_share_is_spent(
    options: dict[str, Any], clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock is a second later."""
    seconds = iter(range(1000))
    monkeypatch.setattr(schedule_tuning, "perf_counter", lambda: float(next(seconds)))
    monkeypatch.setattr(schedule_tuning, "_FLOOR", 1.5)

    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.cumprod(-1), y.cumsum(-1)

    args = (torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS))
    pool = clock(third)
    graph = compile_cli.compile(both, args, options={**options, "fuse": False}).graph
    assert len(pool.measured) == 1
    assert sorted(c.why for c in graph.schedules.values()) == ["", "no time left"]
    pool = clock(third)
    compile_cli.compile(both, args, options={**options, "fuse": False, "tune": "max"})
    assert len(pool.measured) == 2


# ---- arguments


def test_places_exist_and_torchs_random_numbers_stay(options: dict[str, Any]) -> None:
    weight, ids = torch.randn(50, 8), torch.randint(50, (6, 3))
    kernel = kernel_of(
        compile_cli.compile(lambda w, i: F.embedding(i, w), (weight, ids), options=options)
    )
    emitted = emit(kernel, default_schedule(kernel, {}))
    before = torch.get_rng_state()
    made = [a for a in arguments(kernel, (emitted,), {}) if isinstance(a, torch.Tensor)]
    assert torch.equal(torch.get_rng_state(), before)
    (places_,) = [t for t in made if t.dtype == torch.int64]
    assert places_.shape == ids.shape and places_.min() >= 0 and 10 < places_.max() < 50
    (table,) = [t for t in made if t.shape == weight.shape]
    assert table.std() > 0.5


def test_places_that_are_computed_are_not_made_up(options: dict[str, Any]) -> None:
    def shifted(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return w[i * 2 - 7]

    args = (torch.randn(50, 8), torch.randint(4, 28, (6,)))
    kernel = kernel_of(compile_cli.compile(shifted, args, options=options))
    assert places(kernel) is None and "computes places" in why_not(kernel)


def test_a_place_that_no_data_is_in_is_none_of_data() -> None:
    """However it is computed: here each value reads the one before twice."""
    steps = "\n".join(f"      v{n + 1} = add(v{n}, v{n}) : i64" for n in range(64))
    kernel = parse_kernel(f"""
kernel k(
    x: f32[8] cuda:0,
    out y: f32[8] cuda:0,
):
  parallel i0 < 8:
    once:
      v0 = index i0 : i64
{steps}
      t0 = indirect v64 < 8
      v65 = load x[t0] : f32
      store y[i0] = v65
""")
    assert places(kernel) == {}


def test_measuring_does_not_write_to_what_it_is_for(options: dict[str, Any], clock: Any) -> None:
    pool = clock(third)
    x = torch.randn(ROWS, COLUMNS)
    before = x.clone()
    model = compile_cli.compile(lambda t: t.sub_(t.amax(-1, True)), (x,), options=options)
    assert len(pool.measured) == 1 and torch.equal(x, before)
    mine = {x.data_ptr(), before.data_ptr()}
    assert not any(a.data_ptr() in mine for a in pool.args if isinstance(a, torch.Tensor))
    assert pool.options.overwritten == ()
    torch.testing.assert_close(model(x), before - before.amax(-1, True))


# ---- dynamic sizes


def dynamic(options: dict[str, Any], **more: Any) -> Any:
    args = (torch.randn(ROWS, COLUMNS),)
    return compile_cli.compile(softmax, args, dynamic={0: {0, 1}}, options={**options, **more})


def test_dynamic_sizes_are_measured_at_their_hints(
    options: dict[str, Any], clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the winner runs there, the guesses elsewhere, chosen by comparisons of sizes."""
    pool = clock(third)
    model = dynamic(options)
    chosen = only(model)
    assert len(pool.measured) == 1 and chosen.schedule != chosen.guess
    graph = model.graph
    assert any(isinstance(op, If) for op in walk(graph.program.ops))
    defines = [op for op in graph.program.ops if isinstance(op, DefineKernel)]
    assert any(
        (d.num_warps, dict(d.constants)["RBLOCK"])
        == (chosen.schedule.num_warps, chosen.schedule.rblock)
        for d in defines
    )
    x = torch.randn(3, 70)
    torch.testing.assert_close(model(x), softmax(x))
    monkeypatch.setattr(select, "HINT_RATIO", 2)
    pool = clock(third)
    dynamic(options, tune="max")
    assert pool.measured  # at all sizes that are looked at, as far as they move much


def test_candidates_take_the_same_arguments(options: dict[str, Any], clock: Any) -> None:
    """Several rows at once need to know how many there are, one at a time do not."""
    args = (torch.randn(ROWS, COLUMNS),)
    for how in ("measured", "stored"):
        pool = clock(third)
        model = compile_cli.compile(softmax, args, dynamic={0: {0}}, options=options)
        assert only(model).how == how
    pool = clock(third)
    compile_cli.compile(softmax, args, dynamic={0: {0}}, options={**options, "tune": "max"})
    assert len({kernel.source.params for kernel, _ in pool.candidates}) == 1
    assert len(pool.candidates) < 6


@pytest.mark.parametrize("kind", ["persistent", "looped"])
def test_a_kind_may_be_forced(options: dict[str, Any], clock: Any, kind: str) -> None:
    pool = clock(third)
    for columns in (48, 700):
        model = compiled(options, softmax, 5, columns, multikernel=kind)
        (define,) = [op for op in model.graph.program.ops if isinstance(op, DefineKernel)]
        assert ("for start in range" in define.source) == (kind == "looped")
        x = torch.randn(5, columns)
        torch.testing.assert_close(model(x), softmax(x))
    assert not pool.measured


def test_unknown_values_are_refused() -> None:
    with pytest.raises(UnknownOption, match="auto, off, max"):
        Options(tune="always")


def test_candidates_keep_how_a_launch_meets_the_one_before(options: dict[str, Any]) -> None:
    kernel = kernel_of(compiled(options))
    on_gpu = replace(
        kernel,
        buffers=tuple(
            replace(b, type=replace(b.type, device=replace(b.type.device, kind="cuda", index=0)))
            for b in kernel.buffers
        ),
    )
    assert {s.overlap for s in candidate_schedules(on_gpu, {})} == {True}
    assert {s.overlap for s in candidate_schedules(kernel, {})} == {False}
