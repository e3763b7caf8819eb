"""Activation functions, computed in f32 for 16-bit floats as eager does."""

import math

import torch

from aten_lowering.builder import Number, Value
from aten_lowering.call import Call, known
from aten_lowering.elementwise import elementwise, rows
from aten_lowering.errors import require
from aten_lowering.lowerings.selection import at_least, at_most
from aten_lowering.registry import Table

aten = torch.ops.aten
table = Table()


def _float(x: Value) -> Value:
    require(x.dtype.is_float, "an activation of integers")
    return x


@elementwise(table, aten.relu.default)
def relu(x: Value) -> Value:
    """`max(x, 0)`; NaN of NaN."""
    require(x.dtype.is_float or x.dtype.is_int, "relu of bool")
    return at_least(x, 0)


@elementwise(table, aten.gelu.default)
def gelu(x: Value, *, approximate: str) -> Value:
    """`none`: x/2 (1 + erf(x / sqrt 2)); `tanh`: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    require(approximate in ("none", "tanh"), f"gelu approximate={approximate}")
    half = _float(x) * 0.5
    if approximate == "none":
        inner = (x * math.sqrt(0.5))("erf")
    else:
        inner = (math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x)))("tanh")
    return half * (inner + 1.0)


rows(
    table,
    elementwise,
    sigmoid_backward=lambda grad, y: grad * (1.0 - _float(y)) * y,  # `y`: the sigmoid
    silu=lambda x: _float(x) * x("sigmoid"),
    hardsigmoid=lambda x: (_float(x) + 3.0)("maximum", 0.0)("minimum", 6.0) / 6.0,
    # NaN of NaN
    hardtanh=lambda x, *, min_val, max_val: at_most(at_least(x, min_val), max_val),
)


@elementwise(table, aten.mish.default)
def mish(x: Value) -> Value:
    """`x tanh(log(1 + e))`, `e = exp(x)`, is `x n / (n + 2)` with `n = e (e + 2)`; above 20 it is x
    to the last bit, and n may overflow."""
    e = _float(x)("exp")
    n = e * (e + 2.0)
    return (x > 20.0).choose(x, x * (n / (n + 2.0)))


@elementwise(table, aten.softplus.default)
def softplus(x: Value, *, beta: Number, threshold: Number) -> Value:
    """`log(1 + exp(beta x)) / beta`; x where `beta x` is above the threshold."""
    scaled = _float(x) * known(beta)
    soft = scaled("exp")("log1p") / known(beta)
    return (scaled > known(threshold)).choose(x, soft)


@elementwise(table, aten.elu.default)
def elu(x: Value, *, call: Call, alpha: float, scale: float, input_scale: float) -> Value:
    """`scale * x` above 0, `alpha * scale * (exp(input_scale * x) - 1)` below."""
    negative = (_float(x) * input_scale)("expm1") * (alpha * scale)
    positive = x * scale
    # Zero belongs to the positive side on the CPU, to the other in CUDA's kernel: it shows for
    # a negative alpha.
    return (x >= 0 if call.on_cpu else x > 0).choose(positive, negative)


@elementwise(table, aten.softshrink.default, rounded=True)
def softshrink(x: Value, bound: Value) -> Value:
    """`x` nearer to 0 by the bound; NaN of NaN."""
    # What is between is the positive zero on CUDA; the vectors and loops of the CPU differ.
    below = (_float(x) < -bound).choose(x + bound, 0.0)
    return x("isnan").choose(x, (x > bound).choose(x - bound, below))


@elementwise(table, aten.threshold.default)
def threshold(x: Value, *, threshold: Number, value: Number) -> Value:
    """`x` above the threshold, `value` up to it."""
    keep = x > known(threshold)
    if x.dtype.is_float:  # NaN is kept, as in eager
        keep = keep | x("isnan")
    return keep.choose(x, known(value))
