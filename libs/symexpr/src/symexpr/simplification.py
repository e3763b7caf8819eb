"""`simplify`, `known` and `bounds`: rules innermost first until none applies, then proofs."""

import math
from typing import Any

import sympy

from symexpr.errors import DivisionByZero
from symexpr.evaluation import DIVISIONS
from symexpr.facts import Ranges, facts
from symexpr.intervals import INF, Number
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


def _as_end(x: Number, up: bool) -> int | None:
    if abs(x) == INF:
        return None
    return math.ceil(x) if up else math.floor(x)


def check_divisors(e: Any, ranges: Ranges | None = None) -> None:
    """Raises DivisionByZero for a division whose divisor the ranges do not keep from zero."""
    f = facts(ranges)
    for node in sympy.preorder_traversal(sympy.sympify(e)):
        divisors = node.args[1:] if type(node).__name__ in DIVISIONS else ()
        if node.is_Pow and node.exp.is_negative:
            divisors = (node.base,)
        for d in divisors:
            if not f.positive(d) and not f.positive(-d):
                raise DivisionByZero(node.args[0], d, "check_divisors")


def bounds(e: Any, ranges: Ranges | None = None) -> tuple[int | None, int | None]:
    """Lowest and highest value, both included; None where open. Exact for sums of products of
    symbols that occur once, and for floor divisions of those by literals. For a real-valued
    expression the integers around its values. Ranges as for simplify.

    >>> from symexpr import symbol, FloorDiv
    >>> i, j = symbol("i"), symbol("j")
    >>> bounds(768*i + FloorDiv(j, 4), {i: (0, 31), j: (0, 767)})
    (0, 23999)
    """
    f = facts(ranges)
    lo, hi = f.best(simplify_with(sympy.sympify(e), f))
    return _as_end(lo, up=False), _as_end(hi, up=True)
