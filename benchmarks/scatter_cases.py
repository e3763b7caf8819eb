"""Reductions at places that are data, bags of rows, samples of grids and windows that begin at
random, with gradients. `python benchmarks/kernels.py --cases scatter_cases` measures it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, F32, Case, Make, ids, randn
from torch import Tensor

CASES: list[Case] = []


def case(family: str, name: str, make: Make, run: Any, grad: bool = False) -> None:
    CASES.append(Case(family, name, run, make, grad))


def elements(high: int = 65536, dtype: torch.dtype = F32) -> tuple[Tensor, ...]:
    """A tensor, a place in one of its first rows for each element of another, and that."""
    x, v = (randn(65536, 512, dtype=dtype) for _ in range(2))
    return x, ids(high, 65536, 512), v


def rows(high: int = 65536) -> tuple[Tensor, ...]:
    """As `elements`, one place a row."""
    return randn(65536, 512, dtype=F32), ids(high, 65536), randn(65536, 512, dtype=F32)


def grid(*size: int) -> Tensor:
    """Places in an image or a volume, some of them outside: a distorted whole."""
    axes = [torch.linspace(-1, 1, n, device="cuda") for n in size[1:-1]]
    whole = torch.stack(torch.meshgrid(*axes, indexing="ij")[::-1], -1)
    return whole + 0.1 * torch.randn(size, device="cuda")


# ---- scatters
for kind in ("amax", "amin", "prod", "mean", "sum"):
    case(
        "scatter", f"scatter {kind}", elements, lambda x, i, v, k=kind: x.scatter_reduce(0, i, v, k)
    )
for kind in ("amax", "mean"):
    case(
        "scatter",
        f"scatter {kind} of the others",
        elements,
        lambda x, i, v, k=kind: x.scatter_reduce(0, i, v, k, include_self=False),
    )
for kind in ("amax", "prod"):
    case(
        "scatter",
        f"scatter {kind}, 512 a place",
        lambda: elements(128),
        lambda x, i, v, k=kind: x.scatter_reduce(0, i, v, k),
    )
case(
    "scatter",
    "scatter amax bf16",
    lambda: elements(dtype=BF16),
    lambda x, i, v: x.scatter_reduce(0, i, v, "amax"),
)
for kind in ("amax", "mean", "prod"):
    case("scatter", f"index {kind}", rows, lambda x, i, v, k=kind: x.index_reduce(0, i, v, k))


# ---- few places, and few a row
def sums(places: int, values: int, *columns: int) -> Make:
    """A place for each of some rows of values."""
    return lambda: (ids(places, values), randn(values, *columns, dtype=F32))


def added(places: int) -> Any:
    return lambda i, v: v.new_zeros(places, *v.shape[1:]).index_add(0, i, v)


for places, values, *columns in (
    (64, 1 << 24), (64, 262144, 64), (8, 262144, 64), (512, 1 << 20, 16), (16384, 262144, 128),
):  # fmt: skip
    name = f"sums of {values} x {columns[0] if columns else 1} in {places}"
    case("few", name, sums(places, values, *columns), added(places))
case(
    "few",
    "sums of sorted places",
    lambda: (ids(64, 1 << 24).sort()[0], randn(1 << 24, dtype=F32)),
    added(64),
)
case(
    "few",
    "counts",
    lambda: (ids(64, 1 << 24),),
    lambda i: i.new_zeros(64).scatter_add(0, i, torch.ones_like(i)),
)
case(
    "few",
    "histograms of rows",
    lambda: (ids(16, 4096, 1024), randn(4096, 1024, dtype=F32)),
    lambda i, v: v.new_zeros(4096, 16).scatter_add(1, i, v),
)
case(
    "few",
    "tables of 12 rows grad",
    lambda: (ids(12, 65536, 16), randn(16, 12, 32, dtype=F32)),
    lambda i, t: t[torch.arange(16, device=i.device), i].flatten(1),
    True,
)
case(
    "few",
    "maxima of neighbours",
    lambda: (ids(16384, 262144), randn(262144, 64, dtype=F32)),
    lambda i, v: v.new_zeros(16384, 64).scatter_reduce(
        0, i[:, None].expand_as(v), v, "amax", include_self=False
    ),
)
case(
    "few",
    "weighted sums of experts",
    lambda: (randn(32768, 512), torch.randperm(32768, device="cuda"), randn(32768, dtype=F32)),
    lambda y, i, w: y.new_zeros(16384, 512).index_add(0, i // 2, y * w[:, None].to(y.dtype)),
)
for grad in (False, True):
    case(
        "few",
        f"softmax of chosen experts{' grad' if grad else ''}",
        lambda: (randn(131072, 64, dtype=F32), ids(64, 131072, 4)),
        lambda x, i: torch.full_like(x, -torch.inf).scatter(1, i, x.gather(1, i)).softmax(-1),
        grad,
    )
case(
    "few",
    "elements of a mask",
    lambda: (
        randn(4096, 1024, dtype=F32),
        torch.rand(4096, 1024, device="cuda") < 0.5,
        randn(1 << 22, dtype=F32),
    ),
    lambda x, m, v: x.masked_scatter(m, v),
)

# ---- bags
for mode in ("sum", "mean", "max"):
    for grad in (False, True):
        case(
            "bag",
            f"bags of 32, {mode}{' grad' if grad else ''}",
            lambda: (randn(1_000_000, 128, dtype=F32), ids(1_000_000, 16384, 32)),
            lambda w, i, m=mode: F.embedding_bag(i, w, mode=m),
            grad,
        )
case(
    "bag",
    "weighted bags of any length grad",
    lambda: (
        randn(1_000_000, 128, dtype=F32),
        ids(1_000_000, 16384 * 32),
        torch.arange(0, 16384 * 32, 32, device="cuda"),
        randn(16384 * 32, dtype=F32),
    ),
    lambda w, i, o, p: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=p),
    True,
)

# ---- grids
for dims, size, channels in ((2, (16, 192, 192), 64), (3, (2, 64, 64, 64), 32)):
    for grad in (False, True):
        case(
            "grid",
            f"grid sample {dims}-D{' grad' if grad else ''}",
            lambda s=size, c=channels, d=dims: (randn(s[0], c, *s[1:], dtype=F32), grid(*s, d)),
            lambda x, g: F.grid_sample(x, g, align_corners=False),
            grad,
        )
case(
    "grid",
    "grid sample 2-D reflected bf16 grad",
    lambda: (randn(16, 64, 192, 192), grid(16, 192, 192, 2).to(BF16)),
    lambda x, g: F.grid_sample(x, g, padding_mode="reflection", align_corners=False),
    True,
)
case(
    "grid",
    "grid sample cubic grad",
    lambda: (randn(16, 32, 128, 128, dtype=F32), grid(16, 128, 128, 2)),
    lambda x, g: F.grid_sample(x, g, mode="bicubic", align_corners=False),
    True,
)

# ---- windows
for grad in (False, True):
    case(
        "window",
        f"fractional max pool{' grad' if grad else ''}",
        lambda: (randn(64, 128, 112, 112, dtype=F32), ids(1 << 20, 64, 128, 2)),
        lambda x, s: F.fractional_max_pool2d(x, 2, 79, _random_samples=s * 2.0**-20),
        grad,
    )
