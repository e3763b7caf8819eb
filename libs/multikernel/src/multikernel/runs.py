"""Neighbouring sizes that share a choice, so that there are fewer comparisons."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

K = TypeVar("K")


def fewest_runs(costs: Sequence[Mapping[K, float]]) -> list[tuple[int, dict[K, float]]]:
    """Sizes in order, split into the fewest runs such that something serves all of each run.

    costs: for each size, what may serve it, and what that costs there (its time over the best
        time, say); never empty.

    Returns how many sizes each run has, and what serves all of it, with the sum of its costs. Each
    run, from left to right, is as long as it can be: that leaves the fewest.

    >>> fewest_runs([{"a": 1.0, "b": 1.25}, {"b": 1.0}, {"c": 1.0}])
    [(2, {'b': 2.25}), (1, {'c': 1.0})]
    """
    runs: list[tuple[int, dict[K, float]]] = []
    for each in costs:
        if runs:
            count, common = runs[-1]
            shared = {
                choice: cost + each[choice] for choice, cost in common.items() if choice in each
            }
            if shared:
                runs[-1] = count + 1, shared
                continue
        runs.append((1, dict(each)))
    return runs
