"""Parts of a size expression that the host computes: floats, their rounding, powers.

Python and C++ compute them exactly as eager does, once a call; Triton has no `trunc`, and its
floats round otherwise.
"""

from __future__ import annotations

import sympy

from symexpr import (
    CeilToInt,
    FloatTrueDiv,
    FloorToInt,
    IntTrueDiv,
    PowByNatural,
    RoundToInt,
    ToFloat,
    TruncToInt,
)

_HOST = (
    CeilToInt, FloatTrueDiv, FloorToInt, IntTrueDiv, PowByNatural, RoundToInt, ToFloat, TruncToInt,
)  # fmt: skip


def host_parts(
    e: sympy.Expr, inside: frozenset[sympy.Symbol] = frozenset()
) -> tuple[sympy.Expr, ...]:
    """The largest parts of sizes alone that need the host, each once. inside: symbols that only
    the kernel knows.

    >>> from symexpr import parse, sstr
    >>> [sstr(part) for part in host_parts(parse("i0 + Max(1, TruncToInt(ToFloat(s0)*0.5))"))]
    ['TruncToInt(ToFloat(s0)*0.5)']
    """
    if not e.has(*_HOST) and e.is_integer is not False:
        return ()
    real = not e.is_integer and not e.is_Boolean
    if e.free_symbols and not e.free_symbols & inside and (real or isinstance(e, _HOST)):
        return (e,)
    return tuple(dict.fromkeys(part for arg in e.args for part in host_parts(arg, inside)))
