"""Python text with the value that the expression has."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import sympy

from symexpr.division import FloorDiv
from symexpr.errors import MissingValue
from symexpr.printing import CHOICE, PRODUCT, Printer, Text
from symexpr.structure import check_name


class PythonPrinter(Printer):
    """Python text that needs `math` only where floats are rounded."""

    target = "Python"
    _names: ClassVar[dict[str, str]] = {
        "Min": "min",
        "Max": "max",
        "ToFloat": "float",
        "RoundToInt": "round",
        "FloorToInt": "math.floor",
        "CeilToInt": "math.ceil",
        "TruncToInt": "math.trunc",
    }
    taken = frozenset({"min", "max", "float", "round", "math"})

    def visit_CeilDiv(self, e: sympy.Function) -> Text:
        a, b = e.args
        return self.visit(-FloorDiv(-a, b, evaluate=False))

    def visit_Where(self, e: sympy.Function) -> Text:
        c, a, b = map(self.visit, e.args)
        text = f"{self.above(a, CHOICE)} if {self.above(c, CHOICE)} else {self.at(b, CHOICE)}"
        return Text(text, CHOICE)

    def visit_IntTrueDiv(self, e: sympy.Function) -> Text:
        return self.infix("/", PRODUCT, map(self.visit, e.args))

    visit_FloatTrueDiv = visit_IntTrueDiv

    def visit_PowByNatural(self, e: sympy.Function) -> Text:
        return self.power(e, *map(self.visit, e.args))

    def visit_function(self, e: sympy.Function) -> Text:
        return self.call(self._names[type(e).__name__], *map(self.visit, e.args))


def to_python(e: Any) -> str:
    """Python text. `math` is used for rounding floats only.

    >>> from symexpr import parse, CeilDiv, symbol
    >>> to_python(CeilDiv(symbol("s0")*32, 128)), to_python(parse("Min(a, 3)"))
    ('(s0*32 + 127)//128', 'min(3, a)')
    """
    return PythonPrinter().print(e)


def to_function(e: Any, names: Sequence[str]) -> Callable[..., Any]:
    """A Python function of the named symbols, for values that are asked for often: a call costs
    what its arithmetic costs. `e` is an expression, a condition, or a (nested) tuple of those.

    Raises MissingValue for a symbol that is not named, BadName for a name that is none.

    >>> from symexpr import parse
    >>> to_function((parse("s0*32//4"), parse("s0 > 3")), ["s0"])(7)
    (56, True)
    """
    for i, name in enumerate(names):
        check_name(name, {*PythonPrinter.taken, *names[:i]})
    text = _nested(e, set(names))
    made: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {text}", {"math": math})
    return made


def _nested(e: Any, names: set[str]) -> str:
    if isinstance(e, tuple):
        return f"({''.join(_nested(x, names) + ', ' for x in e)})"
    e = sympy.sympify(e)
    for s in sorted(e.free_symbols, key=str):
        if s.name not in names:
            raise MissingValue(s.name, f"to_function of `{e}`", list(names))
    return f"({to_python(e)})"
