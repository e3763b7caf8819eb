"""Runs of sizes against a search of all ways to split them."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multikernel import fewest_runs

COSTS = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([1.0, 1.5, 2.0]), min_size=1),
    max_size=7,
)


@settings(deadline=None)
@given(COSTS)
def test_runs_are_as_few_as_can_be(costs):
    runs = fewest_runs(costs)
    assert sum(count for count, _ in runs) == len(costs)
    start = 0
    for count, common in runs:
        part = costs[start : start + count]
        shared = set.intersection(*(set(each) for each in part))
        assert set(common) == shared and shared
        for name, total in common.items():
            assert total == pytest.approx(sum(each[name] for each in part))
        start += count

    def possible(cuts):
        ends = [0, *cuts, len(costs)]
        parts = [costs[a:b] for a, b in pairwise(ends)]
        return all(set.intersection(*(set(each) for each in part)) for part in parts)

    for fewer in range(len(runs) - 1):
        assert not any(map(possible, combinations(range(1, len(costs)), fewer)))
