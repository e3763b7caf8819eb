"""Reductions, norms, losses, scans and windows at sizes that are no powers of two, with gradients.

`python benchmarks/kernels.py --cases odd_cases` measures it. SCALE=64 DEVICE=cpu in the environment
make the cases small, for a run without a GPU.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, F16, F32, Case, Make
from torch import Tensor

SCALE = int(os.environ.get("SCALE", "1"))
DEVICE = os.environ.get("DEVICE", "cuda")
CASES: list[Case] = []


def case(family: str, name: str, make: Make, run: Any, grad: bool = False) -> None:
    CASES.append(Case(family, name, run, make, grad))


def n(rows: int) -> int:
    """A count of rows (or images) that SCALE shrinks."""
    return max(rows // SCALE, 2)


def randn(*size: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(size, device=DEVICE, dtype=dtype)


def f32(*size: int) -> Tensor:
    return randn(*size, dtype=F32)


def ids(high: int, *size: int) -> Tensor:
    return torch.randint(0, high, size, device=DEVICE)


def mask(*size: int) -> Tensor:
    return ids(2, *size).bool()


def last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


NINF = float("-inf")

# ---- reductions
case("reduce", "argmax of middle", lambda: (f32(n(64), 1000, 777),), lambda x: x.argmax(1))
case("reduce", "argmin odd rows bf16", lambda: (randn(n(30000), 2345),), lambda x: x.argmin(-1))
case("reduce", "min of columns with places", lambda: (f32(n(8192), 5000),), lambda x: x.min(0))
case("reduce", "max of middle with places", lambda: (randn(n(128), 512, 1000),), lambda x: x.max(1))
case("reduce", "mean of 1 and 3", lambda: (randn(n(64), 128, 56, 113),), lambda x: x.mean((1, 3)))
case("reduce", "var of images", lambda: (f32(n(64), 96, 113, 113),), lambda x: x.var((0, 2, 3)))
case("reduce", "std of all", lambda: (randn(n(8191), 12288),), lambda x: x.std())
case("reduce", "product of middle", lambda: (f32(n(64), 1024, 500),), lambda x: x.prod(1))
case("reduce", "logsumexp of middle", lambda: (f32(n(64), 1000, 777),), lambda x: x.logsumexp(1))
case("reduce", "sum to 5000", lambda: (f32(n(64), 256, 5000),), lambda x: x.sum((0, 1)))
case("reduce", "count nonzero rows", lambda: (randn(n(16384), 5000),), lambda x: (x > 1).sum(-1))
case("reduce", "range of all", lambda: (randn(n(16384), 5000),), lambda x: x.amax() - x.amin())
case(
    "reduce",
    "min max rows to 0..1",
    lambda: (randn(n(16384), 5000),),
    lambda x: (x - x.amin(-1, True)) / (x.amax(-1, True) - x.amin(-1, True) + 1e-6),
)
case(
    "reduce",
    "standardise rows",
    lambda: (f32(n(8192), 12288),),
    lambda x: (x - x.mean(-1, True)) / (x.std(-1, keepdim=True) + 1e-5),
)
case("reduce", "3-norm of rows", lambda: (f32(n(16384), 5000),), lambda x: x.norm(3, -1))
case("reduce", "dots of rows", lambda: (randn(n(8192), 12288),) * 2, lambda x, y: (x * y).sum(-1))
case(
    "reduce",
    "top-1 accuracy",
    lambda: (randn(n(1024), 151936), ids(151936, n(1024))),
    lambda x, t: (x.argmax(-1) == t).float().mean(),
)
case("reduce", "mean grad", lambda: (randn(n(16384), 5000),), lambda x: x.float().mean(-1), True)
case("reduce", "amax grad", lambda: (randn(n(16384), 5000),), lambda x: x.amax(-1), True)
case("reduce", "var grad", lambda: (f32(n(8192), 5000),), lambda x: x.var(-1), True)
case(
    "reduce", "norm of columns grad", lambda: (f32(n(16384), 2560),), lambda x: x.norm(dim=0), True
)
case("reduce", "logsumexp grad", lambda: (randn(n(4096), 12288),), lambda x: x.logsumexp(-1), True)
case("reduce", "prod grad", lambda: (f32(n(65536), 300),), lambda x: x.prod(-1), True)
case("reduce", "max of middle grad", lambda: (f32(n(64), 512, 777),), lambda x: x.max(1)[0], True)

# ---- norms
for rows, width in ((16384, 5000), (8192, 12288), (512, 151936)):
    case(
        "norm",
        f"softmax {width}",
        lambda r=rows, w=width: (randn(n(r), w),),
        lambda x: x.softmax(-1),
    )
    case(
        "norm",
        f"rms norm {width}",
        lambda r=rows, w=width: (randn(n(r), w), randn(w)),
        lambda x, w: F.rms_norm(x, x.shape[-1:], w),
    )
case(
    "norm",
    "layer norm 5000 f32",
    lambda: (f32(n(16384), 5000), f32(5000), f32(5000)),
    lambda x, w, b: F.layer_norm(x, (5000,), w, b),
)
case(
    "norm",
    "rms of channels",
    lambda: (f32(n(16), 64, 256, 256),),
    lambda x: x / torch.sqrt(x.pow(2).mean(1, True) + 1e-5),
)
case("norm", "l1 norm 12288", lambda: (f32(n(8192), 12288),), lambda x: x / x.abs().sum(1, True))
case("norm", "l2 norm 5000 grad", lambda: (f32(n(8192), 5000),), lambda x: F.normalize(x), True)
case("norm", "frobenius grad", lambda: (f32(n(64), 64, 113, 113),), lambda x: x / x.norm(), True)
case(
    "norm",
    "gated rms norm",
    lambda: (randn(n(16384), 5120), randn(n(16384), 5120), randn(5120)),
    lambda x, z, w: F.rms_norm(x * F.silu(z), (5120,), w),
)
case(
    "norm",
    "layer norm of volumes",
    lambda: (f32(n(16), 64, 160, 160), f32(64, 160, 160), f32(64, 160, 160)),
    lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b),
)
case(
    "norm",
    "local response norm",
    lambda: (f32(n(32), 64, 113, 113),),
    lambda x: F.local_response_norm(x, 5),
)
case(
    "norm",
    "weight norm grad",
    lambda: (f32(n(8192), 5000), f32(n(8192), 1)),
    lambda v, g: v * (g / v.norm(dim=1, keepdim=True)),
    True,
)
case(
    "norm",
    "group norm odd images",
    lambda: (randn(n(32), 96, 113, 113), randn(96), randn(96)),
    lambda x, w, b: F.relu(F.group_norm(x, 12, w, b)),
)
case(
    "norm",
    "instance norm odd f16",
    lambda: (randn(n(64), 64, 113, 113, dtype=F16),),
    lambda x: F.instance_norm(x),
)
case(
    "norm",
    "batch norm eval add relu channels-last",
    lambda: (
        last(randn(n(64), 256, 56, 56)),
        last(randn(n(64), 256, 56, 56)),
        *(randn(256).abs() for _ in range(4)),
    ),
    lambda x, y, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b) + y),
)
case(
    "norm",
    "log softmax of channels",
    lambda: (f32(n(32), 150, 128, 128),),
    lambda x: x.log_softmax(1),
)

# ---- losses
case(
    "loss",
    "cross entropy 151936 grad",
    lambda: (randn(n(1024), 151936), ids(151936, n(1024))),
    lambda x, t: F.cross_entropy(x.float(), t),
    True,
)
case(
    "loss",
    "smoothed cross entropy 5000 f32",
    lambda: (f32(n(16384), 5000), ids(5000, n(16384))),
    lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
)
case(
    "loss",
    "cross entropy of probabilities grad",
    lambda: (f32(n(16384), 2000), f32(n(16384), 2000).softmax(-1).detach()),
    F.cross_entropy,
    True,
)
case(
    "loss",
    "z loss grad",
    lambda: (randn(n(4096), 32064), ids(32064, n(4096))),
    lambda x, t: (lambda z: (z - x.float().gather(1, t[:, None])[:, 0] + 1e-4 * z * z).mean())(
        x.float().logsumexp(-1)
    ),
    True,
)
case(
    "loss",
    "distillation grad",
    lambda: (randn(n(4096), 16000), randn(n(4096), 16000)),
    lambda x, y: (
        F.kl_div(
            (x.float() / 2).log_softmax(-1),
            (y.float() / 2).log_softmax(-1).detach(),
            log_target=True,
            reduction="batchmean",
        )
        + 0 * y.float().sum()
    ),
    True,
)
case(
    "loss",
    "huber grad",
    lambda: (f32(n(8192), 5000),) * 2,
    lambda x, y: F.huber_loss(x, y.detach()),
    True,
)
case(
    "loss",
    "smooth l1 grad",
    lambda: (randn(n(8192), 5000), randn(n(8192), 5000)),
    F.smooth_l1_loss,
    True,
)
case(
    "loss",
    "triplet grad",
    lambda: tuple(f32(n(16384), 1000) for _ in range(3)),
    F.triplet_margin_loss,
    True,
)
case(
    "loss",
    "cosine embedding grad",
    lambda: (f32(n(32768), 768), f32(n(32768), 768), ids(2, n(32768)) * 2 - 1),
    F.cosine_embedding_loss,
    True,
)
case(
    "loss",
    "hinge embedding grad",
    lambda: (f32(n(32768), 1000), ids(2, n(32768), 1000) * 2 - 1),
    F.hinge_embedding_loss,
    True,
)
case(
    "loss",
    "bce logits weighted",
    lambda: (f32(n(32768), 1000), mask(n(32768), 1000).float(), f32(1000).abs()),
    lambda x, t, w: F.binary_cross_entropy_with_logits(x, t, pos_weight=w),
)
case(
    "loss",
    "nll 2-D weighted",
    lambda: (f32(n(16), 19, 512, 512), ids(19, n(16), 512, 512), f32(19).abs()),
    lambda x, t, w: F.cross_entropy(x, t, w),
)
case(
    "loss",
    "focal grad",
    lambda: (f32(n(65536), 91), ids(2, n(65536), 91)),
    lambda x, t: (
        (
            F.binary_cross_entropy_with_logits(x, t.float(), reduction="none")
            * (1 - (x.sigmoid() * t + (1 - x.sigmoid()) * (1 - t))) ** 2
        ).sum()
        / x.shape[0]
    ),
    True,
)
case(
    "loss",
    "dice grad",
    lambda: (f32(n(64), 4, 384, 384), ids(2, n(64), 4, 384, 384)),
    lambda x, t: (
        1 - (2 * (x.sigmoid() * t).sum((2, 3)) + 1) / (x.sigmoid().sum((2, 3)) + t.sum((2, 3)) + 1)
    ).mean(),
    True,
)
case(
    "loss",
    "gaussian log-variance grad",
    lambda: (f32(n(8192), 4000), f32(n(8192), 4000), f32(n(8192), 4000)),
    lambda x, y, v: 0.5 * (v + (x - y).square() / v.exp()).mean(),
    True,
)
case(
    "loss",
    "poisson nll",
    lambda: (f32(n(16384), 5000), f32(n(16384), 5000).abs()),
    F.poisson_nll_loss,
)
case(
    "loss",
    "log cosh grad",
    lambda: (f32(n(8192), 5000), f32(n(8192), 5000)),
    lambda x, y: (lambda d: (d + F.softplus(-2 * d) - math.log(2)).mean())(x - y),
    True,
)
case(
    "loss",
    "masked mse grad",
    lambda: (randn(n(64), 512, 1024), randn(n(64), 512, 1024), mask(n(64), 512)),
    lambda x, y, m: ((x - y).float().square().mean(-1) * m).sum() / m.sum(),
    True,
)
case(
    "loss",
    "total variation grad",
    lambda: (f32(n(32), 3, 512, 512),),
    lambda x: x.diff(dim=2).abs().mean() + x.diff(dim=3).abs().mean(),
    True,
)
case(
    "loss",
    "token log-probs grad",
    lambda: (randn(n(4096), 32000), ids(32000, n(4096))),
    lambda x, t: x.float().log_softmax(-1).gather(-1, t[:, None])[:, 0],
    True,
)
case(
    "loss",
    "entropy of rows",
    lambda: (randn(n(2048), 50257),),
    lambda x: -(x.float().softmax(-1) * x.float().log_softmax(-1)).sum(-1),
)
case(
    "loss",
    "ppo grad",
    lambda: (f32(n(4096), 4096), f32(n(4096), 4096), f32(n(4096), 4096)),
    lambda a, b, c: (
        -torch.min(
            (a - b.detach()).exp() * c.detach(), (a - b.detach()).exp().clamp(0.8, 1.2) * c.detach()
        ).mean()
        + 0 * (b.mean() + c.mean())
    ),
    True,
)
case(
    "loss",
    "hinge squared",
    lambda: (f32(n(65536), 500), ids(2, n(65536)) * 2 - 1),
    lambda x, t: (1 - x * t[:, None]).clamp(min=0).square().mean(),
)

# ---- scans
case("scan", "cumsum of odd middle", lambda: (randn(n(64), 1000, 777),), lambda x: x.cumsum(1))
case(
    "scan",
    "reverse cumsum columns",
    lambda: (f32(n(8192), 5000),),
    lambda x: x.flip(0).cumsum(0).flip(0),
)
case("scan", "exclusive cumsum columns", lambda: (f32(n(8192), 5000),), lambda x: x.cumsum(0) - x)
case(
    "scan",
    "masked cumsum bf16",
    lambda: (randn(n(16384), 5000), mask(n(16384), 5000)),
    lambda x, m: x.masked_fill(m, 0).cumsum(-1),
)
case(
    "scan",
    "cumprod grad",
    lambda: ((f32(n(8192), 5000) * 0.02).exp(),),
    lambda x: x.cumprod(-1),
    True,
)
case("scan", "cumsum middle grad", lambda: (f32(n(32), 1000, 777),), lambda x: x.cumsum(1), True)
case("scan", "cummin columns", lambda: (f32(n(4096), 5000),), lambda x: x.cummin(0))
case("scan", "cummax values 5000", lambda: (f32(n(16384), 5000),), lambda x: x.cummax(-1)[0])
case("scan", "cummax grad", lambda: (f32(n(8192), 4096),), lambda x: x.cummax(-1)[0], True)
case("scan", "logcumsumexp grad", lambda: (f32(n(4096), 5000),), lambda x: x.logcumsumexp(-1), True)
case("scan", "cumsum 151936", lambda: (f32(n(512), 151936),), lambda x: x.cumsum(-1))
case(
    "scan",
    "positions of tokens",
    lambda: (ids(9, n(8192), 2048),),
    lambda i: (i != 1).long().cumsum(1) * (i != 1) + 1,
)
case(
    "scan",
    "running mean",
    lambda: (f32(n(16384), 4096),),
    lambda x: x.cumsum(-1) / torch.arange(1, x.shape[-1] + 1, device=x.device),
)
case(
    "scan",
    "places in experts",
    lambda: (ids(64, n(131072)),),
    lambda i: (F.one_hot(i, 64).cumsum(0) - 1).gather(1, i[:, None])[:, 0],
)
case(
    "scan",
    "discounted returns",
    lambda: (f32(n(16384), 2048),),
    lambda r: (lambda g: (r * g).flip(-1).cumsum(-1).flip(-1) / g)(
        0.999 ** torch.arange(r.shape[-1], device=r.device)
    ),
)
case(
    "scan",
    "linear recurrence grad",
    lambda: (f32(n(16), 2048, 512), f32(n(16), 2048, 512)),
    lambda a, x: (lambda s: (x * (-s).exp()).cumsum(1) * s.exp())(F.logsigmoid(a + 9).cumsum(1)),
    True,
)
case(
    "scan",
    "cumsum softmax grad",
    lambda: (f32(n(8192), 2048),),
    lambda x: x.softmax(-1).cumsum(-1),
    True,
)

# ---- windows
case(
    "pool",
    "max pool 2 odd grad",
    lambda: (randn(n(64), 192, 57, 57),),
    lambda x: F.max_pool2d(x, 2),
    True,
)
case(
    "pool",
    "avg pool channels-last grad",
    lambda: (last(randn(n(64), 192, 56, 56)),),
    lambda x: F.avg_pool2d(x, 3, 2, 1),
    True,
)
case(
    "pool",
    "max pool 1d grad",
    lambda: (f32(n(64), 128, 8192),),
    lambda x: F.max_pool1d(x, 4, 2),
    True,
)
case(
    "pool",
    "avg pool 1d grad",
    lambda: (f32(n(64), 128, 8192),),
    lambda x: F.avg_pool1d(x, 8, 4, 2),
    True,
)
case(
    "pool",
    "max pool 3d grad",
    lambda: (f32(n(16), 32, 48, 48, 48),),
    lambda x: F.max_pool3d(x, 3, 2, 1),
    True,
)
case(
    "pool",
    "avg pool 3d grad",
    lambda: (f32(n(16), 32, 48, 48, 48),),
    lambda x: F.avg_pool3d(x, 2),
    True,
)
case(
    "pool",
    "adaptive max pool",
    lambda: (f32(n(64), 256, 57, 57),),
    lambda x: F.adaptive_max_pool2d(x, 7),
)
case(
    "pool",
    "average and maximum of images grad",
    lambda: (randn(n(64), 256, 57, 57),),
    lambda x: torch.cat((x.mean((2, 3)), x.amax((2, 3))), 1),
    True,
)
case(
    "pool",
    "nearest grad",
    lambda: (randn(n(32), 64, 113, 113),),
    lambda x: F.interpolate(x, scale_factor=2),
    True,
)
case(
    "pool",
    "bicubic",
    lambda: (f32(n(16), 32, 128, 128),),
    lambda x: F.interpolate(x, size=(224, 224), mode="bicubic"),
)
case(
    "pool",
    "unfold grad",
    lambda: (f32(n(32), 64, 64, 64),),
    lambda x: F.unfold(x, 3, padding=1),
    True,
)
case(
    "pool",
    "trilinear",
    lambda: (f32(n(4), 32, 32, 48, 48),),
    lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
)
