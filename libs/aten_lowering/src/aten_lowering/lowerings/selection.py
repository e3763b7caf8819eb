"""Choosing between values: where, masked_fill, clamp; and copies with or without conversion."""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion

from aten_lowering.builder import F8, KernelBuilder, Operand, Value
from aten_lowering.call import Call, Number, number
from aten_lowering.elementwise import load_as, pointwise, promoted
from aten_lowering.errors import require
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()


@table.lowers(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(call: Call, condition: Operand, input: Operand | Number, other: Operand | Number) -> None:
    require(condition.dtype is DType.bool_, "where on a condition that is not bool")
    common, _ = promoted(call, ["self", "other"], Promotion.NO_OPMATH)
    out = call.out
    k = call.kernel(out.size)
    c = k.load_broadcast(condition, out.size, k.coords)
    x = load_as(k, input, out.size, common, common)
    y = load_as(k, other, out.size, common, common)
    k.store(out.operand, k.coords, k.where(c, x, y))
    call.emit_kernel(k)


@table.lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(call: Call, input: Operand, mask: Operand, value: Operand | Number) -> None:
    require(mask.dtype is DType.bool_, "masked_fill with a mask that is not bool")
    out = call.out
    k = call.kernel(out.size)
    m = k.load_broadcast(mask, out.size, k.coords)
    x = k.load_broadcast(input, out.size, k.coords)
    fill = load_as(k, value, out.size, out.dtype, out.dtype)
    k.store(out.operand, k.coords, k.where(m, fill, x))
    call.emit_kernel(k)


@table.lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(
    call: Call,
    input: Operand,
    min: Operand | Number | None,
    max: Operand | Number | None,
) -> None:
    def body(k: KernelBuilder, x: Value, low: Value | None, high: Value | None) -> Value:
        require(x.dtype is not DType.bool_, "clamp of bool")
        if low is not None:
            x = at_least(k, x, low)
        return x if high is None else at_most(k, x, high)

    pointwise(call, ["self", "min", "max"], body)


def at_least(k: KernelBuilder, x: Value, low: Value) -> Value:
    """`x` or `low`, whichever is larger; NaN if either is. Of two zeros: on the CPU `x`, on a GPU
    the positive one."""
    return _bounded(k, x, low, "maximum", "lt")


def at_most(k: KernelBuilder, x: Value, high: Value) -> Value:
    """`x` or `high`, whichever is smaller; NaN if either is. Of two zeros: on the CPU `x`, on a GPU
    the negative one."""
    return _bounded(k, x, high, "minimum", "gt")


def _bounded(k: KernelBuilder, x: Value, bound: Value, op: str, beyond: str) -> Value:
    if not x.dtype.is_float or not k.on_cpu:
        return k.op(op, x, bound)
    replaced = k.op(beyond, x, bound)
    if not k.is_number(bound):
        replaced = k.op("or", replaced, k.op("isnan", bound))
    return k.where(replaced, bound, x)


@table.lowers(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(call: Call, input: Operand, min: Operand | Number) -> None:
    pointwise(call, ["self", "min"], lambda k, x, low: at_least(k, _arithmetic(x), low))


@table.lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(call: Call, input: Operand, max: Operand | Number) -> None:
    pointwise(call, ["self", "max"], lambda k, x, high: at_most(k, _arithmetic(x), high))


def _arithmetic(x: Value) -> Value:
    require(x.dtype is not DType.bool_, "arithmetic on bool")
    return x


# -- copies


def copy(call: Call, source: Operand) -> None:
    """`out = source`, broadcast to `out` and converted to its type."""
    out = call.out
    k = call.kernel(out.size)
    value = k.load_broadcast(source, out.size, k.coords)
    k.store(out.operand, k.coords, k.cast(value, out.dtype, asked=not call.decomposed))
    call.emit_kernel(k)


@table.lowers(aten.clone.default, aten.contiguous.default)
def clone(call: Call, input: Operand, memory_format: Any) -> None:
    # The memory format has chosen the strides of the result, which are kept.
    copy(call, input)


@table.lowers(aten._to_copy.default)
def to_copy(
    call: Call,
    input: Operand,
    dtype: Any,
    layout: Any,
    device: Any,
    pin_memory: Any,
    non_blocking: Any,
    memory_format: Any,
) -> None:
    # dtype, device and memory_format show in the result; non_blocking only orders device copies,
    # which are refused here.
    require(layout in (None, torch.strided) and not pin_memory, "layout or pinned memory")
    require(input.type.device == call.out.operand.type.device, "a copy between devices")
    f8 = {input.dtype, call.out.dtype} & F8
    if not f8:
        copy(call, input)
        return
    require(input.dtype.is_float, "8-bit floats of integers")
    require(_converts_f8(call.out.fake.device), "a GPU without 8-bit floats")
    k = KernelBuilder(call.node.name, call.out.size, call.origin, casts_f8=True)
    k.store(call.out.operand, k.coords, k.load_broadcast(input, call.out.size, k.coords))
    call.emit_kernel(k)


def _converts_f8(device: torch.device) -> bool:
    """Compute capability 8.9 brought instructions for them; assumed where there is no GPU."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return True
    return torch.cuda.get_device_capability(device) >= (8, 9)


@table.lowers(aten.lift_fresh_copy.default, aten.detach_copy.default, aten.alias_copy.default)
def fresh_copy(call: Call, input: Operand) -> None:
    copy(call, input)


@table.lowers(aten.view_copy.dtype)
def bitcast(call: Call, input: Operand, dtype: Any) -> None:
    same = input.dtype.itemsize == call.out.dtype.itemsize
    require(same and DType.bool_ not in (input.dtype, call.out.dtype), "elements of another width")
    k = call.kernel(input.size)
    x = k.op("bitcast", k.load(input, k.coords), dtype=call.out.dtype)
    k.store(call.out.operand, k.coords, x)
    call.emit_kernel(k)


@table.lowers(aten.copy.default)
def copy_functional(call: Call, input: Operand, src: Operand | Number, non_blocking: Any) -> None:
    if not isinstance(src, Operand):
        return fill(call, input, src)
    require(src.type.device == input.type.device, "a copy between devices")
    copy(call, src)


@table.lowers(aten.fill.Scalar, aten.fill.Tensor)
def fill(call: Call, input: Operand, value: Operand | Number) -> None:
    out = call.out
    k = call.kernel(out.size)
    if isinstance(value, Operand):
        stored = k.load_broadcast(value, (), ())
    else:
        stored = number(k, value, out.dtype)
    k.store(out.operand, k.coords, stored)
    call.emit_kernel(k)
