"""Choices for a range of M, with a clock that knows how long each config takes at each hint."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gemm_templates import (
    H200,
    Config,
    Inputs,
    InvalidArguments,
    InvalidProblem,
    Problem,
    Store,
    bind,
    choose_range,
)
from gemm_templates.model import is_legal
from gemm_templates.ranges import proposals

PROBLEM = Problem(64, 48, 32, "f32", "f32", "f32")
RANGE = Problem(1, 48, 32, "f32", "f32", "f32", dynamic=frozenset({"M"}))
HINTS = (1, 16, 128, 1024)


def extern(t):
    return t.a @ t.b


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
        RANGE, hints, of_rows, vendor, device="cpu", build=build or note, force=timer,
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

    choose_range(RANGE, HINTS, of_rows, extern, device="cpu", build=build,
                 force=lambda runs, info: [2.0] * len(runs))  # fmt: skip
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

    choice = choose_range(RANGE, HINTS, never, never, device="cpu", deterministic=True, force=never)
    assert choice.reason == "model"
    same = choose_range(RANGE, HINTS, never, never, device="cpu", deterministic=True, force=never)
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
        bind(PROBLEM, Config(16, 16, 16))(of_rows(64), 7)


def test_ranges_need_a_dynamic_m():
    with pytest.raises(InvalidProblem, match="dynamic"):
        choose_range(PROBLEM, HINTS, of_rows, extern, device="cpu")
    with pytest.raises(InvalidProblem, match="hints"):
        choose_range(RANGE, (), of_rows, extern, device="cpu")
