"""Rounds of measurements that spend time on what may still win, and little on the rest."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from triton_rt.errors import TritonRTError
from tuning.margins import MARGINS

#: What one candidate's measurement gave: milliseconds, or why it is out.
Outcome = list[float] | TritonRTError


class Bench(Protocol):
    """Where candidates are measured: this process (`LocalBench`), or workers (`PoolBench`)."""

    def measure(self, indices: Sequence[int], runs: int) -> Iterator[tuple[int, Outcome]]:
        """`runs` more times of each candidate, in whatever order they come."""


@dataclass
class Race:
    """Samples by candidate, in milliseconds; `failures` with their errors."""

    samples: dict[int, list[float]] = field(default_factory=dict)
    failures: dict[int, TritonRTError] = field(default_factory=dict)

    def time(self, index: int) -> float:
        """The median so far; infinite without samples."""
        found = self.samples.get(index)
        return statistics.median(found) if found and index not in self.failures else math.inf


def rounds(repeats: int) -> list[tuple[int, float]]:
    """(runs, then keep what is within this factor of the best) until `repeats` runs are done."""
    out: list[tuple[int, float]] = []
    left = repeats
    for runs, factor in MARGINS.rounds:
        if left > runs:
            out.append((runs, factor))
            left -= runs
    return [*out, (max(1, left), 1.0)]


def race(bench: Bench, order: Sequence[int], repeats: int) -> Race:
    """Measures candidates, the most promising first: hopeless ones leave after one run."""
    result = Race()
    alive = list(order)
    for runs, factor in rounds(repeats):
        for index, outcome in bench.measure(alive, runs):
            if isinstance(outcome, TritonRTError):
                result.failures[index] = outcome
            else:
                result.samples.setdefault(index, []).extend(outcome)
        alive = [i for i in alive if i not in result.failures]
        best = min((result.time(i) for i in alive), default=math.inf)
        alive = [i for i in alive if result.time(i) <= factor * best]
        if len(alive) <= 1 and runs > 1:
            break
    return result


def winner(times: Sequence[float]) -> int:
    """The fastest; among those within `MARGINS.tie` of it, the first: noise decides little."""
    best = min(times)
    return next(i for i, t in enumerate(times) if t <= best * MARGINS.tie)
