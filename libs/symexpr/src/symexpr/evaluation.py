"""One interpreter over any domain."""

from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Any

import sympy

from symexpr.choice import Where
from symexpr.domains import BIT_OPERATIONS, PYTHON, ROUNDINGS, Domain
from symexpr.errors import DivisionByZero, MissingValue, UnknownFunction

# Sums and products of which it is known what is added, subtracted, multiplied and divided: graphs
# ask for the same few hundred at each of their sizes.
_REMEMBERED = 1 << 14


def evaluate(e: Any, env: Mapping[Any, Any], domain: Domain = PYTHON) -> Any:
    """The value of an expression or condition; each distinct subexpression is computed once.

    env: from symbols, or their names, to values of the domain. Raises MissingValue for a symbol
    without a value, DivisionByZero for a division by the number 0, UnknownFunction.

    >>> from symexpr import parse
    >>> evaluate(parse("s0*32 + i0//4"), {"s0": 2, "i0": -1})
    63
    """
    if isinstance(e, sympy.Integer):
        return domain.constant(int(e))
    return Evaluation(env, domain).value(sympy.sympify(e))


class Evaluation:
    """Values of expressions in one environment, remembered: for many that share parts. `env`: a
    mapping from symbols or names, or what has `in` and `[]`.

    >>> from symexpr import parse
    >>> at = Evaluation({"s0": 2})
    >>> at.value(parse("s0*32")), at.value(parse("s0*32 + 1"))
    (64, 65)
    """

    def __init__(self, env: Any, domain: Domain = PYTHON) -> None:
        self.env, self.domain = env, domain
        self.memo: dict[sympy.Basic, Any] = {}

    def value(self, e: Any) -> Any:
        """The value of an expression, computed once."""
        if e.is_Integer:
            return self.domain.constant(int(e))
        if e in self.memo:
            return self.memo[e]
        out = self.memo[e] = self._value(e)
        return out

    def _value(self, e: Any) -> Any:
        d = self.domain
        if e.is_Symbol:
            if e in self.env:
                return self.env[e]
            if e.name in self.env:
                return self.env[e.name]
            raise MissingValue(e.name, "evaluate", [str(k) for k in self.env])
        if e.is_Add:
            return self._sum(e)
        if e.is_Mul:
            return self._product(e)
        if e.is_Pow:
            if e.exp.is_Rational and e.exp < 0:
                return d.truediv(d.constant(1), self.value(e.base ** (-e.exp)))
            return d.pow(self.value(e.base), self.value(e.exp))
        if e.is_Rational:
            return d.rational(int(e.p), int(e.q))
        if e.is_Float:
            return d.constant(float(e))
        if e == sympy.true or e == sympy.false:
            return d.boolean(bool(e))
        return self._call(e, type(e).__name__)

    def _sum(self, e: Any) -> Any:
        first, added, subtracted = _terms(e)
        total = self.value(first)
        for t in added:
            total = self.domain.add(total, self.value(t))
        for t in subtracted:
            total = self.domain.sub(total, self.value(t))
        return total

    def _product(self, e: Any) -> Any:
        d = self.domain
        above, below, negative = _factors(e)
        out = reduce(d.mul, [self.value(f) for f in above]) if above else d.constant(1)
        if negative:
            out = d.neg(out)
        for f in below:
            out = d.truediv(out, self.value(f))
        return out

    def _call(self, e: Any, name: str) -> Any:
        d = self.domain
        if isinstance(e, sympy.core.relational.Relational):
            return d.compare(e.rel_op, self.value(e.lhs), self.value(e.rhs))
        if isinstance(e, sympy.Not):
            return d.logical_not(self.value(e.args[0]))
        if isinstance(e, Where) and type(d) is Domain:  # only the branch taken
            return self.value(e.args[1] if self.value(e.args[0]) else e.args[2])
        method = _METHODS.get(name)
        if method is None and name not in BIT_OPERATIONS and name not in ROUNDINGS:
            hint = "convert with from_torch or replace_floor first"
            raise UnknownFunction(name, f"evaluating `{e}`", hint)
        args = [self.value(a) for a in e.args]
        if name in DIVISIONS and any(type(a) in (int, float) and a == 0 for a in args[1:]):
            raise DivisionByZero(e.args[0], e.args[1], "evaluate")
        if name == "ModularIndexing":
            return d.mod(d.floordiv(args[0], args[1]), args[2])
        if name in ("Where", "ToFloat"):
            return getattr(d, str(method))(*args)
        if method is not None:
            return reduce(getattr(d, method), args)
        if name in ROUNDINGS:
            return d.round(name, args[0])
        return reduce(lambda a, b: d.bits(name, a, b), args)


@lru_cache(_REMEMBERED)
def _terms(e: Any) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """Of a sum: the term to begin with, those to add to it, and those to subtract."""
    plus: list[Any] = []
    minus: list[Any] = []
    for t in e.args:
        (minus if t.could_extract_minus_sign() else plus).append(t)
    first = plus.pop(0) if plus else minus.pop(0)
    return first, tuple(plus), tuple(-t for t in minus)


@lru_cache(_REMEMBERED)
def _factors(e: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], bool]:
    """Of a product: what is multiplied, what that is divided by, and whether its sign changes."""
    above: list[Any] = []
    below: list[Any] = []
    negative = False
    for f in e.args:
        if f is sympy.S.NegativeOne:
            negative = True
        elif f.is_Rational and not f.is_Integer:
            above += [sympy.Integer(f.p)] if abs(f.p) != 1 else []
            negative = f.p == -1
            below.append(sympy.Integer(f.q))
        elif f.is_Pow and f.exp.is_Rational and f.exp < 0:
            below.append(f.base ** (-f.exp))
        else:
            above.append(f)
    return tuple(above), tuple(below), negative


_METHODS = {
    "FloorDiv": "floordiv",
    "CeilDiv": "ceildiv",
    "Mod": "mod",
    "Min": "minimum",
    "ModularIndexing": "mod",
    "Max": "maximum",
    "Where": "where",
    "IntTrueDiv": "truediv",
    "FloatTrueDiv": "truediv",
    "ToFloat": "to_float",
    "PowByNatural": "pow",
    "And": "logical_and",
    "Or": "logical_or",
}
DIVISIONS = {"FloorDiv", "CeilDiv", "Mod", "IntTrueDiv", "FloatTrueDiv", "ModularIndexing"}
