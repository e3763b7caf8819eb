from __future__ import annotations

from itertools import product
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multikernel import InvalidBox, sample_hints

RANGE = st.tuples(st.integers(1, 2**30), st.integers(0, 2**30)).map(lambda r: (r[0], r[0] + r[1]))
SMALL = st.tuples(st.integers(1, 9), st.integers(0, 4)).map(lambda r: (r[0], r[0] + r[1]))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.one_of(RANGE, SMALL), min_size=1, max_size=4), st.integers(1, 40))
def test_hints_are_in_the_box_different_and_grow_by_prefix(box, count):
    hints = sample_hints(box, count)
    total = 1
    for low, high in box:
        total *= high - low + 1
    assert len(set(hints)) == len(hints) == min(count, total)
    for hint in hints:
        assert all(low <= h <= high for h, (low, high) in zip(hint, box, strict=True))
    assert hints[: count // 2] == (sample_hints(box, count // 2) if count // 2 else ())


def test_corners_come_first():
    box = [(1, 8192), (64, 4096), (1, 2)]
    hints = sample_hints(box, 30)
    assert hints[:2] == ((1, 64, 1), (8192, 4096, 2))
    assert set(hints[:8]) == set(product(*box))
    assert len(sample_hints([(1, 4)] * 60, 5)) == 5  # 2**60 corners


@pytest.mark.parametrize(("rank", "count"), [(1, 16), (2, 64), (3, 128)])
def test_low_discrepancy_in_log2(rank, count):
    """Every box of half or quarter sides holds its share of the points, to a few."""
    hints = sample_hints([(1, 65536)] * rank, count + 2**rank)[2**rank :]
    points = [[log2(h) / 16 for h in hint] for hint in hints]
    sides = [(0, 0.5), (0.5, 1.01), (0.25, 0.75), (0, 1.01)]
    for box in product(sides, repeat=rank):
        share = 1.0
        for a, b in box:
            share *= min(b, 1.0) - a
        inside = sum(all(a <= x < b for x, (a, b) in zip(p, box, strict=True)) for p in points)
        assert abs(inside - share * count) <= 4 + 0.03 * count, (box, inside, share * count)


def test_not_only_the_diagonal():
    hints = sample_hints([(1, 1024), (1, 1024)], 16)
    far = [h for h in hints if abs(log2(h[0]) - log2(h[1])) > 3]
    assert len(far) >= 6


def test_known_values():
    """The same on every machine and version."""
    assert sample_hints([(1, 8192)], 6) == KNOWN


# 8192 ** (0.5 + i * 0.6180339887 % 1) for i = 1, 2, ...
KNOWN = ((1,), (8192,), (3,), (759,), (24,), (6373,))


@pytest.mark.parametrize("box", [[], [(0, 4)], [(5, 4)], [(1, 2, 3)]])
def test_bad_boxes_are_refused(box):
    with pytest.raises(InvalidBox):
        sample_hints(box, 4)
    with pytest.raises(InvalidBox):
        sample_hints([(1, 4)], 0)
