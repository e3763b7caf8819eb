"""Parts of a size expression that the host computes: floats, their rounding, powers, and what its
ranges let grow beyond 64 bits.

Python and C++ compute them exactly as eager does, once a call; Triton has no `trunc`, and its
floats round otherwise. What is beyond 64 bits is no argument of a launch, so the host finds it."""

import sympy
from sympy.logic.boolalg import Boolean

import symexpr
from symexpr import Ranges, bounds

_NAMES = "CeilToInt FloatTrueDiv FloorToInt IntTrueDiv PowByNatural RoundToInt ToFloat TruncToInt"
_HOST = tuple(getattr(symexpr, name) for name in _NAMES.split())


def host_parts(
    e: sympy.Expr, ranges: Ranges, inside: frozenset[sympy.Symbol] = frozenset()
) -> tuple[sympy.Expr, ...]:
    """The largest parts of sizes alone that need the host, each once. inside: symbols that only
    the kernel knows.

    >>> from symexpr import parse, sstr, symbol
    >>> [sstr(p) for p in host_parts(parse("i0 + Max(1, TruncToInt(ToFloat(s0)*0.5))"), {})]
    ['TruncToInt(ToFloat(s0)*0.5)']
    >>> [sstr(p) for p in host_parts(parse("i0 + 8*s0**3"), {symbol("s0"): (0, 2**31 - 1)})]
    ['s0**3*8']
    >>> host_parts(parse("Where(s0 > 4, s0, 0)"), {})
    ()
    """
    if e.is_Symbol or e.is_number:
        return ()
    if not e.free_symbols & inside:
        real = not e.is_integer and not isinstance(e, Boolean)
        if real or isinstance(e, _HOST) or (e.is_integer and _beyond(e, ranges)):
            return (e,)
    return tuple(dict.fromkeys(p for arg in e.args for p in host_parts(arg, ranges, inside)))


def _beyond(e: sympy.Expr, ranges: Ranges) -> bool:
    """Whether the ranges have an end for `e`, and it is beyond 64 bits."""
    low, high = bounds(e, ranges)
    return (low is not None and low < -(2**63)) or (high is not None and high >= 2**63)
