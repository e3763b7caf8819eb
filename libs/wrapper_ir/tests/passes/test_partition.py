"""Parts for CUDA graphs: where programs are cut, what goes in and out, and that nothing changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wrapper_ir import DefineSubgraph, ExternCall, errors, parse_program, print_program, verify
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
@settings(deadline=None, max_examples=30)
def test_nothing_changes(programs, run_generated, passes, data):
    program = run_passes(data.draw(programs), data.draw(st.sampled_from([(), TAIL])))
    left_out = data.draw(st.sets(st.sampled_from(OPERATORS), min_size=1))
    made = cut(program, *left_out, least=data.draw(st.integers(1, 3)), tail=passes)
    assert parse_program(print_program(made)) == made
    for s0 in (1, 4):
        got, wanted = run_generated(made, s0), run_generated(program, s0)
        for x, y in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(x, y)


HEAD = """\
program main(x: f32[s0, 4] cpu, y: f32[4, 4] cpu, k: i64[] cpu, n: int):
  where s0 in [1, 8]
  where u0 in [0, *]
  symbol s0 = x.size(0)
"""
CALL = "extern test.double.default"


def lines(body, *left_out, least=1):
    program = parse_program(HEAD + body)
    made = cut(program, *left_out, least=least, tail=())
    return [line.strip() for line in print_program(made).split("\n")[4:-1]]


def test_a_part_takes_what_it_uses_and_gives_what_is_used_later():
    """Storages, symbols and constants go in; views are made anew; nothing is said twice."""
    assert lines(
        '  c = constant f32[4, 4] cpu "c"\n'
        "  a = alloc f32[s0, 4] cpu\n"
        "  row = view y f32[4] cpu\n"
        "  extern test.fill(a, row, n) mutates (a,)\n"
        f"  b = {CALL}(c) -> f32[4, 4] cpu\n"
        "  extern out.out.default(b)\n"
        "  half = view a f32[s0, 2] cpu stride (4, 1)\n"
        f"  d = {CALL}(half) -> f32[s0, 2] cpu\n"
        "  extern test.fill(y, row, s0) mutates (y,)\n"
        "  return (d, row)\n",
        "out.out.default",
    ) == [
        "subgraph main_part0(y: f32[4, 4] cpu, c: f32[4, 4] cpu, n: int, s0: int) captured:",
        "where s0 in [1, 8]",
        "a = alloc f32[s0, 4] cpu",
        "row = view y f32[4] cpu",
        "extern test.fill(a, row, n) mutates (a,)",
        f"b = {CALL}(c) -> f32[4, 4] cpu",
        "return (a, b)",
        "subgraph main_part1(a: f32[s0, 4] cpu, y: f32[4, 4] cpu, s0: int) captured:",
        "where s0 in [1, 8]",
        "half = view a f32[s0, 2] cpu stride (4, 1)",
        f"d = {CALL}(half) -> f32[s0, 2] cpu",
        "row = view y f32[4] cpu",
        "extern test.fill(y, row, s0) mutates (y,)",
        "return (d,)",
        'c = constant f32[4, 4] cpu "c"',
        "(a, b) = extern subgraph.main_part0(y, c, n, s0) -> (f32[s0, 4] cpu, f32[4, 4] cpu)",
        "extern out.out.default(b)",
        "(d,) = extern subgraph.main_part1(a, y, s0) mutates (y,) -> (f32[s0, 2] cpu,)",
        "row = view y f32[4] cpu",
        "return (d, row)",
    ]


def test_views_that_operators_make_are_made_anew():
    """Their types do not say where in the storage they lie."""
    assert lines(
        "  (a, b) = extern aten.unbind.int(y, 0) alias y -> (f32[4] cpu, f32[4] cpu)\n"
        f"  c = {CALL}(a) -> f32[4] cpu\n"
        "  d = extern test.increment_.default(c, 1) mutates (c,) alias c -> f32[4] cpu\n"
        "  o = extern out.view.default(x) alias x -> f32[4] cpu\n"
        "  w = view b f32[2] cpu\n"
        f"  e = {CALL}(w) -> f32[2] cpu\n"
        "  extern test.fill(e, o, d) mutates (e,)\n"
        "  return (e,)\n",
        "out.view.default",
    ) == [
        "subgraph main_part0(y: f32[4, 4] cpu) captured:",
        "(a, b) = extern aten.unbind.int(y, 0) alias y -> (f32[4] cpu, f32[4] cpu)",
        f"c = {CALL}(a) -> f32[4] cpu",
        "d = extern test.increment_.default(c, 1) mutates (c,) alias c -> f32[4] cpu",
        "return (c,)",
        "subgraph main_part1(y: f32[4, 4] cpu, o: f32[4] cpu, c: f32[4] cpu) captured:",
        "(a, b) = extern aten.unbind.int(y, 0) alias y -> (f32[4] cpu, f32[4] cpu)",
        "w = view b f32[2] cpu",
        f"e = {CALL}(w) -> f32[2] cpu",
        "d = view c f32[4] cpu",
        "extern test.fill(e, o, d) mutates (e,)",
        "return (e,)",
        "(c,) = extern subgraph.main_part0(y) -> (f32[4] cpu,)",
        "o = extern out.view.default(x) alias x -> f32[4] cpu",
        "(e,) = extern subgraph.main_part1(y, o, c) -> (f32[2] cpu,)",
        "return (e,)",
    ]


STOPS = {
    "a name": f"  b = {CALL}(a) -> f32[4, 4] cpu\n",
    "data": "  b = extern aten.nonzero.default(a) binds (u0,) -> i64[u0, 2] cpu\n",
    "item": '  symbol u0 = k.item()\n  assert u0 < 9 "k"\n',
    "ranks": '  r = extern _c10d_functional.all_gather(a, "0") -> f32[4, 4] cpu\n'
    "  b = extern _c10d_functional.wait_tensor.default(r) -> f32[4, 4] cpu\n",
    "another device": "  b = extern aten.to(a) -> f32[4, 4] cuda:0\n",
    "a block": f"  if n > 3:\n    b = {CALL}(a) -> f32[4, 4] cpu\n",
    "control": "  subgraph f(q: f32[4, 4] cpu):\n    o = extern t.f(q) -> f32[4, 4] cpu\n"
    "    return (o,)\n  subgraph g = if (f, f)\n"
    "  (b,) = extern subgraph.g(k, a) -> (f32[4, 4] cpu,)\n",
    "a subgraph": f"  subgraph f(q: f32[4, 4] cpu):\n    o = {CALL}(q) -> f32[4, 4] cpu\n"
    "    return (o,)\n  (b,) = extern subgraph.f(a) -> (f32[4, 4] cpu,)\n",
}


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
@pytest.mark.parametrize("least", [1, 2])
def test_where_programs_are_cut(stop, least):
    """Between two parts; a stretch of one call is none where parts have two."""
    one = "  {0} = extern t.f({1}) -> f32[4, 4] cpu\n"
    two = one.format("e", "a") + one.format("f", "e")
    body = one.format("a", "y") + stop + two
    program = parse_program(HEAD + body + "  return (f,)\n")
    made = parts(cut(program, "test.double.default", least=least))
    counts = [sum(isinstance(op, ExternCall) for op in part.ops) for part in made]
    assert counts == ([1, 2] if least == 1 else [2])


def test_what_is_whole_or_has_no_part_stays():
    body = f"  a = {CALL}(y) -> f32[4, 4] cpu\n  return (a,)\n"
    program = parse_program(HEAD.replace("x: f32[s0, 4] cpu", "x: f32[s0, 4] cpu") + body)
    assert cut(program) == run_passes(program, TAIL)
    assert cut(program, "test.double.default") == run_passes(program, TAIL)


PART = """\
program main(x: f32[4] cpu, k: i64[] cpu):
  subgraph part(y: f32[4] cpu, k: i64[] cpu) captured:
    z = extern t.f(y) -> f32[4] cpu
    copy z -> y
    return (z,)
  (a,) = extern subgraph.part(x, k) mutates (x,) -> (f32[4] cpu,)
  return (a,)
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" mutates (x,)", ""),
        (" mutates (x,)", " mutates (x, k)"),
        ("    copy z -> y\n", ""),
        ("    copy z -> y\n", '    copy z -> y\n    symbol u0 = k.item()\n    assert u0 > 0 "k"\n'),
        ("    return", "    extern aten.f(y) binds (u0,)\n    return"),
        ("  (a,)", "  subgraph both = scan (part,) carries 1\n  (a,)"),
    ],
)
def test_rules_of_parts(old, new):
    verify(parse_program(PART))
    assert old in PART
    with pytest.raises(errors.VerifyError):
        verify(parse_program(PART.replace(old, new, 1)))
