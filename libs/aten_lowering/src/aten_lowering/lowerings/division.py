"""Quotients and remainders, element by element."""

import math
import struct

import torch

from aten_lowering.builder import Number, Operand, Value
from aten_lowering.call import Call
from aten_lowering.elementwise import Elementwise, arithmetic, elementwise
from aten_lowering.errors import require
from aten_lowering.registry import Table
from aten_lowering.torch_compat import Promotion
from loop_ir import DType

aten = torch.ops.aten
table = Table()

_FLOATS = Promotion.INT_TO_FLOAT


@elementwise(table, aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, kind=_FLOATS)
def div(x: Value, y: Value, *, call: Call) -> Value:
    """`x / y`, a float."""
    factor = _reciprocal(x, call)
    return x / y if factor is None else x * factor


def _reciprocal(x: Value, call: Call) -> float | None:
    """What CUDA's kernels multiply with where the divisor is a number, in the type that they
    compute in (`div_true_kernel_cuda` and its like): infinite of zero and of the least numbers."""
    other = call.arguments["other"]
    cuda = call.out.fake.is_cuda and x.dtype in (DType.f32, DType.f64)
    if not cuda or not isinstance(other, int | float):
        return None
    number = _rounded(float(other), x.dtype)
    return _rounded(1 / number, x.dtype) if number else math.copysign(math.inf, number)


def _rounded(x: float, dtype: DType) -> float:
    if dtype is DType.f64:
        return x
    try:
        return float(struct.unpack("f", struct.pack("f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)


def _floor(x: Value, y: Value, *, call: Call) -> Value:
    """`x / y`, rounded down. Floats as `c10::div_floor_floating`: exact where `floor(x / y)` would
    round up first; of an infinite reciprocal what that makes of it."""
    if not x.dtype.is_float:
        _check_divisor(call)
    elif math.isinf(_reciprocal(x, call) or 0.0):
        return y("eq", 0.0).choose(x.over(y), div(x - x("fmod", y), y, call=call)("floor"))
    return arithmetic(x)("floordiv", y)


def _trunc(x: Value, y: Value, *, call: Call) -> Value:
    """`x / y`, rounded toward 0."""
    if x.dtype.is_float:
        return div(x, y, call=call)("trunc")
    _check_divisor(call)
    return arithmetic(x)("truncdiv", y)


def _check_divisor(call: Call) -> None:
    """Integer division by zero raises in eager on the CPU; a kernel cannot raise."""
    other = call.arguments["other"]
    known = isinstance(other, int) and other != 0
    require(known or not call.on_cpu, "integer division whose divisor may be zero")


def _opposite(rest: Value, y: Value) -> Value:
    """Whether a remainder is not 0, and of the other sign than `y`."""
    return rest("ne", 0.0) & (y < 0.0)("ne", rest < 0.0)


elementwise(table, aten.floor_divide.default, aten.floor_divide.Scalar)(_floor)


@table.lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(
    call: Call, input: Operand, other: Operand | Number, rounding_mode: str | None
) -> None:
    """`input / other`, rounded down ("floor") or toward 0 ("trunc")."""
    require(rounding_mode in (None, "floor", "trunc"), f"rounding mode {rounding_mode}")
    kind = Promotion.DEFAULT if rounding_mode else _FLOATS

    def body(x: Value, y: Value, call: Call, rounding_mode: str | None) -> Value:
        rounded = _floor if rounding_mode == "floor" else _trunc
        return (rounded if rounding_mode else div)(x, y, call=call)

    Elementwise(body, frozenset(("call", "rounding_mode")), kind, False)(call)


@elementwise(
    table, aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor, rounded=True
)
def remainder(x: Value, y: Value, *, call: Call) -> Value:
    """What is left of `x`, with the sign of `y`: Python's `%`."""
    if not x.dtype.is_float:
        _check_divisor(call)
        return arithmetic(x)("mod", y)
    mod = x("fmod", y)
    return _opposite(mod, y).choose(mod + y, mod)


@elementwise(table, aten.fmod.Tensor, aten.fmod.Scalar, rounded=True)
def fmod(x: Value, y: Value, *, call: Call) -> Value:
    """What is left of `x`, with its sign: C's `%`."""
    if not x.dtype.is_float:
        _check_divisor(call)
    return arithmetic(x)("fmod", y)
