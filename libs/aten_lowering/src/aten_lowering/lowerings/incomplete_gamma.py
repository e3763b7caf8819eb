"""The incomplete gamma functions."""

import math
from fractions import Fraction
from functools import cache

import torch

from aten_lowering.builder import Value
from aten_lowering.elementwise import function
from aten_lowering.lowerings.chebyshev import horner
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()

# Of log(gamma(a + 1)) beyond Stirling's formula, by powers of 1/a^2 (times 1/a).
_STIRLING = (-691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_NEAR = 0.3  # x is about a


@cache
def _uniform(powers: int, terms: int) -> tuple[tuple[float, ...], ...]:
    """Of Temme's uniform expansion (DLMF 8.12.7 to 8.12.12) the coefficients of 1/a^k, each by
    powers of eta, the highest first."""
    last = terms + 2 * powers + 2
    alpha = [Fraction(0), Fraction(1), Fraction(1, 3)]
    for n in range(3, last + 1):
        rest = sum(j * alpha[j] * alpha[n - j + 1] for j in range(2, n))
        alpha.append((alpha[n - 1] - rest) / (n + 1))
    first = [Fraction(-1, 3), *((n + 2) * alpha[n + 2] for n in range(1, last - 1))]
    scale = [math.prod(range(1, 2 * k + 2, 2)) * alpha[2 * k + 1] for k in range(powers)]
    rows = [first]
    for k in range(1, powers):
        above = rows[-1]
        sign = (-1) ** k * scale[k]
        rows.append([sign * first[n] + (n + 2) * above[n + 2] for n in range(len(above) - 2)])
    return tuple(tuple(float(c) for c in reversed(row[:terms])) for row in rows)


def _regularized(a: Value, x: Value, upper: bool) -> Value:
    """P(a, x), or Q(a, x) = 1 - P (`upper`), by the series of P, the continued fraction of Q, near
    x = a of large a a uniform expansion, and for small a and x Q's own series. What grows in them
    is computed in f64, and the loops in the type that is asked for."""
    kind, double = x.dtype, x.dtype is DType.f64
    inside = (a > 0) & (x > 0) & (a < math.inf) & (x < math.inf)
    given_a, given_x = a, x
    a, x = inside.choose(a, 1), inside.choose(x, 1)
    wide_a, wide_x = a.to(DType.f64), x.to(DType.f64)
    distance = wide_x - wide_a
    near = abs(distance) < _NEAR * wide_a
    off = distance / wide_a
    # off - log(1 + off), by the series of the area tangent near 0
    s = off / (off + 2)
    odd = horner(s * s, tuple(1 / n for n in range(23 if double else 13, 1, -2)))
    off_log = s * (off - 2 * s * s * odd)
    if double:
        factor = _factor(wide_a, wide_x, near.choose(off_log, off - (wide_x / wide_a)("log")))
    else:
        factor = _factor(wide_a, wide_x, None)

    uniform = (wide_a > (200 if double else 50)) & near
    powers, terms = (8, 20) if double else (4, 9)
    eta = (2 * off_log)("sqrt")
    eta = (off < 0).choose(-eta, eta)
    rest, inverse = wide_a.number(0), 1 / wide_a
    for row in reversed(_uniform(powers, terms)):
        rest = rest("fma", inverse, horner(eta, row))
    rest = rest * (-wide_a * off_log)("exp") * (2 * math.pi * wide_a)("rsqrt")
    half = eta * (0.5 * wide_a)("sqrt")
    far = 0.5 * half("erfc") + rest if upper else 0.5 * (-half)("erfc") - rest

    low = x <= 1.1
    rule = ((x <= 0.5) & (a * x("log") < -0.4)) | ((x > 0.5) & (1.1 * x < a))
    by_series = low.choose(rule, x < a) if upper else low | (x <= a)
    counts = ~uniform & (factor > 0)
    series = factor * a("gamma_series", (by_series & counts).choose(x, 0)).to(DType.f64)
    other = by_series | low | ~counts
    fraction_a, fraction_x = other.choose(1, wide_a), other.choose(1, wide_x)
    least = 4e-16 if double else 1e-8
    fraction = factor * wide_a * fraction_a("gamma_fraction", fraction_x, least)
    if upper:
        value = by_series.choose(1 - series, fraction)
        value = (low & ~by_series).seldom(_upper_near_zero(wide_a, wide_x, double), value)
    else:
        value = by_series.choose(series, 1 - fraction)
    value = uniform.seldom(far, value).to(kind)
    return inside.choose(value, _at_ends(given_a, given_x, upper))


def _factor(a: Value, x: Value, off_log: Value | None) -> Value:
    """`x^a e^-x / gamma(a + 1)`. off_log: `x/a - 1 - log(x/a)`, by which it keeps all bits where a
    is large; else as many as f32 has."""
    if off_log is None:
        z, product = a + 9, a + 1
        for i in range(2, 9):
            product = product * (a + i)
        inverse = (1 / z.to(DType.f32)).to(DType.f64)
        stirling = inverse * horner(inverse * inverse, _STIRLING[-3:])
        power = a * x("log") - x - (z - 0.5) * z("log") + (z - math.log(2 * math.pi) / 2)
        return product * (power - stirling)("exp")
    large = a >= 10
    inverse = 1 / a
    stirling = inverse * horner(inverse * inverse, _STIRLING)
    small = a * x("log") - x - (a + 1)("lgamma")
    power = large.choose(-a * off_log - stirling, small)
    return power("exp") * large.choose((2 * math.pi * a)("rsqrt"), 1)


def _at_ends(a: Value, x: Value, upper: bool) -> Value:
    """Where one is 0, infinite, below 0 or NaN, as eager has it."""
    a_infinite, x_infinite = a("eq", math.inf), x("eq", math.inf)
    no_a, no_x = a("eq", 0), x("eq", 0)
    whole = no_a | x_infinite & ~a_infinite & ~no_x
    value = whole.choose(float(not upper), x.number(float(upper)))
    known = ~(x < 0) & ~(a < 0) & no_a.choose(x > 0, no_x | a_infinite | x_infinite)
    return (known & ~(a_infinite & x_infinite)).choose(value, math.nan)


def _upper_near_zero(a: Value, x: Value, double: bool) -> Value:
    """Q where it is small beside 1, of x up to 1.1."""
    total = x.number(0)
    for n in reversed(range(1, 21 if double else 13)):
        total = (-x / n) * (1 / (a + n) + total)
    power = a * x("log") - (a + 1)("lgamma")
    return -power("expm1") - power("exp") * a * total


@function(table, aten.igamma.default)
def igamma(a: Value, x: Value) -> Value:
    """The lower regularized incomplete gamma function."""
    return _regularized(a, x, False)


@function(table, aten.igammac.default)
def igammac(a: Value, x: Value) -> Value:
    """The upper regularized incomplete gamma function."""
    return _regularized(a, x, True)
