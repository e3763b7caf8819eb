"""Interval arithmetic over exact numbers. An open end is minus or plus infinity (a float); every
finite end is an int or a Fraction."""

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import TypeAlias

from symexpr.limits import MAX_BITS, power_bits

Number: TypeAlias = int | Fraction | float
Interval: TypeAlias = tuple[Number, Number]

INF = math.inf
ALL: Interval = (-INF, INF)
MAX_EXACT_FLOAT = 2**53


def hull(parts: Iterable[Interval]) -> Interval:
    """The least interval that holds all of these, of which there is one at least."""
    found = list(parts)
    return min(p[0] for p in found), max(p[1] for p in found)


def meet(x: Interval, y: Interval) -> Interval:
    """What is in both; the low end is above the high one where nothing is."""
    return max(x[0], y[0]), min(x[1], y[1])


def add(x: Interval, y: Interval) -> Interval:
    """Sums of one number of each."""
    lo = -INF if x[0] == -INF or y[0] == -INF else x[0] + y[0]
    hi = INF if x[1] == INF or y[1] == INF else x[1] + y[1]
    return lo, hi


def neg(x: Interval) -> Interval:
    """The negated numbers."""
    return -x[1], -x[0]


def _times(a: Number, b: Number) -> Number:
    if a == 0 or b == 0:
        return 0
    if abs(a) == INF or abs(b) == INF:
        return INF if (a > 0) == (b > 0) else -INF
    return a * b


def mul(x: Interval, y: Interval) -> Interval:
    """Products of one number of each."""
    corners = [_times(a, b) for a in x for b in y]
    return min(corners), max(corners)


def _over(a: Number, b: Number) -> Number:
    """Floor of a/b at a corner; infinities stand for limits."""
    if abs(b) == INF:
        if abs(a) == INF:
            return 0 if (a > 0) == (b > 0) else -1
        return 0 if a == 0 or (a > 0) == (b > 0) else -1
    if abs(a) == INF:
        return INF if (a > 0) == (b > 0) else -INF
    return a // b


def _signed_parts(y: Interval) -> list[Interval]:
    """The negative and the positive integers of an interval."""
    parts: list[Interval] = []
    if y[0] < 0:
        parts.append((y[0], min(y[1], -1)))
    if y[1] > 0:
        parts.append((max(y[0], 1), y[1]))
    return parts


def floordiv(x: Interval, y: Interval) -> Interval:
    """Integers; zero is left out of the divisor."""
    corners = [_over(a, b) for part in _signed_parts(y) for a in x for b in part]
    return (min(corners), max(corners)) if corners else ALL


def ceildiv(x: Interval, y: Interval) -> Interval:
    """Quotients of integers, rounded up; zero is left out of the divisor."""
    return neg(floordiv(neg(x), y))


def truediv(x: Interval, y: Interval) -> Interval:
    """Exact quotients; open where the divisor may be zero."""
    if y[0] <= 0 <= y[1]:
        return ALL
    inverse = [0 if abs(b) == INF else Fraction(1) / Fraction(b) for b in y]
    return mul(x, (min(inverse), max(inverse)))


def mod(x: Interval, y: Interval) -> Interval:
    """Integers; the result has the sign of the divisor."""
    parts = _signed_parts(y)
    return hull(_mod_one_sign(x, p) for p in parts) if parts else ALL


def _mod_one_sign(x: Interval, y: Interval) -> Interval:
    if y[1] < 0:
        return neg(_mod_one_sign(neg(x), neg(y)))
    if y[0] == y[1] and abs(x[0]) != INF and abs(x[1]) != INF and x[0] // y[0] == x[1] // y[0]:
        return x[0] % y[0], x[1] % y[0]
    if x[0] >= 0 and x[1] < y[0]:
        return x
    return 0, min(y[1] - 1, x[1]) if x[0] >= 0 else y[1] - 1


def power(x: Interval, y: Interval) -> Interval:
    """`x ** y`; open where it would be costly or is not defined."""
    if y[0] == y[1] and isinstance(y[0], int):
        n = y[0]
        if n < 0:
            return truediv((1, 1), power(x, (-n, -n)))
        corners = [_power(a, n) for a in x]
        if n % 2 == 0 and x[0] < 0 < x[1]:
            corners.append(0)
        return min(*corners, LARGE), max(*corners, -LARGE)
    if x[0] >= 1 and y[0] >= 0:
        return min(_power(x[0], y[0]), LARGE), _power(x[1], y[1])
    if x[0] >= 0 and y[0] >= 0:
        return 0, max(1, _power(x[1], y[1]))
    return ALL


# What is not computed is beyond it: `2 ** n` of n > MAX_BITS.
LARGE = 2**MAX_BITS


def _power(a: Number, n: Number) -> Number:
    if n == 0 or a == 1:
        return 1
    costly = isinstance(a, int) and isinstance(n, int) and power_bits(a, n) > 2 * MAX_BITS
    if abs(a) == INF or abs(n) == INF or n > MAX_BITS or costly:
        return a if n == 1 else (-INF if a < 0 and n % 2 == 1 else INF)
    return a**n


def outward(x: Interval) -> Interval:
    """The integers around an interval: also around its values rounded to floats."""
    lo = math.floor(x[0]) if -MAX_EXACT_FLOAT <= x[0] <= MAX_EXACT_FLOAT else -INF
    hi = math.ceil(x[1]) if -MAX_EXACT_FLOAT <= x[1] <= MAX_EXACT_FLOAT else INF
    return lo, hi


def _bits(x: Number) -> int:
    return int(x).bit_length() if x >= 0 else (-int(x) - 1).bit_length()


def bitwise(name: str, x: Interval, y: Interval) -> Interval:
    """And, or, xor, from signs and widths."""
    if name == "BitwiseAnd" and (x[0] >= 0 or y[0] >= 0):
        return 0, min(x[1] if x[0] >= 0 else INF, y[1] if y[0] >= 0 else INF)
    if INF in (abs(x[0]), abs(x[1]), abs(y[0]), abs(y[1])):
        return (0, INF) if x[0] >= 0 and y[0] >= 0 else ALL
    top = 2 ** max(map(_bits, (*x, *y)))
    if x[0] >= 0 and y[0] >= 0:
        return (max(x[0], y[0]) if name == "BitwiseOr" else 0), top - 1
    return -top, top - 1
