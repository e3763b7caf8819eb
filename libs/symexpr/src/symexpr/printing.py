"""Infix text with the fewest parentheses that keep the meaning.

`Printer` is the base of every language: one `visit_<Node>` method a node, each returning a
`Text` (text, precedence level, width). Subclasses override the nodes that differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import sympy

from symexpr.errors import UnknownFunction
from symexpr.functions import FUNCTIONS
from symexpr.structure import check_name, literal_factor

# Precedence levels, loosest first; Python's.
CHOICE, OR, AND, NOT, COMPARE, BITOR, BITXOR, BITAND, SHIFT, SUM, PRODUCT, UNARY, POWER, ATOM = (
    range(14)
)


class Text(NamedTuple):
    """Printed text, the level of its outermost operator, and the bits of its value (0: a
    literal, which takes the width of what it meets, or a condition)."""

    text: str
    level: int = ATOM
    bits: int = 64


class Term(NamedTuple):
    """A term of a sum: `-` or not, its magnitude, and the expression. `first` is the first
    factor, which a unary minus would bind to, and `lead` its level."""

    negative: bool
    text: Text
    expr: sympy.Expr
    lead: int
    first: sympy.Expr


@lru_cache(maxsize=10_000)
def natural(text: str) -> tuple[Any, ...]:
    """Sort key under which `i2` comes before `i10`."""
    parts = re.findall(r"[0-9]+|[^0-9]", text)
    return tuple((0, len(p.lstrip("0")), p) if "0" <= p[0] <= "9" else (1, 0, p) for p in parts)


def _negative(number: sympy.Number) -> bool:
    """Without `is_negative`, which works out all that can be known of a number."""
    return bool(number.p < 0 if number.is_Rational else number.is_negative)


def _factor_key(p: tuple[sympy.Expr, Text]) -> tuple[Any, ...]:
    return p[0].is_Number, p[1].level < POWER, natural(p[1].text)


def _method(printer: type[Printer], node: type) -> str | None:
    """The method of a printer for a class of nodes."""
    for cls in node.__mro__:
        if hasattr(printer, f"visit_{cls.__name__}"):
            return f"visit_{cls.__name__}"
    if node.__name__ in printer.operators:
        return "visit_operator"
    if issubclass(node, sympy.Function) and node.__name__ in FUNCTIONS:
        return "visit_function"
    return None


class Printer:
    """The text of `sstr`: what `parse` reads back."""

    target = "text"
    # Names that symbols may not have: the language, or the text, means something else by them.
    taken: ClassVar[frozenset[str]] = frozenset()
    # Nodes that are infix operators: the sign of each, and its level.
    operators: ClassVar[dict[str, tuple[str, int]]] = {
        "FloorDiv": ("//", PRODUCT),
        "Mod": ("%", PRODUCT),
        "LShift": (" << ", SHIFT),
        "RShift": (" >> ", SHIFT),
        "BitwiseAnd": (" & ", BITAND),
        "BitwiseXor": (" ^ ", BITXOR),
        "BitwiseOr": (" | ", BITOR),
        "And": (" and ", AND),
        "Or": (" or ", OR),
    }

    def __init__(self) -> None:
        self._methods: dict[type, Callable[[Any], Text]] = {}

    def print(self, e: Any) -> str:
        """The text of an expression."""
        return self.visit(sympy.sympify(e)).text

    def visit(self, e: sympy.Basic) -> Text:
        """The text of a node, by the method for its class. Raises UnknownFunction without one."""
        method = self._methods.get(type(e))
        if method is None:
            name = _method(type(self), type(e))
            if name is not None:
                method = self._methods[type(e)] = getattr(self, name)
        if method is not None:
            return method(e)
        hint = "convert with from_torch or replace_floor first"
        raise UnknownFunction(type(e).__name__, f"printing `{e}` as {self.target}", hint)

    # -- parentheses

    def above(self, t: Text, level: int) -> str:
        """The text, in parentheses unless it binds tighter than `level`."""
        return t.text if t.level > level else f"({t.text})"

    def at(self, t: Text, level: int) -> str:
        """The text, in parentheses unless it binds at least as tight as `level`."""
        return t.text if t.level >= level else f"({t.text})"

    def infix(self, op: str, level: int, parts: Iterable[Text]) -> Text:
        """A left-associative chain."""
        first, *rest = parts
        text = self.at(first, level)
        for p in rest:
            text += op + self.above(p, level)
        return Text(text, level, max(p.bits for p in (first, *rest)))

    def call(self, name: str, *args: Text) -> Text:
        """A call of a function of the language."""
        return Text(f"{name}({', '.join(a.text for a in args)})", ATOM, max(a.bits for a in args))

    # -- leaves

    def visit_Symbol(self, e: sympy.Symbol) -> Text:
        return Text(check_name(e.name, self.taken))

    def visit_Integer(self, e: sympy.Integer) -> Text:
        return Text(str(e.p), ATOM if e.p >= 0 else UNARY, 0)

    def visit_Rational(self, e: sympy.Rational) -> Text:
        return self.signed(self.term(e))

    def visit_Float(self, e: sympy.Float) -> Text:
        return Text(repr(float(e)), ATOM if e >= 0 else UNARY)

    def visit_BooleanTrue(self, e: sympy.Basic) -> Text:
        return Text("True", ATOM, 0)

    def visit_BooleanFalse(self, e: sympy.Basic) -> Text:
        return Text("False", ATOM, 0)

    # -- arithmetic

    def visit_Add(self, e: sympy.Add) -> Text:
        terms = sorted((self.term(t) for t in e.args), key=self._term_key)
        if terms[0].negative:
            first = next((t for t in terms if not t.negative), terms[0])
            terms.remove(first)
            terms.insert(0, first)
        return self.sum(terms)

    def _term_key(self, t: Term) -> tuple[Any, ...]:
        if t.expr.is_Number:
            return (1, 0, 0, natural(t.text.text))
        degree = sum(
            int(f.exp) if f.is_Pow and f.exp.is_Integer else 1
            for f in sympy.Mul.make_args(t.expr)
            if not f.is_Integer
        )
        return (0, -degree, -abs(literal_factor(t.expr)), natural(t.text.text))

    def sum(self, terms: list[Term]) -> Text:
        """Joins the terms in this order."""
        text = self.at(self.signed(terms[0]), SUM)
        for t in terms[1:]:
            text += (" - " if t.negative else " + ") + self.above(t.text, SUM)
        return Text(text, SUM, max(t.text.bits for t in terms))

    def signed(self, t: Term) -> Text:
        """A term with its sign."""
        if not t.negative:
            return t.text
        if t.lead > UNARY and t.text.level >= PRODUCT:
            return Text("-" + t.text.text, min(t.text.level, UNARY), t.text.bits)
        return Text(f"-({t.text.text})", UNARY, t.text.bits)

    def term(self, e: sympy.Expr) -> Term:
        """A product split into sign and magnitude."""
        if e.is_Mul:
            c, factors = e.args[0], e.args
            if not c.is_Number:
                return self._term(e, False, factors, None)
            if c.is_Integer and c.p < 0:
                rest = None if c.p == -1 else sympy.Integer(-c.p)
                return self._term(e, True, factors[1:], rest)
            return self._term(e, _negative(c), factors[1:], -c if _negative(c) else c)
        if e.is_Number:
            return self._term(e, _negative(e), (), -e if _negative(e) else e)
        if e.is_Pow:
            return self._term(e, False, (e,), None)
        text = self.visit(e)
        return Term(False, text, e, text.level, e)

    def _term(self, e: sympy.Expr, negative: bool, factors: Sequence[sympy.Expr], c: Any) -> Term:
        above: list[tuple[sympy.Expr, Text]] = []
        below: list[sympy.Expr] = []
        for f in factors:
            if f.is_Pow and f.exp.is_Rational and f.exp < 0:
                below.append(f.base ** (-f.exp))
            else:
                above.append((f, self.visit(f)))
        if c is not None and c.is_Rational and not c.is_Integer:
            below.append(sympy.Integer(c.q))
            c = sympy.Integer(c.p)
        if c is not None and (c is not sympy.S.One or not (above or below)):
            above.append((c, self.visit(c)))
        if len(above) > 1:
            above.sort(key=_factor_key)
            for i, (_, t) in enumerate(above):
                if t.level == PRODUCT:
                    above.insert(0, above.pop(i))
                    break
        elif not above:
            above = [(sympy.S.One, self.visit(sympy.S.One))]
        lead, text = above[0]
        level = text.level
        if len(above) == 1 and not below:
            return Term(negative, text, e, level, lead)
        if len(above) > 1:
            text = self.product(above)
        if below:
            divisors = sorted(
                ((f, self.visit(f)) for f in below),
                key=lambda p: (not p[0].is_number, natural(p[1].text)),
            )
            text = self.quotient(text, [t for _, t in divisors])
        return Term(negative, text, e, level if level >= PRODUCT else ATOM, lead)

    def product(self, factors: list[tuple[sympy.Expr, Text]]) -> Text:
        """Joins the factors in this order."""
        return self.infix("*", PRODUCT, [t for _, t in factors])

    def quotient(self, numerator: Text, denominators: list[Text]) -> Text:
        """True division."""
        return self.infix("/", PRODUCT, [numerator, *denominators])

    def visit_Mul(self, e: sympy.Mul) -> Text:
        return self.signed(self.term(e))

    def visit_Pow(self, e: sympy.Pow) -> Text:
        if e.exp.is_Rational and e.exp < 0:
            return self.signed(self.term(e))
        return self.power(e, self.visit(e.base), self.visit(e.exp))

    def power(self, e: sympy.Expr, base: Text, exponent: Text) -> Text:
        """A power that is no quotient."""
        text = f"{self.above(base, POWER)}**{self.at(exponent, UNARY)}"
        return Text(text, POWER, base.bits)

    # -- integer functions

    def visit_operator(self, e: sympy.Basic) -> Text:
        """One of `operators`; conditions in an order of their own."""
        parts = list(map(self.visit, e.args))
        if isinstance(e, sympy.And | sympy.Or):
            parts.sort(key=lambda t: natural(t.text))
        return self.infix(*self.operators[type(e).__name__], parts)

    def visit_ModularIndexing(self, e: sympy.Function) -> Text:
        x, d, m = map(self.visit, e.args)
        return self.infix("%", PRODUCT, [self.infix("//", PRODUCT, [x, d]), m])

    def visit_function(self, e: sympy.Function) -> Text:
        return self.call(type(e).__name__, *map(self.visit, e.args))

    # -- conditions

    def visit_Relational(self, e: sympy.core.relational.Relational) -> Text:
        a, b = self.visit(e.lhs), self.visit(e.rhs)
        op = e.rel_op
        return Text(f"{self.above(a, COMPARE)} {op} {self.above(b, COMPARE)}", COMPARE, 0)

    def visit_Not(self, e: sympy.Not) -> Text:
        return Text(f"not {self.at(self.visit(e.args[0]), NOT)}", NOT, 0)


@lru_cache(maxsize=10_000, typed=True)
def sstr(e: Any) -> str:
    """Text that `parse` reads back as the same expression.

    >>> from symexpr import symbol, FloorDiv
    >>> s0, i0 = symbol("s0"), symbol("i0")
    >>> sstr(FloorDiv(i0, 4) + 32*s0), sstr((s0 + 1)*(i0 - 2)), sstr(1/(s0 + 20))
    ('s0*32 + i0//4', '(i0 - 2)*(s0 + 1)', '1/(s0 + 20)')
    """
    return Printer().print(e)
