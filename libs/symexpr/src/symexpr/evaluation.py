"""One interpreter over any domain."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import sympy

from symexpr import intervals as iv
from symexpr.choice import Where
from symexpr.errors import DivisionByZero, MissingValue, UnknownFunction
from symexpr.limits import check_bits, power_bits, quotient, to_float

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Domain:
    """The meaning of every operation; this base is Python's numbers, and serves whatever
    overloads Python's operators. Override what differs."""

    def constant(self, value: int | float) -> Any:
        """A literal."""
        return value

    def boolean(self, value: bool) -> Any:
        """A literal condition."""
        return value

    def rational(self, p: int, q: int) -> Any:
        """The number `p / q`."""
        return p / q

    def add(self, a: Any, b: Any) -> Any:
        """`a + b`."""
        return a + b

    def sub(self, a: Any, b: Any) -> Any:
        """`a - b`."""
        return a - b

    def mul(self, a: Any, b: Any) -> Any:
        """`a * b`."""
        return a * b

    def neg(self, a: Any) -> Any:
        """`-a`."""
        return -a

    def pow(self, a: Any, b: Any) -> Any:
        """`a ** b`. Raises where the result would have too many bits."""
        if type(a) is int and type(b) is int:
            check_bits(power_bits(a, b), "power")
        return a**b

    def truediv(self, a: Any, b: Any) -> Any:
        """`a / b`, exact for integers whose quotient is one."""
        return quotient(a, b) if type(a) is int and type(b) is int else a / b

    def floordiv(self, a: Any, b: Any) -> Any:
        """`a // b`, rounded down."""
        return a // b

    def ceildiv(self, a: Any, b: Any) -> Any:
        """`a / b`, rounded up."""
        return self.neg(self.floordiv(self.neg(a), b))

    def mod(self, a: Any, b: Any) -> Any:
        """`a % b`, with the sign of `b`."""
        return a % b

    def minimum(self, a: Any, b: Any) -> Any:
        """The smaller of two."""
        return a if a <= b else b

    def maximum(self, a: Any, b: Any) -> Any:
        """The larger of two."""
        return a if a >= b else b

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        """`a` where the condition holds, else `b`."""
        return a if condition else b

    def bits(self, name: str, a: Any, b: Any) -> Any:
        """`name` is one of LShift RShift BitwiseAnd BitwiseOr BitwiseXor."""
        if name == "LShift" and type(a) is int and type(b) is int:
            check_bits(a.bit_length() + b, "LShift")
        return BIT_OPERATIONS[name](a, b)

    def to_float(self, a: Any) -> Any:
        """A number as a float."""
        return to_float(a, "ToFloat")

    def round(self, name: str, a: Any) -> Any:
        """`name` is one of FloorToInt CeilToInt TruncToInt RoundToInt."""
        return ROUNDINGS[name](a)

    def compare(self, op: str, a: Any, b: Any) -> Any:
        """`op` is one of == != < <= > >=."""
        return COMPARISONS[op](a, b)

    def logical_and(self, a: Any, b: Any) -> Any:
        """Both conditions hold."""
        return a and b

    def logical_or(self, a: Any, b: Any) -> Any:
        """Either condition holds."""
        return a or b

    def logical_not(self, a: Any) -> Any:
        """A condition does not hold."""
        return not a


BIT_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "LShift": operator.lshift,
    "RShift": operator.rshift,
    "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_,
    "BitwiseXor": operator.xor,
}
ROUNDINGS: dict[str, Callable[[Any], Any]] = {
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "TruncToInt": math.trunc,
    "RoundToInt": round,
}


class ArrayDomain(Domain):
    """Arrays of numpy or of a module with the same names (`ArrayDomain(numpy)`)."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def minimum(self, a: Any, b: Any) -> Any:
        return self.module.minimum(a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return self.module.maximum(a, b)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return self.module.where(condition, a, b)

    def to_float(self, a: Any) -> Any:
        return self.module.asarray(a).astype(self.module.float64)

    def round(self, name: str, a: Any) -> Any:
        function = name.removesuffix("ToInt").lower()  # FloorToInt -> floor
        return getattr(self.module, function)(a).astype(self.module.int64)

    def logical_and(self, a: Any, b: Any) -> Any:
        return self.module.logical_and(a, b)

    def logical_or(self, a: Any, b: Any) -> Any:
        return self.module.logical_or(a, b)

    def logical_not(self, a: Any) -> Any:
        return self.module.logical_not(a)


class TraceDomain(Domain):
    """Proxies that record what is done to them, such as `torch.fx.Proxy`: operators are applied
    as they are, and what has no operator goes through `call(name, *args)`, with name one of
    `min max where and or not float floor ceil trunc round`."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def minimum(self, a: Any, b: Any) -> Any:
        return self.call("min", a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return self.call("max", a, b)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return self.call("where", condition, a, b)

    def to_float(self, a: Any) -> Any:
        return self.call("float", a)

    def round(self, name: str, a: Any) -> Any:
        return self.call(name.removesuffix("ToInt").lower(), a)

    def logical_and(self, a: Any, b: Any) -> Any:
        return self.call("and", a, b)

    def logical_or(self, a: Any, b: Any) -> Any:
        return self.call("or", a, b)

    def logical_not(self, a: Any) -> Any:
        return self.call("not", a)


class IntervalDomain(Domain):
    """Pairs `(low, high)` of numbers or infinities; conditions are True, False or None."""

    def constant(self, value: int | float) -> Any:
        return (value, value)

    def rational(self, p: int, q: int) -> Any:
        return iv.truediv((p, p), (q, q))

    def add(self, a: Any, b: Any) -> Any:
        return iv.add(a, b)

    def sub(self, a: Any, b: Any) -> Any:
        return iv.add(a, iv.neg(b))

    def mul(self, a: Any, b: Any) -> Any:
        return iv.mul(a, b)

    def neg(self, a: Any) -> Any:
        return iv.neg(a)

    def pow(self, a: Any, b: Any) -> Any:
        return iv.power(a, b)

    def truediv(self, a: Any, b: Any) -> Any:
        return iv.truediv(a, b)

    def floordiv(self, a: Any, b: Any) -> Any:
        return iv.floordiv(a, b)

    def mod(self, a: Any, b: Any) -> Any:
        return iv.mod(a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return min(a[0], b[0]), min(a[1], b[1])

    def maximum(self, a: Any, b: Any) -> Any:
        return max(a[0], b[0]), max(a[1], b[1])

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return iv.hull([a, b]) if condition is None else (a if condition else b)

    def bits(self, name: str, a: Any, b: Any) -> Any:
        if name == "LShift":
            return iv.mul(a, iv.power((2, 2), b))
        if name == "RShift":
            return iv.floordiv(a, iv.power((2, 2), b))
        return iv.bitwise(name, a, b)

    def to_float(self, a: Any) -> Any:
        return iv.outward(a)

    def round(self, name: str, a: Any) -> Any:
        return iv.outward(a)

    def compare(self, op: str, a: Any, b: Any) -> Any:
        if op in (">", ">="):
            a, b, op = b, a, {">": "<", ">=": "<="}[op]
        if op in ("==", "!="):
            if a[1] < b[0] or b[1] < a[0]:
                return op == "!="
            return (op == "==") if a == b and a[0] == a[1] else None
        if a[1] < b[0] or (op == "<=" and a[1] == b[0]):
            return True
        return False if a[0] > b[1] or (op == "<" and a[0] == b[1]) else None

    def logical_and(self, a: Any, b: Any) -> Any:
        return False if False in (a, b) else None if None in (a, b) else True

    def logical_or(self, a: Any, b: Any) -> Any:
        return True if True in (a, b) else None if None in (a, b) else False

    def logical_not(self, a: Any) -> Any:
        return None if a is None else not a


PYTHON = Domain()
INTERVALS = IntervalDomain()


def evaluate(e: Any, env: Mapping[Any, Any], domain: Domain = PYTHON) -> Any:
    """The value of an expression or condition; each distinct subexpression is computed once.

    env: from symbols, or their names, to values of the domain. Raises MissingValue for a symbol
    without a value, DivisionByZero for a division by the integer 0, UnknownFunction.

    >>> from symexpr import parse
    >>> evaluate(parse("s0*32 + i0//4"), {"s0": 2, "i0": -1})
    63
    """
    if isinstance(e, sympy.Integer):
        return domain.constant(int(e))
    return Evaluation(env, domain).value(sympy.sympify(e))


class Evaluation:
    """Values of expressions in one environment, remembered. `env`: a mapping from symbols or
    names, or what has `in` and `[]`."""

    def __init__(self, env: Any, domain: Domain) -> None:
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
        d = self.domain
        total = None
        for t in sorted(e.args, key=lambda t: t.could_extract_minus_sign()):
            if total is not None and t.could_extract_minus_sign():
                total = d.sub(total, self.value(-t))
            else:
                total = self.value(t) if total is None else d.add(total, self.value(t))
        return total

    def _product(self, e: Any) -> Any:
        d = self.domain
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
        values = [self.value(f) for f in above] or [d.constant(1)]
        out = reduce(d.mul, values)
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
        if name in DIVISIONS and any(type(a) is int and a == 0 for a in args[1:]):
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
