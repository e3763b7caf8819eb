"""Integer terms: coefficients, exact division, and the base of the functions."""

from collections.abc import Container, Sequence
from functools import cmp_to_key, lru_cache
from keyword import kwlist
from math import gcd
from typing import Any, cast
from unicodedata import normalize

import sympy
from sympy import Expr
from sympy.core.basic import Basic

from symexpr.errors import BadName, NonInteger

_ZERO, _ONE = sympy.S.Zero, sympy.S.One
by_structure = cmp_to_key(Basic.compare)


@lru_cache(maxsize=10_000)
def symbol(name: str) -> sympy.Symbol:
    """The integer symbol of this name: the only kind that the library uses."""
    return sympy.Symbol(name, integer=True)


@lru_cache(maxsize=1 << 14)
def free_symbols(e: Basic) -> frozenset[sympy.Symbol]:
    """The symbols of an expression or condition, found once."""
    return frozenset(e.free_symbols)


def check_name(name: str, taken: Container[str] = ()) -> str:
    """The name of a symbol, which texts hold as it is: Python reads the same name there, and the
    text means nothing else by it (`taken`). Raises BadName."""
    if not name.isidentifier() or name in kwlist or name != normalize("NFKC", name):
        raise BadName(name)
    if name in taken:
        raise BadName(name, "the text calls something else that")
    return name


def integer_args(function: str, *args: Expr) -> tuple[Expr, ...]:
    """The arguments, whole-valued floats made integers; raises NonInteger."""
    out = []
    for a in args:
        if a.is_Float and a == int(a):
            a = sympy.Integer(int(a))
        if not integral(a):
            raise NonInteger(function, a)
        out.append(a)
    return tuple(out)


def coefficient(term: Expr) -> tuple[int, Expr]:
    """`6*x*y -> (6, x*y)`, `x -> (1, x)`; a rational factor stays in the rest."""
    if term.is_Integer:
        return int(term), _ONE
    if term.is_Mul and term.args[0].is_Integer:
        rest = term.args[1:]
        return int(term.args[0]), rest[0] if len(rest) == 1 else term.func._from_args(rest, True)
    return 1, term


def times(c: int, rest: Expr) -> Expr:
    """`c*rest`; without sympy's sorting and questions, where the order is known."""
    if c == 1:
        return rest
    factors = rest.args if rest.is_Mul else (rest,)
    if c and all(f.is_Symbol or f.is_Function for f in factors):
        return sympy.Mul._from_args((sympy.Integer(c), *factors), True)
    return sympy.Integer(c) * rest


# Shorter sums are found in sympy's cache more often than not.
_LONG = 64


def total(terms: Sequence[Expr]) -> Expr:
    """`sympy.Add(*terms)`. A long sum of a number and multiples of different symbols
    and functions is built as it stands: sympy
    would make every product once more to see that no two can be collected."""
    if len(terms) < _LONG:
        return sympy.Add(*terms)
    numbers, multiples, seen = [], [], set()
    for t in terms:
        if t.is_Integer:
            numbers.append(t)
            continue
        args = t.args
        base = args[1] if t.is_Mul and len(args) == 2 and args[0].is_Integer else t
        if not (base.is_Symbol or base.is_Function) or base in seen:
            return sympy.Add(*terms)
        seen.add(base)
        multiples.append(t)
    number = sympy.Add(*numbers)
    multiples.sort(key=by_structure)
    return sympy.Add._from_args(([] if number is _ZERO else [number]) + multiples, True)


def content(e: Expr) -> int:
    """Greatest common divisor of the integer coefficients of the terms of a sum."""
    g = 0
    for t in sympy.Add.make_args(e):
        g = gcd(g, literal_factor(t))
        if g == 1:
            break
    return g


def literal_factor(term: Expr) -> int:
    """The integer of `coefficient`, alone."""
    if term.is_Mul:
        term = term.args[0]
    return int(term.p) if term.is_Integer else 1


def exact_quotient(term: Expr, divisor: Expr) -> Expr | None:
    """`term / divisor` where that is an integer for all values of the symbols, else None."""
    if term is _ZERO:
        return _ZERO
    c, rest = coefficient(term)
    if divisor.is_Integer:
        return times(c // int(divisor), rest) if c % int(divisor) == 0 else None
    if term == divisor:
        return _ONE
    if term.is_Add or not (term.free_symbols & divisor.free_symbols):
        return None
    q = term / divisor
    return q if q.is_integer else None


def exact_quotient_sum(e: Expr, divisor: Expr) -> Expr | None:
    """`exact_quotient` of every term of a sum."""
    parts = []
    for t in sympy.Add.make_args(e):
        q = exact_quotient(t, divisor)
        if q is None:
            return None
        parts.append(q)
    return total(parts)


def split_terms(e: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """`e = divisor*q + r` by whole terms."""
    q, r = [], []
    for t in sympy.Add.make_args(e):
        part = exact_quotient(t, divisor)
        (r.append(t) if part is None else q.append(part))
    return total(q), total(r)


def scale_down(e: Expr, g: int) -> Expr:
    """`e / g`, of an `e` that `g` divides."""
    quotient = exact_quotient_sum(e, sympy.Integer(g))
    assert quotient is not None
    return quotient


def cancel_factors(a: Expr, b: Expr) -> tuple[Expr, Expr] | None:
    """`s*i, s*t -> i, t` for products with factors in common; None if there are none."""
    if a.is_Add or b.is_Add:
        return None
    common = [f for f in sympy.Mul.make_args(b) if not f.is_number]
    common = [f for f in common if f in sympy.Mul.make_args(a)]
    if not common:
        return None
    m = sympy.Mul(*common)
    return a / m, b / m


def integral(e: Expr) -> bool:
    """Whether `e` is seen to be an integer: the common answers of `e.is_integer`, sooner."""
    if e.is_Symbol or e.is_Number or e.is_Function:
        return e.is_integer is True
    if e.is_Add or e.is_Mul:
        return all(integral(a) for a in e.args) or e.is_integer is True
    return e.is_integer is True


class Applied(sympy.Function):  # type: ignore[misc]  # sympy has no types
    """The base of the functions: `eval` once per arguments, without what sympy's own construction
    does for functions of real numbers (a third of the time of parsing)."""

    def __new__(cls, *args: Any, evaluate: bool = True) -> Expr:
        made = tuple(map(sympy.sympify, args))
        if cls._nargs is not None and len(made) not in cls._nargs:
            takes = " or ".join(map(str, cls._nargs))
            raise TypeError(f"{cls.__name__} takes {takes} arguments ({len(made)} given)")
        return _applied(cast(Any, cls), made) if evaluate else Expr.__new__(cls, *made)


@lru_cache(maxsize=10_000)
def _applied(cls: type[Applied], args: tuple[Expr, ...]) -> Expr:
    found: Expr | None = cls.eval(*args)
    return Expr.__new__(cls, *args) if found is None else found


class Integral(Applied):
    """Functions whose value is an integer."""

    is_integer = True


def clear_denominators(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """`x/2 + 1, 3 -> x + 2, 6`: rational coefficients moved to the divisor, sign kept."""
    lcm = 1
    for e in (a, b):
        for t in sympy.Add.make_args(e):
            c = t.as_coeff_Mul()[0]
            if c.is_Rational:
                lcm = lcm * int(c.q) // gcd(lcm, int(c.q))
    if lcm == 1:
        return a, b
    scale = [sympy.Add(*(t * lcm for t in sympy.Add.make_args(e))) for e in (a, b)]
    return scale[0], scale[1]
