"""Statements in the making, each under a name that is new in its kernel."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import TypeVar

import sympy

from loop_ir.ir.names import value_names
from loop_ir.ir.nodes import Compute, Const, Index, Kernel, Load, Reduce, Stmt, Store
from tensor_ir import DType

Access = TypeVar("Access", bound=Load | Store)


def fresh_values(kernel: Kernel) -> Iterator[str]:
    """`v0, v1, ...` without the values that the kernel defines."""
    known = value_names(kernel)
    return (f"v{n}" for n in count() if f"v{n}" not in known)


class Body(list[Stmt]):
    """A list of statements. Each method adds one, and returns the name of its result, which is the
    next of `fresh` unless it is given as `out`."""

    def __init__(self, fresh: Iterator[str], body: Iterable[Stmt] = ()) -> None:
        super().__init__(body)
        self.fresh = fresh

    def const(self, value: float | bool, dtype: DType) -> str:
        """Adds a number."""
        self.append(Const(out := next(self.fresh), value, dtype))
        return out

    def number(self, expr: sympy.Expr, dtype: DType = DType.i64) -> str:
        """Adds an expression of axes and sizes as a value."""
        self.append(Index(out := next(self.fresh), expr, dtype))
        return out

    def load(self, buffer: str, index: sympy.Expr, dtype: DType, out: str | None = None) -> str:
        """Adds a load that no mask guards."""
        self.append(Load(out := out or next(self.fresh), buffer, index, dtype))
        return out

    def compute(self, dtype: DType, op: str, *args: str, out: str | None = None) -> str:
        """Adds an operation whose result is of the type `dtype`."""
        self.append(Compute(out := out or next(self.fresh), op, args, dtype))
        return out

    def test(self, op: str, *args: str) -> str:
        """Adds an operation whose result is a bool."""
        return self.compute(DType.bool_, op, *args)

    def guarded(self, access: Access, mask: str) -> Access:
        """A load or store (which is not added) at those of its points where `mask` holds too."""
        both = mask if access.mask is None else self.test("and", mask, access.mask)
        return replace(access, mask=both)

    def reduce(self, dtype: DType, op: str, arg: str, out: str | None = None) -> str:
        """Adds a reduction that has one result."""
        self.append(Reduce((out := out or next(self.fresh),), op, (arg,), dtype))
        return out


def is_extreme(value: str, extreme: str, dtype: DType, body: Body) -> str:
    """Adds whether a value is the extreme of some, of which NaN is one."""
    equal = body.test("eq", value, extreme)
    return body.test("or", equal, body.test("ne", value, value)) if dtype.is_float else equal
