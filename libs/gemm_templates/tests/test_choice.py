"""Choosing, with a clock and kernels of the test's own."""

from __future__ import annotations

import json
from concurrent.futures import wait
from dataclasses import replace

import pytest
import torch

from gemm_templates import (
    H200,
    Candidate,
    Choice,
    Config,
    Epilogue,
    Inputs,
    InvalidArguments,
    InvalidProblem,
    Problem,
    RangeChoice,
    Store,
    bind,
    candidates,
    choose,
    choose_range,
    prefetch,
)
from gemm_templates.model import is_legal
from gemm_templates.ops import run as run_module
from gemm_templates.ops.matmul import MM
from gemm_templates.ranges import proposals
from triton_rt import Cache, CompilePool, KernelParam, Target

PROBLEM = Problem(64, 48, 32, "f32", "f32", "f32")


def inputs():
    return Inputs(torch.randn(64, 32), torch.randn(32, 48), torch.empty(64, 48))


def extern(t):
    return t.a @ t.b


def honest(problem, config):
    return lambda t: torch.mm(t.a, t.b, out=t.out)


def ordered(*seconds):
    """A clock: the extern call takes the first time, then candidates in order."""
    return lambda runs, info: [*seconds, *[9.0] * len(runs)][: len(runs)]


def pick(timer, build=honest, **kwargs):
    return choose(
        PROBLEM, inputs, extern, device="cpu", force=True, build=build, timer=timer, **kwargs
    )


def configs():
    return [c.config for c in candidates(PROBLEM, H200) if c.config is not None]


def test_the_fastest_wins():
    choice = pick(ordered(3.0, 2.0, 1.0))
    assert choice.config == configs()[1]
    assert dict(choice.times)["extern"] == 3.0
    assert f"-> {choice.config} (measured)" in choice.explain()


def test_the_vendor_call_wins_unless_clearly_beaten():
    assert pick(ordered(1.0, 2.0)).config is None
    assert pick(ordered(1.0, 0.995)).config is None
    assert pick(ordered(1.0, 0.98)).config == configs()[0]


def test_a_wrong_result_is_never_chosen():
    first = configs()[0]

    def build(problem, config):
        def run(t):
            torch.mm(t.a, t.b, out=t.out)
            if config == first:
                t.out[3, 5] += 5.0

        return run

    with pytest.warns(UserWarning, match="differs from the extern call"):
        choice = pick(ordered(3.0, 1.0, 2.0), build)
    assert choice.config == configs()[1]
    assert [label for label, _ in choice.failures] == [str(first)]


def test_a_result_that_is_not_written_is_never_chosen():
    with pytest.warns(UserWarning, match="differs"):
        choice = pick(ordered(1.0), lambda problem, config: lambda t: None)
    assert choice.config is None and len(choice.failures) == len(configs())


def test_a_candidate_that_does_not_launch_is_reported():
    def build(problem, config):
        raise RuntimeError("out of resource: shared memory")

    choice = pick(ordered(1.0), build)
    assert choice.config is None
    assert "failed: RuntimeError: out of resource" in choice.explain()


def test_choices_are_stored_and_found_again(tmp_path):
    first = pick(ordered(3.0, 1.0), store=Store(tmp_path))
    assert first.config is not None and len(list(tmp_path.iterdir())) == 1

    def never(runs, info):
        raise AssertionError("measured again")

    again = pick(never, store=Store(tmp_path))
    assert (again.config, again.reason) == (first.config, "stored")
    assert dict(again.times) == dict(first.times)
    assert again.candidates == first.candidates


def test_a_broken_store_is_reported_and_ignored(tmp_path):
    pick(ordered(3.0, 1.0), store=Store(tmp_path))
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text()[:40])
    with pytest.warns(UserWarning, match="ignoring"):
        assert pick(ordered(1.0, 3.0), store=Store(tmp_path)).config is None
    assert json.loads(path.read_text().partition("\n")[2])["record"]["config"] is None
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.warns(UserWarning):
        assert pick(ordered(1.0), store=Store(blocked)).config is None


def test_without_a_gpu_the_vendor_call_runs():
    choice = choose(PROBLEM, inputs, extern, device="cpu")
    assert choice.config is None and choice.reason == "no GPU"


def test_deterministic_choices_measure_nothing():
    def never(runs, info):
        raise AssertionError("measured")

    one = pick(never, deterministic=True)
    assert one.reason == "model" and one.config == candidates(PROBLEM, H200)[0].config


def test_arguments_must_fit_the_problem():
    run = bind(Problem(8, 8, 8, "f32", "f32", "f32", bias="f32"), Config(16, 16, 16))
    a = torch.ones(8, 8)
    with pytest.raises(InvalidArguments, match="bias"):
        run(Inputs(a, a, torch.empty(8, 8)))
    with pytest.raises(InvalidArguments, match="operands"):
        run(Inputs(a, a, torch.empty(8, 8), a[0], (1,)))


def test_all_candidates_are_built_before_any_runs():
    events = []

    def build(problem, config):
        events.append("build")

        def run(t):
            events.append("run")
            torch.mm(t.a, t.b, out=t.out)

        return run

    pick(ordered(1.0), build)
    n = len(configs())
    assert events[: 2 * n] == ["build"] * n + ["run"] * n


def test_what_an_epilogue_stores_is_compared_too():
    operands = (KernelParam("copy", "*f32", mutated=True), KernelParam("scale", "f32"))
    problem = replace(PROBLEM, epilogue=Epilogue("keep", "", operands, stores=True))
    given = Inputs(torch.randn(64, 32), torch.randn(32, 48), None, None, (torch.empty(64, 48), 2.0))

    def choice(factor):
        def build(problem, config):
            return lambda t: t.operands[0].copy_((t.a @ t.b) * factor)

        return choose(
            problem, given, lambda t: [(t.a @ t.b) * t.operands[1]],
            device="cpu", force=True, build=build, timer=ordered(3.0, 1.0),
        )  # fmt: skip

    assert choice(2.0).config is not None
    with pytest.warns(UserWarning, match="differs"):
        assert choice(2.5).config is None


def test_a_problem_that_the_model_decides_is_not_measured(monkeypatch):
    monkeypatch.setattr("gemm_templates.choice.device_info", lambda device: H200)

    def never(*args):
        raise AssertionError("built or measured")

    large = Problem(4096, 4096, 4096, "f32", "f32", "f32")  # without tensor cores
    found = candidates(large, H200)
    extern_time = next(c.predicted for c in found if c.config is None)
    slow = [replace(c, predicted=1.3 * extern_time) if c.config else c for c in found]
    kwargs = {"device": "cuda", "build": never, "timer": never}
    choice = choose(large, never, extern, slow, **kwargs)
    assert (choice.config, choice.reason) == (None, "model")
    near = [replace(c, predicted=1.2 * extern_time) if c.config else c for c in found]
    with pytest.raises(AssertionError, match="built or measured"):
        choose(large, never, extern, near, **kwargs)


def test_prefetch_compiles_what_choose_will_build(tmp_path, monkeypatch):
    found = [Candidate(None, 1e-6), Candidate(Config(16, 16, 16, 8, 1, 2), 1e-6)]
    monkeypatch.setattr("gemm_templates.choice.candidates", lambda problem, info: found)
    target, cache, store = Target(90), Cache(tmp_path / "cache"), Store(tmp_path / "store")
    with CompilePool(1) as pool:
        futures = prefetch(
            [PROBLEM, PROBLEM], pool=pool, cache=cache, store=store, device=H200, target=target
        )
        wait(futures)
        assert len(futures) == 1
        binary = futures[0].result()
    bound = bind(PROBLEM, found[1].config, cache=cache)
    assert [f.result() for f in bound.compile(target)] == [binary]
    choose(PROBLEM, inputs, extern, device="cpu", force=True, store=store,
           build=honest, timer=ordered(2.0, 1.0))  # fmt: skip
    pool = CompilePool(1)
    # The stored choice is of the CPU, which plans as an H200.
    assert prefetch([PROBLEM], pool=pool, cache=cache, store=store, device=H200) == []
    pool.close()


def test_a_stored_choice_is_found_in_a_millisecond(tmp_path, microseconds):
    problem = Problem(16384, 3072, 768, aligned=frozenset({"a", "b", "out"}))
    store = Store(tmp_path)
    a = torch.randn(1, 1)
    choose(problem, Inputs(a, a, a), lambda t: None, device="cpu", force=True, store=store,
           build=honest, timer=ordered(1.0))  # fmt: skip

    def stored():
        assert choose(problem, inputs, extern, device="cpu", store=store).reason == "stored"

    assert microseconds(stored, 55) < 55  # 34 were measured


# Choices for a range of M, with a clock that knows how long each config takes at each hint.

RANGE = Problem(1, 48, 32, "f32", "f32", "f32", dynamic=frozenset({"M"}))
HINTS = (1, 16, 128, 1024)


def of_rows(m):
    return Inputs(torch.randn(m, 32), torch.randn(32, 48), torch.empty(m, 48))


def range_of(seconds, build=None, hints=HINTS, **kwargs):
    """seconds(config or None, m): how long it takes."""
    running = []

    def note(problem, config):
        def run(t, m):
            running.append((config, m))
            torch.mm(t.a, t.b, out=t.out)

        return run

    def vendor(t):
        running.append((None, t.a.shape[0]))
        return t.a @ t.b

    def timer(runs, info):
        found = []
        for run in runs:
            run()
            found.append(seconds(*running[-1]))
        return found

    return choose_range(
        RANGE, hints, of_rows, vendor, device="cpu", force=True, build=build or note, timer=timer,
        **kwargs,
    )  # fmt: skip


def test_one_config_for_all_rows_where_it_is_good_enough():
    first = proposals([replace(RANGE, m=m) for m in HINTS], H200)[0]
    choice = range_of(lambda config, m: 1.0 if config == first else 1.5 if config else 3.0)
    assert choice.configs == (first,) and choice.bounds == ()
    assert choice.config(1) == choice.config(10**6) == first
    near = range_of(lambda config, m: 1.0 if config == first else 0.98 if config else 3.0)
    assert len(near.configs) <= 2  # 3 % joins what is measured at all hints


def test_boundaries_lie_between_hints():
    choice = range_of(lambda config, m: (1.0 if m <= 16 else 3.0) if config else 2.0)
    assert choice.configs[-1] is None and choice.configs[0] is not None
    assert choice.bounds[-1] == 45  # floor(sqrt(16 * 128))
    assert choice.config(45) == choice.configs[-2] and choice.config(46) is None
    assert "M in [46, ...]: extern" in choice.explain()
    assert choice.explain().count("predicted") == len(HINTS)


def test_at_most_six_are_measured_at_a_hint():
    choice = range_of(lambda config, m: 1.0 if config else 2.0)
    assert all(len(c.times) <= 6 and "extern" in dict(c.times) for c in choice.choices)
    assert all(c.config is None or c.config in {o.config for o in c.candidates}
               for c in choice.choices)  # fmt: skip


def test_a_config_is_built_once_for_all_hints():
    built = []

    def build(problem, config):
        assert "M" in problem.dynamic
        built.append(config)
        return lambda t, m: torch.mm(t.a, t.b, out=t.out)

    choose_range(RANGE, HINTS, of_rows, extern, device="cpu", force=True, build=build,
                 timer=ordered(2.0))  # fmt: skip
    assert len(built) == len(set(built))


def test_a_range_is_stored_and_found_in_a_millisecond(tmp_path, microseconds):
    def first(config, m):
        return 1.0 if config else 2.0

    found = range_of(first, store=Store(tmp_path))
    store = Store(tmp_path)

    def never(*args):
        raise AssertionError("measured again")

    def stored():
        return choose_range(RANGE, HINTS, never, never, device="cpu", store=store, build=never)

    again = stored()
    assert (again.bounds, again.configs, again.reason) == (found.bounds, found.configs, "stored")
    assert [dict(c.times) for c in again.choices] == [dict(c.times) for c in found.choices]
    assert microseconds(stored, 250) < 250  # 160 were measured


def test_a_deterministic_range_measures_nothing():
    def never(*args):
        raise AssertionError("measured")

    choice = choose_range(RANGE, HINTS, never, never, device="cpu", deterministic=True, timer=never)
    assert choice.reason == "model"
    same = choose_range(RANGE, HINTS, never, never, device="cpu", deterministic=True, timer=never)
    assert same.configs == choice.configs


def test_any_number_of_rows_has_a_config_that_is_legal(monkeypatch):
    """Decompose-K among them: its workspace grows with M."""
    long = replace(RANGE, n=64, k=16384)
    choice = choose_range(
        long, HINTS, of_rows, extern, device="cpu", deterministic=True,
    )  # fmt: skip
    for m in (1, 5, 16, 17, 100, 4096, 2**20):
        config = choice.config(m)
        assert config is None or is_legal(replace(long, m=m), config, H200)
    names = {c.template for c in proposals([replace(long, m=m) for m in HINTS], H200)}
    assert "decompose_k" in names


def test_a_dynamic_kernel_runs_any_number_of_rows():
    problem = replace(RANGE, n=48, k=64, m=40)
    configs = [Config(16, 16, 16), Config(16, 16, 32, 8, 4, 2, "decompose_k", split_k=2)]
    for config in configs:
        run = bind(problem, config)
        for m in (40, 7, 0, 33):
            a, b = torch.randn(m, 64), torch.randn(64, 48)
            out = torch.full((m, 48), float("nan"))
            run(Inputs(a, b, out), m)
            torch.testing.assert_close(out, a @ b, rtol=1e-5, atol=1e-5)
    with pytest.raises(InvalidArguments, match="not dynamic"):
        bind(PROBLEM, Config(16, 16, 16))(inputs(), 7)


def test_ranges_need_a_dynamic_m():
    with pytest.raises(InvalidProblem, match="dynamic"):
        choose_range(PROBLEM, HINTS, of_rows, extern, device="cpu")
    with pytest.raises(InvalidProblem, match="hints"):
        choose_range(RANGE, (), of_rows, extern, device="cpu")


def test_changing_numbers_of_rows_are_decided_together(monkeypatch):
    """The fourth number of rows decides for all; what is measured from then on is nothing."""
    measured, ranged = [], []
    config = Config(16, 16, 16)

    def one(problem, *args, **kwargs):
        measured.append(problem.m)
        return Choice(problem, None, ())

    def many(problem, hints, *args, **kwargs):
        ranged.append(list(hints))
        return RangeChoice(problem, (100,), (config, None), tuple(hints), ())

    monkeypatch.setattr(run_module, "choose", one)
    monkeypatch.setattr(run_module, "choose_range", many)
    run_module.forget()
    b = torch.randn(512, 1024)

    def decide(m):
        call = run_module.Call(MM, (torch.randn(m, 512), b), (None,))
        return run_module.decided(call, planned=True)

    for m in (8, 16, 24, 40, 50, 60, 200):
        decide(m)
    assert measured == [8, 16, 24] and len(ranged) == 1
    assert (ranged[0][0], ranged[0][-1]) == (1, 8192)
    assert decide(77).bound.problem.dynamic == {"M"} and decide(77).ranged
    assert decide(300).bound is None
    decide(16384)
    assert len(ranged) == 1
    decide(16385)  # beyond twice the last hint
    assert len(ranged) == 2 and ranged[1][-1] == 32768
    run_module.forget()


@pytest.mark.parametrize(
    ("vendor", "padded", "right", "taken"),
    [(1.0, 0.5, True, True), (1.0, 0.999, True, False), (1.0, 0.5, False, False)],
)
def test_padded_copies_are_taken_where_faster_and_right(
    monkeypatch, vendor, padded, right, taken, recwarn
):
    monkeypatch.setattr(run_module, "choose", lambda problem, *_, **__: Choice(problem, None, ()))
    monkeypatch.setattr(run_module, "prefetch", lambda problems, **_: [])
    monkeypatch.setattr(run_module, "added_seconds", lambda runs, info: [vendor, padded])
    monkeypatch.setattr(run_module, "device_info", lambda device: H200)
    run_module.forget()
    operation = MM
    if not right:
        operation = replace(MM, padded=lambda tensors, options: 1.5 * torch.mm(*tensors))
    given = tuple(torch.randn(257, 257).bfloat16() for _ in range(2))
    call = run_module.Call(operation, given, (None,))
    decision = run_module.decided(call, planned=True)
    assert decision.padded == taken and decision.bound is None
    assert ["not used" in str(w.message) for w in recwarn] == [True] * (not right)
    run_module.forget()


@pytest.mark.parametrize(("copies", "taken"), [(0.4, True), (0.6, False)])
@pytest.mark.parametrize("given", [False, True])
def test_templates_get_copies_of_odd_operands_where_faster(monkeypatch, copies, taken, given):
    """[257, 257] @ [257, 257] on copies whose rows are multiples of 64 elements apart; `out` as it
    is asked for. Kernels for the copies compile before anything is decided."""
    config = Config(64, 64, 64, 2, 4, 2)
    asked = []

    def prefetch(problems, *, pool, cache, store, device):
        asked.extend(problems)

    def choose(problem, *_, **__):
        asked.append(problem)
        aligned = problem.dims()["stride_am"] % 64 == 0
        return Choice(problem, config if aligned else None, ())

    monkeypatch.setattr(run_module, "choose", choose)
    monkeypatch.setattr(run_module, "prefetch", prefetch)
    monkeypatch.setattr(
        run_module,
        "added_seconds",
        lambda runs, info: [1.0, 0.5, copies] if not given else [1.0, copies + 0.5],
    )
    monkeypatch.setattr(run_module, "device_info", lambda device: H200)
    run_module.forget()
    a, b = (torch.randn(257, 257).bfloat16() for _ in range(2))
    out = torch.empty(257, 257, dtype=torch.bfloat16) if given else None
    key = run_module.decided(run_module.Call(MM, (a, b), (None,), out), planned=True)
    assert [p.dims()["stride_am"] for p in asked] == [320, 257, 320] and asked[0] == asked[2]
    if not taken and not given:
        assert key == run_module.PADDED
    elif taken:
        assert key.copied and key.bound.problem.dims()["stride_om"] == 257
        monkeypatch.setattr(run_module, "_decide", lambda *_: key)
        found = run_module.run(MM, (a, b), (None,), out)
        assert (found is out) == given
        torch.testing.assert_close(found, a @ b, rtol=2e-2, atol=2e-1)
    else:
        assert key == run_module.EXTERN
    run_module.forget()


def test_small_savings_are_not_worth_more_launches():
    """Two launches and an allocation a call must save two microseconds, one launch a part in 50."""
    problem = Problem(256, 256, 256)
    two = Config(32, 32, 32, 1, 4, 3, "decompose_k", split_k=2)
    one = Config(64, 64, 64, 8, 4, 3)
    options = (Candidate(two, 0.0), Candidate(one, 0.0), Candidate(None, 0.0))

    def taken(first, second, extern, config=two):
        times = (("extern", extern), (str(two), first), (str(one), second))
        return Choice(problem, config, options, times).from_python()

    assert taken(3e-6, 4.5e-6, 6e-6) == one
    assert taken(3e-6, 5.5e-6, 6e-6) == two
    assert taken(3e-6, 5.5e-6, 5e-6) is None
    assert taken(3e-6, 4e-6, 5e-6, config=None) is None
    assert Choice(problem, two, options).from_python() == two  # by the model: no times
