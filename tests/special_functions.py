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
