"""Integer expressions that print, simplify and prove right.

A compiler's sizes, strides and indices are integer expressions; sympy's own floor division,
printing and simplification are slow, float-minded, or wrong for them in other languages.
"""

from symexpr.errors import (
    BadRange,
    DivisionByZero,
    GuardViolated,
    MissingValue,
    NonInteger,
    OverflowRisk,
    ParseError,
    SymexprError,
    UnknownFunction,
    UnsupportedByTarget,
)
from symexpr.evaluation import (
    INTERVALS,
    PYTHON,
    ArrayDomain,
    Domain,
    IntervalDomain,
    TraceDomain,
    evaluate,
)
from symexpr.facts import Ranges, bounds
from symexpr.floors import replace_floor
from symexpr.functions import (
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    CeilDiv,
    CeilToInt,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    LShift,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PowByNatural,
    RoundToInt,
    RShift,
    ToFloat,
    TruncToInt,
    Where,
    symbol,
)
from symexpr.languages import (
    CPP_PRELUDE,
    TRITON_PRELUDE,
    CppPrinter,
    FixedWidthPrinter,
    PythonPrinter,
    TritonPrinter,
    to_cpp,
    to_python,
    to_triton,
)
from symexpr.parsing import parse
from symexpr.printing import Printer, sstr
from symexpr.simplification import known, simplify
from symexpr.torch_names import from_torch, to_torch

__all__ = [
    "CPP_PRELUDE", "INTERVALS", "PYTHON", "TRITON_PRELUDE", "ArrayDomain", "BadRange",
    "BitwiseAnd", "BitwiseOr", "BitwiseXor", "CeilDiv", "CeilToInt", "CppPrinter",
    "DivisionByZero", "Domain", "FixedWidthPrinter", "FloatTrueDiv", "FloorDiv", "FloorToInt",
    "GuardViolated", "IntTrueDiv", "IntervalDomain", "LShift", "Max", "Min", "MissingValue",
    "Mod", "ModularIndexing", "NonInteger", "OverflowRisk", "ParseError", "PowByNatural",
    "Printer", "PythonPrinter", "RShift", "Ranges", "RoundToInt", "SymexprError", "ToFloat",
    "TraceDomain", "TritonPrinter", "TruncToInt", "UnknownFunction", "UnsupportedByTarget",
    "Where", "bounds", "evaluate", "from_torch", "known", "parse", "replace_floor", "simplify",
    "sstr", "symbol", "to_cpp", "to_python", "to_torch", "to_triton",
]  # fmt: skip
