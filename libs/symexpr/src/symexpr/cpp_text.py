"""C++ text with the value that the expression has in Python."""

from typing import Any, ClassVar

import sympy

from symexpr.errors import OverflowRisk, UnsupportedByTarget
from symexpr.facts import Ranges
from symexpr.fixed_width import FixedWidthPrinter
from symexpr.printing import ATOM, CHOICE, PRODUCT, UNARY, Text

CPP_FUNCTIONS = """\
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
"""Functions that texts call, which want 64-bit integers alone."""

CPP_PRELUDE = f"""\
#include <algorithm>
#include <cmath>
#include <cstdint>

{CPP_FUNCTIONS}"""


_WORDS = """
alignas alignof and_eq asm auto bitand bitor bool case catch char char16_t char32_t compl const
const_cast constexpr decltype default delete do double dynamic_cast enum explicit export extern
false float for friend goto inline int int32_t int64_t long mutable namespace new noexcept not_eq
nullptr operator or_eq private protected public register reinterpret_cast short signed sizeof
static static_assert static_cast std struct switch symexpr template this thread_local throw true
typedef typeid typename union unsigned using virtual void volatile wchar_t xor xor_eq
"""
"""What C++17 and the texts have for themselves."""


class CppPrinter(FixedWidthPrinter):
    """C++17 text over `<cstdint> <algorithm> <cmath>` and CPP_PRELUDE."""

    target = "C++"
    taken = frozenset(_WORDS.split())
    operators: ClassVar[dict[str, tuple[str, int]]] = {
        **FixedWidthPrinter.operators,
        "And": (" && ", CHOICE + 2),
        "Or": (" || ", CHOICE + 1),
    }

    def __init__(
        self, int_type: str = "int64_t", ranges: Ranges | None = None, fits: int = 0
    ) -> None:
        widths = {"int64_t": 64, "long": 64, "int32_t": 32, "int": 32}
        if int_type not in widths:
            raise UnsupportedByTarget(int_type, self.target, f"known types: {sorted(widths)}")
        super().__init__(widths[int_type], ranges, fits)

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

    def extreme(self, e: sympy.Function, a: Text, b: Text) -> Text:
        kind = "int64_t" if e.is_integer else "double"
        name = type(e).__name__.lower()
        return self.call(f"std::{name}<{kind}>", a, b)._replace(bits=64)

    def visit_Where(self, e: sympy.Function) -> Text:
        c, a, b = map(self.visit, e.args)
        return Text(f"({c.text} ? {a.text} : {b.text})", ATOM, max(a.bits, b.bits))

    def visit_function(self, e: sympy.Function) -> Text:
        names = {
            "FloorToInt": "std::floor",
            "CeilToInt": "std::ceil",
            "TruncToInt": "std::trunc",
            "RoundToInt": "std::nearbyint",
        }
        return self.widen(self.call(names[type(e).__name__], self.visit(e.args[0])))


def to_cpp(e: Any, int_type: str = "int64_t", ranges: Ranges | None = None, fits: int = 0) -> str:
    """C++ text; symbols are variables of `int_type`. See FixedWidthPrinter for ranges and fits.

    >>> from symexpr import parse, symbol
    >>> to_cpp(parse("i//4"), ranges={symbol("i"): (0, None)}), to_cpp(parse("i//4"))
    ('i/4', 'symexpr::floor_div(i, 4)')
    """
    return CppPrinter(int_type, ranges, fits).print(e)
