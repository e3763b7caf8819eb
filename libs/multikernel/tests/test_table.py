"""The decision table against brute force."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multikernel import Decision, DecisionTable, InvalidSizes, UnknownVariant, compare_chain, follow
from multikernel.buckets import bucket, smallest

NAMES = ("a", "b", "c")


@settings(max_examples=45, deadline=None)
@given(st.integers(-3, 2**70), st.integers(1, 9))
def test_buckets_are_intervals_of_integers(size, resolution):
    index = bucket(size, resolution)
    assert bucket(size + 1, resolution) >= index
    low, after = smallest(index, resolution), smallest(index + 1, resolution)
    assert low <= max(size, 1) < after
    assert (after - 1 - low) * resolution <= low  # at most 1/resolution wide
    assert bucket(low, resolution) == index and bucket(after - 1, resolution) == index


@given(st.integers(0, 300), st.integers(1, 9))
def test_smallest_is_the_first_size_at_or_after_an_index(index, resolution):
    first = smallest(index, resolution)
    assert bucket(first, resolution) >= index
    assert first == 1 or bucket(first - 1, resolution) < index


def test_small_sizes_have_a_bucket_each():
    assert [bucket(s, 4) for s in range(12)] == [0, 0, 4, 6, 8, 9, 10, 11, 12, 12, 13, 13]


def tables(rank, highest=28):
    cell = st.tuples(*[st.integers(0, highest)] * rank)
    decided = st.dictionaries(cell, st.sampled_from(NAMES).map(Decision), min_size=1, max_size=12)
    return decided.map(lambda cells: DecisionTable(NAMES, 4, cells))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3).flatmap(tables), st.data())
def test_decided_cells_stay_and_the_chain_is_the_lookup(table, data):
    rank = len(next(iter(table.cells)))
    for cell, decision in table.cells.items():
        if all(bucket(smallest(c, 4), 4) == c for c in cell):  # some have no size: 1, 2 are 0, 4
            assert table.lookup([smallest(c, 4) for c in cell]) == decision.variant
    chain = compare_chain(table)
    # On both sides of every threshold, and far out.
    places = {0, 1, 2**40}
    for branch in chain:
        for c in branch.comparisons:
            places |= {c.right_scale, c.right_scale + 1}
    sizes = product(sorted(places), repeat=rank) if rank < 3 else [()]
    points = [*sizes] if rank < 3 else []
    points += data.draw(st.lists(st.tuples(*[st.integers(0, 300)] * rank), max_size=20))
    for point in points:
        assert NAMES[follow(chain, point)] == table.lookup(point)


@settings(max_examples=30, deadline=None)
@given(tables(1))
def test_one_dimension_is_the_nearest_decided_cell(table):
    for size in range(300):
        at = bucket(size, 4)
        nearest = min(table.cells, key=lambda cell: (abs(cell[0] - at), cell))
        assert table.lookup((size,)) == table.cells[nearest].variant


@settings(max_examples=25, deadline=None)
@given(tables(2, 20))
def test_two_dimensions_are_a_cut_of_the_plane(table):
    """Written again the plain way: cut where the sides are purest, until each is of one kind."""

    def purity(cells):
        kinds = [table.cells[c].variant for c in cells]
        return Fraction(sum(kinds.count(k) ** 2 for k in set(kinds)), len(kinds))

    def choose(cells, at):
        if len({table.cells[c].variant for c in cells}) == 1:
            return table.cells[cells[0]].variant
        best = None
        for dim in (0, 1):
            values = sorted({c[dim] for c in cells})
            for a, b in pairwise(values):
                low, high = [c for c in cells if c[dim] <= a], [c for c in cells if c[dim] > a]
                score = purity(low) + purity(high)
                if best is None or score > best[0]:
                    best = (score, dim, (a + b) // 2, low, high)
        _, dim, last, low, high = best
        return choose(low if at[dim] <= last else high, at)

    cells = sorted(table.cells)
    for point in product(range(0, 40, 3), repeat=2):
        assert table.lookup(point) == choose(cells, table.cell(point))


@given(tables(2), st.randoms())
def test_the_order_of_decisions_does_not_matter(table, random):
    items = list(table.cells.items())
    random.shuffle(items)
    again = DecisionTable(NAMES, 4)
    for cell, decision in items:
        again = again.decide(cell, decision)
    assert again.rules == table.rules


def test_text_and_explanation():
    table = DecisionTable(
        ("small", "large"),
        4,
        {(0, 12): Decision("small", {"small": 1e-6, "large": 2e-6}, (1, 8))},
    )
    assert compare_chain(table)[0].text(["m", "n"]) == ""
    table = table.decide((24, 12), Decision("large", {}, (70, 9)))
    table = table.decide((28, 12), Decision("large", {}, (128, 9)))
    assert [b.text(["m", "n"]) for b in compare_chain(table)] == ["m <= 9", ""]
    assert table.explain().splitlines() == [
        "if s0 <= 9: small",
        "else: large",
        "from 1x8 (at 1x8): small; small 1.00 us, large 2.00 us",
        "from 64x8 (at 70x9): large; as around it",
        "from 128x8 (at 128x9): large; as around it",
    ]


def test_agreement_needs_measured_cells_on_both_sides():
    good_b = Decision("a", {"a": 1.0, "b": 1.02, "c": 1.5})
    table = DecisionTable(NAMES, 4, {(8,): good_b, (11,): Decision("b", {"a": 1.1, "b": 1.0})})
    assert table.agreed((9,), 0.03) == {"b"}
    assert table.agreed((9,), 0.2) == {"a", "b"}
    assert table.agreed((12,), 0.03) == table.agreed((7,), 0.03) == frozenset()
    assert table.decide((10,), Decision("c", {"c": 1.0})).agreed((9,), 0.03) == frozenset()
    assert table.decide((10,), Decision("c")).agreed((9,), 0.03) == {"b"}  # a guess is no witness


def test_mistakes_are_named():
    with pytest.raises(UnknownVariant):
        DecisionTable(NAMES, 4, {(1,): Decision("d")})
    with pytest.raises(InvalidSizes):
        DecisionTable(NAMES, 4, {(1,): Decision("a"), (1, 2): Decision("a")})
    with pytest.raises(InvalidSizes):
        DecisionTable(NAMES, 4, {(1,): Decision("a")}).lookup((1, 2))
    assert DecisionTable(NAMES).lookup((1, 2)) is None
