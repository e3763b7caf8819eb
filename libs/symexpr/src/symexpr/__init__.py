"""Integer expressions that print, simplify and prove right.

A compiler's sizes, strides and indices are integer expressions; sympy's own floor division,
printing and simplification are slow, float-minded, or wrong for them in other languages."""

from symexpr.choice import Max, Min, Where
from symexpr.cpp_text import CPP_FUNCTIONS, CPP_PRELUDE, CppPrinter, to_cpp
from symexpr.division import CeilDiv, FloorDiv, Mod, ModularIndexing
from symexpr.domains import BIT_OPERATIONS, COMPARISONS, PYTHON, ROUNDINGS, ArrayDomain, Domain
from symexpr.errors import (
    BadName,
    BadRange,
    DivisionByZero,
    MissingValue,
    NonInteger,
    OverflowRisk,
    ParseError,
    SymexprError,
    TooLarge,
    UnknownFunction,
    UnsupportedByTarget,
)
from symexpr.evaluation import Evaluation, evaluate
from symexpr.facts import Ranges
from symexpr.fixed_width import FixedWidthPrinter
from symexpr.floors import replace_floor
from symexpr.lines import from_one_line, one_line
from symexpr.parsing import parse
from symexpr.printing import Printer, sstr
from symexpr.python_text import PythonPrinter, to_function, to_python
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
from symexpr.simplification import bounds, check_divisors, known, simplify
from symexpr.structure import free_symbols, symbol
from symexpr.torch_names import from_torch, to_torch
from symexpr.triton_text import TRITON_PRELUDE, TritonPrinter, to_triton

__all__ = [
    "BIT_OPERATIONS",
    "COMPARISONS",
    "CPP_FUNCTIONS",
    "CPP_PRELUDE",
    "PYTHON",
    "ROUNDINGS",
    "TRITON_PRELUDE",
    "ArrayDomain",
    "BadName",
    "BadRange",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "CeilDiv",
    "CeilToInt",
    "CppPrinter",
    "DivisionByZero",
    "Domain",
    "Evaluation",
    "FixedWidthPrinter",
    "FloatTrueDiv",
    "FloorDiv",
    "FloorToInt",
    "IntTrueDiv",
    "LShift",
    "Max",
    "Min",
    "MissingValue",
    "Mod",
    "ModularIndexing",
    "NonInteger",
    "OverflowRisk",
    "ParseError",
    "PowByNatural",
    "Printer",
    "PythonPrinter",
    "RShift",
    "Ranges",
    "RoundToInt",
    "SymexprError",
    "ToFloat",
    "TooLarge",
    "TritonPrinter",
    "TruncToInt",
    "UnknownFunction",
    "UnsupportedByTarget",
    "Where",
    "bounds",
    "check_divisors",
    "evaluate",
    "free_symbols",
    "from_one_line",
    "from_torch",
    "known",
    "one_line",
    "parse",
    "replace_floor",
    "simplify",
    "sstr",
    "symbol",
    "to_cpp",
    "to_function",
    "to_python",
    "to_torch",
    "to_triton",
]
