"""Choosing, with a clock and kernels of the test's own."""

from __future__ import annotations

import functools
import json
from concurrent.futures import wait
from dataclasses import replace

import pytest
import torch

from gemm_templates import (
    H200,
    Bound,
    Candidate,
    Choice,
    Config,
    Epilogue,
    Inputs,
    InvalidArguments,
    Problem,
    Store,
    bind,
    candidates,
    choose,
    prefetch,
)
from gemm_templates.model import predict_extern
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
    return choose(PROBLEM, inputs, extern, device="cpu", build=build, force=timer, **kwargs)


def configs():
    return [c.config for c in candidates(PROBLEM, H200) if c.config is not None]


def test_a_vendor_that_refuses_is_no_choice():
    def refuses(t):
        raise RuntimeError("expected multiples of 16")

    choice = choose(PROBLEM, inputs, refuses, device="cpu", build=honest, force=ordered(2.0, 1.0))
    assert choice.config == configs()[1]
    assert "multiples of 16" in dict(choice.failures)["extern"]


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


def test_candidates_that_are_late_are_measured_by_a_later_call(tmp_path):
    store, found = Store(tmp_path), candidates(PROBLEM, H200)
    first, second, *_ = (c for c in found if c.config is not None)
    asked: list[str] = []
    options = [first, second, next(c for c in found if c.config is None)]

    class Elsewhere(Bound):
        def __init__(self, ready, problem, config):
            self.ready, self.config = ready, config

        def is_late(self):
            asked.append("template")
            return self.config not in self.ready

        def prepare(self, inputs, m=None):
            pass

        def __call__(self, t, m=None):
            torch.mm(t.a, t.b, out=t.out)

    def call(ready, *times, forbidden=False, extern=extern, options=options, spent=None):
        def timer(runs, info):
            assert not forbidden and len(runs) == len(times)
            return list(times)

        return choose(
            PROBLEM, inputs, extern, options, device="cpu", store=store, force=timer,
            build=functools.partial(Elsewhere, ready), spent=spent,
        )  # fmt: skip

    def refuses(t):
        raise RuntimeError("not on this GPU")

    none = call((), forbidden=True, extern=lambda t: asked.append("vendor"))
    assert asked == ["vendor", "template", "template"]  # which compile while that loads
    assert (none.config, none.reason) == (None, "no time") and len(none.late) == 2
    some = call((first.config,), 3.0, 2.0)
    assert some.config == first.config and some.late == {second.label}
    again = call((first.config,), forbidden=True)
    assert (again.config, again.reason) == (first.config, "stored") and again.late == some.late
    whole = call((first.config, second.config), 3.0, 2.0, 1.0)
    assert whole.config == second.config and not whole.late
    assert call((), forbidden=True).config == second.config
    for file in tmp_path.rglob("*.json"):
        file.unlink()
    store._memory.clear()
    assert call((), 2.0, 1.0, extern=refuses).config == second.config  # there is no other way
    slow = [first, Candidate(None, 2 * first.predicted)]
    waited = call((), 2.0, 1.0, options=slow, spent=lambda: True)
    assert waited.config == first.config and waited.reason == "measured"
    for file in tmp_path.rglob("*.json"):
        file.unlink()
    store._memory.clear()
    asked.clear()
    left = call((first.config,), forbidden=True, spent=lambda: True)
    assert (left.config, left.reason, asked) == (None, "no time", [])
    assert call((first.config,), 3.0, 2.0, spent=lambda: False).config == first.config


@pytest.mark.parametrize(("lead", "times"), [(2048, 1.0), (2050, 1.5), (2049, 4.0)])
def test_rows_at_odd_places_cost_the_vendor(lead, times):
    problem = Problem(2048, 2048, 2048, out_stride=(lead, 1))
    even = predict_extern(Problem(2048, 2048, 2048), H200)[0]
    assert times <= predict_extern(problem, H200)[0] / even < 2 * times


def test_what_an_epilogue_stores_is_compared_too():
    operands = (KernelParam("copy", "*f32", mutated=True), KernelParam("scale", "f32"))
    problem = replace(PROBLEM, epilogue=Epilogue("keep", "", operands, stores=True))
    given = Inputs(torch.randn(64, 32), torch.randn(32, 48), None, None, (torch.empty(64, 48), 2.0))

    def choice(factor):
        def build(problem, config):
            return lambda t: t.operands[0].copy_((t.a @ t.b) * factor)

        return choose(
            problem, given, lambda t: [(t.a @ t.b) * t.operands[1]],
            device="cpu", build=build, force=ordered(3.0, 1.0),
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
    kwargs = {"device": "cuda", "build": never}
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
    choose(PROBLEM, inputs, extern, device="cpu", store=store,
           build=honest, force=ordered(2.0, 1.0))  # fmt: skip
    pool = CompilePool(1)
    # The stored choice is of the CPU, which plans as an H200.
    assert prefetch([PROBLEM], pool=pool, cache=cache, store=store, device=H200) == []
    pool.close()


def test_a_stored_choice_is_found_in_a_millisecond(tmp_path, microseconds):
    problem = Problem(16384, 3072, 768, aligned=frozenset({"a", "b", "out"}))
    store = Store(tmp_path)
    a = torch.randn(1, 1)
    choose(problem, Inputs(a, a, a), lambda t: None, device="cpu", store=store,
           build=honest, force=ordered(1.0))  # fmt: skip

    def stored():
        assert choose(problem, inputs, extern, device="cpu", store=store).reason == "stored"

    assert microseconds(stored, 55) < 55  # 34 were measured


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
