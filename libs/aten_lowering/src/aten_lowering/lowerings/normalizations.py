"""Softmax and the norms: one kernel each, whose phases read the input again."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from aten_lowering.builder import Coords, KernelBuilder, Operand, Value
from aten_lowering.call import Call, Number, number, opmath
from aten_lowering.errors import require
from aten_lowering.frames import ReductionFrame
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()


# -- softmax


@table.lowers(aten._softmax.default)
def softmax(call: Call, input: Operand, dim: int, half_to_float: bool) -> None:
    """`exp(x - max(x))` over its sum. half_to_float shows in the type of the result."""
    require(input.dtype.is_float, "softmax of integers")
    frame = ReductionFrame(call, input, [dim] if input.size else ())
    k = frame.k
    coords = frame.start()
    value = k.cast(k.load(input, coords), opmath(call.out.dtype))
    (peak,) = k.reduce("max", value)
    frame.start()
    exp = k.op("exp", k.op("sub", value, peak))
    (total,) = k.reduce("sum", exp)
    frame.start()
    call.store(k, k.op("div", exp, total), coords)


# -- norms


def affine(
    k: KernelBuilder, x: Value, weight: Operand | None, bias: Operand | None, coords: Coords
) -> Value:
    """`x * weight + bias`, both at `coords`."""
    if weight is not None:
        x = k.op("mul", x, k.cast(k.load(weight, coords), x.dtype))
    if bias is not None:
        x = k.op("add", x, k.cast(k.load(bias, coords), x.dtype))
    return x


def store_used(call: Call, index: int, k: KernelBuilder, coords: Coords, value: Value) -> None:
    """Stores an element of a result, if the graph looks at that."""
    result = call.result(index)
    if result is not None:
        k.store(result.operand, coords, value)


@table.lowers(aten.native_layer_norm.default)
def native_layer_norm(
    call: Call,
    input: Operand,
    normalized_shape: Sequence[Number],
    weight: Operand | None,
    bias: Operand | None,
    eps: float,
) -> None:
    """Results: output, mean and 1 / standard deviation."""
    require(input.dtype.is_float and len(normalized_shape) > 0, "layer norm of this input")
    first = len(input.size) - len(normalized_shape)
    frame = ReductionFrame(call, input, range(first, len(input.size)))
    k, acc = frame.k, opmath(input.dtype)
    coords = frame.start()
    x = k.cast(k.load(input, coords), acc)
    mean, m2 = k.reduce("welford", x)
    k.once()
    variance = k.op("div", m2, number(k, frame.count, acc))
    rstd = k.op("rsqrt", k.op("add", variance, k.const(eps, acc)))
    store_used(call, 1, k, frame.out_coords(keepdim=True), mean)
    store_used(call, 2, k, frame.out_coords(keepdim=True), rstd)
    coords = frame.start()
    normal = k.op("mul", k.op("sub", x, mean), rstd)
    store_used(call, 0, k, coords, affine(k, normal, weight, bias, coords[first:]))
    call.emit_kernel(k)


@table.lowers(aten._fused_rms_norm.default)
def fused_rms_norm(
    call: Call,
    input: Operand,
    normalized_shape: Sequence[Number],
    weight: Operand | None,
    eps: float | None,
) -> None:
    """Results: output and 1 / root mean square. Without eps: the epsilon of the opmath type."""
    require(input.dtype.is_float and len(normalized_shape) > 0, "rms norm of this input")
    first = len(input.size) - len(normalized_shape)
    frame = ReductionFrame(call, input, range(first, len(input.size)))
    k, acc = frame.k, opmath(input.dtype)
    if eps is None:
        eps = torch.finfo(torch.float64 if acc is DType.f64 else torch.float32).eps
    x = k.cast(k.load(input, frame.start()), acc)
    (total,) = k.reduce("sum", k.op("mul", x, x))
    k.once()
    square = k.op("div", total, number(k, frame.count, acc))
    rstd = k.op("rsqrt", k.op("add", square, k.const(eps, acc)))
    store_used(call, 1, k, frame.out_coords(keepdim=True), rstd)
    coords = frame.start()
    store_used(call, 0, k, coords, affine(k, k.op("mul", x, rstd), weight, None, coords[first:]))
    call.emit_kernel(k)


@table.lowers(aten.native_group_norm.default)
def native_group_norm(
    call: Call,
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    N: Number,
    C: Number,
    HxW: Number,
    group: int,
    eps: float,
) -> None:
    """Input `[N, C, ...]`, normalised over a group of channels and all that follows them."""
    require(input.dtype.is_float, "group norm of integers")
    batch, channels, *space = input.size
    require(bool(channels.is_Integer) and channels % group == 0, f"{group} groups of {channels}")
    per_group = channels / group
    inner = [per_group, *space]
    require(all(n != 0 for n in (batch, *inner)), "an empty input")
    acc = opmath(input.dtype)
    k = call.kernel([batch, sympy.Integer(group)])
    n, g = k.coords

    def start() -> Coords:
        c, *rest = k.inner(inner)
        return (n, sympy.expand(g * per_group + c), *rest)

    x = k.cast(k.load(input, start()), acc)
    mean, m2 = k.reduce("welford", x)
    k.once()
    variance = k.op("div", m2, number(k, sympy.Mul(*inner), acc))
    rstd = k.op("rsqrt", k.op("add", variance, k.const(eps, acc)))
    store_used(call, 1, k, (n, g), mean)
    store_used(call, 2, k, (n, g), rstd)
    coords = start()
    normal = k.op("mul", k.op("sub", x, mean), rstd)
    store_used(call, 0, k, coords, affine(k, normal, weight, bias, coords[1:2]))
    call.emit_kernel(k)
