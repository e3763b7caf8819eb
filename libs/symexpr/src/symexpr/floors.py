"""`sympy.floor` and `sympy.ceiling` of quotients, in any form sympy gives them, as FloorDiv."""

from typing import Any

import sympy

from symexpr.division import CeilDiv, FloorDiv
from symexpr.scalars import CeilToInt, FloorToInt


def replace_floor(e: Any) -> Any:
    """`floor(a/b) -> FloorDiv(a, b)` and `ceiling(a/b) -> CeilDiv(a, b)` at every depth.

    A floor of a float (`IntTrueDiv`, `ToFloat`) becomes FloorToInt. Raises NonInteger for a floor
    of anything else.

    >>> import sympy; from symexpr import symbol
    >>> x = symbol("x")
    >>> replace_floor(sympy.floor((x + 1)/3) + sympy.ceiling(-x/2))
    FloorDiv(1 - x, 2) + FloorDiv(x + 1, 3)
    """
    e = sympy.sympify(e)
    if not e.args or not e.has(sympy.floor, sympy.ceiling):
        return e
    args = [replace_floor(a) for a in e.args]
    if isinstance(e, sympy.floor):
        return _rounded(FloorDiv, FloorToInt, args[0])
    if isinstance(e, sympy.ceiling):
        return _rounded(CeilDiv, CeilToInt, args[0])
    return e.func(*args)


def _rounded(divide: Any, rounding: Any, x: sympy.Expr) -> sympy.Expr:
    a, b = _fraction(x)
    if not (a.is_integer and b.is_integer) and x.is_real:
        return rounding(x)
    return divide(a, b)


def _fraction(e: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """`e` over one common denominator, without expanding products."""
    if e.is_Add:
        parts = [_fraction(t) for t in e.args]
        denominator = parts[0][1]
        for _, d in parts[1:]:
            denominator = sympy.lcm(denominator, d)
        return sympy.Add(*(n * sympy.cancel(denominator / d) for n, d in parts)), denominator
    above, below = [], []
    for f in sympy.Mul.make_args(e):
        if f.is_Rational:
            above.append(sympy.Integer(f.p))
            below.append(sympy.Integer(f.q))
        elif f.is_Pow and f.exp.is_Rational and f.exp < 0:
            n, d = _fraction(f.base)
            above.append(d ** (-f.exp))
            below.append(n ** (-f.exp))
        elif f.is_Add:
            n, d = _fraction(f)
            above.append(n)
            below.append(d)
        else:
            above.append(f)
    return sympy.Mul(*above), sympy.Mul(*below)
