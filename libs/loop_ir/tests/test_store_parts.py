"""Parts of a concatenation are stored where they belong, and the whole is what it was."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from loop_ir import Graph, Kernel, interpret_graph, parse_graph, print_graph, verify
from loop_ir.errors import WriterConflict
from loop_ir.fusion.store_parts import StoreParts
from loop_ir.ir.affine import disjoint

MAKER = """
  kernel {a}(
      x: f32[4, {n}] cuda:0,
      out {a}: f32[4, {n}] cuda:0,
  ):
    parallel i0 < 4, i1 < {n}:
      once:
        v0 = load x[i0*{n} + i1] : f32
        v1 = exp(v0) : f32
        store {a}[i0*{n} + i1] = v1
"""
CAT = """
  kernel cat(
      a: f32[4, 16] cuda:0,
      b: f32[4, 24] cuda:0,
      out y: f32[4, 40] cuda:0,
  ):
    parallel i0 < 4, i1 < 40:
      once:
        v0 = index i1 : i64
        v1 = const 0 : i64
        v2 = ge(v0, v1) : bool
        v3 = const 16 : i64
        v4 = lt(v0, v3) : bool
        v5 = and(v2, v4) : bool
        v6 = load a[i0*16 + i1] if v5 else 0 : f32
        v7 = ge(v0, v3) : bool
        v8 = const 40 : i64
        v9 = lt(v0, v8) : bool
        v10 = and(v7, v9) : bool
        v11 = load b[i0*24 + i1 - 16] if v10 else 0 : f32
        v12 = where(v10, v11, v6) : f32
        store y[i0*40 + i1] = v12
"""


def graph(a: bool, b: bool, results: str = "y: f32[4, 40] cuda:0") -> Graph:
    """The concatenation of a and b, each an input or made by a kernel of x, z."""
    head = "graph g(\n    x: f32[4, 16] cuda:0,\n    z: f32[4, 24] cuda:0,\n"
    head += "" if a else "    a: f32[4, 16] cuda:0,\n"
    head += "" if b else "    b: f32[4, 24] cuda:0,\n"
    body = MAKER.format(a="a", n=16) if a else ""
    body += MAKER.format(a="b", n=24).replace("x", "z").replace("ezp", "exp") if b else ""
    return parse_graph(f"{head}):{body}{CAT}  return ({results})\n")


def agree(whole: Graph) -> Graph:
    stored = StoreParts().run(whole)
    verify(stored)
    assert parse_graph(print_graph(stored)) == stored
    rng = np.random.default_rng(0)
    sizes = [[int(n) for n in i.type.size] for i in whole.inputs]
    x = [rng.standard_normal(size).astype(np.float32) for size in sizes]
    for want, got in zip(interpret_graph(whole, x), interpret_graph(stored, x), strict=True):
        np.testing.assert_array_equal(got, want)
    return stored


def test_no_copy_is_left() -> None:
    first, second = agree(graph(True, True)).nodes
    assert isinstance(first, Kernel) and isinstance(second, Kernel)
    assert {b.name for b in first.buffers} == {"x", "y"}
    assert "y[i0*40 + i1 + 16]" in print_graph(agree(graph(True, True)))


def test_a_part_that_no_kernel_makes_is_copied() -> None:
    maker, copy = agree(graph(False, True)).nodes
    assert isinstance(copy, Kernel) and [str(a.extent) for a in copy.axes] == ["4", "16"]
    assert {b.name for b in copy.buffers} == {"a", "y"}
    assert isinstance(maker, Kernel) and {b.name for b in maker.buffers} == {"z", "y"}


def test_a_part_that_is_a_result_is_stored_twice() -> None:
    both = agree(graph(True, True, "y: f32[4, 40] cuda:0, a: f32[4, 16] cuda:0"))
    maker = both.nodes[0]
    assert isinstance(maker, Kernel) and {b.name for b in maker.buffers} == {"x", "a", "y"}


PAIRS = """graph g(
    x: f32[4, 16] cuda:0,
):
  kernel parts(
      x: f32[4, 16] cuda:0,
      out a: f32[4, 16] cuda:0,
      out b: f32[4, 16] cuda:0,
  ):
    parallel i0 < 4:
      over r0 < 16:
        v0 = load x[i0*16 + r0] : f32
        v1 = exp(v0) : f32
        store a[i0*16 + r0] = v1
        v2 = reduce sum(v1) : f32
      over r0 < 16:
        v3 = sub(v1, v2) : f32
        store b[i0*16 + r0] = v3
  kernel pairs(
      a: f32[4, 16] cuda:0,
      b: f32[4, 16] cuda:0,
      out y: f32[4, 16, 2] cuda:0,
  ):
    parallel i0 < 64, i1 < 2:
      once:
        v0 = index i1 : i64
        v1 = const 0 : i64
        v2 = const 1 : i64
        v3 = const 2 : i64
        v4 = ge(v0, v1) : bool
        v5 = lt(v0, v2) : bool
        v6 = and(v4, v5) : bool
        v7 = load a[i0 + i1] if v6 else 0 : f32
        v8 = ge(v0, v2) : bool
        v9 = lt(v0, v3) : bool
        v10 = and(v8, v9) : bool
        v11 = load b[i0 + i1 - 1] if v10 else 0 : f32
        v12 = where(v10, v11, v7) : f32
        store y[i0*2 + i1] = v12
  return (y: f32[4, 16, 2] cuda:0)
"""


def test_short_runs_are_stored_by_the_kernel_that_makes_all_of_them() -> None:
    (both,) = agree(parse_graph(PAIRS)).nodes
    assert isinstance(both, Kernel) and {b.name for b in both.buffers} == {"x", "y"}


def test_short_runs_of_which_another_has_a_part_are_joined_by_a_kernel() -> None:
    parts, pairs = PAIRS.split("  kernel pairs(")
    of_x = pairs.replace("load b[", "load x[").replace("      b: f32", "      x: f32")
    apart = parse_graph(f"{parts}  kernel pairs({of_x}")
    names = [n.name for n in agree(apart).nodes if isinstance(n, Kernel)]
    assert names == ["parts", "pairs"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("where(v10, v11, v6)", "where(v10, v6, v11)"),  # not its own mask
        ("const 16", "const 15"),  # an element is nobody's
        (  # a place that is data
            "v6 = load a[i0*16 + i1]",
            "t0 = indirect v0 < 16\n        v6 = load a[i0*16 + t0]",
        ),
    ],
)
def test_what_joins_otherwise_is_left(old: str, new: str) -> None:
    odd = parse_graph(print_graph(graph(True, True)).replace(old, new))
    assert odd != graph(True, True) and StoreParts().run(odd) is odd


def test_a_part_that_is_turned_around_is_copied() -> None:
    text = print_graph(graph(True, True))
    turned = agree(parse_graph(text.replace("load a[i0*16 + i1]", "load a[i0*16 - i1 + 15]")))
    assert [n.name for n in turned.nodes if isinstance(n, Kernel)] == ["a", "b", "cat"]


def test_nothing_to_gain() -> None:
    inputs = graph(False, False)
    assert StoreParts().run(inputs) is inputs


def test_two_stores_of_one_kernel_must_not_meet() -> None:
    text = """
graph g(
    x: f32[4, 16] cuda:0,
):
  kernel k(
      x: f32[4, 16] cuda:0,
      out y: f32[4, 40] cuda:0,
  ):
    parallel i0 < 4, i1 < 16:
      once:
        v0 = load x[i0*16 + i1] : f32
        store y[i0*40 + i1] = v0
        store y[i0*40 + i1 + 16] = v0
  return (y: f32[4, 40] cuda:0)
"""
    verify(parse_graph(text))
    with pytest.raises(WriterConflict, match="y is stored to twice"):
        verify(parse_graph(text.replace("i1 + 16]", "i1 + 15]")))


BOTH = """
graph g(
    x: f32[{n}] cuda:0,
):
  where s0 in [2, 64] hint 8
  kernel k(
      x: f32[{n}] cuda:0,
      out a: f32[{n}] cuda:0,
      out b: f32[{n}] cuda:0,
  ):
    where s0 in [2, 64] hint 8
    parallel i0 < 1, i1 < {n}:
      once:
        v0 = load x[i1] : f32
        store a[i0*{n} + i1] = v0
        v1 = exp(v0) : f32
        store b[i0*{n} + i1] = v1
  kernel cat(
      a: f32[{n}] cuda:0,
      b: f32[{n}] cuda:0,
      out y: f32[2, {n}] cuda:0,
  ):
    where s0 in [2, 64] hint 8
    parallel i0 < 2, i1 < {n}:
      once:
        v0 = index i0 : i64
        v1 = const 1 : i64
        v2 = lt(v0, v1) : bool
        v3 = load a[i0*{n} + i1] if v2 else 0 : f32
        v4 = ge(v0, v1) : bool
        v5 = load b[i0*{n} - {n} + i1] if v4 else 0 : f32
        v6 = where(v4, v5, v3) : f32
        store y[i0*{n} + i1] = v6
  return (y: f32[2, {n}] cuda:0)
"""


def test_stores_of_one_kernel_that_may_meet_as_far_as_is_known() -> None:
    """That rows of a size that is not known lie behind each other is not proven: one is copied."""
    stored = StoreParts().run(parse_graph(BOTH.format(n="s0")))
    verify(stored)
    assert [node.name for node in stored.nodes if isinstance(node, Kernel)] == ["k", "cat"]


forms = st.tuples(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 4)), min_size=1, max_size=3),
    st.integers(0, 12),
)


@given(forms, forms)
def test_disjoint_is_never_wrong(one: tuple, two: tuple) -> None:
    def values(terms: list[tuple[int, int]], rest: int) -> set[int]:
        spaces = (range(n) for _, n in terms)
        return {rest + sum(c * i for (c, _), i in zip(terms, at, strict=True))
                for at in itertools.product(*spaces)}  # fmt: skip

    axes = sympy.symbols("i0:3", integer=True)
    index, extents = [], []
    for terms, rest in (one, two):
        index.append(sympy.Add(rest, *(c * a for (c, _), a in zip(terms, axes, strict=False))))
        sizes = (sympy.Integer(n) for _, n in terms)
        extents.append(dict(zip(axes, sizes, strict=False)))
    if disjoint(index[0], index[1], extents[0], extents[1]):
        assert not values(*one) & values(*two)


def test_rows_of_a_dynamic_size_are_disjoint() -> None:
    """`i0 < s` and `i0 + s`, row after row; those two rows apart only if s is known not to be below
    zero. Not rows that begin one element early, nor an index that falls."""
    i0, s = sympy.symbols("i0 s", integer=True)
    over, lows = {i0: s}, ((s, 0),)
    assert disjoint(i0, i0 + s, over, over, lows)
    assert disjoint(i0 + 2 * s, i0 + s, over, over, lows)
    assert disjoint(i0 + 2 * s, i0, over, over, lows)
    assert not disjoint(i0 + 2 * s, i0, over, over, ((s, -3),))
    assert not disjoint(i0, i0 + s - 1, over, over, lows)
    assert not disjoint(i0, s - i0, over, over, lows)


def test_parts_of_a_dynamic_period_are_disjoint() -> None:
    """As far as they stay in it, however often it comes."""
    i0, i1, i2, s, n = sympy.symbols("i0 i1 i2 s n", integer=True)
    lows, over = ((s, 4), (n, 0)), {i0: n, i1: s, i2: s - 1}
    period, within = 2 * s * (s - 1), i1 * (s - 1) + i2
    whole = sympy.expand(i0 * period + within)
    assert disjoint(whole, sympy.expand(whole + s * (s - 1)), over, over, lows)
    assert not disjoint(whole, sympy.expand(whole + s * (s - 1) - 1), over, over, lows)
    assert not disjoint(whole, sympy.expand(whole + s * (s - 1) + 1), over, over, lows)
    assert not disjoint(whole, sympy.expand(whole + period), over, over, lows)
    assert not disjoint(whole, sympy.expand(whole + s * (s - 1)), over, over, ((s, -4), (n, 0)))
