"""Functions of one element, sums, products, powers and extremes, element by element."""

import operator
from functools import reduce

import torch

from aten_lowering.builder import Number, Value
from aten_lowering.call import Call
from aten_lowering.elementwise import Body, arithmetic, elementwise, function, rows
from aten_lowering.errors import require
from aten_lowering.registry import Table
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
    return lambda x: arithmetic(x)(op)


rows(table, function, **{name: _function(name) for name in _FLOAT_FUNCTIONS.split()})
for _name in _ROUNDINGS:
    rows(table, elementwise, **{_name: lambda x, op=_name: x(op) if x.dtype.is_float else x})
rows(table, elementwise, **{name: _function(name) for name in ("neg", "abs")})
rows(table, function, reciprocal=lambda x: 1 / x, atan2=lambda y, x: y("atan2", x))
rows(
    table,
    elementwise,
    square=lambda x: arithmetic(x) * x,
    frac=lambda x: x - x("trunc"),
    hypot=lambda x, y: x("hypot", y),  # without overflow on the way
    # NaN if either is
    maximum=lambda x, y: x("or" if x.dtype is DType.bool_ else "maximum", y),
    minimum=lambda x, y: x("and" if x.dtype is DType.bool_ else "minimum", y),
    # where one is NaN, the other
    fmax=lambda x, y, *, call: _other_if_nan(call, "maximum", x, y),
    fmin=lambda x, y, *, call: _other_if_nan(call, "minimum", x, y),
)


@elementwise(table, aten.sign.default, aten.sgn.default)
def sign(x: Value) -> Value:
    """-1, 0 or 1; 0 of NaN. A boolean is its own sign."""
    if x.dtype is DType.bool_:
        return x
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


# -- sums and products


@elementwise(table, aten.add.Tensor, aten.add.Scalar, rounded=None)
def add(x: Value, y: Value, *, alpha: Number) -> Value:
    """`x + alpha * y`; of booleans, "or"."""
    if x.dtype is DType.bool_:
        require(alpha == 1, "alpha on bool")
        return x | y
    return _plus(x, y, alpha)


@elementwise(table, aten.sub.Tensor, aten.sub.Scalar, rounded=None)
def sub(x: Value, y: Value, *, alpha: Number) -> Value:
    """`x - alpha * y`."""
    return _plus(arithmetic(x), y, alpha, -1)


@elementwise(table, aten.rsub.Tensor, aten.rsub.Scalar, rounded=None)
def rsub(x: Value, y: Value, *, alpha: Number) -> Value:
    """`y - alpha * x`."""
    return sub(y, x, alpha=alpha)


def _plus(x: Value, y: Value, alpha: Number, sign: int = 1) -> Value:
    """`x + sign * alpha * y`, rounded once, as compilers contract eager's kernels."""
    if alpha == 1:
        return x + y if sign == 1 else x - y
    return y.number(sign * _factor(alpha, y))("fma", y, x)


def _scaled(x: Value, alpha: Number) -> Value:
    """`alpha * x`."""
    return x if alpha == 1 else _factor(alpha, x) * x


def _factor(alpha: Number, x: Value) -> int | float:
    require(isinstance(alpha, int) or (isinstance(alpha, float) and x.dtype.is_float), "alpha")
    assert isinstance(alpha, int | float)
    return alpha


@elementwise(table, aten.mul.Tensor, aten.mul.Scalar)
def mul(x: Value, y: Value) -> Value:
    """`x * y`; of booleans, "and"."""
    return x("and" if x.dtype is DType.bool_ else "mul", y)


@elementwise(table, aten.addcmul.default)
def addcmul(x: Value, a: Value, b: Value, *, value: Number) -> Value:
    """`x + value * a * b`; rounded once where that is a product of two."""
    if x.dtype.is_float and value in (1, -1):
        return arithmetic(a)("fma", b if value == 1 else -b, x)
    return x + _scaled(arithmetic(a) * b, value)


@elementwise(table, aten.addcdiv.default)
def addcdiv(x: Value, a: Value, b: Value, *, value: Number) -> Value:
    """`x + value * a / b`, of floats."""
    require(x.dtype.is_float, "addcdiv of integers")
    return x + _scaled(a, value) / b


@elementwise(table, aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(x: Value, y: Value, w: Value) -> Value:
    """`x + w * (y - x)` from the nearer end, as `at::native::lerp`, each product and sum rounded
    once."""
    require(x.dtype.is_float, "lerp of integers")
    step = y - x
    return (abs(w) < 0.5).choose(w("fma", step, x), step("fma", w - 1.0, y))


# -- powers


@elementwise(table, aten.pow.Tensor_Scalar, rounded=True)
def pow_scalar(x: Value, y: Value, *, call: Call) -> Value:
    """Small whole exponents by multiplication, square roots as such: what eager does."""
    exponent = call.arguments["exponent"]
    # On the CPU eager has no square root of f16 here, but `pow`.
    half = call.on_cpu and call.out.dtype is DType.f16 and exponent in (0.5, -0.5)
    require(not half, "a square root as a power in f16")
    if exponent == 0.5 and x.dtype.is_float:
        return x("sqrt")
    whole = isinstance(exponent, int | float) and exponent in (1, 2, 3)
    if whole or (isinstance(exponent, int) and 0 < exponent <= 16 and x.dtype.is_int):
        return repeated(arithmetic(x), int(exponent))
    require(x.dtype.is_float, f"integer power {exponent}")
    if exponent == -0.5:
        return x("rsqrt")
    if exponent == -1:
        return 1 / x
    if exponent == -2:
        return 1 / (x * x)
    return x("pow", y)


def repeated(x: Value, n: int) -> Value:
    """`x` to the power of `n`, by multiplication."""
    return reduce(operator.mul, [x] * n)


@elementwise(table, aten.pow.Tensor_Tensor, aten.pow.Scalar, rounded=True)
def pow_(x: Value, y: Value) -> Value:
    """`x` to the power of `y`."""
    return x("pow", y) if x.dtype.is_float else _whole_power(arithmetic(x), y)


def _whole_power(x: Value, n: Value) -> Value:
    """Of integers: 0 for a negative exponent, but of 1 and -1."""
    power = x("pow", n("maximum", 0))
    if x.dtype.value.startswith("u"):
        return power
    odd = (n & 1)("eq", 1)
    small = x("eq", -1).choose(odd.choose(-1, x.number(1)), 0)
    return (n < 0).choose(x("eq", 1).choose(1, small), power)


# -- extremes and signs


def _other_if_nan(call: Call, op: str, x: Value, y: Value) -> Value:
    """`op(x, y)`; where one is NaN, the other. Of two zeros C's functions take the first, and
    torch's own for bfloat16 the second."""
    if x.dtype.is_float and call.on_cpu:
        x, y = (y, x) if call.out.dtype is DType.bf16 else (x, y)
        first_wins = x({"maximum": "ge", "minimum": "le"}[op], y)
        return (y("isnan") | first_wins).choose(x, y)
    result = arithmetic(x)(op, y)
    if not x.dtype.is_float:
        return result
    return x("isnan").choose(y, y("isnan").choose(x, result))


@function(table, aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(x: Value, y: Value) -> Value:
    """The magnitude of `x` with the sign of `y`."""
    magnitude = abs(x)
    return y("signbit").choose(-magnitude, magnitude)
