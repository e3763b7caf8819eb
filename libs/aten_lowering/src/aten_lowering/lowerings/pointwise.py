"""Arithmetic, comparison, logic and bits, element by element."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion

from aten_lowering.builder import KernelBuilder, Operand, Value
from aten_lowering.call import Call, Number
from aten_lowering.elementwise import load_as, pointwise, promoted
from aten_lowering.errors import require
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()


# -- unary


def _unary(op: str, kind: Promotion) -> Any:
    def lowering(call: Call, input: Operand) -> None:
        pointwise(call, ["self"], lambda k, x: k.op(op, _no_bool(x)), kind)

    return lowering


def _no_bool(x: Value) -> Value:
    require(x.dtype is not DType.bool_, "arithmetic on bool")
    return x


# aten name -> loop IR name
_TO_FLOAT = {
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2",
    "log10": "log10", "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin",
    "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh",
    "cosh": "cosh", "tanh": "tanh", "erf": "erf", "sigmoid": "sigmoid", "acosh": "acosh",
    "asinh": "asinh", "atanh": "atanh", "erfc": "erfc", "erfinv": "erfinv", "lgamma": "lgamma",
}  # fmt: skip
for _name, _op in _TO_FLOAT.items():
    table.add(getattr(aten, _name).default, _unary(_op, Promotion.INT_TO_FLOAT))


@table.lowers(aten.neg.default)
def neg(call: Call, input: Operand) -> None:
    pointwise(call, ["self"], lambda k, x: k.op("neg", _no_bool(x)))


@table.lowers(aten.abs.default)
def abs_(call: Call, input: Operand) -> None:
    pointwise(call, ["self"], lambda k, x: k.op("abs", _no_bool(x)))


def _rounding(op: str) -> Any:
    def lowering(call: Call, input: Operand) -> None:
        def body(k: KernelBuilder, x: Value) -> Value:
            return k.op(op, x) if x.dtype.is_float else x

        pointwise(call, ["self"], body)

    return lowering


for _name in ("floor", "ceil", "trunc", "round"):
    table.add(getattr(aten, _name).default, _rounding(_name))


@table.lowers(aten.reciprocal.default)
def reciprocal(call: Call, input: Operand) -> None:
    pointwise(
        call, ["self"], lambda k, x: k.op("div", k.const(1, x.dtype), x), Promotion.INT_TO_FLOAT
    )


@table.lowers(aten.square.default)
def square(call: Call, input: Operand) -> None:
    pointwise(call, ["self"], lambda k, x: k.op("mul", _no_bool(x), x))


@table.lowers(aten.frac.default)
def frac(call: Call, input: Operand) -> None:
    pointwise(call, ["self"], lambda k, x: k.op("sub", x, k.op("trunc", x)))


@table.lowers(aten.sign.default, aten.sgn.default)
def sign(call: Call, input: Operand) -> None:
    def body(k: KernelBuilder, x: Value) -> Value:
        if x.dtype is DType.bool_:
            return x
        zero = k.const(0, x.dtype)
        up = k.cast(k.op("gt", x, zero), x.dtype)
        down = k.cast(k.op("lt", x, zero), x.dtype)
        return k.op("sub", up, down)

    pointwise(call, ["self"], body)


@table.lowers(aten.isnan.default)
def isnan(call: Call, input: Operand) -> None:
    def body(k: KernelBuilder, x: Value) -> Value:
        return k.op("isnan", x) if x.dtype.is_float else k.const(False, DType.bool_)

    pointwise(call, ["self"], body, Promotion.ALWAYS_BOOL)


@table.lowers(aten.isinf.default)
def isinf(call: Call, input: Operand) -> None:
    def body(k: KernelBuilder, x: Value) -> Value:
        return k.op("isinf", x) if x.dtype.is_float else k.const(False, DType.bool_)

    pointwise(call, ["self"], body, Promotion.ALWAYS_BOOL)


@table.lowers(aten.signbit.default)
def signbit(call: Call, input: Operand) -> None:
    def body(k: KernelBuilder, x: Value) -> Value:
        return k.op("signbit", x) if x.dtype.is_float else k.op("lt", x, k.const(0, x.dtype))

    pointwise(call, ["self"], body, Promotion.ALWAYS_BOOL)


# -- arithmetic


@table.lowers(aten.add.Tensor, aten.add.Scalar)
def add(call: Call, input: Operand, other: Operand | Number, alpha: Number) -> None:
    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        if x.dtype is DType.bool_:
            require(alpha == 1, "alpha on bool")
            return k.op("or", x, y)
        return _plus(k, x, y, alpha)

    pointwise(call, ["self", "other"], body, rounded=_on_cpu(call))


@table.lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(call: Call, input: Operand, other: Operand | Number, alpha: Number) -> None:
    pointwise(
        call,
        ["self", "other"],
        lambda k, x, y: _plus(k, _no_bool(x), y, alpha, -1),
        rounded=_on_cpu(call),
    )


@table.lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(call: Call, input: Operand, other: Operand | Number, alpha: Number) -> None:
    pointwise(
        call,
        ["self", "other"],
        lambda k, x, y: _plus(k, y, _no_bool(x), alpha, -1),
        rounded=_on_cpu(call),
    )


def _on_cpu(call: Call) -> bool:
    return call.out.operand.type.device.kind == "cpu"


def _plus(k: KernelBuilder, x: Value, y: Value, alpha: Number, sign: int = 1) -> Value:
    """`x + sign * alpha * y`, rounded once, as compilers contract eager's kernels."""
    if alpha == 1:
        return k.op("add" if sign == 1 else "sub", x, y)
    return k.op("fma", k.const(sign * _alpha(alpha, y), y.dtype), y, x)


def _scaled(k: KernelBuilder, x: Value, alpha: Number) -> Value:
    """`alpha * x`."""
    return x if alpha == 1 else k.op("mul", k.const(_alpha(alpha, x), x.dtype), x)


def _alpha(alpha: Number, x: Value) -> int | float:
    require(isinstance(alpha, int) or (isinstance(alpha, float) and x.dtype.is_float), "alpha")
    assert isinstance(alpha, int | float)
    return alpha


@table.lowers(aten.mul.Tensor, aten.mul.Scalar)
def mul(call: Call, input: Operand, other: Operand | Number) -> None:
    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        return k.op("and" if x.dtype is DType.bool_ else "mul", x, y)

    pointwise(call, ["self", "other"], body)


@table.lowers(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(call: Call, input: Operand, other: Operand | Number) -> None:
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
        return k.op("floordiv" if rounding_mode == "floor" else "truncdiv", _no_bool(x), y)

    pointwise(call, ["self", "other"], body)


@table.lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(call: Call, input: Operand, other: Operand | Number) -> None:
    div_mode(call, input, other, "floor")


def _check_divisor(call: Call, other: Operand | Number) -> None:
    """Integer division by zero raises in eager on the CPU; a kernel cannot raise."""
    known = isinstance(other, int) and other != 0
    on_cpu = call.out.operand.type.device.kind == "cpu"
    require(known or not on_cpu, "integer division whose divisor may be zero")


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
    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        if not x.dtype.is_float:
            _check_divisor(call, other)
            return k.op("mod", _no_bool(x), y)
        zero = k.const(0.0, x.dtype)
        mod = k.op("fmod", x, y)
        opposite = k.op("ne", k.op("lt", y, zero), k.op("lt", mod, zero))
        fix = k.op("and", k.op("ne", mod, zero), opposite)
        return k.where(fix, k.op("add", mod, y), mod)

    pointwise(call, ["self", "other"], body, rounded=True)


@table.lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(call: Call, input: Operand, other: Operand | Number) -> None:
    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        if not x.dtype.is_float:
            _check_divisor(call, other)
        return k.op("fmod", _no_bool(x), y)

    pointwise(call, ["self", "other"], body, rounded=True)


@table.lowers(aten.pow.Tensor_Scalar)
def pow_scalar(call: Call, input: Operand, exponent: Number) -> None:
    """Small whole exponents by multiplication, square roots as such: what eager does."""

    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        # On the CPU eager has no square root of f16 here, but `pow`.
        half = _on_cpu(call) and call.out.dtype is DType.f16 and exponent in (0.5, -0.5)
        require(not half, "a square root as a power in f16")
        if exponent == 0.5 and x.dtype.is_float:
            return k.op("sqrt", x)
        whole = isinstance(exponent, int | float) and exponent in (1, 2, 3)
        if whole or (isinstance(exponent, int) and 0 < exponent <= 16 and x.dtype.is_int):
            return _power(k, _no_bool(x), int(exponent))
        require(x.dtype.is_float, f"integer power {exponent}")
        if exponent == -0.5:
            return k.op("rsqrt", x)
        if exponent == -1:
            return k.op("div", k.const(1, x.dtype), x)
        if exponent == -2:
            return k.op("div", k.const(1, x.dtype), k.op("mul", x, x))
        return k.op("pow", x, y)

    pointwise(call, ["self", "exponent"], body, rounded=True)


def _power(k: KernelBuilder, x: Value, n: int) -> Value:
    result = x
    for _ in range(n - 1):
        result = k.op("mul", result, x)
    return result


@table.lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_(call: Call, input: Operand | Number, exponent: Operand) -> None:
    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        return k.op("pow", x, y) if x.dtype.is_float else _whole_power(k, _no_bool(x), y)

    pointwise(call, ["self", "exponent"], body, rounded=True)


def _whole_power(k: KernelBuilder, x: Value, n: Value) -> Value:
    """Of integers: 0 for a negative exponent, but of 1 and -1."""
    zero, one = k.const(0, x.dtype), k.const(1, x.dtype)
    power = k.op("pow", x, k.op("maximum", n, zero))
    if x.dtype.value.startswith("u"):
        return power
    odd = k.op("eq", k.op("and", n, one), one)
    sign = k.where(odd, k.const(-1, x.dtype), one)
    small = k.where(k.op("eq", x, k.const(-1, x.dtype)), sign, zero)
    small = k.where(k.op("eq", x, one), one, small)
    return k.where(k.op("lt", n, zero), small, power)


@table.lowers(aten.atan2.default)
def atan2(call: Call, input: Operand, other: Operand) -> None:
    pointwise(call, ["self", "other"], lambda k, x, y: k.op("atan2", x, y), Promotion.INT_TO_FLOAT)


@table.lowers(aten.maximum.default)
def maximum(call: Call, input: Operand, other: Operand) -> None:
    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        return k.op("or" if x.dtype is DType.bool_ else "maximum", x, y)

    pointwise(call, ["self", "other"], body)


@table.lowers(aten.minimum.default)
def minimum(call: Call, input: Operand, other: Operand) -> None:
    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        return k.op("and" if x.dtype is DType.bool_ else "minimum", x, y)

    pointwise(call, ["self", "other"], body)


@table.lowers(aten.fmax.default)
def fmax(call: Call, input: Operand, other: Operand) -> None:
    pointwise(call, ["self", "other"], lambda k, x, y: _other_if_nan(call, k, "maximum", x, y))


@table.lowers(aten.fmin.default)
def fmin(call: Call, input: Operand, other: Operand) -> None:
    pointwise(call, ["self", "other"], lambda k, x, y: _other_if_nan(call, k, "minimum", x, y))


def _other_if_nan(call: Call, k: KernelBuilder, op: str, x: Value, y: Value) -> Value:
    """`op(x, y)`; where one is NaN, the other. Of two zeros C's functions take the first, and
    torch's own for bfloat16 the second."""
    if x.dtype.is_float and _on_cpu(call):
        x, y = (y, x) if call.out.dtype is DType.bf16 else (x, y)
        first_wins = k.op({"maximum": "ge", "minimum": "le"}[op], x, y)
        return k.where(k.op("or", k.op("isnan", y), first_wins), x, y)
    result = k.op(op, _no_bool(x), y)
    if not x.dtype.is_float:
        return result
    return k.where(k.op("isnan", x), y, k.where(k.op("isnan", y), x, result))


@table.lowers(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(call: Call, input: Operand, other: Operand | Number) -> None:
    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        size = k.op("abs", x)
        return k.where(k.op("signbit", y), k.op("neg", size), size)

    pointwise(call, ["self", "other"], body, Promotion.INT_TO_FLOAT)


@table.lowers(aten.addcmul.default)
def addcmul(call: Call, input: Operand, tensor1: Operand, tensor2: Operand, value: Number) -> None:
    pointwise(
        call,
        ["self", "tensor1", "tensor2"],
        lambda k, x, a, b: k.op("add", x, _scaled(k, k.op("mul", _no_bool(a), b), value)),
    )


@table.lowers(aten.addcdiv.default)
def addcdiv(call: Call, input: Operand, tensor1: Operand, tensor2: Operand, value: Number) -> None:
    def body(k: KernelBuilder, x: Value, a: Value, b: Value) -> Value:
        require(x.dtype.is_float, "addcdiv of integers")
        return k.op("add", x, k.op("div", _scaled(k, a, value), b))

    pointwise(call, ["self", "tensor1", "tensor2"], body)


@table.lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(call: Call, input: Operand, end: Operand, weight: Operand | Number) -> None:
    """From the nearer end, as `at::native::lerp`, each product and sum rounded once."""

    def body(k: KernelBuilder, x: Value, y: Value, w: Value) -> Value:
        require(x.dtype.is_float, "lerp of integers")
        step = k.op("sub", y, x)
        near = k.op("lt", k.op("abs", w), k.const(0.5, w.dtype))
        forward = k.op("fma", w, step, x)
        rest = k.op("sub", w, k.const(1.0, w.dtype))
        return k.where(near, forward, k.op("fma", step, rest, y))

    pointwise(call, ["self", "end", "weight"], body)


# -- comparison, logic, bits


def _comparison(op: str) -> Any:
    def lowering(call: Call, input: Operand, other: Operand | Number) -> None:
        common, compute = promoted(call, ["self", "other"], Promotion.ALWAYS_BOOL)
        if common is DType.bool_:
            common = compute = DType.i32
        out = call.out
        k = call.kernel(out.size)
        x = load_as(k, input, out.size, common, compute)
        y = load_as(k, other, out.size, common, compute, rounded=True)
        k.store(out.operand, k.coords, k.op(op, x, y))
        call.emit_kernel(k)

    return lowering


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    for _overload in ("Tensor", "Scalar"):
        table.add(getattr(getattr(aten, _name), _overload), _comparison(_name))


def _logical(op: str) -> Any:
    def lowering(call: Call, input: Operand, other: Operand) -> None:
        out = call.out
        k = call.kernel(out.size)
        x, y = (
            k.cast(k.load_broadcast(a, out.size, k.coords), DType.bool_) for a in (input, other)
        )
        k.store(out.operand, k.coords, k.op(op, x, y))
        call.emit_kernel(k)

    return lowering


for _name, _op in (("logical_and", "and"), ("logical_or", "or"), ("logical_xor", "xor")):
    table.add(getattr(aten, _name).default, _logical(_op))


@table.lowers(aten.logical_not.default)
def logical_not(call: Call, input: Operand) -> None:
    out = call.out
    k = call.kernel(out.size)
    x = k.cast(k.load_broadcast(input, out.size, k.coords), DType.bool_)
    k.store(out.operand, k.coords, k.op("not", x))
    call.emit_kernel(k)


def _bitwise(op: str) -> Any:
    def lowering(call: Call, input: Operand, other: Operand | Number) -> None:
        pointwise(call, ["self", "other"], lambda k, x, y: k.op(op, _bits(x), y))

    return lowering


def _bits(x: Value) -> Value:
    require(not x.dtype.is_float, "bits of a float")
    return x


for _name, _op in (("bitwise_and", "and"), ("bitwise_or", "or"), ("bitwise_xor", "xor")):
    for _overload in ("Tensor", "Scalar"):
        table.add(getattr(getattr(aten, _name), _overload), _bitwise(_op))


@table.lowers(aten.bitwise_not.default)
def bitwise_not(call: Call, input: Operand) -> None:
    pointwise(call, ["self"], lambda k, x: k.op("not", _bits(x)))


def _shift_by(op: str) -> Any:
    def lowering(call: Call, input: Operand, other: Operand) -> None:
        """By the width or more, or a negative count: 0, or -1 of a negative number to the right."""

        def body(k: KernelBuilder, x: Value, y: Value) -> Value:
            require(x.dtype.value.startswith("i"), "a shift of something else than an integer")
            last = 8 * x.dtype.itemsize - 1
            inside = k.op("ge", y, k.const(0, x.dtype))
            inside = k.op("and", inside, k.op("le", y, k.const(last, x.dtype)))
            if op == "shr":
                return k.op("shr", x, k.where(inside, y, k.const(last, x.dtype)))
            zero = k.const(0, x.dtype)
            return k.where(inside, k.op("shl", x, k.where(inside, y, zero)), zero)

        pointwise(call, ["self", "other"], body)

    return lowering


table.lowers(aten.bitwise_left_shift.Tensor, aten.__lshift__.Tensor)(_shift_by("shl"))
table.lowers(aten.bitwise_right_shift.Tensor, aten.__rshift__.Tensor)(_shift_by("shr"))


def _shift(op: str) -> Any:
    def lowering(call: Call, input: Operand, other: Number) -> None:
        """Only by a known count that fits: eager defines the others, machines differ."""

        def body(k: KernelBuilder, x: Value, y: Value) -> Value:
            require(x.dtype.is_int, "a shift of something else than an integer")
            fits = isinstance(other, int) and 0 <= other < 8 * x.dtype.itemsize - 1
            require(fits, f"a shift by {other}")
            return k.op(op, x, y)

        pointwise(call, ["self", "other"], body)

    return lowering


table.lowers(aten.bitwise_left_shift.Tensor_Scalar, aten.__lshift__.Scalar)(_shift("shl"))
table.lowers(aten.bitwise_right_shift.Tensor_Scalar, aten.__rshift__.Scalar)(_shift("shr"))
