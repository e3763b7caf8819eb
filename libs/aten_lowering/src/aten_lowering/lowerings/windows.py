"""Which places of an image a pooled element covers, and which pooled elements cover a place."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import sympy

from aten_lowering.builder import KernelBuilder, Value
from aten_lowering.call import Call, opmath
from aten_lowering.errors import require
from loop_ir import DType
from symexpr import FloorDiv, Mod

# Beyond that many places a kernel is too long to be written out: it walks over them.
MOST = 27

Extents = Sequence[sympy.Expr]


@dataclass(frozen=True)
class Along:
    """The places of one dimension that belong to a coordinate of the other tensor.

    count: the most of them. place: the i-th, in ascending order. inside: whether it is one (None:
    always), of the place and its number."""

    count: int
    place: Callable[[sympy.Expr], sympy.Expr]
    inside: Callable[[KernelBuilder, sympy.Expr, sympy.Expr], Value | None]


def every(
    k: KernelBuilder, alongs: Sequence[Along]
) -> Iterator[tuple[tuple[sympy.Expr, ...], Value | None]]:
    """Each point, row by row, and whether it counts; beyond `MOST` a phase over all of them."""
    if is_written_out(alongs):
        numbers = [[sympy.Integer(i) for i in range(a.count)] for a in alongs]
    else:
        numbers = [[n] for n in k.inner([sympy.Integer(a.count) for a in alongs])]
    found: list[list[tuple[sympy.Expr, Value | None]]] = []
    for along, own in zip(alongs, numbers, strict=True):
        places = [along.place(i) for i in own]
        tested = zip(places, own, strict=True)
        found.append([(place, along.inside(k, place, i)) for place, i in tested])
    for point in product(*found):
        mask: Value | None = None
        for _, inside in point:
            mask = both(k, mask, inside)
        yield tuple(place for place, _ in point), mask


def is_written_out(alongs: Sequence[Along]) -> bool:
    """Whether a kernel names every place, rather than to walk over them."""
    return math.prod(a.count for a in alongs) <= MOST


def both(k: KernelBuilder, a: Value | None, b: Value | None) -> Value | None:
    """Both conditions; None is one that always holds."""
    return a & b if a and b else a or b


def store_gradient(
    call: Call,
    alongs: Sequence[Callable[[sympy.Expr], Along]],
    share: Callable[[KernelBuilder, Extents, Value | None], Value],
) -> None:
    """Stores at each place of the result the sum of what the points give it that it belongs to.

    alongs: of each of the last dimensions, the points that a coordinate belongs to. share: what one
    of them gives, of its coordinates and whether it counts."""
    require(call.out.dtype.is_float, "a gradient of integers")
    k = call.kernel()
    own = k.coords[-len(alongs) :]
    points = [along(place) for along, place in zip(alongs, own, strict=True)]
    # Eager adds to 0: the sum of zeros below it is none of them.
    zero = k.const(0, opmath(call.out.dtype))
    call.store(k, summed(k, points, partial(share, k), zero))


def summed(
    k: KernelBuilder,
    alongs: Sequence[Along],
    part: Callable[[Extents, Value | None], Value],
    total: Any = None,
) -> Any:
    """The sum of what each point gives, of its coordinates and whether it counts; added to `total`
    one by one, or as one sum beyond `MOST`. None without points."""
    for at, inside in every(k, alongs):
        value = part(at, inside)
        if is_written_out(alongs):
            total = value if total is None else total + value
        else:
            (total,) = k.reduce("sum", value)
            k.once()
    return total


def kind(*extents: sympy.Expr) -> DType:
    """What places are counted in: 32 bits, which are faster, where that is enough."""
    return DType.i32 if all(n.is_Integer and n < 2**30 for n in extents) else DType.i64


@dataclass(frozen=True)
class Window:
    """One dimension of a pooling: `out` windows of `size` places, `dilation` apart, each `step`
    behind the one before it, over `extent` places with `padding` on both sides."""

    extent: sympy.Expr
    out: sympy.Expr
    size: int
    step: int
    padding: int
    dilation: int = 1

    def start(self, window: sympy.Expr) -> sympy.Expr:
        """The first place of a window, which may be negative."""
        return window * self.step - self.padding

    def offset(self, window: sympy.Expr, place: sympy.Expr) -> sympy.Expr:
        """The number in a window of a place that it has."""
        return FloorDiv(place - self.start(window), sympy.Integer(self.dilation))

    def passes(self, offset: int) -> tuple[bool, bool]:
        """Whether the place of this offset may lie before the image, and behind it."""
        first = offset - self.padding
        room = sympy.expand(self.extent - 1 - first - (self.out - 1) * self.step)
        return first < 0, not (room.is_Integer and room >= 0)

    def places(self, window: sympy.Expr) -> Along:
        """The places that a window covers."""

        def inside(k: KernelBuilder, place: sympy.Expr, i: sympy.Expr) -> Value | None:
            ends = (i, i) if i.is_Integer else (sympy.S.Zero, sympy.Integer(self.size - 1))
            before = self.passes(int(ends[0]) * self.dilation)[0]
            behind = self.passes(int(ends[1]) * self.dilation)[1]
            return _between(k, place, self.extent, before, behind)

        return Along(self.size, lambda i: self.start(window) + i * self.dilation, inside)

    def windows(self, place: sympy.Expr) -> Along:
        """The windows that cover a place."""
        padded = place + self.padding
        if self.dilation != 1:
            return self._dilated(padded)
        count = -(-self.size // self.step)
        first = FloorDiv(padded, sympy.Integer(self.step)) - (count - 1)

        def inside(k: KernelBuilder, window: sympy.Expr, i: sympy.Expr) -> Value | None:
            ends = (i, i) if i.is_Integer else (sympy.S.Zero, sympy.Integer(count - 1))
            last = FloorDiv(self.extent - 1 + self.padding, sympy.Integer(self.step))
            room = sympy.expand(self.out - 1 - (last - (count - 1) + ends[1]))
            behind = not (room.is_Integer and room >= 0)
            before = self.padding // self.step - (count - 1) + ends[0] < 0
            mask = _between(k, window, self.out, bool(before), behind)
            if self.size % self.step == 0:
                return mask
            number = kind(self.extent, self.out)
            end = k.index(self.start(window) + self.size, number)
            return both(k, mask, end > k.index(place, number))

        return Along(count, lambda i: first + i, inside)

    def _dilated(self, padded: sympy.Expr) -> Along:
        step = sympy.Integer(self.step)

        def behind(i: sympy.Expr) -> sympy.Expr:
            return padded - (self.size - 1 - i) * self.dilation

        def inside(k: KernelBuilder, window: sympy.Expr, i: sympy.Expr) -> Value | None:
            number = kind(self.extent, self.out)
            rest = k.index(Mod(behind(i), step), number)
            starts = rest("eq", 0)
            return both(k, _between(k, window, self.out, True, True), starts)

        return Along(self.size, lambda i: FloorDiv(behind(i), step), inside)


@dataclass(frozen=True)
class Share:
    """One dimension of adaptive pooling: window `o` of `out` has the places from
    `floor(o * extent / out)` up to `ceil((o + 1) * extent / out)`."""

    extent: sympy.Expr
    out: sympy.Expr

    def places(self, window: sympy.Expr) -> Along:
        """The places that a window covers."""
        return _share(window, self.extent, self.out)

    def windows(self, place: sympy.Expr) -> Along:
        """The windows that cover a place."""
        return _share(place, self.out, self.extent)

    def length(self, k: KernelBuilder, window: sympy.Expr) -> Value | int:
        """Places of a window."""
        if (length := self.extent / self.out).is_Integer:
            return int(length)
        first, end = _ends(window, self.extent, self.out)
        return k.index(end - first, kind(self.extent * self.out))


def _ends(at: sympy.Expr, extent: sympy.Expr, out: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    return FloorDiv(at * extent, out), -FloorDiv(-(at + 1) * extent, out)


def _share(at: sympy.Expr, extent: sympy.Expr, out: sympy.Expr) -> Along:
    require(extent.is_Integer and out.is_Integer, "adaptive pooling of a dynamic size")
    n, m = int(extent), int(out)
    require(m <= 4096, "adaptive pooling to many places")
    counts = {-(-(o + 1) * n // m) - o * n // m for o in range(m)}
    first, end = _ends(at, extent, out)

    def inside(k: KernelBuilder, place: sympy.Expr, i: sympy.Expr) -> Value | None:
        if len(counts) == 1 or (i.is_Integer and i < min(counts)):
            return None
        number = kind(extent * out)
        return k.index(place, number) < k.index(end, number)

    return Along(max(counts), lambda i: first + i, inside)


def _between(
    k: KernelBuilder, at: sympy.Expr, end: sympy.Expr, before: bool, behind: bool
) -> Value | None:
    """`0 <= at < end`, as far as that has to be asked."""
    number = kind(end)
    value = k.index(at, number)
    low = value >= 0 if before else None
    high = value < k.index(end, number) if behind else None
    return both(k, low, high)
