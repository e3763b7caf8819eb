"""Functions of one element, sums, products, powers and extremes, element by element."""

from __future__ import annotations

import torch

from aten_lowering.builder import KernelBuilder, Operand, Value
from aten_lowering.call import Call, Number
from aten_lowering.elementwise import Body, arithmetic, elementwise, pointwise
from aten_lowering.errors import require
from aten_lowering.registry import Table
from aten_lowering.torch_compat import Promotion
from loop_ir import DType

aten = torch.ops.aten
table = Table()

# Named alike in ATen and in the loop IR; integers are converted to floats first.
_FLOAT_FUNCTIONS = """
exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sigmoid erf erfc erfinv lgamma
sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh
"""
# Of integers they are the integers themselves.
_ROUNDINGS = ("floor", "ceil", "trunc", "round")


def _function(op: str) -> Body:
    return lambda k, x: k.op(op, arithmetic(x))


def _rounding(op: str) -> Body:
    return lambda k, x: k.op(op, x) if x.dtype.is_float else x


for _name in _FLOAT_FUNCTIONS.split():
    elementwise(table, getattr(aten, _name).default, kind=Promotion.INT_TO_FLOAT)(_function(_name))
for _name in _ROUNDINGS:
    elementwise(table, getattr(aten, _name).default)(_rounding(_name))
for _name in ("neg", "abs"):
    elementwise(table, getattr(aten, _name).default)(_function(_name))


@elementwise(table, aten.reciprocal.default, kind=Promotion.INT_TO_FLOAT)
def reciprocal(k: KernelBuilder, x: Value) -> Value:
    """`1 / x`."""
    return k.op("div", k.const(1, x.dtype), x)


@elementwise(table, aten.square.default)
def square(k: KernelBuilder, x: Value) -> Value:
    """`x * x`."""
    return k.op("mul", arithmetic(x), x)


@elementwise(table, aten.frac.default)
def frac(k: KernelBuilder, x: Value) -> Value:
    """`x - trunc(x)`."""
    return k.op("sub", x, k.op("trunc", x))


@elementwise(table, aten.sign.default, aten.sgn.default)
def sign(k: KernelBuilder, x: Value) -> Value:
    """-1, 0 or 1; 0 of NaN. A boolean is its own sign."""
    if x.dtype is DType.bool_:
        return x
    zero = k.const(0, x.dtype)
    up = k.cast(k.op("gt", x, zero), x.dtype)
    down = k.cast(k.op("lt", x, zero), x.dtype)
    return k.op("sub", up, down)


# -- sums and products


@table.lowers(aten.add.Tensor, aten.add.Scalar)
def add(call: Call, input: Operand, other: Operand | Number, alpha: Number) -> None:
    """`input + alpha * other`; of booleans, "or"."""

    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        if x.dtype is DType.bool_:
            require(alpha == 1, "alpha on bool")
            return k.op("or", x, y)
        return _plus(k, x, y, alpha)

    pointwise(call, ["self", "other"], body, rounded=call.on_cpu)


@table.lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(call: Call, input: Operand, other: Operand | Number, alpha: Number) -> None:
    """`input - alpha * other`."""

    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        return _plus(k, arithmetic(x), y, alpha, -1)

    pointwise(call, ["self", "other"], body, rounded=call.on_cpu)


@table.lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(call: Call, input: Operand, other: Operand | Number, alpha: Number) -> None:
    """`other - alpha * input`."""

    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        return _plus(k, y, arithmetic(x), alpha, -1)

    pointwise(call, ["self", "other"], body, rounded=call.on_cpu)


def _plus(k: KernelBuilder, x: Value, y: Value, alpha: Number, sign: int = 1) -> Value:
    """`x + sign * alpha * y`, rounded once, as compilers contract eager's kernels."""
    if alpha == 1:
        return k.op("add" if sign == 1 else "sub", x, y)
    return k.op("fma", k.const(sign * _factor(alpha, y), y.dtype), y, x)


def _scaled(k: KernelBuilder, x: Value, alpha: Number) -> Value:
    """`alpha * x`."""
    return x if alpha == 1 else k.op("mul", k.const(_factor(alpha, x), x.dtype), x)


def _factor(alpha: Number, x: Value) -> int | float:
    require(isinstance(alpha, int) or (isinstance(alpha, float) and x.dtype.is_float), "alpha")
    assert isinstance(alpha, int | float)
    return alpha


@elementwise(table, aten.mul.Tensor, aten.mul.Scalar)
def mul(k: KernelBuilder, x: Value, y: Value) -> Value:
    """`x * y`; of booleans, "and"."""
    return k.op("and" if x.dtype is DType.bool_ else "mul", x, y)


@table.lowers(aten.addcmul.default)
def addcmul(call: Call, input: Operand, tensor1: Operand, tensor2: Operand, value: Number) -> None:
    """`input + value * tensor1 * tensor2`."""

    def body(k: KernelBuilder, x: Value, a: Value, b: Value) -> Value:
        return k.op("add", x, _scaled(k, k.op("mul", arithmetic(a), b), value))

    pointwise(call, ["self", "tensor1", "tensor2"], body)


@table.lowers(aten.addcdiv.default)
def addcdiv(call: Call, input: Operand, tensor1: Operand, tensor2: Operand, value: Number) -> None:
    """`input + value * tensor1 / tensor2`, of floats."""

    def body(k: KernelBuilder, x: Value, a: Value, b: Value) -> Value:
        require(x.dtype.is_float, "addcdiv of integers")
        return k.op("add", x, k.op("div", _scaled(k, a, value), b))

    pointwise(call, ["self", "tensor1", "tensor2"], body)


@elementwise(table, aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(k: KernelBuilder, x: Value, y: Value, w: Value) -> Value:
    """`x + w * (y - x)` from the nearer end, as `at::native::lerp`, each product and sum rounded
    once."""
    require(x.dtype.is_float, "lerp of integers")
    step = k.op("sub", y, x)
    near = k.op("lt", k.op("abs", w), k.const(0.5, w.dtype))
    forward = k.op("fma", w, step, x)
    rest = k.op("sub", w, k.const(1.0, w.dtype))
    return k.where(near, forward, k.op("fma", step, rest, y))


# -- powers


@table.lowers(aten.pow.Tensor_Scalar)
def pow_scalar(call: Call, input: Operand, exponent: Number) -> None:
    """Small whole exponents by multiplication, square roots as such: what eager does."""

    def body(k: KernelBuilder, x: Value, y: Value) -> Value:
        # On the CPU eager has no square root of f16 here, but `pow`.
        half = call.on_cpu and call.out.dtype is DType.f16 and exponent in (0.5, -0.5)
        require(not half, "a square root as a power in f16")
        if exponent == 0.5 and x.dtype.is_float:
            return k.op("sqrt", x)
        whole = isinstance(exponent, int | float) and exponent in (1, 2, 3)
        if whole or (isinstance(exponent, int) and 0 < exponent <= 16 and x.dtype.is_int):
            return _power(k, arithmetic(x), int(exponent))
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


@elementwise(table, aten.pow.Tensor_Tensor, aten.pow.Scalar, rounded=True)
def pow_(k: KernelBuilder, x: Value, y: Value) -> Value:
    """`x` to the power of `y`."""
    return k.op("pow", x, y) if x.dtype.is_float else _whole_power(k, arithmetic(x), y)


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


# -- extremes, angles and signs


@elementwise(table, aten.atan2.default, kind=Promotion.INT_TO_FLOAT)
def atan2(k: KernelBuilder, y: Value, x: Value) -> Value:
    """The angle of the point (x, y), in (-pi, pi]."""
    return k.op("atan2", y, x)


@elementwise(table, aten.maximum.default)
def maximum(k: KernelBuilder, x: Value, y: Value) -> Value:
    """The larger one; NaN if either is."""
    return k.op("or" if x.dtype is DType.bool_ else "maximum", x, y)


@elementwise(table, aten.minimum.default)
def minimum(k: KernelBuilder, x: Value, y: Value) -> Value:
    """The smaller one; NaN if either is."""
    return k.op("and" if x.dtype is DType.bool_ else "minimum", x, y)


@table.lowers(aten.fmax.default)
def fmax(call: Call, input: Operand, other: Operand) -> None:
    """The larger one; where one is NaN, the other."""
    pointwise(call, ["self", "other"], lambda k, x, y: _other_if_nan(call, k, "maximum", x, y))


@table.lowers(aten.fmin.default)
def fmin(call: Call, input: Operand, other: Operand) -> None:
    """The smaller one; where one is NaN, the other."""
    pointwise(call, ["self", "other"], lambda k, x, y: _other_if_nan(call, k, "minimum", x, y))


def _other_if_nan(call: Call, k: KernelBuilder, op: str, x: Value, y: Value) -> Value:
    """`op(x, y)`; where one is NaN, the other. Of two zeros C's functions take the first, and
    torch's own for bfloat16 the second."""
    if x.dtype.is_float and call.on_cpu:
        x, y = (y, x) if call.out.dtype is DType.bf16 else (x, y)
        first_wins = k.op({"maximum": "ge", "minimum": "le"}[op], x, y)
        return k.where(k.op("or", k.op("isnan", y), first_wins), x, y)
    result = k.op(op, arithmetic(x), y)
    if not x.dtype.is_float:
        return result
    return k.where(k.op("isnan", x), y, k.where(k.op("isnan", y), x, result))


@elementwise(table, aten.copysign.Tensor, aten.copysign.Scalar, kind=Promotion.INT_TO_FLOAT)
def copysign(k: KernelBuilder, x: Value, y: Value) -> Value:
    """The magnitude of `x` with the sign of `y`."""
    magnitude = k.op("abs", x)
    return k.where(k.op("signbit", y), k.op("neg", magnitude), magnitude)
