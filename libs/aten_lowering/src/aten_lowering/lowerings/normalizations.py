"""Softmax and the norms: one kernel each, whose phases read the input again."""

from collections.abc import Sequence

import sympy
import torch

from aten_lowering.builder import Coords, Number, Operand, Value
from aten_lowering.call import Call, opmath
from aten_lowering.errors import require
from aten_lowering.frames import ReductionFrame
from aten_lowering.registry import Table
from loop_ir import DType
from symexpr import FloorDiv

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
    value = k.load(input, coords).to(opmath(call.out.dtype))
    (peak,) = k.reduce("max", value)
    frame.start()
    exp = (value - peak)("exp")
    (total,) = k.reduce("sum", exp)
    frame.start()
    call.store(k, exp / total, coords)


# -- norms


def affine(x: Value, weight: Operand | None, bias: Operand | None, coords: Coords) -> Value:
    """`x * weight + bias`, both at `coords`."""
    if weight is not None:
        x = x * x.k.load(weight, coords).to(x.dtype)
    if bias is not None:
        x = x + x.k.load(bias, coords).to(x.dtype)
    return x


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
    x = frame.element().to(acc)
    mean, m2 = frame.fold("welford", x)
    rstd = (m2 / frame.count + eps)("rsqrt")
    call.put(1, k, mean, frame.out_coords(keepdim=True))
    call.put(2, k, rstd, frame.out_coords(keepdim=True))
    coords = frame.start()
    call.put(0, k, affine((x - mean) * rstd, weight, bias, coords[first:]), coords)
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
    x = frame.element().to(acc)
    (total,) = frame.fold("sum", x * x)
    rstd = (total / frame.count + eps)("rsqrt")
    call.put(1, k, rstd, frame.out_coords(keepdim=True))
    coords = frame.start()
    call.put(0, k, affine(x * rstd, weight, None, coords[first:]), coords)
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
    per_group = FloorDiv(channels, sympy.Integer(group))  # which it divides, eager says
    inner = [per_group, *space]
    require(all(n != 0 for n in (batch, *inner)), "an empty input")
    acc = opmath(input.dtype)
    k = call.kernel([batch, sympy.Integer(group)])
    n, g = k.coords

    def start() -> Coords:
        c, *rest = k.inner(inner)
        return (n, sympy.expand(g * per_group + c), *rest)

    x = k.load(input, start()).to(acc)
    mean, m2 = k.reduce("welford", x)
    k.once()
    rstd = (m2 / sympy.Mul(*inner) + eps)("rsqrt")
    call.put(1, k, mean, (n, g))
    call.put(2, k, rstd, (n, g))
    coords = start()
    call.put(0, k, affine((x - mean) * rstd, weight, bias, coords[1:2]), coords)
    call.emit_kernel(k)
