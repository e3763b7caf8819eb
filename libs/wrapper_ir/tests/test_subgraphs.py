"""Subgraphs and control of them: text, rules, meaning."""

from __future__ import annotations

import numpy as np
import pytest

from wrapper_ir import errors, interpret, parse_program, print_program, verify
from wrapper_ir.analysis import kernels, programs
from wrapper_ir.passes import InsertFrees, PlanMemory, run_passes

TEXT = """\
program main(x: f32[s0, 4] cpu, p: bool[] cpu):
  where s0 in [2, 64] hint 4
  symbol s0 = x.size(0)
  subgraph double(x: f32[n, 4] cpu, n: int):
    where n in [2, 64]
    y = extern test.double.default(x) -> f32[n, 4] cpu
    return (y,)
  subgraph same(x: f32[n, 4] cpu, n: int):
    y = extern test.copy.default(x) -> f32[n, 4] cpu
    return (y,)
  subgraph more(x: f32[n, 4] cpu, n: int):
    y = extern test.small.default(x) -> bool[] cpu
    return (y,)
  subgraph step(
      c: f32[4] cpu,
      x: f32[4] cpu,
      a_long_name_of_a_tensor_that_every_step_takes_as_it_is: f32[4] cpu,
  ):
    y = extern test.add.default(c, x) -> f32[4] cpu
    z = extern test.double.default(y) -> f32[4] cpu
    return (y, z)
  subgraph choose = if (double, same)  # either
  subgraph loop = while (more, double) carries 1
  subgraph running = scan (step,) carries 1 over 1
  (a,) = extern subgraph.choose(p, x, s0) -> (f32[s0, 4] cpu,)
  (b,) = extern subgraph.loop(a, s0) -> (f32[s0, 4] cpu,)
  row = view x f32[4] cpu
  (d, e) = extern subgraph.running(row, b, row) -> (f32[4] cpu, f32[s0, 4] cpu)
  (f,) = extern subgraph.double(e, s0) -> (f32[s0, 4] cpu,)
  return (a, b, d, e, f)
"""
FUNCTIONS = {
    "test.double.default": lambda x: np.ascontiguousarray(x * 2),
    "test.copy.default": lambda x: x.copy(),
    "test.add.default": lambda a, b: np.ascontiguousarray(a + b),
    "test.small.default": lambda x: np.array(x.max() < 50),
}


def test_the_text_is_read_as_it_is_printed():
    program = parse_program(TEXT)
    assert print_program(program) == TEXT
    assert [p.name for p in programs(program)] == ["main", "double", "same", "more", "step"]


@pytest.mark.parametrize("p", [True, False])
def test_meaning(runtime, p):
    program = parse_program(TEXT)
    verify(program)
    for passes in ((), (InsertFrees(), PlanMemory())):
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        run = run_passes(program, passes)
        a, b, d, e, f = interpret(run, [x.copy(), np.array(p)], runtime(**FUNCTIONS))
        first = x * 2 if p else x
        loop = first
        while loop.max() < 50:
            loop = loop * 2
        rows = x[0] + np.cumsum(loop, 0)
        wanted = (first, loop, rows[-1], rows * 2, rows * 4)
        for got, want in zip((a, b, d, e, f), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_loop_that_never_runs_gives_memory_of_its_own(runtime):
    program = parse_program(TEXT)
    x = np.full((3, 4), 60, np.float32)
    a, b, *_ = interpret(program, [x, np.array(False)], runtime(**FUNCTIONS))
    np.testing.assert_array_equal(a, b)
    assert not np.shares_memory(a, b)


RULES = [
    (errors.InvalidSubgraph, "return (y, z)", "return (y, c)"),
    (errors.InvalidSubgraph, "return (y, z)", "return (y, y)"),
    (errors.InvalidSubgraph, "    return (y,)", "    copy y -> x\n    return (y,)"),
    (errors.InvalidSubgraph, "if (double, same)", "if (double,)"),
    (errors.InvalidSubgraph, "if (double, same)", "unless (double, same)"),
    (errors.UndefinedName, "if (double, same)", "if (double, other)"),
    (errors.DuplicateDefinition, "loop = while", "choose = while"),
    (errors.DuplicateDefinition, "subgraph same", "subgraph double"),
    (errors.UndefinedName, "subgraph.double(e, s0)", "subgraph.nothing(e, s0)"),
    (errors.InvalidSubgraph, "subgraph.double(e, s0)", "subgraph.double(e)"),
    (errors.InvalidSubgraph, "subgraph.double(e, s0)", "subgraph.double(s0, e)"),
    (errors.InvalidSubgraph, "subgraph.double(e, s0)", "subgraph.double(e, s0) alias e"),
    (errors.UndefinedName, "test.add.default(c, x)", "test.add.default(c, row)"),
]


@pytest.mark.parametrize(("error", "old", "new"), RULES)
def test_rules(error, old, new):
    assert old in TEXT
    with pytest.raises(error):
        verify(parse_program(TEXT.replace(old, new, 1)))


def test_one_program_has_one_kernel_of_a_name():
    kernel = "  kernel k(x: *f32 mutated) warps 4 stages 1:\n    def k(x): {}\n  end\n"
    inner = "  subgraph f(x: f32[4] cpu):\n" + kernel.replace("  kernel", "    kernel")
    inner = inner.replace("    def", "      def").replace("  end", "    end")
    inner += "    y = alloc f32[4] cpu\n    launch k grid (1, 1, 1) (y)\n    return (y,)\n"
    text = "program main(x: f32[4] cpu):\n" + kernel.format("...") + "{}  return (x,)\n"
    program = parse_program(text.format(inner.format("...")))
    assert list(kernels(program)) == ["k"]
    with pytest.raises(errors.DuplicateDefinition):
        verify(parse_program(text.format(inner.format("pass"))))
