"""Quotients and remainders, element by element."""

from __future__ import annotations

import math
import struct

import torch

from aten_lowering.builder import KernelBuilder, Operand, Value
from aten_lowering.call import Call, Number
from aten_lowering.elementwise import arithmetic, pointwise
from aten_lowering.errors import require
from aten_lowering.registry import Table
from aten_lowering.torch_compat import Promotion
from loop_ir import DType

aten = torch.ops.aten
table = Table()


@table.lowers(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(call: Call, input: Operand, other: Operand | Number) -> None:
    """`input / other`, a float."""

    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        return _quotient(k, x, y, _reciprocal(call, other, x.dtype))

    pointwise(call, ["self", "other"], body, Promotion.INT_TO_FLOAT)


def _quotient(k: KernelBuilder, x: Value, y: Value, reciprocal: float | None) -> Value:
    if reciprocal is None:
        return k.op("div", x, y)
    return k.op("mul", x, k.const(reciprocal, x.dtype))


def _reciprocal(call: Call, other: Operand | Number, dtype: DType) -> float | None:
    """Of a number, by which CUDA's kernels multiply in the type that they compute in
    (`div_true_kernel_cuda` and its like): infinite of zero and of the least numbers."""
    cuda = call.out.fake.is_cuda and dtype in (DType.f32, DType.f64)
    if not cuda or not isinstance(other, int | float):
        return None
    x = _rounded(float(other), dtype)
    return _rounded(1.0 / x, dtype) if x else math.copysign(math.inf, x)


def _rounded(x: float, dtype: DType) -> float:
    if dtype is DType.f64:
        return x
    try:
        return float(struct.unpack("f", struct.pack("f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)


@table.lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(
    call: Call, input: Operand, other: Operand | Number, rounding_mode: str | None
) -> None:
    """`input / other`, rounded down ("floor") or toward 0 ("trunc")."""
    if rounding_mode is None:
        div(call, input, other)
        return
    require(rounding_mode in ("floor", "trunc"), f"rounding mode {rounding_mode}")

    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        if x.dtype.is_float:
            reciprocal = _reciprocal(call, other, x.dtype)
            if rounding_mode == "trunc":
                return k.op("trunc", _quotient(k, x, y, reciprocal))
            return _floor_div(k, x, y, reciprocal)
        _check_divisor(call, other)
        return k.op("floordiv" if rounding_mode == "floor" else "truncdiv", arithmetic(x), y)

    pointwise(call, ["self", "other"], body)


@table.lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(call: Call, input: Operand, other: Operand | Number) -> None:
    """`input / other`, rounded down."""
    div_mode(call, input, other, "floor")


def _check_divisor(call: Call, other: Operand | Number) -> None:
    """Integer division by zero raises in eager on the CPU; a kernel cannot raise."""
    known = isinstance(other, int) and other != 0
    require(known or not call.on_cpu, "integer division whose divisor may be zero")


def _floor_div(k: KernelBuilder, x: Value, y: Value, reciprocal: float | None) -> Value:
    """Floats, as `c10::div_floor_floating`: exact where `floor(x / y)` would round up first."""
    zero, one, half = (k.const(c, x.dtype) for c in (0.0, 1.0, 0.5))
    mod = k.op("fmod", x, y)
    quotient = _quotient(k, k.op("sub", x, mod), y, reciprocal)
    opposite = k.op("ne", k.op("lt", y, zero), k.op("lt", mod, zero))
    lower = k.op("and", k.op("ne", mod, zero), opposite)
    quotient = k.where(lower, k.op("sub", quotient, one), quotient)
    floor = k.op("floor", quotient)
    up = k.op("gt", k.op("sub", quotient, floor), half)
    floor = k.where(up, k.op("add", floor, one), floor)
    ratio = _quotient(k, x, y, reciprocal)
    signed_zero = k.op("mul", zero, ratio)
    result = k.where(k.op("eq", quotient, zero), signed_zero, floor)
    return k.where(k.op("eq", y, zero), ratio, result)


@table.lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(call: Call, input: Operand | Number, other: Operand | Number) -> None:
    """What is left of `input`, with the sign of `other`: Python's `%`."""

    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        if not x.dtype.is_float:
            _check_divisor(call, other)
            return k.op("mod", arithmetic(x), y)
        zero = k.const(0.0, x.dtype)
        mod = k.op("fmod", x, y)
        opposite = k.op("ne", k.op("lt", y, zero), k.op("lt", mod, zero))
        fix = k.op("and", k.op("ne", mod, zero), opposite)
        return k.where(fix, k.op("add", mod, y), mod)

    pointwise(call, ["self", "other"], body, rounded=True)


@table.lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(call: Call, input: Operand, other: Operand | Number) -> None:
    """What is left of `input`, with its sign: C's `%`."""

    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        if not x.dtype.is_float:
            _check_divisor(call, other)
        return k.op("fmod", arithmetic(x), y)

    pointwise(call, ["self", "other"], body, rounded=True)
