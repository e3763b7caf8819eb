"""Which hint is nearest, decided with integers only.

Distance is L1 in log2: `sum(abs(log2(s) - log2(h)))` over the dimensions, with a size below 1
counted as 1 (log2(0) is taken as 0). Ties go to the smaller hint (tuples compare in order). No
logarithm is computed: a sum of logarithms compares like a product of ratios, and those compare
like integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt, prod
from typing import Protocol, runtime_checkable

from multikernel.errors import InvalidHint, InvalidSizes

Hint = tuple[int, ...]


def as_hint(value: int | Sequence[int]) -> Hint:
    """`64 -> (64,)`, `(8, 64) -> (8, 64)`. Raises InvalidHint for anything below 1."""
    hint = (value,) if isinstance(value, int) else tuple(value)
    if not hint or not all(isinstance(h, int) and not isinstance(h, bool) and h >= 1 for h in hint):
        raise InvalidHint(
            f"size hint {value!r}: expected a positive integer or a non-empty tuple of them"
        )
    return hint


def as_hints(values: Sequence[int | Sequence[int]]) -> tuple[Hint, ...]:
    """Hints of one rank, all different. Raises InvalidHint."""
    hints = tuple(as_hint(value) for value in values)
    if not hints:
        raise InvalidHint("no size hints: give at least one")
    if len({len(hint) for hint in hints}) != 1:
        raise InvalidHint(f"size hints {hints}: all must have the same number of dimensions")
    if len(set(hints)) != len(hints):
        raise InvalidHint(f"size hints {hints}: each may be given once")
    return hints


def rank_hints(sizes: Sequence[int], hints: Sequence[Hint]) -> list[int]:
    """Indices of `hints`, nearest first. Exact for integers of any size."""
    at = [max(size, 1) for size in sizes]
    if any(len(hint) != len(at) for hint in hints):
        raise InvalidSizes(
            f"sizes {tuple(sizes)} have {len(at)} dimensions, the hints {tuple(hints)} do not"
        )
    far = [prod(max(s, h) for s, h in zip(at, hint, strict=True)) for hint in hints]
    near = [prod(min(s, h) for s, h in zip(at, hint, strict=True)) for hint in hints]
    common = prod(set(near))
    # far/near is 2**distance; over a common denominator the numerators compare as integers.
    return sorted(range(len(hints)), key=lambda i: (far[i] * (common // near[i]), hints[i]))


def boundary(hint: int, larger: int) -> int:
    """The largest size that is at least as near to `hint` as to a larger one: their geometric
    mean, rounded down."""
    return isqrt(hint * larger)


def nearest(sizes: Sequence[int], hints: Sequence[Hint]) -> int:
    """Index of the nearest hint."""
    return rank_hints(sizes, hints)[0]


@dataclass(frozen=True)
class Factor:
    """`clamp(size[dim], low, high)`, squared if `square`; no clamp where low and high are None."""

    dim: int
    low: int | None = None
    high: int | None = None
    square: bool = False

    def value(self, sizes: Sequence[int]) -> int:
        """The value of the factor for these sizes."""
        size = sizes[self.dim]
        if self.low is not None and self.high is not None:
            size = min(max(size, self.low), self.high)
        return size * size if self.square else size

    def text(self, names: Sequence[str]) -> str:
        """`Min(Max(s0, 1), 4)`, with these names for the sizes."""
        text = names[self.dim]
        if self.low is not None and self.high is not None:
            text = f"Min(Max({text}, {self.low}), {self.high})"
        return f"{text}*{text}" if self.square else text


@dataclass(frozen=True)
class Comparison:
    """`prod(left) * left_scale <= prod(right) * right_scale`, all integers."""

    left: tuple[Factor, ...]
    left_scale: int
    right: tuple[Factor, ...]
    right_scale: int

    def holds(self, sizes: Sequence[int]) -> bool:
        """Whether it holds for these sizes."""
        left = prod((f.value(sizes) for f in self.left), start=self.left_scale)
        return left <= prod((f.value(sizes) for f in self.right), start=self.right_scale)

    def text(self, names: Sequence[str]) -> str:
        """`s0*4 <= 64`, with these names for the sizes."""
        return f"{_side(self.left, self.left_scale, names)} <= " + _side(
            self.right, self.right_scale, names
        )

    @property
    def magnitude(self) -> int | None:
        """The largest integer that evaluating a side can give; None if a size stands
        unclamped (then no larger integer than the size itself, or the scale, appears)."""
        if any(f.high is None for f in self.left + self.right):
            return None
        return max(
            prod((_high(f) for f in side), start=scale)
            for side, scale in ((self.left, self.left_scale), (self.right, self.right_scale))
        )


@dataclass(frozen=True)
class Branch:
    """`if all(comparisons): variant`. The last branch of a chain has no comparisons."""

    comparisons: tuple[Comparison, ...]
    variant: int

    def holds(self, sizes: Sequence[int]) -> bool:
        """Whether all comparisons hold for these sizes."""
        return all(c.holds(sizes) for c in self.comparisons)

    def text(self, names: Sequence[str]) -> str:
        """`s0 <= 11`; comparisons joined by `and`; empty for the last branch. Integers, `*`,
        `<=`, `Min` and `Max` only, so that every language can print it."""
        return " and ".join(c.text(names) for c in self.comparisons)


@runtime_checkable
class HasChain(Protocol):
    """A choice that can be written as comparisons: a `DecisionTable`, a `MultiKernel`."""

    def chain(self) -> tuple[Branch, ...]:
        """The choice as if / elif / else over the sizes."""


def compare_chain(hints: Sequence[int | Sequence[int]] | HasChain) -> tuple[Branch, ...]:
    """The choice of the nearest hint as if / elif / else, equal to `nearest` for every size;
    of a measured table (or a kernel), its `chain()`.

    In one dimension `s` is nearer to h than to g > h iff s*s <= h*g (the geometric mean), which
    is `s <= isqrt(h*g)`: one comparison a hint, and nothing to overflow.

        (2, 64) -> if s0 <= 11: 0 else: 1

    In n dimensions a dimension counts only between the two hints, so each size is clamped there
    and the products stay as small as products of hints (`Comparison.magnitude`):

        ((1, 8), (4, 2)) -> if Min(Max(s0, 1), 4)*Min(Max(s0, 1), 4)*16
                               <= Min(Max(s1, 2), 8)*Min(Max(s1, 2), 8)*4: 0 else: 1

    A hint is tested against the later ones only: had an earlier one been nearest, its branch
    would have been taken. `variant` is the index in `hints` as given."""
    if isinstance(hints, HasChain):
        return hints.chain()
    given = as_hints(hints)
    order = sorted(range(len(given)), key=lambda i: given[i])
    branches = []
    for place, i in enumerate(order[:-1]):
        later = order[place + 1 :]
        rivals = later[:1] if len(given[i]) == 1 else later
        branches.append(Branch(tuple(_nearer(given[i], given[j]) for j in rivals), i))
    return (*branches, Branch((), order[-1]))


def follow(chain: Sequence[Branch], sizes: Sequence[int]) -> int:
    """Runs a chain: the variant of the first branch that holds."""
    return next(branch.variant for branch in chain if branch.holds(sizes))


def _nearer(hint: Hint, rival: Hint) -> Comparison:
    """`hint` is at most as far as `rival`.

    With c the size clamped between h and g, |log s - log h| - |log s - log g| is
    log(c*c / (h*g)) where h < g and its negative where h > g."""
    up = [d for d, (h, g) in enumerate(zip(hint, rival, strict=True)) if h < g]
    down = [d for d, (h, g) in enumerate(zip(hint, rival, strict=True)) if h > g]
    mean_up = prod(hint[d] * rival[d] for d in up)
    if len(hint) == 1:
        return Comparison((Factor(0),), 1, (), boundary(hint[0], rival[0]))

    def factors(dims: list[int], square: bool) -> tuple[Factor, ...]:
        return tuple(
            Factor(d, min(hint[d], rival[d]), max(hint[d], rival[d]), square) for d in dims
        )

    if not down:  # prod(c)**2 <= mean, and so prod(c) <= isqrt(mean)
        return Comparison(factors(up, False), 1, (), isqrt(mean_up))
    mean_down = prod(hint[d] * rival[d] for d in down)
    return Comparison(factors(up, True), mean_down, factors(down, True), mean_up)


def _side(factors: tuple[Factor, ...], scale: int, names: Sequence[str]) -> str:
    parts = [factor.text(names) for factor in factors]
    return "*".join(parts + [str(scale)] * (scale != 1 or not parts))


def _high(factor: Factor) -> int:
    high = factor.high or 1
    return high * high if factor.square else high
