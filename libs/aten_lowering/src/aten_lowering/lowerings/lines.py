"""Lines of elements that are resampled: the place that a point reads, by the rules of eager.

ATen/native/UpSample.h: with `scale` the input's size over the output's, or one over the factor that
was asked for,

    nearest   floor(o * scale)
    exact     floor((o + 0.5) * scale)
    linear    max((o + 0.5) * scale - 0.5, 0), between two places
    aligned   o * scale, scale = (extent - 1) / (out - 1), between two places
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, reduce
from operator import and_
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import sympy

from aten_lowering.builder import KernelBuilder, Value
from aten_lowering.errors import require
from aten_lowering.lowerings.windows import Along, both, kind
from loop_ir import DType
from symexpr import FloorDiv, Max, Min

Rule = Literal["nearest", "exact", "linear", "aligned"]
Points = npt.NDArray[Any]

_LONGEST = 1 << 16  # points of a line that are compared one by one


def lines(
    x: Sequence[sympy.Expr],
    out: Sequence[sympy.Expr],
    factors: Sequence[Any],
    rule: Rule,
    acc: DType = DType.f32,
    times: Sequence[int] = (),
    alone: bool = True,
) -> list[Line]:
    """Of the last dimensions of `x` and `out`; factors: how much longer each is to be, or None.
    acc: what places between two elements are computed in. times: a line that becomes as many times
    as long is so whatever its factor; where not `alone`, if all lines of the image do."""
    dims = len(factors)
    known = all(isinstance(f, float | int | None) for f in factors)
    require(known, "upsampling by a factor that is not known")
    sides = tuple(zip(x[-dims:], out[-dims:], strict=True))
    found = []
    for side, factor in zip(sides, factors, strict=True):
        given = factor if factor and factor > 0 else None
        asked = (side,) if alone else sides
        if any(all(m == n * a for a, m in asked) for n in times):
            given = None
        known = all(a.is_Integer and m.is_Integer for a, m in asked)
        # Of a factor below 2 some sizes stay as they are, of one below 3 some are doubled.
        free = () if known or not given else [n for n in times if n < given < n + 1]
        found.append(Line(*side, given, rule, acc, tuple((n, asked) for n in free)))
    return found


@dataclass(frozen=True)
class Line:
    """`extent` elements, read by `out` points. free: the factor is this number where sides are so
    many times as long, which the kernel looks at."""

    extent: sympy.Expr
    out: sympy.Expr
    factor: float | None
    rule: Rule
    acc: DType
    free: tuple[tuple[int, tuple[tuple[sympy.Expr, sympy.Expr], ...]], ...] = ()

    @property
    def between(self) -> bool:
        """Points lie between two places."""
        return self.rule in ("linear", "aligned")

    @cached_property
    def ratio(self) -> Fraction | None:
        """What the scale stands for, if that is known."""
        if self.rule == "aligned":
            if not (self.extent.is_Integer and self.out.is_Integer):
                return None
            return Fraction(int(self.extent) - 1, int(self.out) - 1) if self.out > 1 else Fraction()
        if self.factor is not None:
            return Fraction(1 / self.factor).limit_denominator(4096)
        quotient = sympy.cancel(self.extent / self.out)
        return Fraction(int(quotient.p), int(quotient.q)) if quotient.is_Rational else None

    def _scale(self, k: KernelBuilder) -> Value:
        if (known := self._known_scale()) is not None:
            scale = k.const(float(known), self.acc)
            for times, sides in self.free:
                same = reduce(and_, (k.index(n * times)("eq", k.index(m)) for n, m in sides))
                scale = same.choose(1 / times, scale)
            return scale
        less = 1 if self.rule == "aligned" else 0
        extent, out = (k.index(n - less).to(self.acc) for n in (self.extent, self.out))
        scale = extent / out
        if not less:
            return scale
        several = k.index(self.out) > 1
        return several.choose(scale, 0)

    def _known_scale(self) -> Any:
        """As eager rounds it, or None where sizes are not known."""
        real = np.float64 if self.acc is DType.f64 else np.float32
        if self.factor is not None and self.rule != "aligned":
            return real(1 / self.factor)
        if not (self.extent.is_Integer and self.out.is_Integer):
            return None
        less = 1 if self.rule == "aligned" else 0
        extent, out = int(self.extent) - less, int(self.out) - less
        return real(real(extent) / real(out)) if out > 0 else real(0)

    @cached_property
    def _reals(self) -> Points | None:
        """Where each point of a line of known size lies."""
        scale = self._known_scale()
        if scale is None or self.free or not self.out.is_Integer or not 0 < self.out <= _LONGEST:
            return None
        at: Points = np.arange(int(self.out)).astype(scale.dtype)
        half = scale.dtype.type(0.5)
        if self.rule in ("exact", "linear"):
            at = at + half
        at = at * scale
        return np.maximum(at - half, 0) if self.rule == "linear" else at

    def _floor(self, o: Any) -> Any:
        """The place at or before where a point lies, as if floats were exact."""
        assert self.ratio is not None
        p, q = self.ratio.numerator, self.ratio.denominator
        if self.rule == "exact":
            return _floor(2 * p, p, 2 * q, o)
        if self.rule == "linear":
            return _floor(2 * p, p - q, 2 * q, o)
        return _floor(p, 0, q, o)

    def _integer(self, o: sympy.Expr) -> sympy.Expr | None:
        """The place at or before a point, where integers give what eager's floats do."""
        if self.ratio is None or self.free:
            return None
        place = self._floor(o)
        if self._reals is not None and self.extent.is_Integer:
            exact = self._floor(np.arange(int(self.out)))
            if not np.array_equal(np.maximum(exact, 0), np.floor(self._reals)):
                return None
            place = Max(place, sympy.S.Zero) if exact.min() < 0 else place
            return Min(place, self.extent - 1) if exact.max() >= self.extent else place
        # Halves, quarters, ...: floats are exact, too.
        rounded = self.factor is not None and Fraction(1 / self.factor) != self.ratio
        if rounded or self.ratio.denominator & (self.ratio.denominator - 1):
            return None
        place = Max(place, sympy.S.Zero) if self.rule == "linear" else place
        return Min(place, self.extent - 1)

    def real(self, k: KernelBuilder, o: sympy.Expr) -> Value:
        """Where a point lies."""
        at = k.index(o, kind(self.out)).to(self.acc)
        half = k.const(0.5, self.acc)
        if self.rule in ("exact", "linear"):
            at = at + half
        at = at * self._scale(k)
        if self.rule == "linear":
            at = (at - half)("maximum", 0)
        return at

    def place(self, k: KernelBuilder, o: sympy.Expr) -> sympy.Expr:
        """What a point reads, or the first of the two that it lies between."""
        return self._places(k, o)[0]

    def _places(self, k: KernelBuilder, o: sympy.Expr) -> tuple[sympy.Expr, Value | None]:
        """And its value, where it is computed."""
        found = self._integer(o)
        if found is not None:
            return found, None
        number = kind(self.extent)
        last = k.index(self.extent - 1, number)
        value = self.real(k, o)("cast", dtype=number)("maximum", 0)("minimum", last)
        return k.indirect(value, self.extent), value

    def pair(
        self, k: KernelBuilder, o: sympy.Expr, acc: DType
    ) -> tuple[sympy.Expr, sympy.Expr, Value]:
        """The two places that a point lies between, and how much the second one counts."""
        low, value = self._places(k, o)
        number = kind(self.extent)
        if value is None:
            high = Min(low + 1, self.extent - 1)
            value = k.index(low, number)
        else:
            last = k.index(self.extent - 1, number)
            after = (value + 1)("minimum", last)
            high = k.indirect(after, self.extent)
        return low, high, self.real(k, o) - value.to(acc)

    def weight(
        self, k: KernelBuilder, place: sympy.Expr, o: sympy.Expr, acc: DType
    ) -> tuple[Value, Value]:
        """Whether a point reads a place, and how much the place counts for it: one less the way
        between them. What a point reads may count 0, and makes NaN of infinities."""
        real = self.real(k, o)("minimum", k.index(self.extent - 1).to(acc))
        first = 0 if self.extent == self.out else -1  # eager copies lines of one length
        own, before, after = (k.index(place + n, kind(self.extent)).to(acc) for n in (0, first, 1))
        return (real >= before) & (real < after), 1 - abs(real - own)

    def begins(self, place: Any, k: KernelBuilder | None = None) -> Any:
        """The first point that CUDA's gradient gives a place, of an array or in a kernel."""
        factor = np.float32(self.factor or np.float32(int(self.out)) / np.float32(int(self.extent)))
        less = 0.5 if self.rule == "exact" else 0.0
        if k is not None:
            at = k.index(place, kind(self.out)).to(DType.f32)
            at = at("fma", k.const(float(factor), DType.f32), k.const(-less, DType.f32))
            return at("ceil")("cast", dtype=kind(self.out))
        at = (place * float(factor) - less).astype(np.float32)
        return np.minimum(np.ceil(at).astype(int), int(self.out))

    def first(self, place: Any) -> Any:
        """The first point that lies at or behind a place, as if floats were exact."""
        assert self.ratio is not None
        p, q = self.ratio.numerator, self.ratio.denominator
        if self.rule == "exact":
            return _floor(2 * q, -p + 2 * p - 1, 2 * p, place)
        if self.rule == "linear":
            return _floor(2 * q, q - p + 2 * p - 1, 2 * p, place)
        return _floor(q, p - 1, p, place)


def gathered(line: Line, by_factor: bool = False) -> Callable[[sympy.Expr], Along]:
    """For a place, the points that may have read it: all those that did are among them. by_factor:
    CUDA's nearest points instead, from `ceil(place * factor)` up to that of the next place."""
    known = line._reals is not None and line.ratio is not None and line.extent.is_Integer
    require(known, "the gradient of a line of unknown size")
    assert line._reals is not None
    if line.ratio == 0:
        return lambda place: Along(int(line.out), lambda i: i, lambda k, o, i: None)
    extent, out = int(line.extent), int(line.out)
    places = np.arange(extent)
    reals = np.minimum(line._reals, extent - 1)
    if line.between:
        first = line.first(places - 1)
        begins = np.searchsorted(reals, places - 1, "right")
        ends = np.searchsorted(reals, places + 1, "left")
    elif by_factor:
        first = line.first(places)
        begins, ends = (line.begins(places + n) for n in (0, 1))
    else:
        first = line.first(places)
        begins = np.searchsorted(np.floor(reals), places, "left")
        ends = np.searchsorted(np.floor(reals), places, "right")
    read = ends > begins
    require(bool(np.all(first[read] <= begins[read])), "the gradient of odd roundings")
    count = int(np.max((ends - first)[read], initial=1))
    low, high = bool(first.min() < 0), bool(first.max() + count > out)
    # Points that lie between two places tell by their weight which ones they have read.
    tested = not line.between and not np.array_equal((begins, ends), (first, first + count))

    def inside(k: KernelBuilder, o: sympy.Expr, place: sympy.Expr) -> Value | None:
        number = kind(line.out)
        at = k.index(o, number)
        mask = at >= 0 if low else None
        mask = both(k, mask, at < k.index(line.out, number) if high else None)
        if not tested:
            return mask
        if by_factor:
            begin, end = (line.begins(place + n, k) for n in (0, 1))
            return both(k, mask, (at >= begin) & (at < end))
        floor = line.real(k, o)("cast", dtype=number)
        floor = floor("minimum", k.index(line.extent - 1, number))
        return both(k, mask, floor("eq", k.index(place, number)))

    def along(place: sympy.Expr) -> Along:
        start = line.first(place - 1 if line.between else place)
        return Along(count, lambda i: start + i, lambda k, o, i: inside(k, o, place))

    return along


def _floor(a: int, b: int, d: int, x: Any) -> Any:
    """`(a * x + b) // d` of integers, an array or an expression, in lowest terms, so that the
    dividend is not negative where `x` is not.

    (2*x - 1) // 4  ->  (x + 1) // 2 - 1
    """
    divisor = np.gcd(a, d)
    a, b, d = int(a // divisor), b // int(divisor), int(d // divisor)
    whole, rest = divmod(b, d)
    if isinstance(x, sympy.Expr):
        return FloorDiv(a * x + rest, sympy.Integer(d)) + whole
    return (a * x + rest) // d + whole
