"""What holds for every pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wrapper_ir import parse_program, print_program, verify
from wrapper_ir.errors import MisplacedReturn, PassError
from wrapper_ir.memory import peak_bytes
from wrapper_ir.passes import DedupeKernels, InsertFrees, PlanMemory, run_passes

PASSES = [DedupeKernels(), InsertFrees(), PlanMemory(fresh=frozenset({"test.double.default"}))]


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return a == b


@settings(max_examples=20, deadline=None)
@given(data=st.data(), s0=st.integers(1, 9))
def test_meaning_stays_and_memory_does_not_grow(data, s0, programs, run_generated):
    program = data.draw(programs)
    expected = run_generated(program, s0)
    for step in PASSES:
        before = peak_bytes(program, {"s0": s0})
        program = step.run(program)
        verify(program)
        assert parse_program(print_program(program, step.name)) == program
        assert peak_bytes(program, {"s0": s0}) <= before, print_program(program, step.name)
        got = run_generated(program, s0)
        assert all(map(same, expected, got)) and len(expected) == len(got)
        assert step.run(program) == program, "a pass run twice does what it does once"


def test_run_passes_shows_each_result():
    program = parse_program("program p():\n  b = alloc f32[4] cpu\n  return ()\n")
    seen = []
    out = run_passes(program, PASSES, on_pass=lambda name, p: seen.append((name, p)))
    assert [name for name, _ in seen] == ["dedupe_kernels", "insert_frees", "plan_memory"]
    assert seen[-1][1] == out and "free b" in print_program(out)


@dataclass(frozen=True)
class DropReturn:
    name: ClassVar[str] = "drop_return"

    def run(self, program):
        return replace(program, ops=program.ops[:-1])


def test_a_broken_pass_is_named():
    program = parse_program("program p():\n  return ()\n")
    with pytest.raises(PassError, match="pass drop_return made an invalid program") as caught:
        run_passes(program, [InsertFrees(), DropReturn()])
    assert isinstance(caught.value.cause, MisplacedReturn)
    assert run_passes(program, [DropReturn()], verify=False).ops == ()


def test_an_invalid_program_is_refused_before_the_first_pass():
    with pytest.raises(MisplacedReturn):
        run_passes(parse_program("program p():\n  where s0\n"), PASSES)
