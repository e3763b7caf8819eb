"""Scalar operations of as many steps as an element asks for, in numpy."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = Any  # an ndarray of ints or floats


def _gcd(x: Array, y: Array) -> Array:
    a, b = np.abs(x), np.abs(y)
    while (a != 0).any():
        rest = np.fmod(b, np.where(a == 0, 1, a))
        a, b = np.where(a == 0, a, rest), np.where(a == 0, b, a)
    return b


def _zeta(x: Array, q: Array) -> Array:
    """Where it has a value: of `q + k` up to 20 one by one, the rest by Euler and Maclaurin."""
    x, q = x.astype(np.float64), q.astype(np.float64)
    known = (x > 1) & ((q > 0) | ((np.floor(q) != q) & (np.floor(x) == x)))
    a = np.where(known, q, 1.0)
    total = np.zeros_like(a)
    while (left := a < 20).any():
        total += np.where(left, a**-x, 0.0)
        a = np.where(left, a + 1, a)
    power = a**-x
    total += a * power / (x - 1) + power / 2
    for k, scale in enumerate((12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1892437580.318)):
        rising = np.prod([x + i for i in range(2 * k + 1)], axis=0)
        total += np.where(power == 0, 0.0, rising * power / a ** (2 * k + 1) / scale)
    return np.where(known, total, np.nan)


def _gamma_series(a: Array, x: Array) -> Array:
    """The sum of `x^k / ((a + 1) ... (a + k))`."""
    total = term = np.ones_like(x)
    count = 0
    while (term > np.finfo(x.dtype).eps / 4 * total).any() and count < 2000:
        count += 1
        term = term * (x / (a + count))
        total = total + term
    return total


def _gamma_fraction(a: Array, x: Array, _: Array) -> Array:
    """`1 / (x + 1 - a - (1 - a) / (x + 3 - a - ...))`, from the end."""
    a, x = a.astype(np.float64), x.astype(np.float64)
    below = x * 0
    for k in range(500, 0, -1):
        below = k * (k - a) / (x + 2 * k + 1 - a - below)
    return 1 / (x + 1 - a - below)


def _polynomial(step: Callable[..., Array]) -> Callable[..., Array]:
    """By a recurrence from 1 and the first: of `step(k, p[k], p[k - 1], ...)`, `p[k + 1]`."""

    def run(first: Array, *given: Array) -> Array:
        *others, n = given
        before, last = np.ones_like(first), first
        for k in range(1, int(n.max(initial=0))):
            if not (k < n).any():
                break
            following = step(first.dtype.type(k), last, before, *others)
            before, last = np.where(k < n, last, before), np.where(k < n, following, last)
        return np.where(n <= 0, 1, last)

    return run


_CHEBYSHEV = _polynomial(lambda k, last, before, x: (x + x) * last - before)
_HERMITE = _polynomial(lambda k, last, before, x, c: x * last - k * c * before)
_LAGUERRE = _polynomial(
    lambda k, last, before, x: ((k + k + (1 - x)) * last - k * before) / (k + 1)
)
_LEGENDRE = _polynomial(lambda k, last, before, x: ((k + k + 1) * x * last - k * before) / (k + 1))
ITERATED: Mapping[str, Callable[..., Array]] = {
    "gcd": _gcd,
    "zeta": _zeta,
    "gamma_series": _gamma_series,
    "gamma_fraction": _gamma_fraction,
    "chebyshev": lambda x, first, n: _CHEBYSHEV(first, x, n),
    "hermite": lambda x, c, n: _HERMITE(x, x, c, n),
    "laguerre": lambda x, n: _LAGUERRE(1 - x, x, n),
    "legendre": lambda x, n: _LEGENDRE(x, x, n),
}
