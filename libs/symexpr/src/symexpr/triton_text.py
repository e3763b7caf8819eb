"""Triton text with the value that the expression has in Python."""

from typing import Any, ClassVar

import sympy

from symexpr.errors import OverflowRisk, UnsupportedByTarget
from symexpr.facts import Ranges
from symexpr.fixed_width import FixedWidthPrinter
from symexpr.printing import ATOM, PRODUCT, UNARY, Text

TRITON_PRELUDE = """\
@triton.jit
def floor_div(a, b):
    q = a // b
    r = a - q * b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)


@triton.jit
def floor_mod(a, b):
    r = a - (a // b) * b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def ceil_div(a, b):
    q = a // b
    r = a - q * b
    return tl.where((r != 0) & ((r < 0) == (b < 0)), q + 1, q)
"""


class TritonPrinter(FixedWidthPrinter):
    """Triton text over `tl` and TRITON_PRELUDE, for scalars and tensors."""

    target = "Triton"
    taken = frozenset({"tl", "floor_div", "floor_mod", "ceil_div"})
    true, false = "True", "False"
    operators: ClassVar[dict[str, tuple[str, int]]] = {
        **FixedWidthPrinter.operators,
        "And": (" & ", ATOM),
        "Or": (" | ", ATOM),
    }

    def widen(self, t: Text) -> Text:
        return Text(f"tl.cast({t.text}, tl.int64)", ATOM, 64)

    def as_float(self, t: Text) -> Text:
        return Text(f"tl.cast({t.text}, tl.float64)", ATOM, 64)

    def visit_Integer(self, e: sympy.Integer) -> Text:
        n: int = e.p
        if not -(2**63) <= n < 2**63:
            raise OverflowRisk(str(n), self.target, "the literal is beyond 64 bits")
        wide = not -(2**31) <= n < 2**31
        return Text(str(n), ATOM if n >= 0 else UNARY, 64 if wide else 0)

    def divide(self, a: Text, b: Text) -> Text:
        return self.infix("//", PRODUCT, [a, b])

    def helper(self, name: str, *args: Text) -> Text:
        return self.call(name, *args)

    def quotient(self, numerator: Text, denominators: list[Text]) -> Text:
        return self.infix("/", PRODUCT, map(self.as_float, [numerator, *denominators]))

    def extreme(self, e: sympy.Function, a: Text, b: Text) -> Text:
        return self.call(f"tl.{type(e).__name__.lower()}imum", a, b)

    def visit_Where(self, e: sympy.Function) -> Text:
        return self.call("tl.where", *map(self.visit, e.args))

    def visit_function(self, e: sympy.Function) -> Text:
        names = {"FloorToInt": "tl.floor", "CeilToInt": "tl.ceil"}
        name = type(e).__name__
        if name not in names:
            raise UnsupportedByTarget(str(e), self.target, f"{name} has no counterpart in tl")
        return self.widen(self.call(names[name], self.visit(e.args[0])))


def to_triton(e: Any, int_bits: int = 32, ranges: Ranges | None = None, fits: int = 0) -> str:
    """Triton text; symbols hold integers of `int_bits`. See FixedWidthPrinter for ranges, and for
    what a caller says with `fits`.

    >>> from symexpr import parse, symbol
    >>> to_triton(parse("i*65536"), ranges={symbol("i"): (0, 1 << 20)})
    'tl.cast(i, tl.int64)*65536'
    """
    return TritonPrinter(int_bits, ranges, fits).print(e)
