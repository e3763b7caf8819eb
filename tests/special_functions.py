"""Functions of mathematics on a dense grid: where each is held, against what, and how near.

`tests/test_special_functions.py` runs them on the CPU, `tests/gpu/test_special_functions.py` on a
GPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import torch

_EPS = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


@dataclass(frozen=True)
class Function:
    """`fn`, on `[low, high]`. steps: how far it may be off, in units of the last place of its value
    or (where it goes through zero) of `size` at 1, which falls as a power of x. exact: of a number;
    where it is None eager's f64 is."""

    fn: Callable[[torch.Tensor], torch.Tensor]
    low: float
    high: float
    steps: float = 12
    size: float = 0.0
    power: float = 0.0
    exact: Callable[[Any], Any] | None = None

    def grid(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        """`count` numbers in even distances and half as many by powers of ten, of both signs."""
        even = torch.linspace(self.low, self.high, count, dtype=torch.float64)
        tiny = torch.logspace(-30, 0, count // 4, dtype=torch.float64)
        x = torch.cat([even, tiny, -tiny]).to(dtype)
        return x[(x >= self.low) & (x <= self.high)]

    def faults(self, x: torch.Tensor, got: torch.Tensor) -> str:
        """What is off, if anything."""
        wide = x.double().cpu()
        if self.exact is None:
            want = self.fn(wide)
        else:
            with mpmath.workdps(30):
                numbers = [float(self.exact(mpmath.mpf(v))) for v in wide.tolist()]
            want = torch.tensor(numbers, dtype=torch.float64)
        fine = torch.finfo(x.dtype)
        scale = torch.maximum(want.abs(), self.size * wide.abs().clamp_min(1.0) ** -self.power)
        off = (got.double().cpu() - want).abs() / scale / _EPS[x.dtype]
        held = (want.abs() < fine.max) & (want.abs() > 1e4 * fine.tiny)
        worst = int(torch.where(held, off, 0.0).argmax())
        same = got.dtype == x.dtype and bool((off[held] <= self.steps).all())
        return "" if same else f"{got[worst]}, not {want[worst]}, at {x[worst]}: {off[worst]:.1f}"


def pairs(dtype: torch.dtype) -> torch.Tensor:
    """All pairs of numbers at the ends of a type, and of some between."""
    f = torch.finfo(dtype)
    least = f.smallest_normal * f.eps
    numbers = [0.0, 1.0, 1.5, 0.3, 100.0, f.max, math.inf, least, 3 * least, f.tiny, f.tiny - least]
    signed = [*numbers, *(-v for v in numbers), math.nan]
    return torch.tensor(list(itertools.product(signed, repeat=2))).T.to(dtype)


def of_bits(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Functions that take numbers apart, exactly."""
    return [torch.nextafter(x, y), *torch.frexp(x)]


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Bit for bit, but for NaN."""
    signs = (v.signbit() & ~v.isnan() for v in (got, want))
    numbers = (v.nan_to_num(7.3) for v in (got, want))
    return got.dtype == want.dtype and torch.equal(*numbers) and torch.equal(*signs)


def _of_order(n: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: torch.polygamma(n, x)


S = torch.special
FUNCTIONS = {
    "bessel_j0": Function(S.bessel_j0, -60, 60, 12, 0.3, 0.5, lambda x: mpmath.besselj(0, x)),
    "bessel_j1": Function(S.bessel_j1, -60, 60, 12, 0.3, 0.5, lambda x: mpmath.besselj(1, x)),
    "bessel_y0": Function(S.bessel_y0, 1e-30, 60, 16, 0.3, 0.5, lambda x: mpmath.bessely(0, x)),
    "bessel_y1": Function(S.bessel_y1, 1e-30, 60, 16, 0.3, 0.5, lambda x: mpmath.bessely(1, x)),
    "i0": Function(S.i0, -80, 80, 16),
    "i0e": Function(S.i0e, -80, 80),
    "i1": Function(S.i1, -80, 80, 16),
    "i1e": Function(S.i1e, -80, 80),
    "modified_bessel_i0": Function(S.modified_bessel_i0, -80, 80, 16),
    "modified_bessel_i1": Function(S.modified_bessel_i1, -80, 80, 16),
    "modified_bessel_k0": Function(S.modified_bessel_k0, 1e-30, 80),
    "modified_bessel_k1": Function(S.modified_bessel_k1, 1e-30, 80),
    "scaled_modified_bessel_k0": Function(S.scaled_modified_bessel_k0, 1e-30, 80),
    "scaled_modified_bessel_k1": Function(S.scaled_modified_bessel_k1, 1e-30, 80),
    "spherical_bessel_j0": Function(S.spherical_bessel_j0, -60, 60, 4, 0.3, 1),
    "airy_ai": Function(S.airy_ai, -20, 8, 256, 0.3, 0.25, mpmath.airyai),
    "erfcx": Function(S.erfcx, -9, 80, 80),
    "ndtri": Function(S.ndtri, 1e-30, 1 - 2**-20, 12, 0.3),
    "log_ndtr": Function(S.log_ndtr, -80, 5, 40),
    "digamma": Function(S.digamma, 0.05, 80, 12, 1),
    **{f"polygamma {n}": Function(_of_order(n), 0.05, 80, 16) for n in (2, 3, 6)},
    "polygamma 4 below 0": Function(_of_order(4), -5.9, -0.1, 160),
}


@dataclass(frozen=True)
class Iterated:
    """A function of two arguments that takes as many steps as they say, on all pairs of `first` and
    `second`. steps: how far it may be off, in units of the last place of its value, or (a
    `polynomial`, which goes through zero) of the largest one of this order. exact: of numbers;
    where it is None eager's f64 is."""

    fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    first: tuple[float, ...]
    second: tuple[float, ...]
    steps: float
    polynomial: bool = True
    exact: Callable[[Any, Any], Any] | None = None

    def grid(self, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """All pairs."""
        pairs = itertools.product(self.second, self.first)
        x, y = torch.tensor([(a, b) for b, a in pairs], dtype=torch.float64).T.to(dtype)
        return x.contiguous(), y.contiguous()

    def faults(self, x: torch.Tensor, y: torch.Tensor, got: torch.Tensor) -> str:
        """What is off, if anything; infinities and NaN are where eager has them in f64."""
        wide = x.double().cpu(), y.double().cpu()
        want = self.fn(*wide)
        if self.exact is not None:
            known = zip(want.tolist(), *(v.tolist() for v in wide), strict=True)
            with mpmath.workdps(40):
                values = [
                    float(self.exact(a, b)) if min(a, b) > 0 and max(a, b) < math.inf else v
                    for v, a, b in known
                ]
            want = torch.tensor(values, dtype=torch.float64)
        size = want.abs()
        if self.polynomial:
            rows = want.nan_to_num(0, 0, 0).abs().view(len(self.second), -1)
            size = rows.amax(1, True).expand_as(rows).flatten()
        number = got.double().cpu()
        off = (number - want).abs() / size / _EPS[x.dtype]
        fine = torch.finfo(x.dtype)
        held = (want.abs() < fine.max) & (want.abs() > max(fine.tiny, 1e-100))
        odd = ~want.isfinite() & (number.isnan() != want.isnan())
        bad = torch.where(held, ~(off <= self.steps), odd)
        i = int(bad.long().argmax())
        return f"{got[i]}, not {want[i]}, at {x[i]}, {y[i]}: {off[i]:.1f}" if bad.any() else ""


_INSIDE = (-1.0, -0.999, -0.7, -0.31, -0.0, 0.1, 0.5, 0.93, 1.0)
_OUTSIDE = (-1.5, -1.001, 1.1, 2.0, 3.0, math.inf)
_ORDERS = (0.0, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0, 12.0, 33.0, -1.0, 2.7, -0.5)
_SHAPES = (0.02, 0.3, 0.9, 1.0, 1.3, 3.7, 12.0, 49.0, 60.0, 150.0, 201.0, 260.0, 1e3, 1.05e3, 1e6,
           0.0, math.inf, math.nan, -1.0)  # fmt: skip
ITERATED = {
    f"{prefix}chebyshev_polynomial_{kind} {where}": Iterated(
        getattr(S, f"{prefix}chebyshev_polynomial_{kind}"),
        tuple((x + 1) / 2 for x in given) if prefix else given, _ORDERS, 200,
    )
    for prefix, kinds in (("", "tuvw"), ("shifted_", "w")) for kind in kinds
    for where, given in (("inside", _INSIDE), ("outside", _OUTSIDE))
}  # fmt: skip
ITERATED |= {
    name: Iterated(getattr(S, name), given, orders, 64)
    for name, given, orders in (
        ("hermite_polynomial_h", (-2.0, -1.1, -0.3, 0.0, 0.7, 1.9), (*_ORDERS, 600.0)),
        ("hermite_polynomial_he", (-2.0, -1.1, -0.3, 0.0, 0.7, 1.9), (*_ORDERS, 600.0)),
        ("laguerre_polynomial_l", (-1.0, -0.2, 0.0, 0.4, 2.3, 9.0), _ORDERS),
        ("legendre_polynomial_p", _INSIDE, _ORDERS),
    )
}
ITERATED |= {
    "zeta": Iterated(
        S.zeta, (1.0, 0.9, 1.01, 1.5, 2.0, 3.0, 7.3, 40.0, 1e3, math.inf, math.nan),
        (1e-3, 0.4, 1.0, 2.5, 8.9, 30.0, 1e5, 0.0, -0.5, -2.0, -12.3, math.nan), 64, False,
    ),
    "igamma": Iterated(
        torch.igamma, _SHAPES, _SHAPES, 800, False,
        lambda a, x: mpmath.re(mpmath.gammainc(a, 0, x, regularized=True)),
    ),
    "igammac": Iterated(
        torch.igammac, _SHAPES, _SHAPES, 800, False,
        lambda a, x: mpmath.re(mpmath.gammainc(a, x, mpmath.inf, regularized=True)),
    ),
}  # fmt: skip
INTEGERS = (0, 1, 2, 3, 4, 6, 12, 36, 60, 97, 100, 127)


def whole(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """All pairs of integers of both signs and of the ends of a type but for the least, of whose
    quotient eager dies."""
    ends = torch.iinfo(dtype)
    numbers = {*INTEGERS, *(-v for v in INTEGERS if ends.min), ends.max, ends.max - 1}
    numbers |= {v for v in (2**31 - 1, 2**31, 2**32 - 1, 3 * 2**40) if v < ends.max}
    x, y = torch.tensor(list(itertools.product(sorted(numbers), repeat=2))).T.to(dtype)
    return x.contiguous(), y.contiguous()
