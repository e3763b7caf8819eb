"""The frame of a pointwise kernel: promote, load, compute, store."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch._ops import OpOverload

from aten_lowering.builder import KernelBuilder, Operand, Value
from aten_lowering.call import Call, Number, number, torch_dtype
from aten_lowering.errors import require
from aten_lowering.registry import Table
from aten_lowering.torch_compat import Promotion, elementwise_dtypes
from loop_ir import DType, Kernel, Origin

# What is computed at a point: gets the builder and the promoted inputs, gives the value to store.
Body = Callable[..., Value]


def promoted(call: Call, names: Sequence[str], kind: Promotion) -> tuple[DType, DType]:
    """Type to convert operands to as eager does, and type to compute in.

    `bf16 + bf16` gives (bf16, f32); `i64 / i64` gives (f32, f32); comparisons give the common type.
    """
    known = [_known_number(call.fakes[n]) for n in names if call.fakes[n] is not None]
    compute, _ = elementwise_dtypes(*known, type_promotion_kind=kind)
    no_bool = Promotion.NO_OPMATH if kind is Promotion.ALWAYS_BOOL else kind
    _, common = elementwise_dtypes(*known, type_promotion_kind=no_bool)
    return torch_dtype(common), torch_dtype(compute)


def _known_number(fake: Any) -> Any:
    """A SymInt promotes like any int, a SymFloat like any float."""
    if isinstance(fake, torch.SymFloat):
        return 1.0
    return 1 if isinstance(fake, torch.SymInt) else fake


def load_as(
    k: KernelBuilder,
    x: Operand | Number,
    size: Sequence[sympy.Expr],
    common: DType,
    compute: DType,
    rounded: bool = False,
) -> Value:
    """A tensor or number at the current point: converted to the common type, then to the one to
    compute in. Python numbers keep their value up to the type that is computed in, unless they
    are to be `rounded` to the common type."""
    if not isinstance(x, Operand):
        return k.cast(number(k, x, common if rounded else compute), compute)
    value = k.load_broadcast(x, size, k.coords)
    return k.cast(k.cast(value, common), compute)


def pointwise(
    call: Call,
    names: Sequence[str],
    body: Body,
    kind: Promotion = Promotion.DEFAULT,
    rounded: bool = False,
) -> None:
    """Emits `out = body(k, *promoted arguments named names)`; None arguments stay None.

    rounded: what eager does with a number beside 16-bit floats differs from kernel to kernel:
    `iter.scalar_value<scalar_t>` rounds it to their type, `<opmath_t>` does not."""
    common, compute = promoted(call, names, kind)
    out = call.out
    k = call.kernel(out.size)
    arguments = call.arguments
    values = [
        None
        if arguments[n] is None
        else load_as(k, arguments[n], out.size, common, compute, rounded)
        for n in names
    ]
    k.store(out.operand, k.coords, body(k, *values))
    call.emit_kernel(k)


@dataclass(frozen=True)
class Elementwise:
    """A lowering of operators all of whose arguments are promoted to one type."""

    body: Body
    kind: Promotion
    rounded: bool

    def __call__(self, call: Call, **arguments: Any) -> None:
        """Emits the kernel; `arguments` are those of `call`."""
        pointwise(call, list(call.arguments), self.body, self.kind, self.rounded)


def elementwise(
    table: Table,
    *ops: OpOverload,
    kind: Promotion = Promotion.DEFAULT,
    rounded: bool = False,
) -> Callable[[Body], Body]:
    """Enters a function that computes one element as the lowering of `ops`. It takes the builder
    and the arguments of the schema in order, promoted (`pointwise` says what `rounded` means):

        @elementwise(table, aten.atan2.default, kind=Promotion.INT_TO_FLOAT)
        def atan2(k: KernelBuilder, y: Value, x: Value) -> Value:
            return k.op("atan2", y, x)

    Raises `ValueError` where it takes another number of arguments than the schema has.
    """

    def register(body: Body) -> Body:
        taken = len(inspect.signature(body).parameters) - 1
        for op in ops:
            if taken != len(op._schema.arguments):
                raise ValueError(f"{op} has {len(op._schema.arguments)} arguments, not {taken}")
            table.add(op, Elementwise(body, kind, rounded))
        return body

    return register


def arithmetic(x: Value) -> Value:
    """`x`, which must not be bool: eager refuses to compute on those."""
    require(x.dtype is not DType.bool_, "arithmetic on bool")
    return x


def copy_kernel(name: str, source: Operand, target: Operand, origin: Origin) -> Kernel:
    """`target = source`, broadcast and converted. Torch has found their sizes equal, and guards: an
    expression may stand for a number."""
    require(len(source.size) <= len(target.size), "a copy of more dimensions")
    sizes = zip(source.size, target.size[len(target.size) - len(source.size) :], strict=True)
    same = tuple(n if n == 1 else m for n, m in sizes)
    source = replace(source, ref=replace(source.ref, type=replace(source.type, size=same)))
    k = KernelBuilder(name, target.size, origin)
    value = k.load_broadcast(source, target.size, k.coords)
    k.store(target, k.coords, value)
    return k.finish()
