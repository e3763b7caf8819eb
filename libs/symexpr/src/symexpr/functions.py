"""Integer functions over sympy, with the semantics of Python's operators for every sign.

They fold literals and apply the laws that hold for all integers; laws that need a range are in
`symexpr.rules`. A divisor is taken to be non-zero: `FloorDiv(s*i, s) -> i`.
"""

from __future__ import annotations

import sympy

from symexpr.choice import Max, Min, Where
from symexpr.division import CeilDiv, FloorDiv, Mod, ModularIndexing
from symexpr.scalars import (
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    CeilToInt,
    FloatTrueDiv,
    FloorToInt,
    IntTrueDiv,
    LShift,
    PowByNatural,
    RoundToInt,
    RShift,
    ToFloat,
    TruncToInt,
)

FUNCTIONS: dict[str, type[sympy.Function]] = {
    f.__name__: f
    for f in (
        FloorDiv,
        CeilDiv,
        Mod,
        ModularIndexing,
        Min,
        Max,
        Where,
        IntTrueDiv,
        FloatTrueDiv,
        ToFloat,
        FloorToInt,
        CeilToInt,
        TruncToInt,
        RoundToInt,
        PowByNatural,
        LShift,
        RShift,
        BitwiseAnd,
        BitwiseOr,
        BitwiseXor,
    )
}
