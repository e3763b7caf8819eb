"""What C++ and Triton share: integers of a width, and divisions that truncate."""

from collections.abc import Callable, Sequence
from typing import Any

import sympy

from symexpr import intervals as iv
from symexpr.division import FloorDiv, Mod
from symexpr.errors import OverflowRisk, UnsupportedByTarget
from symexpr.facts import Ranges, facts
from symexpr.intervals import INF, Interval
from symexpr.printing import ATOM, PRODUCT, UNARY, Printer, Term, Text, sstr
from symexpr.structure import check_name, integral


class FixedWidthPrinter(Printer):
    """A target whose division truncates and whose integers wrap around.

    bits: the width in which symbols are held. With ranges, an operation that may leave 32 bits
    is done in 64, and OverflowRisk is raised for one that may leave 64; a symbol without a range
    may have any value of its width. Without ranges (None), the caller has shown that the width
    is enough, and signs are unknown. fits: of how many bits the caller has shown that they are
    enough, or that only the value modulo their power counts, as in an address: with 64 nothing is
    refused, with 32 nothing is widened; 0: of none."""

    true, false = "true", "false"

    def __init__(self, bits: int, ranges: Ranges | None, fits: int = 0) -> None:
        super().__init__()
        if bits not in (32, 64):
            raise UnsupportedByTarget(f"int{bits}", self.target, "integers are of 32 or 64 bits")
        self.bits, self.fits = bits, fits
        self.wants_checks = ranges is not None and fits != 32
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
        """A call of a function of the language's prelude."""
        raise TypeError("abstract")

    def extreme(self, e: sympy.Function, a: Text, b: Text) -> Text:
        """The smaller one for a `Min`, the larger one for a `Max`."""
        return self.call(type(e).__name__, a, b)

    # -- shared

    def visit_Symbol(self, e: sympy.Symbol) -> Text:
        return Text(check_name(e.name, self.taken), ATOM, self.bits)

    def visit_BooleanTrue(self, e: sympy.Basic) -> Text:
        return Text(self.true, ATOM, 0)

    def visit_BooleanFalse(self, e: sympy.Basic) -> Text:
        return Text(self.false, ATOM, 0)

    def interval(self, e: sympy.Expr) -> Interval:
        """The bounds of an expression."""
        return self.facts.interval(e)

    def at_least(self, e: sympy.Expr, low: int) -> bool:
        """Whether `e >= low` is proven."""
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
            if not self.fits and not self._fits(x, 64):
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
        """`check` of a value that stands alone."""
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

    def _division(self, e: sympy.Expr) -> tuple[Text, Text, bool]:
        a, b = e.args
        return self.visit(a), self.visit(b), self.at_least(a, 0) and self.at_least(b, 1)

    def visit_FloorDiv(self, e: sympy.Function) -> Text:
        a, b = e.args
        below = sympy.expand(b - 1 - a)
        if b.is_Integer and b > 0 and not self.at_least(a, 0) and self.at_least(below, int(b) - 1):
            upwards = FloorDiv(below, b, evaluate=False)  # of what is never above 0
            return self.visit(sympy.Mul(-1, upwards, evaluate=False))
        x, y, plain = self._division(e)
        x = self.check_one(x, e)
        return self.divide(x, y) if plain else self.helper("floor_div", x, y)

    def visit_Mod(self, e: sympy.Function) -> Text:
        x, y, plain = self._division(e)
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

    def visit_operator(self, e: sympy.Basic) -> Text:
        return self.atom(super().visit_operator(e))

    def visit_Min(self, e: sympy.Function) -> Text:
        """`Min` and `Max`, two at a time."""
        out, *rest = map(self.visit, e.args)
        for t in rest:
            out = self.extreme(e, out, t)
        return out

    visit_Max = visit_Min

    def visit_LShift(self, e: sympy.Function) -> Text:
        a, n = map(self.visit, e.args)
        a = self.check_one(a, e)
        return self.atom(self.infix(" << ", PRODUCT, [a, n]))

    def visit_Not(self, e: sympy.Not) -> Text:
        """De Morgan, so that only relations are negated."""
        inner = e.args[0]
        dual = sympy.Or if isinstance(inner, sympy.And) else sympy.And
        return self.visit(dual(*(sympy.Not(a) for a in inner.args)))
