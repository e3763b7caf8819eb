from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multikernel import InvalidHint, compare_chain, follow, nearest, rank_hints

SIZE = st.one_of(st.integers(0, 5), st.integers(0, 4096), st.integers(0, 2**80))
HINT = st.one_of(
    st.integers(1, 8), st.sampled_from([2**i for i in range(20)]), st.integers(1, 2**40)
)


def brute_force(sizes, hints):
    """The definition with exact rationals: 2**distance = prod(max(s, h) / min(s, h))."""
    best = None
    for index, hint in enumerate(hints):
        ratio = Fraction(1)
        for size, h in zip(sizes, hint, strict=True):
            s = max(size, 1)
            ratio *= Fraction(max(s, h), min(s, h))
        if best is None or (ratio, hint) < best[:2]:
            best = (ratio, hint, index)
    return best[2]


@st.composite
def hints_and_sizes(draw):
    rank = draw(st.integers(1, 3))
    hint = st.tuples(*[HINT] * rank)
    hints = draw(st.lists(hint, min_size=1, max_size=6, unique=True))
    # Sizes on, just beside and between hints find the ties.
    sizes = []
    for d in range(rank):
        a, b = draw(st.sampled_from(hints))[d], draw(st.sampled_from(hints))[d]
        mean = int((a * b) ** 0.5)
        sizes.append(max(0, draw(st.one_of(SIZE, st.sampled_from([a, mean - 1, mean, mean + 1])))))
    return hints, tuple(sizes)


@settings(max_examples=60, deadline=None)
@given(hints_and_sizes())
def test_nearest_and_chain_equal_brute_force(case):
    hints, sizes = case
    assert nearest(sizes, hints) == brute_force(sizes, hints)
    assert follow(compare_chain(hints), sizes) == brute_force(sizes, hints)


def test_distance_is_log2():
    hints = [(1,), (16,), (300,)]
    for size in range(1, 600):
        distances = [abs(log2(size) - log2(h)) for (h,) in hints]
        order = rank_hints((size,), hints)
        assert all(distances[a] <= distances[b] + 1e-12 for a, b in pairwise(order))


def test_ties_go_to_the_smaller_hint():
    assert nearest((4,), [(8,), (2,)]) == 1
    assert nearest((4, 4), [(8, 2), (2, 8)]) == 1
    assert follow(compare_chain([8, 2]), (4,)) == 1
    assert follow(compare_chain([8, 2]), (5,)) == 0


def test_sizes_zero_and_one_are_the_same():
    for hints in ([(1,), (2,)], [(3,), (64,)]):
        assert nearest((0,), hints) == nearest((1,), hints) == 0
        assert follow(compare_chain(hints), (0,)) == 0


def test_text_of_a_chain():
    chain = compare_chain([64, 2, 1024])
    assert [(b.text(["s0"]), b.variant) for b in chain] == [
        ("s0 <= 11", 1),
        ("s0 <= 256", 0),
        ("", 2),
    ]
    (first, _) = compare_chain([(1, 8), (4, 2)])
    assert first.text(["m", "n"]) == (
        "Min(Max(m, 1), 4)*Min(Max(m, 1), 4)*16 <= Min(Max(n, 2), 8)*Min(Max(n, 2), 8)*4"
    )


@settings(max_examples=40, deadline=None)
@given(hints_and_sizes())
def test_text_evaluates_to_the_branch(case):
    hints, sizes = case
    names = [f"s{d}" for d in range(len(sizes))]
    scope = {"Min": min, "Max": max, **dict(zip(names, sizes, strict=True))}
    for branch in compare_chain(hints):
        assert eval(branch.text(names) or "True", scope) == branch.holds(sizes)


@settings(max_examples=40, deadline=None)
@given(hints_and_sizes())
def test_magnitude_bounds_both_sides(case):
    hints, sizes = case
    for branch in compare_chain(hints):
        for c in branch.comparisons:
            if c.magnitude is None:
                assert len(sizes) == 1
                continue
            for side, scale in ((c.left, c.left_scale), (c.right, c.right_scale)):
                value = scale
                for factor in side:
                    value *= factor.value(sizes)
                assert value <= c.magnitude


@pytest.mark.parametrize("hints", [[], [0], [-1], [True], [()], [2, (2, 3)], [2, 2], [2.5]])
def test_bad_hints_are_refused(hints):
    with pytest.raises((InvalidHint, TypeError)):
        compare_chain(hints)
