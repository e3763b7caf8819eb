"""What the operations of an expression mean: Python's numbers, and arrays."""

import math
import operator
from collections.abc import Callable
from typing import Any

from symexpr.errors import DivisionByZero
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
        """`a / b`, exact for integers whose quotient is one. Raises DivisionByZero for a number."""
        if type(b) in (int, float) and b == 0:
            raise DivisionByZero(a, b, "evaluate")
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


PYTHON = Domain()
