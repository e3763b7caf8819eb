"""Sizes to tune for, spread over a box of any number of dimensions."""

from collections.abc import Iterator, Sequence
from decimal import Decimal, localcontext
from functools import cache
from itertools import islice, product
from math import prod

from multikernel.chain import Hint
from multikernel.errors import InvalidBox


def sample_hints(box: Sequence[tuple[int, int]], count: int) -> tuple[Hint, ...]:
    """`count` different hints in a box of inclusive `(low, high)` ranges, or all of the box
    where it holds fewer.

    The corners come first (all low, all high, then the others), then a sequence of low
    discrepancy in log2: additive recurrence by powers of the generalised golden ratio, the real
    root of `x**(n+1) = x + 1` (M. Roberts, "The unreasonable effectiveness of quasirandom
    sequences", 2018). A shorter sample is a prefix of a longer one, and the same on every
    machine: decimal arithmetic, no libm."""
    ranges = [tuple(r) for r in box]
    if not ranges or any(len(r) != 2 or not 1 <= r[0] <= r[1] for r in ranges):
        raise InvalidBox(f"box {list(box)!r}: expected (low, high) with 1 <= low <= high, not none")
    if count < 1:
        raise InvalidBox(f"count={count}: expected at least 1")
    ends = [tuple(low for low, _ in ranges), tuple(high for _, high in ranges)]
    corners = islice(product(*ranges), 2 * count + 2)  # a range of one size gives each twice
    hints = dict.fromkeys(islice(dict.fromkeys([*ends, *corners]), count))
    total = prod(high - low + 1 for low, high in ranges)
    # A sequence of low discrepancy rarely hits twice; where the box is nearly used up, what is
    # left is taken in order.
    for hint in islice(_spread(ranges), 8 * count):
        if len(hints) >= min(count, total):
            break
        hints[hint] = None
    if len(hints) < min(count, total):
        for hint in product(*(range(low, high + 1) for low, high in ranges)):
            hints[hint] = None
            if len(hints) >= min(count, total):
                break
    return tuple(hints)


def _spread(ranges: Sequence[tuple[int, ...]]) -> Iterator[Hint]:
    with localcontext() as context:
        context.prec = 40
        root = _root(len(ranges))
        steps = [root ** -(d + 1) for d in range(len(ranges))]
        logs = [(Decimal(low).ln(), Decimal(high).ln()) for low, high in ranges]
    index = 0
    while True:
        index += 1
        hint = []
        with localcontext() as context:
            context.prec = 40
            for step, (low, high), (floor, top) in zip(steps, logs, ranges, strict=True):
                at = (Decimal("0.5") + index * step) % 1
                size = int((low + at * (high - low)).exp().to_integral_value())
                hint.append(min(max(size, floor), top))
        yield tuple(hint)


@cache
def _root(n: int) -> Decimal:
    root = Decimal(2)
    for _ in range(60):  # a contraction by at least 2 a step
        root = (1 + root) ** (1 / Decimal(n + 1))
    return root
