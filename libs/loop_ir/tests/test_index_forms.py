"""Forms of indices: common refinements of axes, points that are found again, linear expressions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from loop_ir import Axis, Symbol, parse_kernel, verify
from loop_ir.fusion.common_domain import refine
from loop_ir.fusion.inline import locate
from loop_ir.ir.affine import factors, linear, nonnegative, quotient
from symexpr import FloorDiv, symbol


def sizes(total):
    """Ordered factorisations of a number."""

    def split(n, parts):
        if parts == 1:
            return st.just((n,))
        divisors = [d for d in range(1, n + 1) if n % d == 0]
        return st.sampled_from(divisors).flatmap(
            lambda d: split(n // d, parts - 1).map(lambda rest: (d, *rest))
        )

    return st.integers(1, 4).flatmap(lambda parts: split(total, parts))


@settings(deadline=None, max_examples=40, derandomize=True)
@given(sizes(48), sizes(48))
def test_refinement_gives_both_factorisations(a, b):
    first = [Axis(symbol(f"a{n}"), e) for n, e in enumerate(a)]
    second = [Axis(symbol(f"b{n}"), e) for n, e in enumerate(b)]
    atoms = refine(first, second)
    if atoms is None:  # only if some partial products divide neither way
        tails = lambda s: {int(np.prod(s[n:])) for n in range(len(s) + 1)}  # noqa: E731
        both = sorted(tails(a) | tails(b))
        assert any(y % x for x, y in pairwise(both))
        return
    assert np.prod([int(x.extent) for x in atoms]) == 48
    for axes, side in ((first, "first"), (second, "second")):
        for n, axis in enumerate(axes):
            parts = [x for x in atoms if getattr(x, side) == n]
            assert np.prod([int(x.extent) for x in parts] or [1]) == axis.extent
            last = sum((int(x.extent) - 1) * int(getattr(x, f"{side}_scale")) for x in parts)
            assert last == axis.extent - 1


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    sizes(24),
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from((0, 1, 2, 3, 4, 6, 8, 12, 24))),
             min_size=1, max_size=3),
    st.integers(0, 8),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_located_points_are_right(extents, walk, start, random):
    """Where `locate` finds a point, storing there and loading here meet, at every point."""
    order = list(range(len(extents)))
    random.shuffle(order)
    step, store, producer = 1, sympy.S.Zero, [None] * len(extents)
    for n in reversed(order):
        producer[n] = Axis(symbol(f"i{n}"), extents[n])
        store = store + (step * producer[n].symbol if extents[n] != 1 else 0)
        step *= extents[n]
    axes = [Axis(symbol(f"i{n}"), e) for n, (e, _) in enumerate(walk)]
    load = sympy.Integer(start) + sum(
        (s * a.symbol for a, (_, s) in zip(axes, walk, strict=True)), sympy.S.Zero
    )
    point = locate(store, producer, load, axes, ())
    if point is None:
        return
    grid = np.meshgrid(*[np.arange(e) for e, _ in walk], indexing="ij")
    names = [a.symbol for a in axes]
    for values in zip(*(g.reshape(-1) for g in grid), strict=True):
        env = {s: sympy.Integer(int(v)) for s, v in zip(names, values, strict=True)}
        at = {s: e.xreplace(env) for s, e in point}
        for axis in producer:
            assert 0 <= at[axis.symbol] < axis.extent
        assert store.xreplace(at) == load.xreplace(env)


def test_linear_forms():
    i, s = symbol("i0"), symbol("s0")
    form = linear(768 * s * i + 3 * i + s + 1, (i,))
    assert form is not None
    assert sympy.expand(form.coefficient(i) - (768 * s + 3)) == 0
    assert form.rest == s + 1
    assert linear(FloorDiv(i, 2), (i,)) is None
    assert linear(i * i, (i,)) is None
    assert quotient(768 * s, 32 * s) == 24
    assert quotient(768 * s, 32 * s * s) is None
    assert quotient(s + 1, s) is None
    assert factors(2 * s + 2) == (2, ((s + 1, 1),))
    assert nonnegative(s * 3 - 3, ((s, 1),))
    assert not nonnegative(s - 2, ((s, 1),))
    assert nonnegative(s - FloorDiv(s + 1, 2), ((s, 1),))
    assert not nonnegative(FloorDiv(s, 2) - 1, ((s, 1),))


def test_symbols_of_a_graph_bound_its_indices():
    """`s0 >= 1` proves what no example could."""
    text = """\
kernel k(
    x: f32[s0, 4] cuda:0,
    out y: f32[s0, 4] cuda:0,
):
  where s0 in [1, *]
  parallel i0 < s0, i1 < 4:
    once:
      v = load x[i0*4 + i1] : f32
      store y[i0*4 + i1] = v
"""
    assert parse_kernel(text).symbols == (Symbol("s0", 1, None),)
    verify(parse_kernel(text))
