"""Values that expressions take at a few points of their ranges: what cannot be proven is not tried.

A point is one value of every symbol within its ends. A lower bound above the value at a point is
false, so the search for it is skipped; a bound equal to it is the best one."""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import sympy

from symexpr.domains import Domain
from symexpr.errors import SymexprError
from symexpr.evaluation import Evaluation
from symexpr.intervals import INF, Interval, Number

_OPEN = 2**48  # how far from its known end a symbol without the other one goes
FAR = 2**47  # a value beyond: the expression is taken to have no bound
_MEMO_SIZE = 20_000
_WIDEST_EXPONENT = 64
_Choose = tuple[bool, bool]  # at the high end: symbols at even places, and at odd ones
_POINTS: tuple[_Choose, ...] = ((False, False), (True, True), (False, True), (True, False))


class _Small(Domain):
    """Python's numbers, without powers too long to compute."""

    def pow(self, a: Any, b: Any) -> Any:
        if abs(b) > _WIDEST_EXPONENT:
            raise OverflowError
        return super().pow(a, b)

    def bits(self, name: str, a: Any, b: Any) -> Any:
        if name == "LShift" and b > _WIDEST_EXPONENT:
            raise OverflowError
        return super().bits(name, a, b)


class _Values(Evaluation):
    """Sums and products in the order of their parts."""

    def _sum(self, e: Any) -> Any:
        return sum(map(self.value, e.args))

    def _product(self, e: Any) -> Any:
        return math.prod(map(self.value, e.args))


class _Point:
    """Symbols get their values as they are asked for, since ends may refer to other symbols."""

    def __init__(self, ranges: Mapping[sympy.Symbol, tuple[Any, ...]], high: _Choose) -> None:
        self.ranges, self.high = ranges, high
        self.values: dict[sympy.Symbol, int] = {}
        self.evaluation = _Values(self, _SMALL)

    def __contains__(self, s: object) -> bool:
        return isinstance(s, sympy.Symbol)

    def __getitem__(self, s: sympy.Symbol) -> int:
        if s not in self.values:
            low, high = self.ranges.get(s, (None, None))
            lo = None if low is None else self.evaluation.value(low)
            hi = None if high is None else self.evaluation.value(high)
            if lo is None:
                lo = (_OPEN // 2 if hi is None else hi) - _OPEN
            if hi is None:
                hi = lo + _OPEN + len(self.values)
            if lo > hi:
                raise OverflowError  # the ends contradict each other here
            self.values[s] = hi if self.high[len(self.values) % 2] else lo
        return self.values[s]

    def value(self, e: sympy.Expr) -> Number | None:
        if len(self.evaluation.memo) > _MEMO_SIZE:
            self.evaluation.memo.clear()
        try:
            found: Number = self.evaluation.value(e)
        except (SymexprError, ArithmeticError, ValueError):
            return None  # a zero divisor, a negative shift: nothing is said about such points
        return found


_SMALL = _Small()


class Samples:
    """Points of some ranges at which expressions are compared before a proof is tried."""

    def __init__(self, ranges: Mapping[sympy.Symbol, tuple[Any, ...]]) -> None:
        self.points = [_Point(ranges, high) for high in _POINTS]
        self.extent: Callable[[sympy.Expr], Interval] = lru_cache(_MEMO_SIZE)(self._extent)

    def _extent(self, e: sympy.Expr) -> Interval:
        """The lowest and the highest value of `e` at the points; an empty interval where none
        can be computed."""
        values = [v for v in (p.value(e) for p in self.points) if v is not None]
        return min(values, default=INF), max(values, default=-INF)
