"""What the operations of an expression mean: Python's numbers, arrays, traces, intervals."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from symexpr import intervals as iv
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
