"""Pieces of inference, work as small as one token's, and blocks around what the vendor does.

`python benchmarks/kernels.py --cases inference_cases` measures it; SCALE and DEVICE are those of
`odd_cases`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, F32, Case, Make
from odd_cases import DEVICE, NINF, f32, ids, mask, n, randn
from torch import Tensor, nn

CASES: list[Case] = []


def case(family: str, name: str, make: Make, run: Any, grad: bool = False) -> None:
    CASES.append(Case(family, name, run, make, grad))


# ---- inference
def rope_write(q: Tensor, k: Tensor, c: Tensor, s: Tensor, keys: Tensor, at: Tensor) -> Tensor:
    def turn(x: Tensor) -> Tensor:
        return (x.float() * c + torch.cat((-x[..., 64:], x[..., :64]), -1).float() * s).to(BF16)

    keys.index_copy_(1, at, turn(k))
    return turn(q)


case(
    "infer",
    "rotary and cache in place",
    lambda: (
        randn(n(16), 2048, 32, 128),
        randn(n(16), 2048, 8, 128),
        f32(2048, 1, 128),
        f32(2048, 1, 128),
        randn(n(16), 4096, 8, 128),
        torch.arange(2048, device=DEVICE) + 100,
    ),
    rope_write,
)
case(
    "infer",
    "int8 tensor",
    lambda: (randn(n(16384), 5000),),
    lambda x: (lambda s: (s, (x.float() / s).round().clamp(-128, 127).to(torch.int8)))(
        x.abs().amax().float() / 127
    ),
)
case(
    "infer",
    "int8 groups of 128",
    lambda: (randn(n(16384), 5120),),
    lambda x: (
        lambda g: (lambda s: (s, (g / s[..., None]).round().to(torch.int8).view_as(x)))(
            g.abs().amax(-1) / 127
        )
    )(x.float().view(x.shape[0], -1, 128)),
)
case(
    "infer",
    "fp8 blocks of 128 x 128",
    lambda: (randn(128 * n(64), 5120),),
    lambda x: (
        lambda g: (lambda s: (s, (g / s[:, None, :, None]).to(torch.float8_e4m3fn).view_as(x)))(
            g.abs().amax((1, 3)) / 448
        )
    )(x.float().view(x.shape[0] // 128, 128, -1, 128)),
)
case(
    "infer",
    "swiglu fp8 rows",
    lambda: (randn(n(8192), 2 * 5504),),
    lambda x: (
        lambda h: (lambda s: (s, (h / s).to(torch.float8_e4m3fn)))(h.abs().amax(-1, True) / 448)
    )(F.silu(x[:, :5504].float()) * x[:, 5504:].float()),
)
case(
    "infer",
    "add rms norm fp8",
    lambda: (randn(n(16384), 5120), randn(n(16384), 5120), randn(5120), f32(1).abs()),
    lambda x, y, w, s: (
        lambda h: (
            h,
            (F.rms_norm(h, (5120,), w).float() * s).clamp(-448, 448).to(torch.float8_e4m3fn),
        )
    )(x + y),
)
case(
    "infer",
    "dequantise fp8 blocks",
    lambda: (randn(128 * n(64), 5120).to(torch.float8_e4m3fn), f32(n(64), 40)),
    lambda q, s: (q.view(-1, 128, 40, 128).float() * s[:, None, :, None]).to(BF16).view(q.shape),
)
case(
    "infer",
    "dequantise int4 groups",
    lambda: (ids(256, n(8192), 2560).to(torch.uint8), randn(n(8192), 40)),
    lambda q, s: (
        (torch.stack((q & 15, q >> 4), -1).view(q.shape[0], 40, 128).to(BF16) - 8)
        .mul(s[..., None])
        .view(q.shape[0], -1)
    ),
)
case(
    "infer",
    "top-p mask of sorted",
    lambda: (f32(n(256), 151936).sort(-1, True)[0],),
    lambda x: (lambda p: x.masked_fill(p.cumsum(-1) - p > 0.9, NINF))(x.softmax(-1)),
)
case(
    "infer",
    "top-k mask",
    lambda: (f32(n(256), 151936),),
    lambda x: x.masked_fill(x < x.topk(50)[0][:, -1:], NINF),
)
case(
    "infer",
    "min-p softcap logits",
    lambda: (randn(n(256), 151936),),
    lambda x: (
        lambda h: (lambda p: torch.where(p < 0.05 * p.amax(-1, True), NINF, h))(h.softmax(-1))
    )(30 * torch.tanh(x.float() / 30)),
)
case(
    "infer",
    "repetition penalty",
    lambda: (f32(n(256), 151936), ids(151936, n(256), 1024)),
    lambda x, i: (lambda v: x.scatter(1, i, torch.where(v < 0, v * 1.2, v / 1.2)))(x.gather(1, i)),
)
case(
    "infer",
    "expert weights",
    lambda: (f32(n(65536), 128),),
    lambda x: (lambda v, i: torch.zeros_like(x).scatter(1, i, v / v.sum(-1, True)))(
        *x.softmax(-1).topk(8, -1)
    ),
)
case(
    "infer",
    "patches of bytes normalised",
    lambda: (ids(256, n(64), 448, 448, 3).to(torch.uint8), f32(3), f32(3).abs() + 1),
    lambda x, m, s: (
        ((x.float() / 255 - m) / s)
        .view(-1, 32, 14, 32, 14, 3)
        .permute(0, 1, 3, 5, 2, 4)
        .reshape(x.shape[0], 1024, 588)
        .to(BF16)
    ),
)
case(
    "infer",
    "bytes to images",
    lambda: (ids(256, n(64), 512, 512, 3).to(torch.uint8), f32(3, 1, 1), f32(3, 1, 1).abs() + 1),
    lambda x, m, s: ((x.permute(0, 3, 1, 2).float() / 255 - m) / s).contiguous(),
)


def iou(a: Tensor, b: Tensor) -> Tensor:
    low, high = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
    inside = (high - low).clamp(min=0).prod(-1)
    return inside / (areas(a)[:, None] + areas(b)[None] - inside)


def areas(c: Tensor) -> Tensor:
    return (c[:, 2] - c[:, 0]) * (c[:, 3] - c[:, 1])


def boxes(count: int) -> Tensor:
    corner = torch.rand(count, 2, device=DEVICE)
    return torch.cat((corner, corner + torch.rand(count, 2, device=DEVICE)), -1)


case("infer", "iou of boxes", lambda: (boxes(n(8192)), boxes(n(4096))), iou)
case(
    "infer",
    "nms rows",
    lambda: (boxes(n(8192)),),
    lambda b: (
        (iou(b, b) > 0.5)
        & torch.ones(b.shape[0], b.shape[0], device=b.device, dtype=torch.bool).triu(1)
    ).any(0),
)
case(
    "infer",
    "sinusoids",
    lambda: (torch.arange(n(65536), device=DEVICE),),
    lambda t: (lambda a: torch.cat((a.sin(), a.cos()), -1))(
        t[:, None].float()
        * torch.exp(-math.log(10000.0) * torch.arange(512, device=t.device) / 512)
    ),
)
case(
    "infer",
    "masked mean and normalise",
    lambda: (randn(n(256), 256, 1024), mask(n(256), 256)),
    lambda x, m: F.normalize(
        (x.float() * m[..., None]).sum(1) / m.sum(1, True).clamp(min=1), dim=-1
    ),
)
case(
    "infer",
    "heads repeated",
    lambda: (randn(n(8), 8, 4096, 128),),
    lambda x: x.repeat_interleave(4, 1),
)
case(
    "infer",
    "pages of a cache",
    lambda: (randn(n(65536), 16, 128), ids(n(65536), n(64), 512)),
    lambda c, t: c[t].flatten(1, 2),
)
case(
    "infer",
    "query key value norms",
    lambda: (randn(n(16384), 3 * 16 * 128), randn(128), randn(128)),
    lambda x, w, u: (
        lambda q, k, v: (F.rms_norm(q, (128,), w), F.rms_norm(k, (128,), u), v.clone())
    )(*x.view(x.shape[0], 3, 16, 128).unbind(1)),
)
case("infer", "expert counts", lambda: (ids(64, n(1 << 20)),), lambda i: F.one_hot(i, 64).sum(0))

# ---- small work, as one token is
case(
    "small",
    "add rms norm of 8 rows",
    lambda: (randn(8, 8192), randn(8, 8192), randn(8192)),
    lambda x, y, w: (x + y, F.rms_norm(x + y, (8192,), w)),
)
case(
    "small",
    "swiglu of 16 rows",
    lambda: (randn(16, 2 * 14336),),
    lambda x: F.silu(x[:, :14336]) * x[:, 14336:],
)
case("small", "softmax of 1 x 151936", lambda: (randn(1, 151936),), lambda x: x.float().softmax(-1))
case("small", "argmax of 4 x 151936", lambda: (randn(4, 151936),), lambda x: x.argmax(-1))
case("small", "softmax of 32 x 4096", lambda: (f32(32, 4096),), lambda x: x.softmax(-1))
case(
    "small",
    "layer norm of 4 x 768",
    lambda: (f32(4, 768), f32(768), f32(768)),
    lambda x, w, b: F.layer_norm(x, (768,), w, b),
)
case(
    "small",
    "cross entropy of 128 x 10 grad",
    lambda: (f32(128, 10), ids(10, 128)),
    F.cross_entropy,
    True,
)
case(
    "small",
    "batch norm of 32 x 64 x 8 x 8 grad",
    lambda: (f32(32, 64, 8, 8), f32(64), f32(64)),
    lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)),
    True,
)
case("small", "sum of 1 M", lambda: (f32(1 << 20),), lambda x: x.sum())
case("small", "cumsum of 16 x 2048", lambda: (f32(16, 2048),), lambda x: x.cumsum(-1))
case("small", "mse of 64 k grad", lambda: (f32(256, 256), f32(256, 256)), F.mse_loss, True)


# ---- what follows convolutions and matmuls
def block(
    name: str, size: tuple[int, ...], run: Any, *modules: Any, dtype: torch.dtype = F32
) -> None:
    made: list[nn.Module] = []

    def make() -> tuple[Any, ...]:
        if not made:
            made.extend(m().eval().to(DEVICE, dtype).requires_grad_(False) for m in modules)
        return (randn(n(size[0]), *size[1:], dtype=dtype),)

    case("block", name, make, lambda x: run(*made, x))


block(
    "conv min tanh",
    (64, 16, 256, 256),
    lambda c, x: c(x).amin(1, True).tanh().tanh(),
    lambda: nn.Conv2d(16, 64, 3),
)
block(
    "conv hardswish group norm mean",
    (64, 3, 128, 128),
    lambda c, g, x: g(F.hardswish(c(x))).mean((2, 3)),
    lambda: nn.Conv2d(3, 64, 3),
    lambda: nn.GroupNorm(8, 64),
)
block(
    "conv transpose logsumexp sum",
    (16, 64, 128, 128),
    lambda c, x: (c(x).mean((2, 3), True)).logsumexp(1, True).sum((2, 3)) * 10,
    lambda: nn.ConvTranspose2d(64, 128, 3),
)
block(
    "conv batch norm relu bf16 channels",
    (64, 128, 56, 56),
    lambda c, b, x: F.relu(b(c(x)) + x),
    lambda: nn.Conv2d(128, 128, 3, padding=1),
    lambda: nn.BatchNorm2d(128),
    dtype=BF16,
)
block(
    "linear sigmoid scale residual",
    (8192, 5120),
    lambda a, x: (lambda h: h + (h * 0.5).sigmoid())(a(x)),
    lambda: nn.Linear(5120, 5120),
    dtype=BF16,
)
block(
    "linear softmax dropout off",
    (16384, 2048),
    lambda a, x: F.dropout(a(x), 0.2, False).softmax(1),
    lambda: nn.Linear(2048, 5000),
    dtype=BF16,
)
case(
    "block",
    "linear gelu grad",
    lambda: (randn(n(8192), 2048), randn(5120, 2048), randn(5120)),
    lambda x, w, b: F.gelu(F.linear(x, w, b)),
    True,
)
case(
    "block",
    "info nce grad",
    lambda: (f32(n(4096), 512), f32(n(4096), 512)),
    lambda x, y: F.cross_entropy(
        F.normalize(x) @ F.normalize(y).t() * 14.0, torch.arange(x.shape[0], device=x.device)
    ),
    True,
)
