"""Python, C++ and Triton text with the value that the expression has in Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import sympy

from symexpr import intervals as iv
from symexpr.division import FloorDiv, Mod
from symexpr.errors import MissingValue, OverflowRisk, ParseError, UnsupportedByTarget
from symexpr.facts import Ranges, facts
from symexpr.intervals import INF, Interval
from symexpr.printing import ATOM, CHOICE, PRODUCT, UNARY, Printer, Term, Text, sstr
from symexpr.structure import integral

CPP_PRELUDE = """\
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace symexpr {
template <typename A, typename B>
constexpr int64_t floor_div(A a, B b) {
  const int64_t x = a, y = b, q = x / y;
  return (x % y != 0 && ((x < 0) != (y < 0))) ? q - 1 : q;
}
template <typename A, typename B>
constexpr int64_t floor_mod(A a, B b) {
  const int64_t y = b, r = static_cast<int64_t>(a) % y;
  return (r != 0 && ((r < 0) != (y < 0))) ? r + y : r;
}
template <typename A, typename B>
constexpr int64_t ceil_div(A a, B b) {
  const int64_t x = a, y = b, q = x / y;
  return (x % y != 0 && ((x < 0) == (y < 0))) ? q + 1 : q;
}
template <typename A, typename B>
constexpr int64_t shift_right(A a, B n) {
  const int64_t x = a;
  return n > 63 ? (x < 0 ? -1 : 0) : x >> n;
}
template <typename A, typename B>
constexpr int64_t int_pow(A a, B n) {
  int64_t result = 1, base = a;
  for (int64_t k = n; k > 0; k >>= 1) {
    if (k & 1) result *= base;
    if (k > 1) base *= base;
  }
  return result;
}
}  // namespace symexpr
"""

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


class PythonPrinter(Printer):
    """Python text that needs `math` only where floats are rounded."""

    target = "Python"
    _names: ClassVar[dict[str, str]] = {
        "Min": "min", "Max": "max", "ToFloat": "float", "RoundToInt": "round",
        "FloorToInt": "math.floor", "CeilToInt": "math.ceil", "TruncToInt": "math.trunc",
    }  # fmt: skip

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


class FixedWidthPrinter(Printer):
    """A target whose division truncates and whose integers wrap around.

    bits: the width in which symbols are held. With ranges, an operation that may leave 32 bits
    is done in 64, and OverflowRisk is raised for one that may leave 64; a symbol without a range
    may have any value of its width. Without ranges (None), the caller has shown that the width
    is enough, and signs are unknown.
    """

    true, false = "true", "false"

    def __init__(self, bits: int, ranges: Ranges | None) -> None:
        super().__init__()
        if bits not in (32, 64):
            raise UnsupportedByTarget(f"int{bits}", self.target, "integers are of 32 or 64 bits")
        self.bits, self.wants_checks = bits, ranges is not None
        self.ranges: dict[Any, Any] = dict(ranges or {})
        self.facts = self.given = facts(ranges)
        self.checked = self.wants_checks  # whether a value of the expression may be too wide

    def print(self, e: Any) -> str:
        e = sympy.sympify(e)
        open_end = 2**31 if self.bits == 32 else 1
        limit = 2 ** (self.bits - 1)
        self.checked = self.wants_checks and self.given.peak(e, open_end) >= limit
        if self.checked and self.bits == 32:
            closed = dict(self.ranges)
            for s in e.free_symbols:
                lo, hi = closed.get(s, (None, None))
                if lo is None or hi is None:
                    closed[s] = (-limit if lo is None else lo, limit - 1 if hi is None else hi)
            if closed != self.ranges:
                self.ranges, self.facts = closed, facts(closed)
        return self.visit(e).text

    # -- per language

    def widen(self, t: Text) -> Text:
        """The value in 64 bits."""
        raise TypeError("abstract")

    def as_float(self, t: Text) -> Text:
        """The value as a double."""
        raise TypeError("abstract")

    def divide(self, a: Text, b: Text) -> Text:
        """The truncating division of the language."""
        raise TypeError("abstract")

    def helper(self, name: str, *args: Text) -> Text:
        raise TypeError("abstract")

    # -- shared

    def visit_Symbol(self, e: sympy.Symbol) -> Text:
        return Text(e.name, ATOM, self.bits)

    def visit_BooleanTrue(self, e: sympy.Basic) -> Text:
        return Text(self.true, ATOM, 0)

    def visit_BooleanFalse(self, e: sympy.Basic) -> Text:
        return Text(self.false, ATOM, 0)

    def interval(self, e: sympy.Expr) -> Interval:
        return self.facts.interval(e)

    def at_least(self, e: sympy.Expr, low: int) -> bool:
        return self.interval(e)[0] >= low or self.given.at_least(e, low)

    def _fits(self, x: Interval, bits: int) -> bool:
        if not self.checked:
            return True
        limit = 1 << (bits - 1)
        if bits == 64:  # an open end is the caller's silence, not a finding
            return (x[0] == -INF or x[0] >= -limit) and (x[1] == INF or x[1] < limit)
        return x[0] >= -limit and x[1] < limit

    def check(
        self,
        parts: list[Text],
        values: list[Interval],
        exprs: Sequence[sympy.Expr],
        join: Callable[..., sympy.Expr],
    ) -> list[Text]:
        """`values[k]` is the value after `parts[:k+1]` are joined; widens a part where one
        leaves 32 bits. The error names `join(*exprs)`."""
        if not self.checked:
            return parts
        wide = False
        for k, x in enumerate(values):
            wide = wide or parts[k].bits == 64
            if self._fits(x, 32):
                continue
            if not self._fits(x, 64):
                reason = f"a value may reach {max(-x[0], x[1])}, beyond 64 bits"
                raise OverflowRisk(sstr(join(*exprs)), self.target, reason)
            if wide:
                continue
            first = next((i for i, p in enumerate(parts[: k + 1]) if p.bits), None)
            if first is not None:
                parts[first] = self.widen(parts[first])
                wide = True
        return parts

    def check_one(self, part: Text, e: sympy.Expr) -> Text:
        (text,) = self.check([part], [self.interval(e)], [e], sympy.Add)
        return text

    def sum(self, terms: list[Term]) -> Text:
        if not self.checked or not all(integral(t.expr) for t in terms):
            return super().sum(terms)
        values: list[Interval] = []
        total: Interval = (0, 0)
        for t in terms:
            total = iv.add(total, self.interval(t.expr))
            values.append(total)
        texts = self.check([t.text for t in terms], values, [t.expr for t in terms], sympy.Add)
        return super().sum([t._replace(text=x) for t, x in zip(terms, texts, strict=True)])

    def signed(self, t: Term) -> Text:
        if t.negative and self.checked and integral(t.expr):
            text = self.check_one(t.text, t.expr)
            if text is not t.text:
                t = t._replace(text=text, lead=ATOM)
            elif text.level < UNARY and not self._fits(iv.neg(self.interval(t.first)), self.bits):
                t = t._replace(lead=UNARY)  # -a*b would be (-a)*b
        return super().signed(t)

    def product(self, factors: list[tuple[sympy.Expr, Text]]) -> Text:
        if not self.checked or not all(integral(f) for f, _ in factors):
            return super().product(factors)
        values: list[Interval] = []
        total: Interval = (1, 1)
        for f, _ in factors:
            total = iv.mul(total, self.interval(f))
            values.append(total)
        texts = self.check([t for _, t in factors], values, [f for f, _ in factors], sympy.Mul)
        return super().product([(f, t) for (f, _), t in zip(factors, texts, strict=True)])

    def quotient(self, numerator: Text, denominators: list[Text]) -> Text:
        return self.infix("/", PRODUCT, [self.as_float(numerator), *denominators])

    def power(self, e: sympy.Expr, base: Text, exponent: Text) -> Text:
        b, n = e.args
        if n.is_Integer and b.is_integer and 0 < int(n) <= 8:
            return self.product([(b, base)] * int(n))
        raise UnsupportedByTarget(str(e), self.target, "not a small literal power of an integer")

    def visit_PowByNatural(self, e: sympy.Function) -> Text:
        return self.power(e, *map(self.visit, e.args))

    def _division(self, e: sympy.Expr, kind: Any) -> tuple[sympy.Expr, sympy.Expr, bool]:
        a, b = e.args[0], e.args[1]
        return a, b, self.at_least(a, 0) and self.at_least(b, 1)

    def visit_FloorDiv(self, e: sympy.Function) -> Text:
        a, b, plain = self._division(e, FloorDiv)
        x, y = self.visit(a), self.visit(b)
        x = self.check_one(x, e)
        return self.divide(x, y) if plain else self.helper("floor_div", x, y)

    def visit_Mod(self, e: sympy.Function) -> Text:
        a, b, plain = self._division(e, Mod)
        x, y = self.visit(a), self.visit(b)
        return self.infix("%", PRODUCT, [x, y]) if plain else self.helper("floor_mod", x, y)

    def visit_ModularIndexing(self, e: sympy.Function) -> Text:
        x, d, m = e.args
        return self.visit(Mod(FloorDiv(x, d, evaluate=False), m, evaluate=False))

    def visit_CeilDiv(self, e: sympy.Function) -> Text:
        x, y = map(self.visit, e.args)
        x = self.check_one(x, e)
        return self.helper("ceil_div", x, y)

    def visit_IntTrueDiv(self, e: sympy.Function) -> Text:
        a, b = map(self.visit, e.args)
        return self.quotient(a, [b])

    visit_FloatTrueDiv = visit_IntTrueDiv

    def visit_ToFloat(self, e: sympy.Function) -> Text:
        return self.as_float(self.visit(e.args[0]))

    def visit_Float(self, e: sympy.Float) -> Text:
        return self.as_float(Text(repr(float(e)), ATOM if e >= 0 else UNARY))

    def atom(self, t: Text) -> Text:
        """In parentheses: for operators whose precedence differs between languages."""
        return Text(f"({t.text})", ATOM, t.bits)

    def visit_BitwiseAnd(self, e: sympy.Function) -> Text:
        return self.atom(super().visit_BitwiseAnd(e))

    def visit_BitwiseOr(self, e: sympy.Function) -> Text:
        return self.atom(super().visit_BitwiseOr(e))

    def visit_BitwiseXor(self, e: sympy.Function) -> Text:
        return self.atom(super().visit_BitwiseXor(e))

    def visit_LShift(self, e: sympy.Function) -> Text:
        a, n = map(self.visit, e.args)
        a = self.check_one(a, e)
        return self.atom(self.infix(" << ", PRODUCT, [a, n]))

    def visit_Not(self, e: sympy.Not) -> Text:
        """De Morgan, so that only relations are negated."""
        inner = e.args[0]
        dual = sympy.Or if isinstance(inner, sympy.And) else sympy.And
        return self.visit(dual(*(sympy.Not(a) for a in inner.args)))


class CppPrinter(FixedWidthPrinter):
    """C++17 text over `<cstdint> <algorithm> <cmath>` and CPP_PRELUDE."""

    target = "C++"

    def __init__(self, int_type: str = "int64_t", ranges: Ranges | None = None) -> None:
        widths = {"int64_t": 64, "long": 64, "int32_t": 32, "int": 32}
        if int_type not in widths:
            raise UnsupportedByTarget(int_type, self.target, f"known types: {sorted(widths)}")
        super().__init__(widths[int_type], ranges)

    def visit_Integer(self, e: sympy.Integer) -> Text:
        n: int = e.p
        if n == -(2**63):
            return Text("(-9223372036854775807LL - 1)", ATOM)
        if not -(2**63) < n < 2**63:
            raise OverflowRisk(str(n), self.target, "the literal is beyond 64 bits")
        wide = not -(2**31) < n < 2**31
        level = ATOM if n >= 0 else UNARY
        return Text(f"{n}LL" if wide else str(n), level, 64 if wide else 0)

    def widen(self, t: Text) -> Text:
        return Text(f"static_cast<int64_t>({t.text})", ATOM, 64)

    def as_float(self, t: Text) -> Text:
        return Text(f"static_cast<double>({t.text})", ATOM, 64)

    def divide(self, a: Text, b: Text) -> Text:
        return self.infix("/", PRODUCT, [a, b])

    def helper(self, name: str, *args: Text) -> Text:
        return self.call(f"symexpr::{name}", *args)._replace(bits=64)

    def power(self, e: sympy.Expr, base: Text, exponent: Text) -> Text:
        b, n = e.args
        if not (b.is_integer and n.is_integer):
            return self.call("std::pow", self.as_float(base), self.as_float(exponent))
        if n.is_Integer and int(n) <= 3 and base.level == ATOM:
            return super().power(e, base, exponent)
        self.check_one(base, e)
        return self.helper("int_pow", base, exponent)

    def visit_RShift(self, e: sympy.Function) -> Text:
        return self.helper("shift_right", *map(self.visit, e.args))

    def visit_LShift(self, e: sympy.Function) -> Text:
        a, n = map(self.visit, e.args)
        self.check_one(a, e)
        return self.infix("*", PRODUCT, [a, Text(f"(int64_t{{1}} << {self.at(n, ATOM)})")])

    def _fold(self, name: str, e: sympy.Function) -> Text:
        out, *rest = map(self.visit, e.args)
        kind = "int64_t" if e.is_integer else "double"
        for t in rest:
            out = self.call(f"{name}<{kind}>", out, t)._replace(bits=64)
        return out

    def visit_Min(self, e: sympy.Function) -> Text:
        return self._fold("std::min", e)

    def visit_Max(self, e: sympy.Function) -> Text:
        return self._fold("std::max", e)

    def visit_Where(self, e: sympy.Function) -> Text:
        c, a, b = map(self.visit, e.args)
        return Text(f"({c.text} ? {a.text} : {b.text})", ATOM, max(a.bits, b.bits))

    def visit_And(self, e: sympy.And) -> Text:
        return self.atom(self.infix(" && ", CHOICE + 2, self._ordered(e)))

    def visit_Or(self, e: sympy.Or) -> Text:
        return self.atom(self.infix(" || ", CHOICE + 1, self._ordered(e)))

    def visit_function(self, e: sympy.Function) -> Text:
        names = {"FloorToInt": "std::floor", "CeilToInt": "std::ceil", "TruncToInt": "std::trunc",
                 "RoundToInt": "std::nearbyint"}  # fmt: skip
        return self.widen(self.call(names[type(e).__name__], self.visit(e.args[0])))


class TritonPrinter(FixedWidthPrinter):
    """Triton text over `tl` and TRITON_PRELUDE, for scalars and tensors."""

    target = "Triton"
    true, false = "True", "False"

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

    def _fold(self, name: str, e: sympy.Function) -> Text:
        out, *rest = map(self.visit, e.args)
        for t in rest:
            out = self.call(name, out, t)
        return out

    def visit_Min(self, e: sympy.Function) -> Text:
        return self._fold("tl.minimum", e)

    def visit_Max(self, e: sympy.Function) -> Text:
        return self._fold("tl.maximum", e)

    def visit_Where(self, e: sympy.Function) -> Text:
        return self.call("tl.where", *map(self.visit, e.args))

    def visit_RShift(self, e: sympy.Function) -> Text:
        return self.atom(super().visit_RShift(e))

    def visit_And(self, e: sympy.And) -> Text:
        return self.atom(self.infix(" & ", ATOM, self._ordered(e)))

    def visit_Or(self, e: sympy.Or) -> Text:
        return self.atom(self.infix(" | ", ATOM, self._ordered(e)))

    def visit_function(self, e: sympy.Function) -> Text:
        names = {"FloorToInt": "tl.floor", "CeilToInt": "tl.ceil"}
        name = type(e).__name__
        if name not in names:
            raise UnsupportedByTarget(str(e), self.target, f"{name} has no counterpart in tl")
        return self.widen(self.call(names[name], self.visit(e.args[0])))


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

    Raises MissingValue for a symbol that is not named, ParseError for a name that is none.

    >>> from symexpr import parse
    >>> to_function((parse("s0*32//4"), parse("s0 > 3")), ["s0"])(7)
    (56, True)
    """
    for name in names:
        if not name.isidentifier():
            raise ParseError(name, 0, "a parameter has to be an identifier")
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


def to_cpp(e: Any, int_type: str = "int64_t", ranges: Ranges | None = None) -> str:
    """C++ text; symbols are variables of `int_type`. See FixedWidthPrinter for ranges.

    >>> from symexpr import parse, symbol
    >>> to_cpp(parse("i//4"), ranges={symbol("i"): (0, None)}), to_cpp(parse("i//4"))
    ('i/4', 'symexpr::floor_div(i, 4)')
    """
    return CppPrinter(int_type, ranges).print(e)


def to_triton(e: Any, int_bits: int = 32, ranges: Ranges | None = None) -> str:
    """Triton text; symbols hold integers of `int_bits`. See FixedWidthPrinter for ranges.

    >>> from symexpr import parse, symbol
    >>> to_triton(parse("i*65536"), ranges={symbol("i"): (0, 1 << 20)})
    'tl.cast(i, tl.int64)*65536'
    """
    return TritonPrinter(int_bits, ranges).print(e)
