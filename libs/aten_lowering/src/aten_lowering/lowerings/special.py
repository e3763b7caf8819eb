"""Functions of mathematics that eager computes by formulas of its own (ATen/native/Math.h)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from aten_lowering.builder import KernelBuilder, Operand, Value
from aten_lowering.call import Call
from aten_lowering.elementwise import elementwise, pointwise
from aten_lowering.errors import require
from aten_lowering.registry import Table
from aten_lowering.torch_compat import Promotion
from loop_ir import DType

aten = torch.ops.aten
table = Table()

# Of the series of digamma in 1/x^2 (cephes, `psi`), the highest power first.
_PSI = (1 / 12, -2.10927960927960927961e-2, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)


@elementwise(table, aten.hypot.default)
def hypot(k: KernelBuilder, x: Value, y: Value) -> Value:
    """`sqrt(x * x + y * y)`, without overflow on the way."""
    return k.op("hypot", x, y)


@table.lowers(aten.polygamma.default)
def polygamma(call: Call, n: int, input: Operand) -> None:
    """The derivative of order n of digamma, 0 or 1."""
    require(n in (0, 1), f"polygamma of order {n}")
    pointwise(call, ["self"], _trigamma if n else digamma, Promotion.INT_TO_FLOAT)


def _series(k: KernelBuilder, z: Value, coefficients: Sequence[float]) -> Value:
    result = k.const(coefficients[0], z.dtype)
    for coefficient in coefficients[1:]:
        result = k.op("fma", result, z, k.const(coefficient, z.dtype))
    return result


@elementwise(table, aten.digamma.default, kind=Promotion.INT_TO_FLOAT)
def digamma(k: KernelBuilder, x: Value) -> Value:
    """The derivative of the logarithm of the gamma function: up to 10 by the recurrence, behind it
    by the series; reflected below 0, in f64 as eager: near a pole each rounding is multiplied."""

    def number(value: float) -> Value:
        return k.const(value, x.dtype)

    negative = k.op("lt", x, number(0))
    a = k.where(negative, k.op("sub", number(1), x), x)
    result = number(0)
    for _ in range(10):
        small = k.op("lt", a, number(10))
        term = k.where(small, k.op("div", number(1), a), number(0))
        result = k.op("sub", result, term)
        a = k.where(small, k.op("add", a, number(1)), a)
    inverse = k.op("div", number(1), k.op("mul", a, a))
    series = k.op("mul", inverse, _series(k, inverse, _PSI))
    half = k.op("sub", k.op("log", a), k.op("div", number(0.5), a))
    result = k.op("add", result, k.op("sub", half, series))
    pi = k.const(math.pi, DType.f64)
    part = k.op("mul", k.cast(k.op("sub", x, k.op("trunc", x)), DType.f64), pi)
    cotangent = k.cast(k.op("div", pi, k.op("tan", part)), x.dtype)
    reflected = k.op("sub", result, cotangent)
    result = k.where(negative, reflected, result)
    pole = k.op("and", negative, k.op("eq", x, k.op("trunc", x)))
    at_zero = k.where(k.op("signbit", x), number(math.inf), number(-math.inf))
    result = k.where(pole, number(math.nan), result)
    return k.where(k.op("eq", x, number(0)), at_zero, result)


def _trigamma(k: KernelBuilder, x: Value) -> Value:
    def number(value: float) -> Value:
        return k.const(value, x.dtype)

    low = k.op("lt", x, number(0.5))
    sine = k.op("sin", k.op("mul", x, number(math.pi)))
    share = k.op("div", number(-math.pi * math.pi), k.op("mul", sine, sine))
    a = k.where(low, k.op("sub", number(1), x), x)
    result = k.where(low, share, number(0))
    for _ in range(6):
        result = k.op("add", result, k.op("div", number(1), k.op("mul", a, a)))
        a = k.op("add", a, number(1))
    inverse = k.op("div", number(1), k.op("mul", a, a))
    series = k.op("mul", inverse, _series(k, inverse, (1 / 42, -1 / 30, 1 / 6)))
    series = k.op("add", series, k.op("div", number(0.5), a))
    series = k.op("div", k.op("add", series, number(1)), a)
    result = k.op("add", result, series)
    return k.where(low, k.op("neg", result), result)


@elementwise(table, aten.angle.default, kind=Promotion.INT_TO_FLOAT)
def angle(k: KernelBuilder, x: Value) -> Value:
    """pi of a negative number, 0 of others; NaN of NaN."""
    zero = k.const(0, x.dtype)
    turned = k.where(k.op("lt", x, zero), k.const(math.pi, x.dtype), zero)
    return k.where(k.op("isnan", x), x, turned)


@table.lowers(aten.round.decimals)
def round_decimals(call: Call, input: Operand, decimals: int) -> None:
    """Rounded to that many decimals, halves to even."""

    def body(k: KernelBuilder, x: Value) -> Value:
        require(input.dtype in (DType.f32, DType.f64), "decimals of this type")
        scale = k.const(10.0 ** abs(decimals), x.dtype)
        there, back = ("mul", "div") if decimals >= 0 else ("div", "mul")
        return k.op(back, k.op("round", k.op(there, x, scale)), scale)

    pointwise(call, ["self"], body)


@table.lowers(aten.logit_backward.default)
def logit_backward(call: Call, grad_output: Operand, input: Operand, eps: float | None) -> None:
    """Outside of the range NaN, or 0 where it was clamped to it."""

    def body(k: KernelBuilder, gradient: Value, x: Value) -> Value:
        one = k.const(1, x.dtype)
        low = k.const(0 if eps is None else eps, x.dtype)
        high = k.op("sub", one, low)
        value = k.op("div", gradient, k.op("mul", x, k.op("sub", one, x)))
        if eps is None:
            infinite = k.op("mul", gradient, k.const(math.inf, x.dtype))
            ends = k.op("or", k.op("eq", x, low), k.op("eq", x, one))
            value = k.where(ends, infinite, value)
        outside = k.op("or", k.op("lt", x, low), k.op("gt", x, high))
        return k.where(outside, k.const(math.nan if eps is None else 0, x.dtype), value)

    pointwise(call, ["grad_output", "self"], body)
