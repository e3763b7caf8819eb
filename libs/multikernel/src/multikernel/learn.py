"""The measuring half of a kernel: from sizes that arrive to a decision table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from functools import partial
from time import perf_counter
from typing import Any

from multikernel.buckets import Cell
from multikernel.chain import Hint
from multikernel.measurement import Measurement
from multikernel.store import Shelf
from multikernel.table import Decision, DecisionTable

Run = Callable[..., Any]


@dataclass(eq=False)
class Learner:
    """Owns the table of one kernel. Its owner holds a lock around `learn` and `drop`; `table`
    is immutable and may be read at any time.

    rank: sizes -> names of the variants, nearest first, dropped ones left out.
    failed: told of a variant that raised while it was measured; may raise to stop.
    dimensions: how many sizes there are; None if that is known at the first call only.
    spent: seconds spent measuring, first runs of variants not counted."""

    runs: Mapping[str, Run]
    measurement: Measurement
    shelf: Shelf | None
    rank: Callable[[Hint], list[str]]
    failed: Callable[[str, Exception], None]
    dimensions: InitVar[int | None]
    spent: float = 0.0

    def __post_init__(self, dimensions: int | None) -> None:
        self._warm: set[str] = set()
        cells = self.shelf.load(dimensions) if self.shelf is not None else {}
        self.table = DecisionTable(tuple(self.runs), self.measurement.resolution, cells)

    def learn(self, sizes: Hint, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Decides the cell of these sizes if it is not; whether the choice for them now stays.

        In turn: a full table answers as it is; another process's decision is taken; so is a
        variant that the measured cells around agree on; else the variants are timed on the
        arguments, if there is budget, and the choice of the table so far is kept where it is
        within tolerance, so that cells merge."""
        table, limits = self.table, self.measurement
        cell = table.cell(sizes)
        if cell in table.cells or len(table.cells) >= limits.buckets:
            return True
        there = self.shelf.read(cell) if self.shelf is not None else None
        if there is not None and there.variant in self.rank(sizes):
            self.table = table.decide(cell, there)
            return True
        live = self.rank(sizes)
        expected = table.lookup(sizes)
        agreed = table.agreed(cell, limits.tolerance) & set(live)
        if agreed:
            name = expected if expected in agreed else min(agreed, key=live.index)
            self._keep(cell, Decision(name, {}, sizes))
            return True
        if self.spent >= limits.seconds:
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
        limits = self.measurement
        expected = self.table.lookup(sizes)
        names = self.rank(sizes)
        if expected in names:
            names = [expected, *(n for n in names if n != expected)]
        if limits.copy is not None:
            args = [limits.copy(arg) for arg in args]
            kwargs = {name: limits.copy(arg) for name, arg in kwargs.items()}
        seconds: dict[str, float] = {}
        errors: dict[str, Exception] = {}
        for name in names[: limits.candidates]:
            call = partial(self.runs[name], *args, **kwargs)
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
                self.spent += perf_counter() - start
        if seconds:  # else the arguments are to blame, not the variants
            for name, why in errors.items():
                self.failed(name, why)
        return seconds

    def drop(self, name: str) -> None:
        """Takes a variant out of the table: its cells get the next best."""
        cells: dict[Cell, Decision] = dict(self.table.cells)
        for cell, decision in cells.items():
            seconds = {n: t for n, t in decision.seconds.items() if n != name}
            variant = decision.variant
            if variant == name:
                live = self.rank(decision.sizes)
                timed = [n for n in live if n in seconds]
                variant = min(timed, key=lambda n: seconds[n]) if timed else live[0]
            cells[cell] = Decision(variant, seconds, decision.sizes)
        self.table = DecisionTable(self.table.variants, self.table.resolution, cells)

    def _keep(self, cell: Cell, decision: Decision) -> None:
        if self.shelf is not None:
            there = self.shelf.publish(cell, decision)
            if there.variant in self.rank(decision.sizes):
                decision = there
        self.table = self.table.decide(cell, decision)


def _raises(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Exception:  # foreign code: any error counts
        return True
    return False
