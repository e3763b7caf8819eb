"""Indices as sums of `coefficient * axis`: what fusion and bounds proofs work on.

The same few index expressions occur in every layer of a model, so every function here is pure
and cached; sympy is asked once per distinct expression."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import sympy

import symexpr
from tensor_ir import TensorType

CACHE = 1 << 14


@dataclass(frozen=True)
class Linear:
    """`sum(coefficient * axis) + rest`. `terms` are in the order of the axes asked for, without
    zero coefficients; `rest` holds no axis, nor does any coefficient."""

    terms: tuple[tuple[sympy.Symbol, sympy.Expr], ...]
    rest: sympy.Expr

    def coefficient(self, axis: sympy.Symbol) -> sympy.Expr:
        """What the axis is multiplied by, 0 if it does not occur."""
        return next((c for s, c in self.terms if s == axis), sympy.S.Zero)


@lru_cache(CACHE)
def linear(expr: sympy.Expr, axes: tuple[sympy.Symbol, ...]) -> Linear | None:
    """`expr` as a linear form over `axes`, or None if it is not linear in them."""
    wanted = frozenset(axes)
    if not (expr.free_symbols & wanted):
        return Linear((), expr)
    terms: dict[sympy.Symbol, list[sympy.Expr]] = {}
    rest: list[sympy.Expr] = []
    for term in sympy.Add.make_args(sympy.expand(expr)):
        used = term.free_symbols & wanted
        if not used:
            rest.append(term)
            continue
        factors = sympy.Mul.make_args(term)
        axis = [f for f in factors if f in wanted]
        if len(axis) != 1 or len(used) != 1:
            return None
        others = [f for f in factors if f not in wanted]
        terms.setdefault(axis[0], []).append(sympy.Mul(*others))
    sums = ((a, sympy.Add(*terms[a])) for a in axes if a in terms)
    return Linear(tuple((a, c) for a, c in sums if c != 0), sympy.Add(*rest))


@lru_cache(CACHE)
def substitute(
    expr: sympy.Expr, mapping: tuple[tuple[sympy.Symbol, sympy.Expr], ...]
) -> sympy.Expr:
    """`expr` with symbols replaced at once, as a sum of products."""
    used = {s: e for s, e in mapping if s in expr.free_symbols}
    return sympy.expand(expr.xreplace(used)) if used else expr


@lru_cache(CACHE)
def same(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether two expressions are equal as polynomials."""
    return bool(a == b) or bool(sympy.expand(a - b) == 0)


@lru_cache(CACHE)
def factors(expr: sympy.Expr) -> tuple[int, tuple[tuple[sympy.Expr, int], ...]]:
    """A product as `(integer, ((base, exponent), ...))`; a sum counts as one base."""
    number = 1
    powers: dict[sympy.Expr, int] = {}
    for factor in sympy.Mul.make_args(sympy.factor_terms(expr)):
        if factor.is_Integer:
            number *= int(factor)
            continue
        base, exponent = factor.as_base_exp()
        if not (exponent.is_Integer and exponent > 0):
            base, exponent = factor, 1
        powers[base] = powers.get(base, 0) + int(exponent)
    return number, tuple(sorted(powers.items(), key=lambda p: str(p[0])))


@lru_cache(CACHE)
def quotient(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    """`a / b` where b divides a for all values of the symbols, else None."""
    if b == 1:
        return a
    if a == b:
        return sympy.S.One
    (n, pa), (m, pb) = factors(a), factors(b)
    if m == 0 or n % m:
        return None
    left = dict(pa)
    for base, exponent in pb:
        left[base] = left.get(base, 0) - exponent
        if left[base] < 0:
            return None
    return sympy.Mul(n // m, *(base**e for base, e in left.items()))


@lru_cache(CACHE)
def span(type: TensorType) -> sympy.Expr:
    """The element after the last one of a view, counted from the start of its storage."""
    return sympy.expand(type.offset + type.extent)


def product(extents: Iterable[sympy.Expr]) -> sympy.Expr:
    """The number of points of a space of these extents."""
    return _product(tuple(extents))


@lru_cache(CACHE)
def _product(extents: tuple[sympy.Expr, ...]) -> sympy.Expr:
    return sympy.expand(sympy.Mul(*extents))


@lru_cache(CACHE)
def nonnegative(expr: sympy.Expr, lows: tuple[tuple[sympy.Symbol, int], ...]) -> bool:
    """Whether an expression is >= 0 for symbols at or above `lows`: after the shift
    `s -> s + low`, no coefficient of the polynomial is negative. Sufficient, not necessary."""
    if expr.is_Integer:
        return int(expr) >= 0
    if expr.has(sympy.Function):  # such as halves of sizes
        return symexpr.known(expr >= 0, {s: (low, None) for s, low in lows}) is True
    shifted = sympy.expand(expr.xreplace({s: s + low for s, low in lows}))
    known = {s for s, _ in lows}
    for term in sympy.Add.make_args(shifted):
        number, rest = term.as_coeff_Mul()
        if number.is_Rational is not True or number < 0:
            return False
        for factor in sympy.Mul.make_args(rest):
            base, exponent = factor.as_base_exp()
            if factor != 1 and not (base in known and exponent.is_Integer and exponent > 0):
                return False
    return True


def nonnegative_over(
    expr: sympy.Expr,
    extents: Mapping[sympy.Symbol, sympy.Expr],
    lows: tuple[tuple[sympy.Symbol, int], ...],
) -> bool:
    """Whether a linear form of axes of these extents is >= 0 at its least."""
    form = linear(expr, tuple(extents))
    if form is None:
        return False
    least = form.rest
    for axis, coefficient in form.terms:
        if nonnegative(-coefficient, lows):
            least = least + coefficient * (extents[axis] - 1)
        elif not nonnegative(coefficient, lows):
            return False
    return nonnegative(sympy.expand(least), lows)


def disjoint(
    first: sympy.Expr,
    second: sympy.Expr,
    one: Mapping[sympy.Symbol, sympy.Expr],
    two: Mapping[sympy.Symbol, sympy.Expr],
    lows: tuple[tuple[sympy.Symbol, int], ...] = (),
) -> bool:
    """Whether two indices never meet, as far as one modulus and bounds for symbols at or above
    `lows` tell; `one` and `two`: the extents of their axes.

        8*i0 + i1, i1 < 5     and   8*i0 + i1 + 5, i1 < 3:     [0, 5) and [5, 8) of each 8
        i0, i0 < s            and   i0 + s, i0 < s:            [0, s) and [s, 2*s)
        2*s*i0 + i1, i1 < s   and   2*s*i0 + i1 + s, i1 < s:   the same of each 2*s
    """
    forms = [linear(i, tuple(axes)) for i, axes in ((first, one), (second, two))]
    moduli = dict.fromkeys(c for f in forms if f is not None for _, c in f.terms if c != 1)
    for modulus in (None, *moduli):
        ends = [_span(f, axes, lows, modulus) for f, axes in zip(forms, (one, two), strict=True)]
        if any(
            a is not None and b is not None and nonnegative(sympy.expand(b[0] - a[1] - 1), lows)
            for a, b in (ends, reversed(ends))
        ):
            return True
    return False


def _span(
    form: Linear | None,
    extents: Mapping[sympy.Symbol, sympy.Expr],
    lows: tuple[tuple[sympy.Symbol, int], ...],
    modulus: sympy.Expr | None,
) -> tuple[sympy.Expr, sympy.Expr] | None:
    """The first and the last value of an index that grows with its axes; modulo a number, if it
    does not wrap around."""
    if form is None:
        return None
    whole = modulus is not None and modulus.is_Integer and form.rest.is_Integer
    low = form.rest % modulus if whole else form.rest
    terms = [(a, c) for a, c in form.terms if modulus is None or quotient(c, modulus) is None]
    high = low + sympy.Add(*(c * (extents[a] - 1) for a, c in terms))
    inside = () if modulus is None else (low, modulus - 1 - high)
    bounds = (*(c for _, c in terms), *map(sympy.expand, inside))
    return (low, high) if all(nonnegative(e, lows) for e in bounds) else None
