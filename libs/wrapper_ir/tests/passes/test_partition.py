"""Parts for CUDA graphs: where programs are cut, what goes in and out, and that nothing changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wrapper_ir import DefineSubgraph, parse_program, print_program
from wrapper_ir.passes import InsertFrees, Partition, PlanMemory, run_passes

TAIL = (InsertFrees(), PlanMemory())


def cut(program, *left_out, least=1, tail=TAIL):
    made = Partition(lambda target: target in left_out, "cpu", tail, least)
    return run_passes(program, (made, *tail))


def parts(program):
    return [op.program for op in program.ops if isinstance(op, DefineSubgraph) and op.captured]


OPERATORS = ["test.double.default", "test.pair.default", "test.increment_.default"]


@pytest.mark.parametrize("passes", [TAIL, ()], ids=["planned", "as it is"])
@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_nothing_changes(programs, run_generated, passes, data):
    program = run_passes(data.draw(programs), data.draw(st.sampled_from([(), TAIL])))
    left_out = data.draw(st.sets(st.sampled_from(OPERATORS), min_size=1))
    made = cut(program, *left_out, least=data.draw(st.integers(1, 3)), tail=passes)
    assert parse_program(print_program(made)) == made
    for s0 in (1, 4):
        got, wanted = run_generated(made, s0), run_generated(program, s0)
        for x, y in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(x, y)
