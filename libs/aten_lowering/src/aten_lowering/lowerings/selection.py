"""Choosing between values: where, masked_fill, clamp; and copies with or without conversion."""

from typing import Any

import torch

from aten_lowering.builder import F8, KernelBuilder, Number, Operand, Scalar, Value
from aten_lowering.call import Call
from aten_lowering.elementwise import arithmetic, elementwise, load_as, promoted
from aten_lowering.errors import require
from aten_lowering.lowerings.creation import plain_memory
from aten_lowering.registry import Table, named
from aten_lowering.torch_compat import Promotion
from loop_ir import DType

aten = torch.ops.aten
table = Table()


@table.lowers(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(call: Call, condition: Operand, input: Operand | Number, other: Operand | Number) -> None:
    """`input` where the condition holds, `other` elsewhere, of one type."""
    require(condition.dtype is DType.bool_, "where on a condition that is not bool")
    common, _ = promoted(call, ["self", "other"], Promotion.NO_OPMATH)
    size, k = call.out.size, call.kernel()
    c = k.load_broadcast(condition, size, k.coords)
    x = load_as(k, input, size, common, common)
    y = load_as(k, other, size, common, common)
    call.store(k, c.choose(x, y))


@table.lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(call: Call, input: Operand, mask: Operand, value: Operand | Number) -> None:
    """`value` where the mask holds, `input` elsewhere."""
    require(mask.dtype is DType.bool_, "masked_fill with a mask that is not bool")
    out, k = call.out, call.kernel()
    m = k.load_broadcast(mask, out.size, k.coords)
    x = k.load_broadcast(input, out.size, k.coords)
    fill = load_as(k, value, out.size, out.dtype, out.dtype)
    call.store(k, m.choose(fill, x))


@elementwise(table, aten.clamp.default)
def clamp_by_numbers(x: Value, low: Value | None, high: Value | None) -> Value:
    """As `clamp`, but a NaN that is the only bound bounds nothing, as in eager."""
    only = [b for b in (low, high) if b is not None]
    return x if len(only) == 1 and x.k.is_nan(only[0]) else clamp(x, low, high)


@elementwise(table, aten.clamp.Tensor)
def clamp(x: Value, low: Value | None, high: Value | None) -> Value:
    """`min(max(x, low), high)`; NaN if any is."""
    require(x.dtype is not DType.bool_, "clamp of bool")
    if low is not None:
        x = at_least(x, low)
    return x if high is None else at_most(x, high)


def at_least(x: Value, low: Value | Scalar) -> Value:
    """`x` or `low`, whichever is larger; NaN if either is. Of two zeros: on the CPU `x`, on a GPU
    the positive one."""
    return _bounded(x, low, "maximum", "lt")


def at_most(x: Value, high: Value | Scalar) -> Value:
    """`x` or `high`, whichever is smaller; NaN if either is. Of two zeros: on the CPU `x`, on a GPU
    the negative one."""
    return _bounded(x, high, "minimum", "gt")


def _bounded(x: Value, bound: Value | Scalar, op: str, beyond: str) -> Value:
    if not x.dtype.is_float or not x.k.on_cpu:
        return x(op, bound)
    bound = bound if isinstance(bound, Value) else x.number(bound)
    replaced = x(beyond, bound)
    if not x.k.is_number(bound):
        replaced = replaced | bound("isnan")
    return replaced.choose(bound, x)


for _packet, _bounds in (aten.clamp_min, at_least), (aten.clamp_max, at_most):
    elementwise(table, _packet.default, _packet.Tensor)(
        lambda x, bound, bounds=_bounds: bounds(arithmetic(x), bound)
    )


# -- copies


def copy(call: Call, source: Operand) -> None:
    """`out = source`, broadcast to `out` and converted to its type."""
    out = call.out
    f8 = bool({source.dtype, out.dtype} & F8)
    require(not f8 or source.dtype.is_float, "8-bit floats of integers")
    require(not f8 or _converts_f8(out.fake.device), "a GPU without 8-bit floats")
    k = KernelBuilder(call.node.name, out.size, call.origin, casts_f8=True)
    value = k.load_broadcast(source, out.size, k.coords)
    call.store(k, value if f8 else value.to(out.dtype, asked=not call.decomposed))


@table.lowers(*named("clone contiguous lift_fresh_copy detach_copy alias_copy"))
def clone(call: Call, input: Operand, **shown: Any) -> None:
    """A copy with the strides of the result, which a memory format has chosen."""
    copy(call, input)


@table.lowers(aten._to_copy.default)
def to_copy(
    call: Call, input: Operand, layout: Any, pin_memory: Any, non_blocking: Any, **shown: Any
) -> None:
    """A copy of another type; `non_blocking` only orders copies between devices, which are refused
    here."""
    plain_memory(layout, pin_memory)
    require(input.type.device == call.out.operand.type.device, "a copy between devices")
    copy(call, input)


def _converts_f8(device: torch.device) -> bool:
    """Compute capability 8.9 brought instructions for them; assumed where there is no GPU."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return True
    return torch.cuda.get_device_capability(device) >= (8, 9)


@table.lowers(aten.view_copy.dtype)
def bitcast(call: Call, input: Operand, dtype: Any) -> None:
    """The same bits as another type."""
    same = input.dtype.itemsize == call.out.dtype.itemsize
    require(same and DType.bool_ not in (input.dtype, call.out.dtype), "elements of another width")
    k = call.kernel(input.size)
    call.store(k, k.load(input, k.coords)("bitcast", dtype=call.out.dtype))


@table.lowers(aten.copy.default)
def copy_functional(call: Call, input: Operand, src: Operand | Number, non_blocking: Any) -> None:
    """`src`, broadcast to the size of `input` and converted to its type."""
    if not isinstance(src, Operand):
        return fill(call, input, src)
    require(src.type.device == input.type.device, "a copy between devices")
    copy(call, src)


@table.lowers(aten.fill.Scalar, aten.fill.Tensor)
def fill(call: Call, input: Operand, value: Operand | Number) -> None:
    """One number everywhere."""
    k = call.kernel()
    call.store(k, k.read(value, (), call.out.dtype))
