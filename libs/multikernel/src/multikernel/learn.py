"""The measuring half of a kernel: from sizes that arrive to a decision table."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from multikernel.buckets import Cell
from multikernel.chain import Hint
from multikernel.measurement import Measurement
from multikernel.store import Shelf
from multikernel.table import Decision, DecisionTable

Run = Callable[..., Any]


class Learner:
    """Owns the table of one kernel. Its owner holds a lock around `learn` and `drop`; `table`
    is immutable and may be read at any time.

    rank: sizes -> names of the variants, nearest first, dropped ones left out.
    failed: told of a variant that raised while it was measured; may raise to stop.
    dimensions: how many sizes there are; None if that is known at the first call only."""

    def __init__(
        self,
        runs: Mapping[str, Run],
        measurement: Measurement,
        shelf: Shelf | None,
        rank: Callable[[Hint], list[str]],
        failed: Callable[[str, Exception], None],
        dimensions: int | None,
    ) -> None:
        self._runs = runs
        self._measurement = measurement
        self._shelf = shelf
        self._rank = rank
        self._failed = failed
        self._warm: set[str] = set()
        self._spent = 0.0
        cells = shelf.load(dimensions) if shelf is not None else {}
        self.table = DecisionTable(tuple(runs), measurement.resolution, cells)

    @property
    def spent(self) -> float:
        """Seconds spent measuring, first runs of variants not counted."""
        return self._spent

    def learn(self, sizes: Hint, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Decides the cell of these sizes if it is not; whether the choice for them now stays.

        In turn: a full table answers as it is; another process's decision is taken; so is a
        variant that the measured cells around agree on; else the variants are timed on the
        arguments, if there is budget, and the choice of the table so far is kept where it is
        within tolerance, so that cells merge."""
        table, limits = self.table, self._measurement
        cell = table.cell(sizes)
        if cell in table.cells or len(table.cells) >= limits.buckets:
            return True
        there = self._shelf.read(cell) if self._shelf is not None else None
        if there is not None and there.variant in self._rank(sizes):
            self.table = table.decide(cell, there)
            return True
        live = self._rank(sizes)
        expected = table.lookup(sizes)
        agreed = table.agreed(cell, limits.tolerance) & set(live)
        if agreed:
            name = expected if expected in agreed else min(agreed, key=live.index)
            self._keep(cell, Decision(name, {}, sizes))
            return True
        if self._spent >= limits.seconds:
            # A guess: it stays in this process; another one may have the time to measure.
            self.table = table.decide(cell, Decision(expected or live[0], {}, sizes))
            return True
        if not limits.when():
            return False
        seconds = self.measure(sizes, args, kwargs)
        if not seconds:
            return False  # all raised: the call itself will tell
        decision = Decision(min(seconds, key=lambda n: seconds[n]), seconds, sizes)
        if expected in decision.accepts(limits.tolerance):
            decision = Decision(expected, seconds, sizes)
        self._keep(cell, decision)
        return True

    def measure(
        self, sizes: Hint, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, float]:
        """Seconds of the candidates on these arguments (copied if so asked); a variant that
        raises is reported and left out."""
        limits = self._measurement
        expected = self.table.lookup(sizes)
        names = self._rank(sizes)
        if expected in names:
            names = [expected, *(n for n in names if n != expected)]
        if limits.copy is not None:
            args = [limits.copy(arg) for arg in args]
            kwargs = {name: limits.copy(arg) for name, arg in kwargs.items()}
        seconds: dict[str, float] = {}
        errors: dict[str, Exception] = {}
        for name in names[: limits.candidates]:
            call = partial(self._runs[name], *args, **kwargs)
            try:
                if name not in self._warm:
                    call()
                    self._warm.add(name)
            except Exception as error:  # a variant is foreign code: any error counts
                errors[name] = error
                continue
            start = perf_counter()
            try:
                seconds[name] = limits.time(name, call)
            except Exception as error:  # the variant's, or the timer's own mistake
                if not _raises(call):
                    raise
                errors[name] = error
            finally:
                self._spent += perf_counter() - start
        if seconds:  # else the arguments are to blame, not the variants
            for name, why in errors.items():
                self._failed(name, why)
        return seconds

    def drop(self, name: str) -> None:
        """Takes a variant out of the table: its cells get the next best."""
        cells: dict[Cell, Decision] = dict(self.table.cells)
        for cell, decision in cells.items():
            seconds = {n: t for n, t in decision.seconds.items() if n != name}
            variant = decision.variant
            if variant == name:
                live = self._rank(decision.sizes)
                timed = [n for n in live if n in seconds]
                variant = min(timed, key=lambda n: seconds[n]) if timed else live[0]
            cells[cell] = Decision(variant, seconds, decision.sizes)
        self.table = DecisionTable(self.table.variants, self.table.resolution, cells)

    def _keep(self, cell: Cell, decision: Decision) -> None:
        if self._shelf is not None:
            there = self._shelf.publish(cell, decision)
            if there.variant in self._rank(decision.sizes):
                decision = there
        self.table = self.table.decide(cell, decision)


def _raises(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Exception:  # foreign code: any error counts
        return True
    return False
