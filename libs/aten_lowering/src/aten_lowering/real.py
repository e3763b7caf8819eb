"""Floats of a kernel under the signs of arithmetic, for formulas of more than a few steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch._ops import OpOverload

from aten_lowering.builder import KernelBuilder, Value
from aten_lowering.elementwise import elementwise
from aten_lowering.registry import Table
from aten_lowering.torch_compat import Promotion


@dataclass(frozen=True, eq=False)
class Real:
    """A float (or a condition) of the kernel `k`. Python numbers beside it take its type.

    `2 * x + x("exp")` appends a product, an exponential and a sum to the kernel.
    """

    k: KernelBuilder
    value: Value

    def number(self, value: float) -> Real:
        """A constant of this type."""
        return Real(self.k, self.k.const(value, self.value.dtype))

    def __call__(self, op: str, *others: Real | float) -> Real:
        """An entry of `loop_ir.OPS` with this as its first argument."""
        values = [(o if isinstance(o, Real) else self.number(o)).value for o in others]
        return Real(self.k, self.k.op(op, self.value, *values))

    def choose(self, a: Real | float, b: Real | float) -> Real:
        """`a` where this condition holds, `b` elsewhere. One of them is no Python number."""
        like = a if isinstance(a, Real) else b
        assert isinstance(like, Real)
        a, b = (v if isinstance(v, Real) else like.number(v) for v in (a, b))
        return Real(self.k, self.k.where(self.value, a.value, b.value))

    def __add__(self, other: Real | float) -> Real:
        return self("add", other)

    def __sub__(self, other: Real | float) -> Real:
        return self("sub", other)

    def __mul__(self, other: Real | float) -> Real:
        return self("mul", other)

    def __truediv__(self, other: Real | float) -> Real:
        return self("div", other)

    def over(self, other: Real | float) -> Real:
        """A quotient that may be two units in the last place off: a third of the instructions."""
        return self("near_div", other)

    def __radd__(self, other: float) -> Real:
        return self.number(other) + self

    def __rsub__(self, other: float) -> Real:
        return self.number(other) - self

    def __rmul__(self, other: float) -> Real:
        return self.number(other) * self

    def __rtruediv__(self, other: float) -> Real:
        return self.number(other) / self

    def __neg__(self) -> Real:
        return self("neg")

    def __abs__(self) -> Real:
        return self("abs")

    def __lt__(self, other: Real | float) -> Real:
        return self("lt", other)

    def __gt__(self, other: Real | float) -> Real:
        return self("gt", other)


def function(table: Table, *ops: OpOverload) -> Callable[[Callable[[Real], Real]], None]:
    """Enters a function of one float as the lowering of `ops`; integers are converted first."""

    def register(body: Callable[[Real], Real]) -> None:
        def at(k: KernelBuilder, x: Value) -> Value:
            return body(Real(k, x)).value

        elementwise(table, *ops, kind=Promotion.INT_TO_FLOAT)(at)

    return register
