"""The longest stretch of a sequence that repeats, as the layers of a model do."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

_TRIED = 8  # distances that are looked at


@dataclass(frozen=True)
class Run:
    """`count` times `period` items from `start` on."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The first item after it."""
        return self.start + self.period * self.count


def longest_run(items: Sequence[Hashable]) -> Run | None:
    """The longest stretch each of whose items equals the one a period later, in whole periods;
    None where no two follow each other."""
    latest: dict[Hashable, int] = {}
    distances: Counter[int] = Counter()
    for i, item in enumerate(items):
        if item in latest:
            distances[i - latest[item]] += i - latest[item]
        latest[item] = i
    runs = [run for period, _ in distances.most_common(_TRIED) for run in _runs(items, period)]
    return max(runs, key=lambda run: (run.end - run.start, -run.period), default=None)


def _runs(items: Sequence[Hashable], period: int) -> Iterator[Run]:
    """The stretches of at least two periods."""
    start = 0
    for i in range(len(items) - period + 1):
        if i == len(items) - period or items[i] != items[i + period]:
            if i - start >= period:
                yield Run(start, period, (i - start) // period + 1)
            start = i + 1
