"""Lower bounds of sums by elimination: a factor `g` whose coefficient has a known sign is replaced
by its lower or upper end, itself an expression (`j <= s0 - 1`, `x % m <= m - 1`,
`d*(x // d) <= x`), until a number is left.

Sums are polynomials here, plain dictionaries, since a step of the search makes one or two."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import sympy

from symexpr import intervals as iv
from symexpr.intervals import INF, Interval, Number
from symexpr.printing import sstr

# Factors by number, each with its power, sorted; () is the constant.
Monomial: TypeAlias = tuple[tuple[int, int], ...]
Polynomial: TypeAlias = dict[Monomial, int | Fraction]

_ONE: Polynomial = {(): 1}
_MEMO_SIZE = 20_000
# What an integer is more than by so much less than 1 it is at least.
_NEARLY = 1 - Fraction(1, 1 << 20)


class End(NamedTuple):
    """`over / under`."""

    over: Polynomial
    under: Polynomial


class Elimination:
    """interval: of any expression; ranges: ends of symbols, which may be expressions."""

    def __init__(
        self,
        interval: Callable[[sympy.Basic], Interval],
        ranges: Mapping[sympy.Symbol, tuple[Any, ...]],
    ) -> None:
        self.interval, self.ranges = interval, ranges
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[sympy.Expr, int] = {}
        self._factors: list[sympy.Expr] = []
        self._keys: list[tuple[int, str]] = []
        self._polynomials: dict[sympy.Expr, Polynomial] = {}
        self._intervals: dict[Monomial, Interval] = {}
        self._ends: dict[tuple[int, bool], list[End]] = {}

    def lower(self, e: sympy.Expr, goal: Number, steps: int) -> Number:
        """A lower bound of `e`, by at most so many replacements; stops once it is `goal`."""
        if len(self._polynomials) > _MEMO_SIZE or len(self._intervals) > _MEMO_SIZE:
            self._forget()
        if not e.is_integer or abs(goal) == INF:
            return _Search(self, goal, steps).run(self.polynomial(e))
        found = _Search(self, goal - _NEARLY, steps).run(self.polynomial(e))
        return found if abs(found) == INF else math.ceil(found)

    # -- polynomials

    def polynomial(self, e: sympy.Expr) -> Polynomial:
        """`e` with products of sums multiplied out; powers of sums are factors."""
        found = self._polynomials.get(e)
        if found is None:
            found = self._polynomials[e] = self._polynomial(e)
        return found

    def _polynomial(self, e: sympy.Expr) -> Polynomial:
        if e.is_Integer:
            return {(): int(e)} if e != 0 else {}
        if e.is_Rational:
            return {(): Fraction(int(e.p), int(e.q))}
        if e.is_Add:
            total: Polynomial = {}
            for t in e.args:
                _add_to(total, self.polynomial(t), _ONE)
            return total
        if e.is_Mul:
            product = _ONE
            for f in e.args:
                product = _times(product, self.polynomial(f))
            return product
        if e.is_Pow and e.exp.is_Integer:
            return {((self.number(e.base), int(e.exp)),): 1}
        return {((self.number(e), 1),): 1}

    def number(self, factor: sympy.Expr) -> int:
        """The number of a factor, which is given when it is first seen."""
        found = self._numbers.get(factor)
        if found is None:
            found = self._numbers[factor] = len(self._factors)
            self._factors.append(factor)
            self._keys.append((self._rank(factor), sstr(factor)))
        return found

    def _rank(self, g: sympy.Expr) -> int:
        """Factors with expressions as ends are eliminated first."""
        if not g.is_Symbol:
            return 0
        ends = self.ranges.get(g, (None, None))
        return 1 if any(x is not None and not x.is_Integer for x in ends) else 2

    def order(self, number: int) -> tuple[int, str]:
        """What factors are sorted by: those to be eliminated first come first."""
        return self._keys[number]

    def interval_of(self, p: Polynomial) -> Interval:
        """The bounds of a polynomial from those of its monomials."""
        low: Number = 0
        high: Number = 0
        for m, c in p.items():
            lo, hi = self._monomial(m)
            if c < 0:
                lo, hi = hi, lo
            low = -INF if low == -INF or abs(lo) == INF else low + c * lo
            high = INF if high == INF or abs(hi) == INF else high + c * hi
        return low, high

    def _monomial(self, m: Monomial) -> Interval:
        found = self._intervals.get(m)
        if found is None:
            found = (1, 1)
            for number, power in m:
                x = self.interval(self._factors[number])
                found = iv.mul(found, x if power == 1 else iv.power(x, (power, power)))
            self._intervals[m] = found
        return found

    # -- ends

    def ends(self, number: int, low: bool) -> list[End]:
        """Expressions that bound a factor from below or above."""
        found = self._ends.get((number, low))
        if found is None:
            g = self._factors[number]
            found = [
                End(self.polynomial(over), _ONE if under == 1 else self.polynomial(under))
                for over, under in self._find_ends(g, low)
            ]
            self._ends[number, low] = found
        return found

    def _find_ends(self, g: sympy.Expr, low: bool) -> list[tuple[sympy.Expr, sympy.Expr]]:
        one = sympy.S.One
        out: list[tuple[sympy.Expr, sympy.Expr]] = []
        if g.is_Symbol:
            end = self.ranges.get(g, (None, None))[0 if low else 1]
            out = [] if end is None else [(end, one)]
        else:
            name = type(g).__name__
            if name in ("Mod", "ModularIndexing") and self.interval(g.args[-1])[0] > 0:
                out = [(sympy.S.Zero if low else g.args[-1] - 1, one)]
            elif name == "FloorDiv" and self.interval(g.args[1])[0] > 0:
                x, d = g.args
                out = [(x - d + 1 if low else x, d)]
            elif name == "CeilDiv" and self.interval(g.args[1])[0] > 0:
                x, d = g.args
                out = [(x if low else x + d - 1, d)]
            elif (name == "Min" and not low) or (name == "Max" and low):
                out = [(a, one) for a in g.args]
        number = self.interval(g)[0 if low else 1]
        if abs(number) != INF:
            literal = sympy.Rational(number)
            if (literal, one) not in out:
                out.append((literal, one))
        return out

    def replaced(self, rest: Polynomial, coefficient: Polynomial, end: End) -> Polynomial:
        """`rest + coefficient*end`."""
        if end.under is not _ONE:
            coefficient = self._over(coefficient, end.under)
        out = dict(rest)
        _add_to(out, coefficient, end.over)
        return out

    def _over(self, p: Polynomial, d: Polynomial) -> Polynomial:
        if len(d) == 1:
            ((m, c),) = d.items()
            inverse = tuple((n, -k) for n, k in m)
            return {_join(n, inverse): _ratio(k, c) for n, k in p.items()}
        if len(p) == len(d):  # a multiple of d, by a number and a product of factors
            first, c = max(d.items())
            for m, k in p.items():
                ratio = {_join(m, tuple((n, -j) for n, j in first)): _ratio(k, c)}
                if _times(d, ratio) == p:
                    return ratio
        whole = sympy.Add(*(c * self._product(m) for m, c in d.items()))
        return _times(p, {((self.number(whole), -1),): 1})

    def _product(self, m: Monomial) -> sympy.Expr:
        return sympy.Mul(*(self._factors[n] ** k for n, k in m))


class _Search:
    """Depth-first, with a budget of steps."""

    def __init__(self, space: Elimination, goal: Number, steps: int) -> None:
        self.space, self.goal, self.steps = space, goal, steps
        self.seen: set[frozenset[tuple[Monomial, int | Fraction]]] = set()

    def run(self, p: Polynomial) -> Number:
        space = self.space
        best = space.interval_of(p)[0]
        if best >= self.goal or not p or (len(p) == 1 and () in p):
            return best
        key = frozenset(p.items())
        if key in self.seen:
            return best
        self.seen.add(key)
        for number, coefficient, rest in self._candidates(p):
            low, high = space.interval_of(coefficient)
            if low < 0 < high:
                continue
            for end in space.ends(number, low=low >= 0):
                if self.steps <= 0:
                    return best
                self.steps -= 1
                best = max(best, self.run(space.replaced(rest, coefficient, end)))
                if best >= self.goal:
                    return best
        return best

    def _candidates(self, p: Polynomial) -> list[tuple[int, Polynomial, Polynomial]]:
        """Factors that occur to the first power only: number, coefficient, the other terms."""
        once: dict[int, bool] = {}
        for m in p:
            for number, power in m:
                once[number] = power == 1 and once.get(number, True)
        out = []
        for number in sorted((n for n, ok in once.items() if ok), key=self.space.order):
            coefficient: Polynomial = {}
            rest: Polynomial = {}
            for m, c in p.items():
                if (number, 1) in m:
                    coefficient[tuple(f for f in m if f[0] != number)] = c
                else:
                    rest[m] = c
            out.append((number, coefficient, rest))
        return out


def _join(a: Monomial, b: Monomial) -> Monomial:
    if not a:
        return b
    if not b:
        return a
    powers = dict(a)
    for number, power in b:
        powers[number] = powers.get(number, 0) + power
    return tuple(sorted((n, k) for n, k in powers.items() if k))


def _ratio(a: int | Fraction, b: int | Fraction) -> int | Fraction:
    return Fraction(a) / b if a % b else a // b


def _add_to(total: Polynomial, a: Polynomial, b: Polynomial) -> None:
    """`total += a*b`, in place."""
    for m, c in a.items():
        for n, d in b.items():
            key = _join(m, n)
            value = total.get(key, 0) + c * d
            if value:
                total[key] = value
            else:
                total.pop(key, None)


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    out: Polynomial = {}
    _add_to(out, a, b)
    return out
