"""Activation functions, computed in f32 for 16-bit floats as eager does."""

from __future__ import annotations

import math

import torch

from aten_lowering.builder import KernelBuilder, Operand, Value
from aten_lowering.call import Call, Number
from aten_lowering.elementwise import elementwise, pointwise
from aten_lowering.errors import require
from aten_lowering.lowerings.selection import at_least, at_most
from aten_lowering.registry import Table

aten = torch.ops.aten
table = Table()


def _float(x: Value) -> Value:
    require(x.dtype.is_float, "an activation of integers")
    return x


@elementwise(table, aten.relu.default)
def relu(k: KernelBuilder, x: Value) -> Value:
    """`max(x, 0)`; NaN of NaN."""
    require(x.dtype.is_float or x.dtype.is_int, "relu of bool")
    return at_least(k, x, k.const(0, x.dtype))


@table.lowers(aten.gelu.default)
def gelu(call: Call, input: Operand, approximate: str) -> None:
    """`none`: x/2 (1 + erf(x / sqrt 2)); `tanh`: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    require(approximate in ("none", "tanh"), f"gelu approximate={approximate}")

    def body(k: KernelBuilder, x: Value) -> Value:
        half = k.op("mul", _float(x), k.const(0.5, x.dtype))
        if approximate == "none":
            inner = k.op("erf", k.op("mul", x, k.const(math.sqrt(0.5), x.dtype)))
        else:
            cube = k.op("mul", k.op("mul", x, x), x)
            sum_ = k.op("add", x, k.op("mul", k.const(0.044715, x.dtype), cube))
            inner = k.op("tanh", k.op("mul", k.const(math.sqrt(2 / math.pi), x.dtype), sum_))
        return k.op("mul", half, k.op("add", inner, k.const(1.0, x.dtype)))

    pointwise(call, ["self"], body)


@elementwise(table, aten.sigmoid_backward.default)
def sigmoid_backward(k: KernelBuilder, grad: Value, y: Value) -> Value:
    """`grad * (1 - y) * y`, `y` the sigmoid."""
    rest = k.op("sub", k.const(1.0, y.dtype), _float(y))
    return k.op("mul", k.op("mul", grad, rest), y)


@elementwise(table, aten.silu.default)
def silu(k: KernelBuilder, x: Value) -> Value:
    """`x * sigmoid(x)`."""
    return k.op("mul", _float(x), k.op("sigmoid", x))


@elementwise(table, aten.mish.default)
def mish(k: KernelBuilder, x: Value) -> Value:
    """`x tanh(log(1 + e))`, `e = exp(x)`, is `x n / (n + 2)` with `n = e (e + 2)`; above 20 it is x
    to the last bit, and n may overflow."""
    two = k.const(2.0, x.dtype)
    e = k.op("exp", _float(x))
    n = k.op("mul", e, k.op("add", e, two))
    share = k.op("div", n, k.op("add", n, two))
    large = k.op("gt", x, k.const(20.0, x.dtype))
    return k.where(large, x, k.op("mul", x, share))


@table.lowers(aten.softplus.default)
def softplus(call: Call, input: Operand, beta: Number, threshold: Number) -> None:
    """`log(1 + exp(beta x)) / beta`; x where `beta x` is above the threshold."""
    require(isinstance(beta, int | float) and isinstance(threshold, int | float), "symbolic beta")
    assert isinstance(beta, int | float) and isinstance(threshold, int | float)

    def body(k: KernelBuilder, x: Value) -> Value:
        b = k.const(beta, _float(x).dtype)
        scaled = k.op("mul", x, b)
        soft = k.op("div", k.op("log1p", k.op("exp", scaled)), b)
        return k.where(k.op("gt", scaled, k.const(threshold, x.dtype)), x, soft)

    pointwise(call, ["self"], body)


@table.lowers(aten.elu.default)
def elu(call: Call, input: Operand, alpha: float, scale: float, input_scale: float) -> None:
    """`scale * x` above 0, `alpha * scale * (exp(input_scale * x) - 1)` below."""

    def body(k: KernelBuilder, x: Value) -> Value:
        negative = k.op("expm1", k.op("mul", _float(x), k.const(input_scale, x.dtype)))
        negative = k.op("mul", negative, k.const(alpha * scale, x.dtype))
        positive = k.op("mul", x, k.const(scale, x.dtype))
        # Zero belongs to the positive side on the CPU, to the other in CUDA's kernel: it shows for
        # a negative alpha.
        upper = "ge" if call.on_cpu else "gt"
        return k.where(k.op(upper, x, k.const(0, x.dtype)), positive, negative)

    pointwise(call, ["self"], body)


@table.lowers(aten.hardtanh.default)
def hardtanh(call: Call, input: Operand, min_val: float, max_val: float) -> None:
    """`min(max(x, min_val), max_val)`; NaN of NaN."""

    def body(k: KernelBuilder, x: Value) -> Value:
        low = at_least(k, x, k.const(min_val, x.dtype))
        return at_most(k, low, k.const(max_val, x.dtype))

    pointwise(call, ["self"], body)


@elementwise(table, aten.softshrink.default, rounded=True)
def softshrink(k: KernelBuilder, x: Value, bound: Value) -> Value:
    """`x` nearer to 0 by the bound; NaN of NaN."""
    # What is between is the positive zero on CUDA; the vectors and loops of the CPU differ.
    zero = k.const(0.0, _float(x).dtype)
    below = k.where(k.op("lt", x, k.op("neg", bound)), k.op("add", x, bound), zero)
    shrunk = k.where(k.op("gt", x, bound), k.op("sub", x, bound), below)
    return k.where(k.op("isnan", x), x, shrunk)


@elementwise(table, aten.hardsigmoid.default)
def hardsigmoid(k: KernelBuilder, x: Value) -> Value:
    """`min(max(x + 3, 0), 6) / 6`."""
    shifted = k.op("add", _float(x), k.const(3.0, x.dtype))
    low = k.op("maximum", shifted, k.const(0.0, x.dtype))
    return k.op("div", k.op("minimum", low, k.const(6.0, x.dtype)), k.const(6.0, x.dtype))


@table.lowers(aten.threshold.default)
def threshold(call: Call, input: Operand, threshold: Number, value: Number) -> None:
    """`x` above the threshold, `value` up to it."""

    def body(k: KernelBuilder, x: Value) -> Value:
        require(isinstance(threshold, int | float) and isinstance(value, int | float), "symbolic")
        assert isinstance(threshold, int | float) and isinstance(value, int | float)
        keep = k.op("gt", x, k.const(threshold, x.dtype))
        if x.dtype.is_float:  # NaN is kept, as in eager
            keep = k.op("or", keep, k.op("isnan", x))
        return k.where(keep, x, k.const(value, x.dtype))

    pointwise(call, ["self"], body)
