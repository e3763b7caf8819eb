"""What ranges imply: intervals of expressions, and proofs of `e >= 0`.

Two methods, both sound. Interval arithmetic, node by node; it is exact where each symbol occurs
once. And elimination: in a sum, a factor `g` with a coefficient of known sign is replaced by its
lower or upper end, itself an expression (`j <= s0 - 1`, `x % m <= m - 1`, `d*(x // d) <= x`),
until a number is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import sympy

from symexpr import intervals as iv
from symexpr.errors import BadRange, UnknownFunction
from symexpr.intervals import INF, Interval, Number
from symexpr.structure import content

End: TypeAlias = int | sympy.Expr | None
Ranges: TypeAlias = Mapping[sympy.Symbol, tuple[End, End]]

_STEPS_TO_A_GOAL = 48
_STEPS_WITHOUT_ONE = 16
_MEMO_SIZE = 20_000


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
        self._intervals: dict[sympy.Basic, Interval] = {}
        self._best: dict[sympy.Expr, Interval] = {}
        self._lower: dict[sympy.Expr, tuple[Number, Number]] = {}
        self.simplified: dict[sympy.Basic, sympy.Basic] = {}
        self._open: set[sympy.Symbol] = set()
        for s in self.ranges:
            lo, hi = self.interval(s)
            if lo > hi:
                raise BadRange(f"range of `{s}` is empty: [{lo}, {hi}]")

    def interval(self, e: sympy.Basic) -> Interval:
        """Interval arithmetic."""
        found = self._intervals.get(e)
        if found is None:
            if len(self._intervals) > _MEMO_SIZE:
                self._intervals.clear()
            found = self._intervals[e] = self._interval(e)
        return found

    def _interval(self, e: Any) -> Interval:
        if e.is_Symbol:
            return self._symbol(e)
        if e.is_Rational:
            x: Number = int(e) if e.is_Integer else _fraction(e)
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

    # -- elimination

    def lower(self, e: sympy.Expr, goal: Number = INF) -> Number:
        """A lower bound of `e`; the search stops once `goal` is reached."""
        low = self.interval(e)[0]
        if low >= goal or not self._can_gain(e):
            return low
        found, reached = self._lower.get(e, (low, -INF))
        if found < goal and reached < goal:
            if len(self._lower) > _MEMO_SIZE:
                self._lower.clear()
            found = max(found, _Search(self, goal).run(e))
            self._lower[e] = found, goal
        return found

    def upper(self, e: sympy.Expr, goal: Number = -INF) -> Number:
        return -self.lower(-e, -goal)

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
        return self.at_least(e, 0)

    def positive(self, e: sympy.Expr) -> bool:
        """Whether `e > 0` is proven."""
        return self.at_least(e, 1) if e.is_integer else self.lower(e) > 0

    def within(self, e: sympy.Expr, size: sympy.Expr) -> bool:
        """Whether `0 <= e < size` is proven, for integers."""
        return self.nonnegative(e) and self.at_least(size - e, 1)

    def best(self, e: sympy.Expr) -> Interval:
        """Both methods together."""
        found = self._best.get(e)
        if found is None:
            if len(self._best) > _MEMO_SIZE:
                self._best.clear()
            found = self.interval(e)
            if self._can_gain(e):
                found = iv.meet(found, (self.lower(e), self.upper(e)))
            self._best[e] = found
        return found

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


class _Search:
    """Depth-first elimination with a budget of steps."""

    def __init__(self, facts: Facts, goal: Number) -> None:
        self.facts, self.goal = facts, goal
        self.steps = _STEPS_WITHOUT_ONE if goal == INF else _STEPS_TO_A_GOAL
        self.seen: set[sympy.Expr] = set()

    def run(self, e: sympy.Expr) -> Number:
        e = _distribute(e)
        best = self.facts.interval(e)[0]
        if best >= self.goal or e in self.seen or e.is_number:
            return best
        self.seen.add(e)
        for generator, coefficient in self._candidates(e):
            sign = self.facts.interval(coefficient)
            if sign[0] < 0 < sign[1]:
                continue
            rest = e - sympy.expand_mul(coefficient * generator)
            for end in self._ends(generator, low=sign[0] >= 0):
                if self.steps <= 0:
                    return best
                self.steps -= 1
                best = max(best, self.run(rest + sympy.expand_mul(coefficient * end)))
                if best >= self.goal:
                    return best
        return best

    def _candidates(self, e: sympy.Expr) -> list[tuple[sympy.Expr, sympy.Expr]]:
        """Factors that occur to the first power, with their coefficients; those with
        expressions as ends come first."""
        terms: dict[sympy.Expr, list[sympy.Expr]] = {}
        powers: set[sympy.Expr] = set()
        for t in sympy.Add.make_args(e):
            for f in sympy.Mul.make_args(t):
                if f.is_Pow:
                    powers.add(f.base)
                elif not f.is_number:
                    terms.setdefault(f, []).append(t)
        out = []
        for g, ts in terms.items():
            if g not in powers:
                out.append((g, sympy.Add(*(t / g for t in ts))))
        order = {g: self._rank(g) for g, _ in out}
        return sorted(out, key=lambda p: (order[p[0]], str(p[0])))

    def _rank(self, g: sympy.Expr) -> int:
        if not g.is_Symbol:
            return 0
        ends = self.facts.ranges.get(g, (None, None))
        return 1 if any(x is not None and not x.is_Integer for x in ends) else 2

    def _ends(self, g: sympy.Expr, low: bool) -> list[sympy.Expr]:
        """Expressions that bound a factor from below or above."""
        f = self.facts
        out: list[sympy.Expr] = []
        if g.is_Symbol:
            end = f.ranges.get(g, (None, None))[0 if low else 1]
            out = [] if end is None else [end]
        else:
            name = type(g).__name__
            if name in ("Mod", "ModularIndexing") and f.interval(g.args[-1])[0] > 0:
                out = [sympy.S.Zero if low else g.args[-1] - 1]
            elif name == "FloorDiv" and f.interval(g.args[1])[0] > 0:
                x, d = g.args
                out = [(x - d + 1) / d if low else x / d]
            elif name == "CeilDiv" and f.interval(g.args[1])[0] > 0:
                x, d = g.args
                out = [x / d if low else (x + d - 1) / d]
            elif (name == "Min" and not low) or (name == "Max" and low):
                out = list(g.args)
        number = f.interval(g)[0 if low else 1]
        if abs(number) != INF:
            literal = sympy.Rational(number)
            if literal not in out:
                out.append(literal)
        return out


def _distribute(e: sympy.Expr) -> sympy.Expr:
    if any(t.is_Mul and any(f.is_Add for f in t.args) for t in sympy.Add.make_args(e)):
        return sympy.expand_mul(e)
    return e


def _fraction(e: sympy.Rational) -> Number:
    return Fraction(int(e.p), int(e.q))


@lru_cache(maxsize=256)
def _facts(items: frozenset[tuple[sympy.Symbol, tuple[End, End]]]) -> Facts:
    return Facts(dict(items))


def facts(ranges: Ranges | None) -> Facts:
    """The facts of these ranges; equal ranges share one object."""
    return _facts(frozenset((ranges or {}).items()))
