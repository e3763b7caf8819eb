"""How calls are timed beside each other, with a clock of the test's own."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tuning import added_seconds, timer


@pytest.fixture
def clock(monkeypatch):
    """Seconds, in a list, that events of CUDA read."""
    seconds = [0.0]

    class Event:
        def record(self):
            self.at = seconds[0]

        def elapsed_time(self, end):
            return (end.at - self.at) * 1e3

    monkeypatch.setattr(timer, "_event", Event)
    monkeypatch.setattr(timer, "_spin", lambda cycles: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.ones(1))
    monkeypatch.setattr(torch, "empty", lambda *_, **__: torch.ones(()))
    return seconds


def test_turns_of_other_programs_are_not_charged(clock):
    """Of every three calls the second waits 5 ms for another program."""
    calls = [0]

    def shared(seconds):
        calls[0] += 1
        clock[0] += seconds + (5e-3 if calls[0] % 3 == 2 else 0.0)

    runs = [partial(shared, 800e-6), partial(shared, 700e-6)]
    assert added_seconds(runs, 60 << 20) == pytest.approx([800e-6, 700e-6])


def test_calls_far_slower_than_the_fastest_are_timed_again_once(clock):
    calls = [0, 0, 0]

    def call(i, seconds):
        calls[i] += 1
        clock[0] += seconds

    runs = [partial(call, 0, 400e-6), partial(call, 1, 15e-3), partial(call, 2, 1.1e-3)]
    assert added_seconds(runs, 60 << 20) == pytest.approx([400e-6, 15e-3, 1.1e-3])
    assert calls[1] == 3 and min(calls[0], calls[2]) > 20


def test_what_one_call_rules_out():
    assert timer.out_of_reach([0.0002, 0.0009, 0.015, 0.0011]) == {2, 3}
    assert timer.out_of_reach([0.020, 0.025, 0.061]) == {2}
    assert timer.out_of_reach([2e-6, 900e-6]) == set()  # the host may have been late
    assert timer.out_of_reach([]) == set()


def test_every_call_has_every_place_in_a_round():
    rounds = [timer.turns(number, 5) for number in range(20)]
    assert all(sorted(r) == list(range(5)) for r in rounds)
    for place in range(5):
        assert sorted(r[place] for r in rounds) == sorted([0, 1, 2, 3, 4] * 4)


def test_a_call_is_charged_what_it_adds(clock, monkeypatch):
    """After a spin of 5 us, with what the cache is full of: 3 us on a clean one, 4 on another."""

    def passes(seconds):
        clock[0] += seconds

    cache = {"clean": 3e-6, "filled": 4e-6}
    state = []

    def flush(kind):
        state[:] = [kind]
        passes(40e-6)

    monkeypatch.setattr(timer, "_spin", lambda cycles: passes(cycles * 5e-10))
    both = [lambda: None, lambda: passes(cache[state[0]]), lambda: passes(10e-6)]
    for kind, seconds in cache.items():
        found = timer._added(both, partial(flush, kind), 1000, 5)
        assert found == pytest.approx([seconds, 10e-6])
