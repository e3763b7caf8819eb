"""Chebyshev series of functions of mathematics, each on an interval, to the last bit of f64.

The coefficients are those of the functions at Chebyshev nodes, summed with forty digits (mpmath).
A kernel in f32 takes the first few of them."""

import functools
from dataclasses import dataclass
from fractions import Fraction
from math import factorial
from pathlib import Path

from aten_lowering.builder import Value
from loop_ir import DType

# What a series may leave out beside its largest coefficient.
_NEGLIGIBLE = {DType.f32: 2.0**-27, DType.f64: 2.0**-56}


@dataclass(frozen=True)
class Series:
    """`c0 T0(t) + c1 T1(t) + ...` with `t` from -1 to 1 as `x` goes from `low` to `high`."""

    low: float
    high: float
    coefficients: tuple[float, ...]

    def at(self, x: Value) -> Value:
        """The value at `x`: a polynomial in `t` of as many terms as the type can tell. The terms of
        these series fall so fast that its coefficients are hardly larger than theirs."""
        span = self.high - self.low
        t = x("fma", 2 / span, -(self.low + self.high) / span)
        return horner(t, self.powers(x.dtype))

    @functools.cache  # noqa: B019  # of the few series of this module
    def powers(self, dtype: DType) -> tuple[float, ...]:
        """The coefficients of the powers of `t`, the highest first, rounded once."""
        taken = list(self.coefficients)
        left = _NEGLIGIBLE[dtype] * max(map(abs, taken))
        while (left := left - abs(taken[-1])) > 0:
            taken.pop()
        total = [Fraction(0)] * len(taken)
        here, following = [1], [0, 1]
        for coefficient in taken:
            for power, part in enumerate(here):
                total[power] += part * Fraction(coefficient)
            twice, less = [0, *(2 * c for c in following)], [*here, 0, 0]
            here, following = following, [a - b for a, b in zip(twice, less, strict=True)]
        return tuple(float(c) for c in reversed(total))


def floats(text: str) -> tuple[float, ...]:
    """The numbers of a table."""
    return tuple(map(float, text.split()))


def horner(x: Value, coefficients: tuple[float, ...]) -> Value:
    """The polynomial with these coefficients, that of the highest power first."""
    result = x.number(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result("fma", x, coefficient)
    return result


@functools.cache
def growing(order: int, high: int, dtype: DType) -> tuple[float, ...]:
    """I0, or I1 / x, by powers of x^2 up to `high`, the highest first. All terms of Taylor's series
    are positive; a Chebyshev polynomial takes the place of the highest, one by one, as long as the
    type cannot tell (its error is that of the least value, which is at 0)."""
    terms = [Fraction(high, 4) ** k / (factorial(k) * factorial(k + order)) for k in range(64)]
    polynomials = [[1], [-1, 2]]  # in x^2 / high from 0 to 1
    while len(polynomials) < len(terms):
        before, last = [*polynomials[-2], 0, 0], polynomials[-1]
        twice = zip([0, *(4 * c for c in last)], [*(2 * c for c in last), 0], before, strict=True)
        polynomials.append([a - b - c for a, b, c in twice])
    left = Fraction(_NEGLIGIBLE[dtype])
    while (left := left - terms[-1] / polynomials[len(terms) - 1][-1]) > 0:
        polynomial = polynomials[len(terms) - 1]
        share = terms[-1] / polynomial[-1]
        terms = [t - share * c for t, c in zip(terms, polynomial, strict=True)][:-1]
    return tuple(float(t / high**k / 2**order) for k, t in enumerate(terms))[::-1]


@functools.cache
def series() -> dict[str, Series]:
    """Those of the table beside this file, by name."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    return dict(_read(block) for block in text.split("\n\n")[1:])


def _read(block: str) -> tuple[str, Series]:
    """A name, its interval, and the coefficients on the lines below."""
    title, text = block.split("\n", 1)
    name, low, high = title.split()
    return name, Series(float(Fraction(low)), float(Fraction(high)), floats(text))
