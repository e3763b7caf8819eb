"""Pieces of training steps and of optimizers.

`python benchmarks/kernels.py --cases piece_cases` measures it; SCALE and DEVICE as in `odd_cases`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, F16, Case, Make
from odd_cases import DEVICE, NINF, f32, ids, last, mask, n, randn
from torch import Tensor

CASES: list[Case] = []


def case(family: str, name: str, make: Make, run: Any, grad: bool = False) -> None:
    CASES.append(Case(family, name, run, make, grad))


# ---- training
case(
    "train",
    "residual layer norm 5120 grad",
    lambda: (randn(n(8192), 5120), randn(n(8192), 5120), randn(5120), randn(5120)),
    lambda x, y, w, b: (lambda h: h + F.layer_norm(h, (5120,), w, b))(x + y),
    True,
)
case(
    "train",
    "residual rms norm 2560 grad",
    lambda: (randn(n(16384), 2560), randn(n(16384), 2560), f32(2560)),
    lambda x, y, w: (lambda h: h + (F.rms_norm(h.float(), (2560,)) * w).to(BF16))(x + y),
    True,
)
case(
    "train",
    "rms norm 12288 grad",
    lambda: (randn(n(4096), 12288), randn(12288)),
    lambda x, w: F.rms_norm(x, (12288,), w),
    True,
)
case(
    "train",
    "layer norm 1000 f16 grad",
    lambda: (randn(n(32768), 1000, dtype=F16), randn(1000, dtype=F16), randn(1000, dtype=F16)),
    lambda x, w, b: F.layer_norm(x, (1000,), w, b),
    True,
)
case(
    "train",
    "batch norm add relu channels-last grad",
    lambda: (last(randn(n(64), 128, 56, 56)), last(randn(n(64), 128, 56, 56)), f32(128), f32(128)),
    lambda x, y, w, b: F.relu(F.batch_norm(x, None, None, w, b, True) + y),
    True,
)
case(
    "train",
    "batch norm of rows grad",
    lambda: (f32(n(65536), 1000), f32(1000), f32(1000)),
    lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    True,
)
case(
    "train",
    "group norm 5-D grad",
    lambda: (f32(n(16), 32, 24, 48, 48), f32(32), f32(32)),
    lambda x, w, b: F.leaky_relu(F.group_norm(x, 8, w, b)),
    True,
)
case(
    "train",
    "global response norm grad",
    lambda: (randn(n(64), 28, 28, 512), randn(512), randn(512)),
    lambda x, w, b: (lambda g: w * (x * (g / (g.mean(-1, True) + 1e-6))) + b + x)(
        x.float().square().sum((1, 2), True).sqrt().to(BF16)
    ),
    True,
)
case(
    "train",
    "quick gelu grad",
    lambda: (randn(n(16384), 5000),),
    lambda x: x * (1.702 * x).sigmoid(),
    True,
)
case(
    "train",
    "squared relu grad",
    lambda: (randn(n(16384), 5000),),
    lambda x: F.relu(x).square(),
    True,
)
case(
    "train",
    "swiglu packed grad",
    lambda: (randn(n(8192), 2 * 5504),),
    lambda x: (lambda a, b: F.silu(a) * b)(*x.chunk(2, -1)),
    True,
)
case(
    "train",
    "geglu bias grad",
    lambda: (randn(n(8192), 10240), randn(10240)),
    lambda x, b: (lambda a, c: F.gelu(a, approximate="tanh") * c)(*(x + b).chunk(2, -1)),
    True,
)
case(
    "train",
    "dropout gelu bias grad",
    lambda: (randn(n(16384), 5120), randn(5120)),
    lambda x, b: F.dropout(F.gelu(x + b), 0.1),
    True,
)
case(
    "train",
    "prelu grad",
    lambda: (randn(n(64), 128, 56, 56), randn(128)),
    lambda x, w: F.prelu(x, w),
    True,
)
case(
    "train",
    "scale and shift grad",
    lambda: (f32(n(32768), 1500), f32(1500), f32(1500)),
    lambda x, w, b: x * w + b,
    True,
)
case(
    "train",
    "causal softmax grad",
    lambda: (randn(n(8), 16, 1024, 1024),),
    lambda x: (
        (x.float() * 0.125 + torch.full((1024, 1024), NINF, device=x.device).triu(1))
        .softmax(-1)
        .to(BF16)
    ),
    True,
)
case(
    "train",
    "biased softmax grad",
    lambda: (randn(n(16), 16, 512, 512), randn(16, 512, 512)),
    lambda x, b: (x + b).softmax(-1),
    True,
)
case(
    "train",
    "adaptive layer norm grad",
    lambda: (randn(n(64), 256, 1152), randn(n(64), 1152), randn(n(64), 1152)),
    lambda x, s, t: F.layer_norm(x, (1152,)) * (1 + s[:, None]) + t[:, None],
    True,
)
case(
    "train",
    "layer scale residual grad",
    lambda: (randn(n(64), 577, 1024), randn(n(64), 577, 1024), randn(1024)),
    lambda x, y, g: x + g * y,
    True,
)
case(
    "train",
    "rotary interleaved grad",
    lambda: (randn(n(8), 2048, 32, 128), f32(2048, 1, 64), f32(2048, 1, 64)),
    lambda x, c, s: (
        torch.stack((x[..., ::2] * c - x[..., 1::2] * s, x[..., 1::2] * c + x[..., ::2] * s), -1)
        .flatten(-2)
        .to(BF16)
    ),
    True,
)
case(
    "train",
    "query norm rotary grad",
    lambda: (randn(n(8), 2048, 16, 128), randn(128), f32(2048, 1, 128), f32(2048, 1, 128)),
    lambda q, w, c, s: (
        lambda h: (h * c + torch.cat((-h[..., 64:], h[..., :64]), -1) * s).to(BF16)
    )(F.rms_norm(q, (128,), w).float()),
    True,
)
case(
    "train",
    "softcap grad",
    lambda: (randn(n(4096), 16000),),
    lambda x: 30 * torch.tanh(x / 30),
    True,
)
case(
    "train",
    "token shift grad",
    lambda: (randn(n(16), 2048, 2048), randn(2048)),
    lambda x, m: x + (F.pad(x, (0, 0, 1, 0))[:, :-1] - x) * m,
    True,
)
case(
    "train",
    "routing grad",
    lambda: (f32(n(131072), 64),),
    lambda x: (lambda v: v / v.sum(-1, True))(x.softmax(-1).topk(8, -1)[0]),
    True,
)
case(
    "train",
    "masked mean pool grad",
    lambda: (randn(n(64), 512, 1024), mask(n(64), 512, 1)),
    lambda x, m: (x * m).sum(1) / m.sum(1).clamp(min=1),
    True,
)
case(
    "train",
    "embedding scaled norm grad",
    lambda: (ids(32000, n(16), 1024), randn(32000, 2048), randn(2048)),
    lambda i, e, w: F.rms_norm(F.embedding(i, e) * 45.25, (2048,), w),
    True,
)
case(
    "train",
    "rows by index grad",
    lambda: (f32(n(65536), 512), ids(n(65536), n(131072))),
    lambda x, i: x[i],
    True,
)
case(
    "train",
    "causal depthwise conv1d silu grad",
    lambda: (randn(n(8), 2048, 2048), randn(2048, 1, 4), randn(2048)),
    lambda x, w, b: F.silu(F.conv1d(x, w, b, padding=3, groups=2048)[..., :-3]),
    True,
)
case(
    "train",
    "layers cat add norm grad",
    lambda: (randn(n(16384), 1024), randn(n(16384), 512), randn(1536)),
    lambda x, y, w: F.layer_norm(torch.cat((x, y), -1), (1536,), w),
    True,
)


# ---- optimizers
def adam_mixed(*state: Tensor) -> Tensor:
    for p, g, m, v, w in zip(*(state[k::5] for k in range(5)), strict=True):
        g32 = g.float()
        m.lerp_(g32, 0.1)
        v.lerp_(g32 * g32, 0.05)
        w.mul_(1 - 1e-5).sub_(1e-3 * (m / 0.9) / ((v / 0.95).sqrt() + 1e-8))
        p.copy_(w)
    return state[0].new_ones(1)


def mixed(count: int, *size: int) -> tuple[Any, ...]:
    return tuple(
        t
        for _ in range(count)
        for t in (randn(*size), randn(*size), f32(*size), f32(*size).abs(), f32(*size))
    )


def lion(*state: Tensor) -> Tensor:
    for p, g, m in zip(*(state[k::3] for k in range(3)), strict=True):
        p.mul_(1 - 1e-4).sub_(1e-4 * torch.sign(m * 0.9 + g * 0.1))
        m.lerp_(g, 0.01)
    return state[0].new_ones(1)


def adafactor(p: Tensor, g: Tensor, r: Tensor, c: Tensor) -> Tensor:
    q = g.square() + 1e-30
    r.lerp_(q.mean(-1), 0.01)
    c.lerp_(q.mean(-2), 0.01)
    u = g * (r / r.mean()).rsqrt()[:, None] * c.rsqrt()[None]
    u = u / (u.square().mean().sqrt() / 1.0).clamp(min=1.0)
    p.sub_(1e-3 * u)
    return p.new_ones(1)


def nesterov(*state: Tensor) -> Tensor:
    ps, gs, ms = (list(state[k::3]) for k in range(3))
    gs = torch._foreach_add(gs, ps, alpha=1e-4)
    torch._foreach_mul_(ms, 0.9)
    torch._foreach_add_(ms, gs)
    gs = torch._foreach_add(gs, ms, alpha=0.9)
    torch._foreach_add_(ps, gs, alpha=-0.1)
    return state[0].new_ones(1)


def accumulate(*state: Tensor) -> Tensor:
    for a, g in zip(state[::2], state[1::2], strict=True):
        a.add_(g.float())
    return state[0].new_ones(1)


def unscale(scale: Tensor, *grads: Tensor) -> Tensor:
    for g in grads:
        g.mul_(1 / scale)
    return torch.stack([g.isfinite().all() for g in grads]).all()


def clip_mixed(*grads: Tensor) -> Tensor:
    total = torch.stack([g.float().square().sum() for g in grads]).sum().sqrt()
    for g in grads:
        g.mul_((1.0 / (total + 1e-6)).clamp(max=1.0))
    return total


def sizes(count: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Weights and biases, one after the other."""
    return tuple(
        t
        for _ in range(count)
        for t in (randn(n(1024), 1000, dtype=dtype), randn(1000, dtype=dtype))
    )


def ema(*state: Tensor) -> Tensor:
    for e, p in zip(state[::2], state[1::2], strict=True):
        e.lerp_(p.float(), 0.001)
    return state[0].new_ones(1)


case("optimizer", "adam mixed of 20 in place", lambda: mixed(20, n(1024), 1000), adam_mixed)
case("optimizer", "lion in place", lambda: tuple(f32(n(1024), 1000) for _ in range(90)), lion)
case(
    "optimizer",
    "adafactor in place",
    lambda: (f32(n(8192), 5120), f32(n(8192), 5120), f32(n(8192)).abs() + 1, f32(5120).abs() + 1),
    adafactor,
)
case(
    "optimizer",
    "nesterov foreach in place",
    lambda: tuple(f32(n(1024), 1000) for _ in range(90)),
    nesterov,
)
case(
    "optimizer",
    "accumulate in place",
    lambda: tuple(t for _ in range(40) for t in (f32(n(1024), 1000), randn(n(1024), 1000))),
    accumulate,
)
case(
    "optimizer",
    "unscale in place",
    lambda: (torch.ones((), device=DEVICE), *sizes(40, F16)),
    unscale,
)
case("optimizer", "clip bf16 in place", lambda: sizes(40, BF16), clip_mixed)
case(
    "optimizer",
    "ema in place of 30",
    lambda: tuple(t for _ in range(30) for t in (f32(n(1024), 1000), randn(n(1024), 1000))),
    ema,
)
