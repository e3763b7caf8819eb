"""Reductions, norms, softmaxes, losses, scans, scatters, windows, casts and optimizers at layouts
and sizes that are no powers of two, with gradients: middle dimensions, transposed and channels-last
inputs, f32 parameters beside bf16 activations, several results.

`python benchmarks/kernels.py --cases odd_cases` measures it. The inputs of a case are a line of
words, each a kind and a size: `b64x128` is bf16, h f16, f f32, d f64, u uint8, c int8, m a mask,
`i9:64` are indices below nine, a sign before the kind makes values positive, and a dot after the
size makes it channels-last. A name that ends in "grad" is differentiated. DEVICE in the environment
is where they are made, and SCALE what the lists that count their rows by `n` divide them by.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, F16, F32, Case
from torch import Tensor

SCALE = int(os.environ.get("SCALE", "1"))
DEVICE = os.environ.get("DEVICE", "cuda")
CASES: list[Case] = []
NINF = float("-inf")
FP8 = torch.float8_e4m3fn
KINDS = {"b": BF16, "h": F16, "f": F32, "d": torch.float64}


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


def made(word: str) -> Tensor:
    positive, word = word[0] == "+", word.strip("+")
    kind, sizes = word[0], word[1:].rstrip(".")
    below, _, sizes = sizes.rpartition(":")
    size = [int(x) for x in sizes.split("x")]
    if kind in "im":
        return mask(*size) if kind == "m" else ids(int(below), *size)
    if kind in "uc":
        return ids(256, *size).to(torch.uint8 if kind == "u" else torch.int8)
    x = randn(*size, dtype=KINDS[kind])
    x = x.abs() if positive else x
    return last(x) if word[-1] == "." else x


def case(family: str, name: str, inputs: str, run: Any) -> None:
    words = inputs.split()
    CASES.append(Case(family, name, run, lambda: tuple(map(made, words)), name.endswith("grad")))


def rms(x: Tensor, w: Tensor) -> Tensor:
    """With f32 weights on activations of 16 bits, as language models compute it."""
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, True) + 1e-6) * w).to(x.dtype)


def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x.float(), w.shape, w, b).to(x.dtype)


def attention_weights(x: Tensor, m: Tensor) -> Tensor:
    x = (x * 0.088).masked_fill(m[:, None, None], NINF)
    return F.dropout(x.float().softmax(-1).to(x.dtype), 0.1)


def gate_loss(x: Tensor) -> Tensor:
    p = x.softmax(-1)
    chosen = torch.zeros_like(p).scatter(1, p.topk(2, -1)[1], 1.0)
    return 60 * (p.mean(0) * chosen.mean(0)).sum() + 1e-3 * x.logsumexp(-1).square().mean()


def quantised_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    groups = x.float().view(x.shape[0], -1, 96)
    scale = groups.abs().amax(-1, True) / 7
    return (groups / scale).round().clamp(-8, 7).to(torch.int8).view(x.shape), scale[..., 0]


def fp8_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    groups = x.float().view(x.shape[0], -1, 128)
    scale = groups.abs().amax(-1, True).clamp(min=1e-4) / 448
    return (groups / scale).to(FP8).view(x.shape), scale[..., 0]


def quantised_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.float().abs().amax(0) / 448
    return (x.float() / scale).to(FP8), scale


def halves(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def windows(x: Tensor) -> Tensor:
    b, h, w, c = x.shape
    x = x.roll((-4, -4), (1, 2)).view(b, h // 8, 8, w // 8, 8, c)
    return x.transpose(2, 3).reshape(-1, 64, c)


def clip(limit: Tensor, *grads: Tensor) -> Tensor:
    total = torch.stack([g.float().norm() for g in grads]).norm()
    for g in grads:
        g.mul_((limit / (total + 1e-6)).clamp(max=1.0).to(g.dtype))
    return total


def ema(*state: Tensor) -> Tensor:
    for e, p in zip(state[::2], state[1::2], strict=True):
        e.mul_(0.995).add_(p, alpha=0.005)
    return state[0].new_ones(1)


def adagrad(*state: Tensor) -> Tensor:
    for p, g, s in zip(*(state[k::3] for k in range(3)), strict=True):
        d = g + 1e-4 * p
        s.addcmul_(d, d)
        p.addcdiv_(d, s.sqrt() + 1e-10, value=-1e-2)
    return state[0].new_ones(1)


def grafted(p: Tensor, g: Tensor, m: Tensor) -> Tensor:
    """A step of momentum in units of the parameter's rows."""
    m.lerp_(g, 0.1)
    unit = m / (m.norm(dim=1, keepdim=True) + 1e-8)
    return p.sub_(unit * p.norm(dim=1, keepdim=True) * 1e-3)


def smooth_rank(x: Tensor, y: Tensor) -> Tensor:
    x, y = x - x.mean(-1, True), y - y.mean(-1, True)
    return (1 - (x * y).sum(-1) * torch.rsqrt((x * x).sum(-1) * (y * y).sum(-1) + 1e-6)).mean()


# fmt: off
# ---- reductions
case("reduce", "sum of the middle of 3001", "f24x2999x3001", lambda x: x.sum(1))
case("reduce", "mean of the middle bf16", "b96x1537x1111", lambda x: x.float().mean(1))
case("reduce", "moments of rows bf16", "b24001x3333", lambda x: torch.var_mean(x.float(), -1))
case("reduce", "amax of columns, unaligned", "b20001x4099", lambda x: x.amax(0))
case("reduce", "sum of squares, transposed", "f7000x9001", lambda x: x.t().square().sum(0))
case("reduce", "channels-last mean and maximum", "b48x384x42x42.", lambda x: (
    x.mean((2, 3)), x.amax((2, 3))))
case("reduce", "sum and maximum of 0 and 3", "f60x33x200x150", lambda x: (
    x.sum((0, 3)), x.amax((0, 3))))
case("reduce", "argmax of columns with values", "b12000x6001", lambda x: x.max(0))
case("reduce", "norm of 1 and 2 grad", "f300x65x41x130", lambda x: x.norm(dim=(1, 2)))
case("reduce", "variance of columns grad", "b30000x1500", lambda x: x.float().var(0))
case("reduce", "mean of the middle grad", "b64x777x1200", lambda x: x.mean(1))
case("reduce", "softmin weighted sum grad", "f40000x777 f40000x777", lambda x, y: (
    (-x).softmax(-1) * y).sum(-1))
case("reduce", "sum of i64 rows over 3", "i99:9000x3001", lambda x: (x % 3 == 0).sum(1))
case("reduce", "dots of the middle", "b128x600x500 b128x600x500", lambda x, y: (x * y).sum(1))
# ---- norms
case("norm", "rms norm f32 weight 3072 grad", "b20000x3072 f3072", rms)
case("norm", "rms norm f32 weight 896 grad", "b60000x896 f896", rms)
case("norm", "layer norm f32 weight 1280 grad", "b40000x1280 f1280 f1280", norm)
case("norm", "layer norm f32 weight 7168 grad", "b6000x7168 f7168 f7168", norm)
case("norm", "layer norm 384 grad", "b150000x384 b384 b384", lambda x, w, b: F.layer_norm(
    x, (384,), w, b))
case("norm", "layer norm of transposed 320 grad", "f48x320x1000 f320 f320",
     lambda x, w, b: F.layer_norm(x.transpose(1, 2), (320,), w, b))
case("norm", "layer norm of channels grad", "b40x256x47x45 f256 f256",
     lambda x, w, b: norm(x.permute(0, 2, 3, 1), w, b).permute(0, 3, 1, 2).contiguous())
case("norm", "layer norm channels-last 2d", "b40x320x60x60. f320 f320",
     lambda x, w, b: norm(x.permute(0, 2, 3, 1), w, b).permute(0, 3, 1, 2))
case("norm", "group norm silu 320", "b12x320x96x96 b320 b320",
     lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)))
case("norm", "group norm silu 640 channels-last", "h16x640x48x48. h640 h640",
     lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)))
case("norm", "group norm add grad", "b24x192x50x50 b24x192x50x50 f192 f192", lambda x, y, w, b: (
    F.group_norm(x.float(), 24, w, b).to(BF16) + y))
case("norm", "batch norm odd channels-last grad", "b40x200x47x47. f200 f200",
     lambda x, w, b: F.batch_norm(x, None, None, w, b, True))
case("norm", "batch norm gelu grad", "f48x96x77x77 f96 f96",
     lambda x, w, b: F.gelu(F.batch_norm(x, None, None, w, b, True)))
case("norm", "instance norm of lines grad", "f128x80x5000", lambda x: F.instance_norm(x))
case("norm", "head norms packed grad", "b6x1500x24x160 f160", lambda x, w: rms(x, w).transpose(1, 2)
     .contiguous())
case("norm", "l2 of transposed grad", "f200x512x600", lambda x: F.normalize(x, dim=1))
case("norm", "residual rms norm two results", "b12000x3584 b12000x3584 f3584", lambda x, y, w: (
    lambda h: (h, rms(h, w)))(x + y))
case("norm", "standardised images", "u96x3x500x333", lambda x: (lambda y: (
    y - y.mean((1, 2, 3), keepdim=True)) / y.std((1, 2, 3), keepdim=True))(x.float()))
case("norm", "weight norm of the middle grad", "f1500x96x333 f1500x1x1", lambda v, g: (
    g * v / v.norm(dim=(1, 2), keepdim=True)))
# ---- softmaxes
case("softmax", "masked dropout grad", "b24x12x700x700 m24x700", attention_weights)
case("softmax", "of 1501 over the middle", "f64x1501x500", lambda x: x.softmax(1))
case("softmax", "of 1501 over the middle grad", "b64x1501x500", lambda x: x.softmax(1))
case("softmax", "of 77 with bias", "h40x16x900x77 h16x900x77", lambda x, b: (x + b).softmax(-1))
case("softmax", "of transposed", "f20x1200x1800", lambda x: x.transpose(1, 2).softmax(-1))
case("softmax", "of 33000 bf16", "b3000x33000", lambda x: x.float().softmax(-1).to(BF16))
case("softmax", "temperature and top", "b6000x12345", lambda x: (lambda p: (p, p.amax(-1)))(
    (x.float() / 0.7).softmax(-1)))
case("softmax", "sigmoid attention causal", "b16x12x600x600", lambda x: (x.float() * 0.1 - 6)
     .sigmoid().tril().to(BF16))
# ---- losses
case("loss", "smoothed, some ignored grad", "b6000x30000 i30000:6000", lambda x, t: F.cross_entropy(
    x.float(), t.masked_fill(t % 7 == 0, -100), label_smoothing=0.1))
case("loss", "of classes over the middle grad", "f64x37x17000 i37:64x17000",
     lambda x, t: F.cross_entropy(x, t, ignore_index=3))
case("loss", "gates of two of 60 grad", "f300000x60", gate_loss)
case("loss", "correlation of rows grad", "f50000x700 f50000x700", smooth_rank)
case("loss", "cosine similarity 500 grad", "b90000x500 b90000x500",
     lambda x, y: F.cosine_similarity(x, y))
case("loss", "l1 and ssim-like moments grad", "f40x3x400x300 f40x3x400x300", lambda x, y: (
    (x - y).abs().mean() + ((x.mean((2, 3)) - y.mean((2, 3))).square()).mean()))
case("loss", "soft targets bf16 grad", "b12000x8000 b12000x8000", lambda x, y: 0 * y.sum() - (
    y.float().softmax(-1).detach() * x.float().log_softmax(-1)).sum(-1).mean())
case("loss", "binary masked grad", "b30000x1900 m30000x1900 m30000x1900", lambda x, t, m: (
    F.binary_cross_entropy_with_logits(x.float(), t.float(), reduction="none") * m).sum() / m.sum())
case("loss", "gaussian nll grad", "f15000x3000 f15000x3000 +f15000x3000", lambda x, y, v: (
    lambda v: 0.5 * (v.log() + (x - y).square() / v).mean())(v.clamp(min=1e-6)))
case("loss", "margin ranking grad", "f30000000 f30000000", lambda x, y: F.margin_ranking_loss(
    x, y, torch.ones_like(x), margin=0.3))
# ---- scans
case("scan", "cumsum of dim 0", "f90x700x1300", lambda x: x.cumsum(0))
case("scan", "cumsum of dim 1", "f90x700x1300", lambda x: x.cumsum(1))
case("scan", "cumsum of dim 2", "f90x700x1300", lambda x: x.cumsum(2))
case("scan", "cumsum of transposed grad", "f3000x11000", lambda x: x.t().cumsum(1))
case("scan", "log-space cumulative grad", "f6000x3000", lambda x: F.logsigmoid(x).cumsum(-1).exp())
case("scan", "cummax of the middle", "b70x900x700", lambda x: x.cummax(1)[0])
# ---- scatters and gathers
case("scatter", "histogram of 4096", "i4096:40000000", lambda i: torch.zeros(
    4096, dtype=torch.int64, device=i.device).index_add(0, i, torch.ones_like(i)))
case("scatter", "histogram of 256 a row", "i256:3000x10000", lambda i: torch.zeros(
    3000, 256, device=i.device).scatter_add(1, i, torch.ones_like(i, dtype=torch.float32)))
case("scatter", "sums of segments bf16", "b400000x192 i9000:400000", lambda x, i: torch.zeros(
    9000, 192, device=x.device).index_add(0, i, x.float()))
case("scatter", "maxima of segments", "f400000x100 i9000:400000", lambda x, i: torch.full(
    (9000, 100), NINF, device=x.device).index_reduce(0, i, x, "amax"))
case("scatter", "embedding 50000 grad", "i50000:20x1500 f50000x640", lambda i, e: e[i])
case("scatter", "gathered columns grad", "f9000x2500 i2500:700", lambda x, i: x[:, i])
case("scatter", "edges there and back grad", "f90000x96 i90000:700000 i90000:700000",
     lambda x, i, j: torch.zeros_like(x).index_add(0, i, F.relu(x[j] - x[i])))
# ---- windows and resampling
case("window", "adaptive average 61 to 9 grad", "f48x192x61x61", lambda x: F.adaptive_avg_pool2d(
    x, 9))
case("window", "adaptive average 45 to 6 channels-last", "b64x384x45x45.",
     lambda x: F.adaptive_avg_pool2d(x, 6))
case("window", "max pool 3 s2 odd grad", "f48x96x111x111", lambda x: F.max_pool2d(x, 3, 2, 1))
case("window", "max pool 3 s2 channels-last grad", "b64x96x111x111.", lambda x: F.max_pool2d(
    x, 3, 2, 1))
case("window", "bilinear 37 to 100 grad", "f40x96x37x37", lambda x: F.interpolate(
    x, size=(100, 100), mode="bilinear"))
case("window", "bilinear channels-last", "b40x96x60x60.", lambda x: F.interpolate(
    x, scale_factor=2, mode="bilinear"))
case("window", "bicubic 100 to 150", "f40x24x100x100", lambda x: F.interpolate(
    x, size=(150, 150), mode="bicubic"))
case("window", "blur of 5 by shifts", "b48x64x130x130", lambda x: sum(
    F.pad(x, (0, 0, 2, 2), "replicate")[:, :, k : k + 130] * w
    for k, w in enumerate((1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16))))
# ---- what moves
case("move", "pixel unshuffle grad", "b24x64x150x150", lambda x: F.pixel_unshuffle(x, 2) * 2)
case("move", "windows of 8, rolled grad", "b40x64x64x160", windows)
case("move", "channels shuffled relu", "f48x240x56x56", lambda x: F.relu(
    x.view(48, 3, 80, 56, 56).transpose(1, 2).reshape(48, 240, 56, 56)))
case("move", "rope halves f32 tables grad", "b6x20x1700x96 f1700x96 f1700x96", lambda q, c, s: (
    q.float() * c + halves(q.float()) * s).to(BF16))
case("move", "rope of transposed", "b6x1700x20x96 f1700x96 f1700x96", lambda q, c, s: (
    lambda t: (t.float() * c + halves(t.float()) * s).to(BF16))(q.transpose(1, 2)))
case("move", "complex rotary", "f6x1700x20x64x2 f1700x64x2", lambda x, w: torch.view_as_real(
    torch.view_as_complex(x) * torch.view_as_complex(w)[None, :, None]).flatten(3))
case("move", "six joined along channels", " ".join(f"b40x{c}x50x50" for c in (
    64, 32, 48, 96, 16, 33)), lambda *x: F.relu(torch.cat(x, 1)))
case("move", "stack of means and rest", "f20000x31x50", lambda x: torch.cat((
    x.mean(1, True), x - x.mean(1, True)), 1))
# ---- casts
case("cast", "int4 of groups of 96", "b12000x5376", quantised_groups)
case("cast", "fp8 of groups of 128", "b12000x5376", fp8_groups)
case("cast", "fp8 of columns", "b12000x5376", quantised_columns)
case("cast", "fp8 and its transpose", "b9000x7000", lambda x: (lambda y: (y, y.t().contiguous()))(
    x.clamp(-448, 448).to(FP8)))
case("cast", "dequantised, bias, gelu", "c20000x3300 +f20000x1 b3300", lambda q, s, b: F.gelu(
    (q.float() * s).to(BF16) + b))
# ---- optimizers
case("optimizer", "clip of a list in place", "f1 " + "f700x900 f900 b300x1111 " * 24, clip)
case("optimizer", "ema of f32 and bf16 in place", "f900x1100 f900x1100 b2000x333 b2000x333 " * 24,
     ema)
case("optimizer", "adagrad in place", "f777x1234 f777x1234 +f777x1234 " * 24, adagrad)
case("optimizer", "rows grafted in place", "f7000x5001 f7000x5001 f7000x5001", grafted)
# fmt: on
