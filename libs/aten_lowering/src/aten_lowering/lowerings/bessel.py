"""Bessel and Airy functions, of which torch has no gradients but those of `i0` and `i1`."""

import math
from collections.abc import Callable
from functools import partial

import torch

from aten_lowering.builder import Value
from aten_lowering.elementwise import function
from aten_lowering.lowerings.chebyshev import growing, horner, series
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()

_ZEROS = (5.783185962946784, 14.681970642123893)  # the first of J0 and of J1, squared


def _j_near(x: Value, order: int) -> Value:
    """J up to 5, with the distance from its first zero as a factor."""
    z = x * x
    even = series()[f"J{order}"].at(z) * (z - _ZEROS[order])
    return x * even if order else even


# sin(r) / r and cos(r) by powers of r^2, to 1e-8 up to pi/2; pi in two parts.
_SINE = (2.59924741e-06, -1.98064386e-04, 8.33301526e-03, -1.66666567e-01, 1.0)
_COSINE = (-2.59918409e-07, 2.47567805e-05, -1.38882955e-03, 4.16666306e-02, -0.5, 1.0)
_PI = (3.1415927410125732, -8.742277657347586e-08)
_WHOLE = 1.5 * 2**23  # beside it, f32 has no fractions


def _far(x: Value, order: int, quarter: bool) -> Value:
    """From 5 on: J, or Y, which is a quarter of a turn behind it."""
    v = x.number(5).over(x)
    p, q = (series()[f"{name}{order}"].at(v * v) for name in "PQ")
    q = q * v

    def wave(along: Value, across: Value) -> Value:
        """Of the cosine and the sine of x - pi/4."""
        for _ in range(order + quarter):
            along, across = across, -along
        return p * along - q * across

    cosine, sine = x("cos") * math.sqrt(0.5), x("sin") * math.sqrt(0.5)
    exact = wave(cosine + sine, sine - cosine)
    if x.dtype is DType.f32:  # half turns are taken off at once, which is exact enough up to 1e5
        turns = x("fma", 1 / math.pi, -0.25) + _WHOLE
        angle = (turns - _WHOLE) + 0.25
        rest = angle("fma", -_PI[1], angle("fma", -_PI[0], x))
        square = rest * rest
        near = wave(horner(square, _COSINE), rest * horner(square, _SINE))
        sign = turns("bitcast", dtype=DType.i32) << 31
        near = (near("bitcast", dtype=DType.i32) ^ sign)("bitcast", dtype=DType.f32)
        exact = (x > 1e5).seldom(exact, near)
    return exact * (x("maximum", 5)("rsqrt") * math.sqrt(2 / math.pi))


def _odd(x: Value, value: Value, order: int) -> Value:
    return (x < 0).choose(-value, value) if order else value


def _j(x: Value, order: int) -> Value:
    a = abs(x)
    return (a > 5).seldom(_odd(x, _far(a, order, False), order), _j_near(x, order))


def _y(x: Value, order: int) -> Value:
    near = series()[f"Y{order}"].at(x * x)
    logarithm = x("log") * _j_near(x, order)
    if order:
        near = x * near
        logarithm = (x("eq", 0)).choose(-math.inf, logarithm - 1 / x)
    return (x > 5).seldom(_far(x, order, True), near + (2 / math.pi) * logarithm)


def _i(x: Value, order: int, scaled: bool) -> Value:
    """I, or `exp(-|x|) I`. The exponential in two halves overflows where I does."""
    a = abs(x)
    near = horner(x * x, growing(order, 64, x.dtype))
    near = a * near if order else near
    far = series()[f"I{order}_FAR"].at(a.number(1).over(a)) * a("rsqrt")
    if scaled:
        near = near * (-a)("exp")
    else:
        half = (0.5 * a)("exp")
        far = half * far * half
    return _odd(x, (a > 8).seldom(far, near), order)


def _k(x: Value, order: int, scaled: bool) -> Value:
    """K, or `exp(x) K`."""
    z = x * x
    near, other = series()[f"K{order}"].at(z), horner(z, growing(order, 4, x.dtype))
    # of x / 2, which is not exact where x is subnormal
    small = x < 1
    logarithm = small.choose(x, 0.5 * x)("log") - small.choose(x.number(math.log(2)), 0)
    if order:
        near = near / x + logarithm * (x * other)
        near = x("eq", 0).choose(math.inf, near)
    else:
        near = near - logarithm * other
    far = series()[f"K{order}_FAR"].at(x.number(1).over(x)) * x("rsqrt")
    if scaled:
        near = near * x("exp")
    else:
        far = far * (-x)("exp")
    return (x > 2).choose(far, near)


_OF_ORDERS: dict[str, Callable[..., Value]] = {
    "special_bessel_j": _j,
    "special_bessel_y": _y,
    "i": partial(_i, scaled=False),
    "special_i": partial(_i, scaled=False),
    "special_modified_bessel_i": partial(_i, scaled=False),
    "special_modified_bessel_k": partial(_k, scaled=False),
    "special_scaled_modified_bessel_k": partial(_k, scaled=True),
}
for _name, _body in _OF_ORDERS.items():
    for _order in (0, 1):
        if f"{_name}{_order}" not in ("i1", "special_i0"):  # one of each order
            function(table, getattr(aten, f"{_name}{_order}").default)(partial(_body, order=_order))
for _order in (0, 1):
    _scaled = partial(_i, order=_order, scaled=True)
    function(table, getattr(aten, f"special_i{_order}e").default)(_scaled)


@function(table, aten.special_spherical_bessel_j0.default)
def spherical_bessel_j0(x: Value) -> Value:
    """`sin(x) / x`."""
    value = x("eq", 0).choose(1, x("sin") / x)
    return x("isinf").choose(0, value)


@function(table, aten.special_airy_ai.default)
def airy_ai(x: Value) -> Value:
    """Ai: waves below -3, an exponential above 1.5; NaN at infinities, as eager's."""
    a = abs(x)
    root = a("sqrt")
    s = 2 * a * root / 3
    size = root("rsqrt")
    inverse = s.number(1).over(s)
    cosine, sine = s("cos"), s("sin")
    square = inverse * inverse
    waves = series()["AIRY_P"].at(square) * (cosine + sine)
    waves = waves + series()["AIRY_Q"].at(square) * inverse * (sine - cosine)
    above = series()["AIRY_FAR"].at(inverse) * (-s)("exp") * size
    value = (x > 1.5).choose(above, series()["AIRY"].at(x))
    value = (x < -3).choose(waves * size * (1 / math.sqrt(2 * math.pi)), value)
    return x("isinf").choose(math.nan, value)
