"""Short rows, norms across memory, large windows and antialiased resampling, with gradients: where
kernels of one form for all are slowest.

`python benchmarks/kernels.py --cases unusual_cases` measures it. SCALE=64 DEVICE=cpu in the
environment make the cases small, for a run without a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, F32, Case, Make
from odd_cases import f32, last, n, randn
from torch import Tensor

CASES: list[Case] = []


def case(family: str, name: str, make: Make, run: Any, grad: bool = False) -> None:
    CASES.append(Case(family, name, run, make, grad))


def rms(x: Tensor, dim: int) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim, keepdim=True) + 1e-6)


def standardised(x: Tensor, dim: int) -> Tensor:
    """Statistics written out by hand."""
    off = x - x.mean(dim, keepdim=True)
    return off / (off.square().mean(dim, keepdim=True) + 1e-5).sqrt()


def tversky(x: Tensor, y: Tensor) -> Tensor:
    p = x.float().sigmoid().flatten(1)
    t = y.float().flatten(1)
    hit, wrong, missed = (p * t).sum(1), (p * (1 - t)).sum(1), ((1 - p) * t).sum(1)
    return (1 - (hit + 1) / (hit + 0.3 * wrong + 0.7 * missed + 1)).mean()


def bits(*size: int) -> Tensor:
    return randn(*size).gt(0).to(BF16)


# ---- short rows
for width in (3, 5, 17):
    rows = 20_000_000 // width
    for dtype, kind in ((BF16, "bf16"), (F32, "f32")):

        def make(r: int = rows, w: int = width, t: torch.dtype = dtype) -> tuple[Tensor]:
            return (randn(n(r), w, dtype=t),)

        case("short", f"softmax of {width} {kind}", make, lambda x: x.softmax(-1))
        case("short", f"sum of {width} {kind}", make, lambda x: x.sum(-1))
        case("short", f"max and place of {width} {kind}", make, lambda x: x.max(-1))
case("short", "scan of 17", lambda: (f32(n(1_200_000), 17),), lambda x: x.cumsum(-1))
case("short", "unit rows of 3 grad", lambda: (f32(n(4_000_000), 3),), F.normalize, True)
case(
    "short", "sliced rows", lambda: (randn(n(16384), 5000),), lambda x: x[:, 3:1003].softmax(-1)
)  # fmt: skip

# ---- norms across memory
case(
    "across",
    "layer norm of a transposed input grad",
    lambda: (randn(n(64), 768, 784), randn(768), randn(768)),
    lambda x, w, b: F.layer_norm(x.transpose(1, 2), (768,), w, b),
    True,
)
for grad in (False, True):
    suffix = " grad" * grad
    case(
        "across",
        f"rms of channels by hand{suffix}",
        lambda: (randn(n(32), 192, 56, 57), randn(192, 1, 1)),
        lambda x, w: rms(x.float(), 1).to(x.dtype) * w,
        grad,
    )
    case(
        "across",
        f"standardised over the middle{suffix}",
        lambda: (f32(n(64), 500, 777),),
        lambda x: standardised(x, 1),
        grad,
    )
    case(
        "across",
        f"norm over heads{suffix}",
        lambda: (randn(n(8), 4096, 32, 64),),
        lambda x: rms(x.float(), 2).to(x.dtype),
        grad,
    )
    case(
        "across",
        f"unit rows over channels{suffix}",
        lambda: (f32(n(32), 128, 56, 56),),
        lambda x: F.normalize(x, dim=1),
        grad,
    )
    case(
        "across",
        f"pixel norm + leaky relu{suffix}",
        lambda: (randn(n(16), 256, 64, 64),),
        lambda x: F.leaky_relu(rms(x.float(), 1).to(x.dtype), 0.2),
        grad,
    )
case(
    "across",
    "group norm channels-last + silu grad",
    lambda: (last(randn(n(32), 256, 56, 56)), randn(256), randn(256)),
    lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)),
    True,
)
case("across", "var of 1 and 3", lambda: (f32(n(64), 96, 113, 112),), lambda x: x.var((1, 3)))

# ---- losses
case(
    "loss",
    "tversky grad",
    lambda: (randn(n(64), 1, 512, 512), bits(n(64), 1, 512, 512)),
    tversky,
    True,
)
case(
    "loss",
    "triplet with swap grad",
    lambda: tuple(f32(n(65536), 256) for _ in range(3)),
    lambda a, p, q: F.triplet_margin_loss(a, p, q, swap=True),
    True,
)

# ---- windows
for size, step in ((5, 1), (6, 1), (7, 1), (7, 2), (13, 1), (15, 1)):
    half = size // 2

    def image(dtype: torch.dtype = F32) -> tuple[Tensor]:
        return (randn(n(32), 64, 112, 112, dtype=dtype),)

    case(
        "window",
        f"max of {size} x {size} step {step}",
        image,
        lambda x, k=size, s=step, p=half: F.max_pool2d(x, k, s, p),
    )
    case(
        "window",
        f"mean of {size} x {size} step {step}",
        image,
        lambda x, k=size, s=step, p=half: F.avg_pool2d(x, k, s, p),
    )
case(
    "window",
    "mean of 7 x 7 grad",
    lambda: (f32(n(32), 64, 112, 112),),
    lambda x: F.avg_pool2d(x, 7, 1, 3),
    True,
)
case(
    "window",
    "max of 7 x 7 channels-last bf16",
    lambda: (last(randn(n(32), 64, 112, 112)),),
    lambda x: F.max_pool2d(x, 7, 1, 3),
)

# ---- antialiased resampling
for dtype, kind in ((BF16, "bf16"), (F32, "f32")):
    for order, name in ((torch.contiguous_format, ""), (torch.channels_last, " channels-last")):
        for out in (97, 224):
            for grad in (False, True):
                case(
                    "resample",
                    f"antialiased to {out} {kind}{name}{' grad' * grad}",
                    lambda t=dtype, o=order: (
                        randn(n(32), 3, 448, 448, dtype=t).to(memory_format=o),
                    ),
                    lambda x, m=out: F.interpolate(x, size=(m, m), mode="bilinear", antialias=True),
                    grad,
                )
