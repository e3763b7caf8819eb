"""Symbols that hang on data: sizes of what a call gives, and what a tensor holds."""

import numpy as np
import pytest

from wrapper_ir import errors, interpret, parse_program, print_program, verify
from wrapper_ir.passes import InsertFrees, PlanMemory, run_passes

TEXT = """\
program main(x: f32[8] cpu):
  where u0 in [0, 8]
  where u1 in [0, 8]
  (y, n) = extern test.positive.default(x) binds (u0,) -> (f32[u0] cpu, i64[] cpu)
  symbol u1 = n.item()
  assert u1 <= u0 "at most as many"
  z = view y f32[u1] cpu
  w = extern test.double.default(z) -> f32[u1] cpu
  return (w, u0 + u1)
"""

FUNCTIONS = {
    "test.positive.default": lambda x: (x[x > 0], np.array((x > 1).sum())),
    "test.double.default": lambda x: x * 2,
}


def test_text_and_run(runtime):
    program = parse_program(TEXT)
    assert print_program(program) == TEXT
    for passes in ((), (InsertFrees(), PlanMemory())):
        run = run_passes(program, passes)
        for x in (np.arange(-3, 5), np.arange(8), np.zeros(8)):
            x = x.astype(np.float32)
            w, n = interpret(run, [x], runtime(**FUNCTIONS))
            above = int((x > 1).sum())
            np.testing.assert_array_equal(w, x[x > 0][:above] * 2)
            assert n == (x > 0).sum() + above


RULES = [
    (errors.UnboundSymbol, "binds (u0,) ", ""),
    (errors.InvalidSymbolDef, "binds (u0,)", "binds (u0, u1)"),
    (errors.InvalidSymbolDef, "f32[u0] cpu,", "f32[u0 + 1] cpu,"),
    (errors.DuplicateDefinition, "symbol u1 = n.item()", "symbol u0 = n.item()"),
    (errors.InvalidSymbolDef, "i64[] cpu", "f32[] cpu"),
    (errors.InvalidSymbolDef, "i64[] cpu", "i64[2] cpu"),
    (errors.UnboundSymbol, "  symbol u1 = n.item()\n", ""),
    (errors.UnboundSymbol, "program main(x: f32[8] cpu)", "program main(x: f32[u0] cpu)"),
]


@pytest.mark.parametrize(("error", "old", "new"), RULES)
def test_rules(error, old, new):
    assert old in TEXT
    with pytest.raises(error):
        verify(parse_program(TEXT.replace(old, new, 1)))
