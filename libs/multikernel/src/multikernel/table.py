"""The decision table: which variant runs in which box of sizes.

A cell is one bucket per dimension. Decided cells are kept as they are; the cells between them
follow from a decision list that depends on the decided cells only, not on the order in which
they came. The list is made of `size <= constant` alone, so that any language can print it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from multikernel.buckets import Cell, cell_of, smallest
from multikernel.chain import Branch, Comparison, Factor
from multikernel.errors import InvalidSizes, UnknownVariant

Highs = tuple[int | None, ...]


@dataclass(frozen=True)
class Decision:
    """What a cell runs.

    seconds: the time of each variant that was measured there; empty where the choice was taken
        from the cells around.
    sizes: the sizes that brought the cell up."""

    variant: str
    seconds: Mapping[str, float] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()

    def accepts(self, tolerance: float) -> frozenset[str]:
        """The variants within `tolerance` (0.03: 3 %) of the fastest."""
        limit = min(self.seconds.values(), default=0.0) * (1 + tolerance)
        return frozenset(name for name, time in self.seconds.items() if time <= limit)


@dataclass(frozen=True)
class Rule:
    """`if cell[d] <= highs[d] for every d that is not None: variant`."""

    highs: Highs
    variant: str

    def holds(self, cell: Cell) -> bool:
        """Whether the rule covers a cell."""
        return all(h is None or c <= h for c, h in zip(cell, self.highs, strict=True))

    def within(self, other: Rule) -> bool:
        """Whether the other rule covers all that this one does."""
        pairs = zip(self.highs, other.highs, strict=True)
        return all(b is None or (a is not None and a <= b) for a, b in pairs)


@dataclass(frozen=True)
class DecisionTable:
    """Cells decided so far, and the choice for all others. Immutable: `decide` gives a new one.

    variants: names; `Branch.variant` of `chain()` indexes them.
    resolution: buckets per octave."""

    variants: tuple[str, ...]
    resolution: int = 4
    cells: Mapping[Cell, Decision] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for decision in self.cells.values():
            if decision.variant not in self.variants:
                raise UnknownVariant(
                    f"decision table: no variant {decision.variant!r}, have {self.variants}"
                )
        ranks = {len(cell) for cell in self.cells}
        if len(ranks) > 1:
            raise InvalidSizes(f"decision table: cells of ranks {sorted(ranks)}, expected one rank")

    def cell(self, sizes: Sequence[int]) -> Cell:
        """The cell that these sizes lie in."""
        return cell_of(sizes, self.resolution)

    def decide(self, cell: Cell, decision: Decision) -> DecisionTable:
        """The table with one more cell decided, or another decision for it."""
        return DecisionTable(self.variants, self.resolution, {**self.cells, cell: decision})

    def lookup(self, sizes: Sequence[int]) -> str | None:
        """The variant for these sizes; None while no cell is decided."""
        if not self.rules:
            return None
        cell = self.cell(sizes)
        if len(cell) != len(self.rules[0].highs):
            raise InvalidSizes(
                f"sizes {tuple(sizes)}: expected {len(self.rules[0].highs)} dimensions"
            )
        return next(rule.variant for rule in self.rules if rule.holds(cell))

    def measured_near(self, cell: Cell, reach: int) -> dict[Cell, Decision]:
        """Measured cells at most `reach` buckets away in every dimension."""
        return {
            other: decision
            for other, decision in self.cells.items()
            if decision.seconds
            and all(abs(a - b) <= reach for a, b in zip(cell, other, strict=True))
        }

    def agreed(self, cell: Cell, tolerance: float) -> frozenset[str]:
        """Variants good for a cell without measuring: within tolerance at every measured cell
        at most an octave away, where those lie on both sides of it in every dimension."""
        near = self.measured_near(cell, self.resolution)
        for dim, at in enumerate(cell):
            places = [other[dim] for other in near]
            if not places or not min(places) <= at <= max(places):
                return frozenset()
        return frozenset.intersection(*(d.accepts(tolerance) for d in near.values()))

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The first rule that holds gives the variant; the last one always holds.

        A set of cells that want different variants is split by `cell[d] <= t`, halfway between
        two neighbours (the smaller wins a tie), where the sides are purest (Gini). Going left
        first, a rule needs only the upper bounds on its way: all that lies under a lower bound
        was taken by the rules before. In one dimension this is the nearest decided cell."""
        if not self.cells:
            return ()
        rules: list[Rule] = []
        rank = len(next(iter(self.cells)))
        todo: list[tuple[list[Cell], Highs]] = [(sorted(self.cells), (None,) * rank)]
        while todo:
            cells, highs = todo.pop()
            variants = {self.cells[cell].variant for cell in cells}
            if len(variants) == 1:
                rules.append(Rule(highs, variants.pop()))
                continue
            dim, last = self._split(cells)
            todo.append(([c for c in cells if c[dim] > last], highs))
            lower = (*highs[:dim], last, *highs[dim + 1 :])
            todo.append(([c for c in cells if c[dim] <= last], lower))
        return _merged(rules)

    def chain(self) -> tuple[Branch, ...]:
        """The same choice as if / elif / else over sizes, exact for every integer. Comparisons
        are `size <= constant`; `variant` indexes `variants`."""
        return tuple(
            Branch(
                tuple(
                    Comparison((Factor(dim),), 1, (), smallest(high + 1, self.resolution) - 1)
                    for dim, high in enumerate(rule.highs)
                    if high is not None
                ),
                self.variants.index(rule.variant),
            )
            for rule in self.rules
        )

    def explain(self) -> str:
        """The rules, and the times behind them, to read."""
        rank = len(self.rules[0].highs) if self.rules else 0
        names = [f"s{d}" for d in range(rank)]
        lines = [
            f"{'if ' + text if (text := b.text(names)) else 'else'}: {self.variants[b.variant]}"
            for b in self.chain()
        ]
        for cell, decision in sorted(self.cells.items()):
            low = "x".join(str(smallest(c, self.resolution)) for c in cell)
            times = sorted(decision.seconds.items(), key=lambda item: (item[1], item[0]))
            shown = ", ".join(f"{name} {time * 1e6:.2f} us" for name, time in times)
            at = "x".join(str(s) for s in decision.sizes) or low
            lines.append(f"from {low} (at {at}): {decision.variant}; {shown or 'as around it'}")
        return "\n".join(lines)

    def _split(self, cells: Sequence[Cell]) -> tuple[int, int]:
        best: tuple[float, int, int] | None = None
        for dim in range(len(cells[0])):
            ordered = sorted(cells, key=lambda cell: cell[dim])
            right = Counter(self.cells[cell].variant for cell in ordered)
            left: Counter[str] = Counter()
            squares_left, squares_right = 0, sum(n * n for n in right.values())
            for place, (cell, after) in enumerate(pairwise(ordered), 1):
                name = self.cells[cell].variant
                squares_left += 2 * left[name] + 1
                squares_right -= 2 * right[name] - 1
                left[name] += 1
                right[name] -= 1
                if cell[dim] == after[dim]:
                    continue
                rest = len(ordered) - place
                # Sum of squared shares on each side: one correctly rounded division of
                # integers, and so the same on every machine.
                score = (squares_left * rest + squares_right * place) / (place * rest)
                if best is None or score > best[0]:
                    best = (score, dim, (cell[dim] + after[dim]) // 2)
        assert best is not None  # cells are different, so some dimension tells two apart
        return best[1], best[2]


def _merged(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Drops a rule where the next one gives the same variant and holds wherever it does."""
    kept: list[Rule] = []
    for rule in reversed(rules):
        if not (kept and kept[-1].variant == rule.variant and rule.within(kept[-1])):
            kept.append(rule)
    return tuple(reversed(kept))
