"""What ranges imply: intervals of expressions, and proofs of `e >= 0`.

Two methods, both sound. Interval arithmetic, node by node; it is exact where each symbol occurs
once. And elimination (`symexpr.elimination`), which sees that terms depend on each other."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import sympy

from symexpr import intervals as iv
from symexpr.elimination import Elimination
from symexpr.errors import BadRange, UnknownFunction
from symexpr.intervals import INF, Interval, Number
from symexpr.samples import FAR, Samples
from symexpr.structure import content

End: TypeAlias = int | sympy.Expr | None
Ranges: TypeAlias = Mapping[sympy.Symbol, tuple[End, End]]

_STEPS_TO_A_GOAL = 48
_STEPS_WITHOUT_ONE = 16
_MEMO_SIZE = 20_000
# Functions whose value, and quotient times divisor, are within the sum of the arguments' sizes.
_NEVER_LARGER = ("FloorDiv", "CeilDiv", "Mod", "ModularIndexing", "Min", "Max")


class Facts:
    """The consequences of one set of ranges; answers are remembered."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = {
            s: tuple(None if x is None else sympy.sympify(x) for x in ends)
            for s, ends in ranges.items()
        }
        self.symbolic = any(
            x is not None and not x.is_Integer for ends in self.ranges.values() for x in ends
        )
        remembered = lru_cache(_MEMO_SIZE)
        self.interval: Callable[[sympy.Basic], Interval] = remembered(self._interval)
        self.best: Callable[[sympy.Expr], Interval] = remembered(self._best)
        self.peak: Callable[[sympy.Expr, int], Number] = remembered(self._peak)
        self._lower: dict[sympy.Expr, tuple[Number, Number]] = {}
        self.simplified: dict[sympy.Basic, sympy.Basic] = {}
        self._elimination = Elimination(self.interval, self.ranges)
        self._samples = Samples(self.ranges)
        self._open: set[sympy.Symbol] = set()
        for s in self.ranges:
            lo, hi = self.interval(s)
            if lo > hi:
                raise BadRange(f"range of `{s}` is empty: [{lo}, {hi}]")

    def _interval(self, e: Any) -> Interval:
        """Interval arithmetic."""
        if e.is_Symbol:
            return self._symbol(e)
        if e.is_Rational:
            x: Number = int(e) if e.is_Integer else Fraction(int(e.p), int(e.q))
            return x, x
        if e.is_Add:
            total: Interval = (0, 0)
            for a in e.args:
                total = iv.add(total, self.interval(a))
            return total
        if e.is_Mul:
            product: Interval = (1, 1)
            for a in e.args:
                product = iv.mul(product, self.interval(a))
            return product
        if e.is_Pow:
            return iv.power(self.interval(e.base), self.interval(e.exp))
        if e.is_Float:
            return iv.outward((float(e), float(e)))
        return self._function(e, type(e).__name__)

    def _symbol(self, s: sympy.Symbol) -> Interval:
        if s in self._open:
            raise BadRange(f"the ends of the range of `{s}` refer to `{s}` itself")
        lo, hi = self.ranges.get(s, (None, None))
        self._open.add(s)
        low = -INF if lo is None else self.interval(lo)[0]
        high = INF if hi is None else self.interval(hi)[1]
        self._open.discard(s)
        return low, high

    def _function(self, e: Any, name: str) -> Interval:
        if name == "Where":
            return iv.hull([self.interval(e.args[1]), self.interval(e.args[2])])
        args = [self.interval(a) for a in e.args]
        if name == "FloorDiv":
            return iv.floordiv(*args)
        if name == "CeilDiv":
            return iv.ceildiv(*args)
        if name == "Mod":
            return self._mod(e.args[0], e.args[1], *args)
        if name == "ModularIndexing":
            return iv.mod(iv.floordiv(args[0], args[1]), args[2])
        if name == "Min":
            return min(a[0] for a in args), min(a[1] for a in args)
        if name == "Max":
            return max(a[0] for a in args), max(a[1] for a in args)
        if name in ("IntTrueDiv", "FloatTrueDiv"):
            return iv.outward(iv.truediv(*args))
        if name in ("ToFloat", "FloorToInt", "CeilToInt", "TruncToInt", "RoundToInt"):
            return iv.outward(args[0])
        if name == "PowByNatural":
            return iv.power(args[0], iv.meet(args[1], (0, INF)))
        if name == "LShift":
            return iv.mul(args[0], iv.power((2, 2), iv.meet(args[1], (0, INF))))
        if name == "RShift":
            return iv.floordiv(args[0], iv.power((2, 2), iv.meet(args[1], (0, INF))))
        if name.startswith("Bitwise"):
            out = args[0]
            for a in args[1:]:
                out = iv.bitwise(name, out, a)
            return out
        raise UnknownFunction(name, f"bounds of `{e}`", "convert with from_torch or replace_floor")

    def _mod(self, x: sympy.Expr, m: sympy.Expr, xi: Interval, mi: Interval) -> Interval:
        lo, hi = iv.mod(xi, mi)
        if m.is_Integer and (lo, hi) == (0, int(m) - 1):
            c, rest = x.as_coeff_Add()
            g = math.gcd(content(rest), int(m))
            if g > 1 and c.is_Integer:  # x = c modulo g
                return int(c) % g, int(m) - g + int(c) % g
        return lo, hi

    def _peak(self, e: Any, open_end: int) -> Number:
        """A bound on the magnitude of `e`, of its parts, and of partial sums and products in any
        order, as far as their ends are finite; an open end counts as `open_end`. Infinite where
        it is not worked out."""
        if e.is_Symbol:
            low, high = self.interval(e)
            return max(_magnitude(low, open_end), _magnitude(high, open_end))
        if e.is_Integer:
            return abs(e.p)  # type: ignore[no-any-return]  # sympy has no types
        if e.is_Mul:
            return math.prod(max(1, self.peak(a, open_end)) for a in e.args)
        if e.is_Add:
            return sum(self.peak(a, open_end) for a in e.args)
        if type(e).__name__ in _NEVER_LARGER:
            return 1 + sum(self.peak(a, open_end) for a in e.args)
        return INF

    # -- elimination

    def lower(self, e: sympy.Expr, goal: Number = INF) -> Number:
        """A lower bound of `e`; the search stops once `goal` is reached."""
        low = self.interval(e)[0]
        if low >= goal or not self._can_gain(e):
            return low
        attained = self._samples.extent(e)[0]
        if attained < goal:  # no proof can reach the goal
            if goal != INF or low >= attained or attained < -FAR:
                return low
            goal = attained
        found, reached = self._lower.get(e, (low, -INF))
        if found < goal and reached < goal:
            if len(self._lower) > _MEMO_SIZE:
                self._lower.clear()
            steps = _STEPS_WITHOUT_ONE if goal == attained else _STEPS_TO_A_GOAL
            found = max(found, self._elimination.lower(e, goal, steps))
            self._lower[e] = found, goal
        return found

    def upper(self, e: sympy.Expr) -> Number:
        """An upper bound of `e`."""
        return -self.lower(-e)

    def _can_gain(self, e: sympy.Expr) -> bool:
        """Whether terms depend on each other, so that interval arithmetic may be loose."""
        if not e.is_Add:
            return self.symbolic and bool(e.free_symbols) and not e.is_Symbol
        if self.symbolic:
            return True
        seen: set[sympy.Symbol] = set()
        for t in e.args:
            if t.is_Mul and any(f.is_Add for f in t.args):
                return True
            if t.has(sympy.Function) and len(e.args) > 1:
                names = t.free_symbols
                if seen & names:
                    return True
            names = t.free_symbols
            if seen & names:
                return True
            seen |= names
        return False

    def at_least(self, e: sympy.Expr, low: int) -> bool:
        """Whether `e >= low` is proven."""
        return self.lower(e, low) >= low

    def nonnegative(self, e: sympy.Expr) -> bool:
        """Whether `e >= 0` is proven."""
        return self.at_least(e, 0)

    def positive(self, e: sympy.Expr) -> bool:
        """Whether `e > 0` is proven."""
        return self.at_least(e, 1) if e.is_integer else self.lower(e) > 0

    def within(self, e: sympy.Expr, size: sympy.Expr) -> bool:
        """Whether `0 <= e < size` is proven, for integers."""
        return self.nonnegative(e) and self.at_least(size - e, 1)

    def _best(self, e: sympy.Expr) -> Interval:
        """Both methods together."""
        low, high = self.interval(e)
        if self._can_gain(e):
            least, most = self._samples.extent(e)
            if low < least and least >= -FAR:
                low = max(low, self.lower(e))
            if high > most and most <= FAR:
                high = min(high, self.upper(e))
        return low, high

    def quotient(self, x: sympy.Expr, size: sympy.Expr) -> int | None:
        """`x // size`, where it is the same at all points of the ranges and size > 0; for a size
        that is no number, 0 or -1."""
        if not size.is_Integer:
            return next((k for k in (0, -1) if self.within(x - k * size, size)), None)
        if (d := int(size)) <= 0:
            return None
        low, high = self.interval(x)
        if not self._can_gain(x):
            return _same_quotient((low, high), d)
        least, most = self._samples.extent(x)
        if least <= most and least // d != most // d:
            return None
        return _same_quotient(self.best(x), d)

    def known(self, rel: Any) -> bool | None:
        """True or False where the ranges decide a relation or a boolean of relations."""
        if rel in (True, False):
            return bool(rel)
        if isinstance(rel, sympy.core.relational.Relational):
            return self._known_relation(rel)
        if isinstance(rel, sympy.Not):
            inner = self.known(rel.args[0])
            return None if inner is None else not inner
        if isinstance(rel, sympy.And | sympy.Or):
            absorbing = isinstance(rel, sympy.Or)
            values = [self.known(a) for a in rel.args]
            if absorbing in values:
                return absorbing
            return None if None in values else not absorbing
        raise UnknownFunction(type(rel).__name__, f"deciding `{rel}`", "expected a condition")

    def _known_relation(self, rel: Any) -> bool | None:
        a, b = rel.lhs, rel.rhs
        op: str = rel.rel_op
        if op in (">", ">="):
            a, b, op = b, a, {">": "<", ">=": "<="}[op]
        d = b - a
        if op in ("==", "!="):
            if d.is_zero:
                return op == "=="
            if self.positive(d) or self.positive(-d):
                return op == "!="
            if self.nonnegative(d) and self.nonnegative(-d):
                return op == "=="
            return None
        if op == "<":
            return True if self.positive(d) else False if self.nonnegative(-d) else None
        return True if self.nonnegative(d) else False if self.positive(-d) else None


def _same_quotient(x: Interval, d: int) -> int | None:
    if INF in (abs(x[0]), abs(x[1])) or x[0] // d != x[1] // d:
        return None
    return int(x[0] // d)


def _magnitude(x: Number, open_end: int) -> Number:
    if abs(x) == INF:
        return open_end
    return -x if x < 0 else x


@lru_cache(maxsize=256)
def _facts(items: frozenset[tuple[sympy.Symbol, tuple[End, End]]]) -> Facts:
    return Facts(dict(items))


def facts(ranges: Ranges | None) -> Facts:
    """The facts of these ranges; equal ranges share one object."""
    return _facts(frozenset((ranges or {}).items()))
