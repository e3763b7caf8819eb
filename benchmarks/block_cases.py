"""Work as models and kernel collections have it: losses, norms and activations with gradients,
optimizers over lists, scans, windows, resampling, and convolution or matmul blocks with what
follows them. `python benchmarks/kernels.py --cases block_cases` measures it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, F16, F32, Case, Make, channels_last, ids, randn
from torch import Tensor, nn

CASES: list[Case] = []


def case(family: str, name: str, make: Make, run: Any, grad: bool = False) -> None:
    CASES.append(Case(family, name, run, make, grad))


def f32(*size: int) -> Tensor:
    return randn(*size, dtype=F32)


# ---- reductions
case("reduce", "var of rows", lambda: (f32(32768, 2048),), lambda x: x.var(-1))
case("reduce", "std of columns", lambda: (f32(32768, 2048),), lambda x: x.std(0))
case("reduce", "l1 normalise", lambda: (f32(16384, 8192),), lambda x: x / x.abs().mean(1, True))
case("reduce", "l2 normalise", lambda: (randn(65536, 1024),), lambda x: F.normalize(x, dim=-1))
case("reduce", "frobenius", lambda: (f32(112, 64, 128, 128),), lambda x: x / x.norm())
case(
    "reduce",
    "inf norm f16",
    lambda: (randn(8192, 8192, dtype=F16),),
    lambda x: x.norm(float("inf"), -1),
)
case("reduce", "cosine", lambda: (randn(65536, 1024), randn(65536, 1024)), F.cosine_similarity)
case("reduce", "first and last", lambda: (randn(128, 512, 1024),), lambda x: x.float().mean((0, 2)))
case("reduce", "middle of four", lambda: (f32(16, 128, 256, 128),), lambda x: x.amax(1))
case("reduce", "argmin of columns", lambda: (f32(4096, 16384),), lambda x: x.argmin(0))
case("reduce", "sum of i32 rows", lambda: (ids(99, 16384, 4096).int(),), lambda x: x.sum(-1))
case("reduce", "all of rows", lambda: (randn(65536, 2048),), lambda x: (x < 9).all(-1))
case(
    "reduce",
    "two moments",
    lambda: (randn(16384, 8192),),
    lambda x: (x.float().mean(), x.float().square().mean()),
)
case(
    "reduce",
    "rows and columns",
    lambda: (randn(16384, 4096),),
    lambda x: (x.float().sum(0), x.float().sum(1)),
)
case("reduce", "odd columns", lambda: (randn(10007, 3001),), lambda x: x.float().sum(0))
case("reduce", "transposed rows", lambda: (randn(8192, 8192),), lambda x: x.t().float().sum(-1))
case(
    "reduce",
    "list of norms",
    lambda: tuple(f32(512, 1024) for _ in range(60)),
    lambda *g: torch.stack([x.norm() for x in g]).norm(),
)

# ---- losses
case("loss", "smooth l1", lambda: (f32(8192, 8192), f32(8192, 8192)), F.smooth_l1_loss)
case(
    "loss",
    "kl div",
    lambda: (randn(8192, 8192), randn(8192, 8192)),
    lambda x, y: F.kl_div(x.float().log_softmax(-1), y.float().softmax(-1), reduction="batchmean"),
)
case(
    "loss",
    "hinge",
    lambda: (f32(65536, 1024), ids(2, 65536, 1)),
    lambda x, t: (1 - x * (2 * t - 1)).clamp(min=0).mean(),
)
case("loss", "triplet", lambda: tuple(f32(32768, 1024) for _ in range(3)), F.triplet_margin_loss)
case(
    "loss",
    "bce logits grad",
    lambda: (f32(8192, 8192), f32(8192, 8192).sigmoid().detach()),
    F.binary_cross_entropy_with_logits,
    True,
)
case("loss", "mse grad", lambda: (randn(8192, 8192), randn(8192, 8192)), F.mse_loss, True)
case(
    "loss",
    "smoothed cross entropy grad",
    lambda: (randn(8192, 16384), ids(16384, 8192)),
    lambda x, t: F.cross_entropy(x.float(), t, label_smoothing=0.1),
    True,
)
case(
    "loss",
    "cross entropy ignoring",
    lambda: (randn(8192, 50257), ids(50257, 8192)),
    lambda x, t: F.cross_entropy(x, t, ignore_index=7),
)
case(
    "loss",
    "nll of images grad",
    lambda: (f32(16, 21, 512, 512), ids(21, 16, 512, 512)),
    F.cross_entropy,
    True,
)

# ---- norms and activations in training
case(
    "train",
    "batch norm relu grad",
    lambda: (f32(64, 128, 56, 56), f32(128), f32(128)),
    lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)),
    True,
)
case(
    "train",
    "batch norm channels-last grad",
    lambda: (channels_last(randn(64, 256, 56, 56)), f32(256), f32(256)),
    lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)),
    True,
)
case(
    "train",
    "group norm silu grad",
    lambda: (randn(32, 256, 64, 64), randn(256), randn(256)),
    lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)),
    True,
)
case(
    "train",
    "instance norm grad",
    lambda: (f32(32, 64, 128, 128),),
    lambda x: F.instance_norm(x),
    True,
)
case(
    "train",
    "layer norm f32 768 grad",
    lambda: (f32(32768, 768), f32(768), f32(768)),
    lambda x, w, b: F.layer_norm(x, (768,), w, b),
    True,
)
case(
    "train",
    "residual dropout layer norm grad",
    lambda: (randn(16384, 1024), randn(16384, 1024), randn(1024), randn(1024)),
    lambda x, y, w, b: F.layer_norm(x + F.dropout(y, 0.1), (1024,), w, b),
    True,
)
case(
    "train",
    "rms norm f32 inside grad",
    lambda: (randn(16384, 4096), randn(4096)),
    lambda x, w: (x.float() * torch.rsqrt(x.float().square().mean(-1, True) + 1e-5)).to(BF16) * w,
    True,
)
case(
    "train",
    "swiglu grad",
    lambda: (randn(8192, 11008), randn(8192, 11008)),
    lambda x, y: F.silu(x) * y,
    True,
)
case(
    "train",
    "geglu grad",
    lambda: (randn(8192, 8192),),
    lambda x: F.gelu(x[:, :4096]) * x[:, 4096:],
    True,
)
case(
    "train",
    "bias gelu grad",
    lambda: (randn(16384, 4096), randn(4096)),
    lambda x, b: F.gelu(x + b),
    True,
)
case(
    "train",
    "masked softmax dropout grad",
    lambda: (randn(16, 16, 1024, 1024), ids(2, 16, 1, 1, 1024).bool()),
    lambda x, m: F.dropout((x * 0.125).masked_fill(m, -1e4).softmax(-1), 0.1),
    True,
)
case("train", "log softmax grad", lambda: (randn(8192, 16384),), lambda x: x.log_softmax(-1), True)
case(
    "train", "softplus mish grad", lambda: (f32(8192, 4096),), lambda x: F.mish(F.softplus(x)), True
)
case(
    "train",
    "hard swish scale grad",
    lambda: (randn(64, 256, 56, 56), randn(64, 256, 1, 1)),
    lambda x, s: F.hardswish(x) * s.sigmoid(),
    True,
)
case(
    "train",
    "rope grad",
    lambda: (randn(8, 32, 2048, 128), f32(2048, 128), f32(2048, 128)),
    lambda q, c, s: (q.float() * c + torch.cat((-q[..., 64:], q[..., :64]), -1).float() * s).to(
        BF16
    ),
    True,
)
case(
    "train",
    "embedding add layer norm grad",
    lambda: (ids(30522, 64, 512), randn(30522, 768), randn(512, 768), randn(768)),
    lambda i, e, p, w: F.layer_norm(F.embedding(i, e) + p, (768,), w),
    True,
)
case(
    "train",
    "max pool grad",
    lambda: (randn(64, 128, 112, 112),),
    lambda x: F.max_pool2d(x, 3, 2, 1),
    True,
)
case(
    "train", "avg pool grad", lambda: (randn(64, 256, 56, 56),), lambda x: F.avg_pool2d(x, 2), True
)
case(
    "train",
    "bilinear grad",
    lambda: (f32(16, 64, 128, 128),),
    lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    True,
)
case(
    "train",
    "squeeze excite grad",
    lambda: (randn(64, 256, 56, 56), randn(256, 256)),
    lambda x, w: x * (x.mean((2, 3)) @ w).sigmoid()[:, :, None, None],
    True,
)


def sgd(*state: Tensor) -> Tensor:
    for p, g, m in zip(*(state[n::3] for n in range(3)), strict=True):
        m.mul_(0.9).add_(g)
        p.add_(m, alpha=-0.1)
    return state[0].new_ones(1)


def clip(*grads: Tensor) -> Tensor:
    total = torch.stack([g.norm() for g in grads]).norm()
    for g in grads:
        g.mul_((1.0 / (total + 1e-6)).clamp(max=1.0))
    return total


case("write", "sgd in place of 50", lambda: tuple(f32(1024, 512) for _ in range(150)), sgd)
case("write", "clip in place of 40", lambda: tuple(f32(1024, 1024) for _ in range(40)), clip)
case(
    "write",
    "ema in place",
    lambda: (f32(8192, 8192), f32(8192, 8192)),
    lambda e, p: e.mul_(0.99).add_(p, alpha=0.01),
)
case(
    "write",
    "masked in place",
    lambda: (f32(8192, 8192), ids(2, 8192, 8192).bool()),
    lambda x, m: x.masked_fill_(m, 0.0),
)

# ---- scans
case(
    "scan", "reverse cumsum", lambda: (f32(16384, 4096),), lambda x: x.flip(-1).cumsum(-1).flip(-1)
)
case(
    "scan",
    "exclusive cumsum",
    lambda: (f32(16384, 4000),),
    lambda x: F.pad(x, (1, 0))[:, :-1].cumsum(-1),
)
case(
    "scan",
    "masked cumsum",
    lambda: (f32(16384, 4096), ids(2, 16384, 4096).bool()),
    lambda x, m: (x * m).cumsum(-1),
)
case("scan", "cumsum of middle", lambda: (f32(64, 1024, 512),), lambda x: x.cumsum(1))
case("scan", "cumsum of 500 columns", lambda: (f32(131072, 500),), lambda x: x.cumsum(0))
case(
    "scan",
    "cumsum softmax",
    lambda: (randn(16384, 4096),),
    lambda x: x.float().softmax(-1).cumsum(-1),
)
case(
    "scan",
    "decay scan",
    lambda: (f32(4096, 8192), f32(4096, 8192)),
    lambda a, x: (x * (-a.abs().cumsum(-1) / 8192).exp()).cumsum(-1),
)
case("scan", "logcumsumexp columns", lambda: (f32(4096, 8192),), lambda x: x.logcumsumexp(0))

# ---- windows, resampling, movement
case("move", "avg pool 1d", lambda: (f32(64, 128, 65536),), lambda x: F.avg_pool1d(x, 8, 1, 4))
case(
    "move",
    "max pool 1d dilated",
    lambda: (f32(64, 192, 32768),),
    lambda x: F.max_pool1d(x, 8, 1, 4, 3),
)
case("move", "avg pool 3d", lambda: (f32(16, 32, 64, 64, 64),), lambda x: F.avg_pool3d(x, 3, 2, 1))
case("move", "max pool 3d", lambda: (f32(16, 32, 64, 64, 64),), lambda x: F.max_pool3d(x, 3, 2, 1))
case(
    "move",
    "adaptive avg pool",
    lambda: (randn(64, 256, 56, 56),),
    lambda x: F.adaptive_avg_pool2d(x, 7),
)
case(
    "move",
    "bilinear",
    lambda: (randn(32, 64, 128, 128),),
    lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
)
case(
    "move",
    "nearest",
    lambda: (randn(32, 64, 128, 128),),
    lambda x: F.interpolate(x, scale_factor=2),
)
case(
    "move",
    "reflect pad",
    lambda: (randn(64, 64, 128, 128),),
    lambda x: F.pad(x, (3, 3, 3, 3), "reflect"),
)
case("move", "pixel shuffle", lambda: (randn(32, 256, 128, 128),), lambda x: F.pixel_shuffle(x, 2))
case(
    "move",
    "patches",
    lambda: (randn(64, 3, 512, 512),),
    lambda x: x.view(64, 3, 32, 16, 32, 16).permute(0, 2, 4, 1, 3, 5).reshape(64, 1024, 768) * 2,
)
case(
    "move",
    "window partition",
    lambda: (randn(64, 56, 56, 192),),
    lambda x: (
        torch.roll(x, (-3, -3), (1, 2))
        .view(64, 8, 7, 8, 7, 192)
        .permute(0, 1, 3, 2, 4, 5)
        .contiguous()
    ),
)
case(
    "move",
    "split heads",
    lambda: (randn(16, 2048, 3 * 2048),),
    lambda x: tuple(
        t.contiguous() for t in x.view(16, 2048, 3, 16, 128).permute(2, 0, 3, 1, 4).unbind(0)
    ),
)
case(
    "move",
    "take along",
    lambda: (randn(8192, 8192), ids(8192, 8192, 1024)),
    lambda x, i: x.gather(1, i),
)
case(
    "move",
    "rows by index",
    lambda: (randn(100000, 1024), ids(100000, 65536)),
    lambda x, i: x[i] * 2,
)
case("move", "one hot", lambda: (ids(1000, 65536),), lambda i: F.one_hot(i, 1000).to(BF16))
case("move", "causal mask", lambda: (randn(64, 1024, 1024),), lambda x: x.tril())
case(
    "move",
    "int8 rows",
    lambda: (randn(16384, 8192),),
    lambda x: (
        (s := x.abs().amax(-1, True).float() / 127),
        (x / s).round().clamp(-128, 127).to(torch.int8),
    ),
)
case(
    "move",
    "fp8 tensor",
    lambda: (randn(16384, 8192), f32(1).abs()),
    lambda x, s: (x.float() * s).clamp(-448, 448).to(torch.float8_e4m3fn),
)
case(
    "move",
    "int4 unpack",
    lambda: (ids(256, 8192, 4096).to(torch.uint8), randn(8192, 1)),
    lambda q, s: torch.stack(((q & 15).to(BF16) - 8, (q >> 4).to(BF16) - 8), -1).flatten(1) * s,
)


# ---- blocks around convolutions and matmuls, without gradients
def block(
    name: str, size: tuple[int, ...], run: Any, *modules: Any, dtype: torch.dtype = F32
) -> None:
    """`run` of modules with fixed random weights and a tensor; nothing is differentiated."""
    made: list[nn.Module] = []

    def make() -> tuple[Any, ...]:
        if not made:
            made.extend(m().eval().to("cuda", dtype).requires_grad_(False) for m in modules)
        return (randn(*size, dtype=dtype),)

    case("block", name, make, lambda x: run(*made, x))


block(
    "depthwise",
    (32, 64, 256, 256),
    lambda c, x: c(x),
    lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64),
)
block(
    "depthwise no bias",
    (32, 64, 256, 256),
    lambda c, x: c(x),
    lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False),
)
block("pointwise", (16, 64, 512, 512), lambda c, x: c(x), lambda: nn.Conv2d(64, 128, 1))
block(
    "separable",
    (16, 64, 256, 256),
    lambda c, d, x: d(c(x)),
    lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64),
    lambda: nn.Conv2d(64, 128, 1),
)
block(
    "conv relu bias",
    (64, 64, 128, 128),
    lambda c, x: F.relu(c(x)) + 0.5,
    lambda: nn.Conv2d(64, 128, 3),
)
block(
    "conv instance norm",
    (64, 64, 128, 128),
    lambda c, x: F.instance_norm(c(x)) / 2,
    lambda: nn.Conv2d(64, 128, 3),
)
block(
    "conv group norm pool",
    (64, 8, 128, 128),
    lambda c, n, x: F.max_pool2d(n(c(x)) * 2, 4).clamp(0, 1),
    lambda: nn.Conv2d(8, 64, 3),
    lambda: nn.GroupNorm(16, 64),
)
block(
    "conv softmax pool",
    (64, 16, 32, 32, 32),
    lambda c, x: F.max_pool3d(c(x).softmax(1), 4),
    lambda: nn.Conv3d(16, 32, 3),
)
block(
    "conv average sigmoid sum",
    (64, 8, 256, 256),
    lambda c, x: F.avg_pool2d(c(x), 4).sigmoid().sum((1, 2, 3)),
    lambda: nn.Conv2d(8, 64, 3),
)
block(
    "conv transpose gelu",
    (16, 32, 32, 32, 32),
    lambda c, n, x: F.gelu(n(c(x))),
    lambda: nn.ConvTranspose3d(32, 64, 4, 2, 1),
    lambda: nn.LayerNorm(64),
)
block(
    "conv transpose bias clamp",
    (64, 64, 64, 64),
    lambda c, x: (c(x).clamp(0, 1) * 2).clamp(0, 1) / 2,
    lambda: nn.ConvTranspose2d(64, 64, 3, 2, 1, 1),
)
block(
    "conv batch norm scale",
    (64, 8, 128, 128),
    lambda c, n, x: n(c(x)) * 2,
    lambda: nn.Conv2d(8, 64, 3),
    lambda: nn.BatchNorm2d(64),
)
block(
    "conv softplus tanh",
    (64, 64, 128, 128),
    lambda c, x: torch.tanh(F.softplus(c(x))) * 2,
    lambda: nn.Conv2d(64, 64, 3),
)
block(
    "conv bf16 channels silu",
    (64, 64, 112, 112),
    lambda c, x: F.silu(c(x)),
    lambda: nn.Conv2d(64, 64, 3, padding=1),
    dtype=BF16,
)
block(
    "linear group norm",
    (16384, 4096),
    lambda a, n, x: F.hardtanh(n(a(x))),
    lambda: nn.Linear(4096, 4096),
    lambda: nn.GroupNorm(16, 4096),
    dtype=BF16,
)
block(
    "linear max sum",
    (16384, 4096),
    lambda a, x: F.max_pool1d(a(x)[:, None], 2)[:, 0].sum(1) * 0.5,
    lambda: nn.Linear(4096, 4096),
    dtype=BF16,
)
block(
    "linear logsumexp",
    (8192, 4096),
    lambda a, x: F.mish(a(x).logsumexp(1, True)),
    lambda: nn.Linear(4096, 8192),
    dtype=BF16,
)
block(
    "linear swish bias norm",
    (16384, 2048),
    lambda a, n, x: n(F.silu(a(x)) + 0.1),
    lambda: nn.Linear(2048, 4096),
    lambda: nn.LayerNorm(4096),
    dtype=BF16,
)
block(
    "mlp residual norm",
    (16384, 1024),
    lambda a, b, n, x: n(x + b(F.gelu(a(x)))),
    lambda: nn.Linear(1024, 4096),
    lambda: nn.Linear(4096, 1024),
    lambda: nn.LayerNorm(1024),
    dtype=BF16,
)
