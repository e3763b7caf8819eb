"""`simplify`: the rules of `symexpr.rules`, innermost first, until none applies."""

from __future__ import annotations

from typing import Any

import sympy

from symexpr.facts import Ranges, facts
from symexpr.rules import simplify_with


def simplify(e: Any, ranges: Ranges | None = None) -> Any:
    """An expression of equal value for all symbols within the ranges.

    ranges: symbol -> (low, high), both included, None where open; an end may be an expression of
    other symbols (`{j: (0, s0 - 1), s0: (1, None)}`).

    >>> from symexpr import parse, symbol
    >>> i, j = symbol("i"), symbol("j")
    >>> simplify(parse("(i*768 + j)//768*768 + (i*768 + j)%768"), {j: (0, 767)})
    768*i + j
    """
    return simplify_with(sympy.sympify(e), facts(ranges))


def known(rel: Any, ranges: Ranges | None = None) -> bool | None:
    """True or False where the ranges decide a condition, else None.

    >>> from symexpr import symbol
    >>> j, s0 = symbol("j"), symbol("s0")
    >>> known(j < s0 + 1, {j: (0, s0 - 1), s0: (1, None)})
    True
    """
    simple = simplify(rel, ranges)
    return bool(simple) if simple in (sympy.true, sympy.false) else None
