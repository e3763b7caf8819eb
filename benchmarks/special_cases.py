"""Functions of mathematics and distances of rows, at sizes past L2, the arguments normal numbers.
`python benchmarks/kernels.py --cases special_cases` measures them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, F32, Case, randn
from torch import Tensor

CASES: list[Case] = []


def line(dtype: torch.dtype = F32, scale: float = 1.0) -> tuple[Tensor, ...]:
    """Of both signs."""
    return (randn(1 << 25, dtype=dtype) * scale,)


def above(scale: float = 1.0) -> tuple[Tensor, ...]:
    """Above 0."""
    return (randn(1 << 25, dtype=F32).abs() * scale,)


def case(name: str, run: Any, make: Any, grad: bool = False) -> None:
    CASES.append(Case("special", name, run, make, grad))


for name in ("bessel_j0", "bessel_j1", "i0e", "i1e", "spherical_bessel_j0", "airy_ai", "erfcx"):
    case(name, getattr(torch.special, name), line)
for name in ("bessel_j0", "i0e"):
    case(f"{name} far and near", getattr(torch.special, name), lambda: line(scale=8.0))
for name in (
    "bessel_y0", "bessel_y1", "modified_bessel_k0", "modified_bessel_k1",
    "scaled_modified_bessel_k0",
):  # fmt: skip
    case(name, getattr(torch.special, name), above)
case("i0 bf16", torch.special.i0, lambda: line(BF16))
case("i1 with its gradient", torch.special.i1, line, grad=True)
case("ndtri", torch.special.ndtri, lambda: (torch.rand(1 << 25, device="cuda"),))
case("log_ndtr", torch.special.log_ndtr, line)
for order in (2, 4):
    case(f"polygamma {order}", lambda x, n=order: torch.polygamma(n, x), above)
case("nextafter", torch.nextafter, lambda: (*line(), *line()))
case("frexp", torch.frexp, line)


def rows() -> tuple[Tensor, ...]:
    """Two matrices of rows."""
    return randn(2048, 64, dtype=F32), randn(2048, 64, dtype=F32)


def distances(p: float) -> Any:
    return lambda x, y: torch.cdist(x, y, p, "donot_use_mm_for_euclid_dist")


for norm in (1.0, 2.0, 3.0):
    case(f"cdist {norm:.0f}", distances(norm), rows, grad=norm == 1)
case("pdist", F.pdist, lambda: (randn(2048, 64, dtype=F32),), grad=True)
