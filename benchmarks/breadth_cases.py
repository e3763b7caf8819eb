"""Operators and chains of families that the other lists have few of: reductions with several
results and over the middle, norms of odd widths, pooling, losses, indexing and quantisation.

`python benchmarks/kernels.py --cases breadth_cases` measures it. Inputs are the words of
`odd_cases`; a name that begins with "dynamic" is compiled with dynamic sizes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, Case
from odd_cases import made
from torch import Tensor

CASES: list[Case] = []
NINF = float("-inf")


def case(family: str, name: str, inputs: str, run: Any) -> None:
    words = inputs.split()
    CASES.append(Case(family, name, run, lambda: tuple(map(made, words)), name.endswith("grad")))


def weight_norm(v: Tensor, g: Tensor) -> Tensor:
    return g * v / v.flatten(1).norm(dim=1)[:, None, None, None]


def power_step(w: Tensor, u: Tensor) -> Tensor:
    v = F.normalize(w.T @ u, dim=0)
    return F.normalize(w @ v, dim=0)


def rms(x: Tensor, w: Tensor) -> Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def standardised(x: Tensor, dim: int) -> Tensor:
    return (x - x.mean(dim, keepdim=True)) / (x.std(dim, keepdim=True) + 1e-4)


def segment_means(x: Tensor, i: Tensor) -> Tensor:
    ones = torch.ones(x.shape[0], device=x.device)
    counts = torch.zeros(65536, device=x.device).index_add(0, i, ones)
    sums = torch.zeros(65536, x.shape[1], device=x.device).index_add(0, i, x)
    return sums / counts.clamp(min=1)[:, None]


def quantised_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.float().abs().amax(-1, True) / 127
    return (x.float() / scale).round().clamp(-127, 127).to(torch.int8), scale


def straight_through(x: Tensor, s: Tensor) -> Tensor:
    scale = s[:, None]
    inside = (x / scale).clamp(-128, 127)
    return (inside + (inside.round() - inside).detach()) * scale


def master_step(p: Tensor, master: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Tensor:
    grad = g.float() / 128
    m.lerp_(grad, 0.1)
    v.mul_(0.999).addcmul_(grad, grad, value=0.001)
    master.mul_(1 - 1e-4).addcdiv_(m, v.sqrt() + 1e-8, value=-1e-3)
    return p.copy_(master)


def sign_step(p: Tensor, g: Tensor, m: Tensor) -> Tensor:
    p.mul_(1 - 1e-4).sub_((m * 0.9 + g * 0.1).sign() * 1e-3)
    m.mul_(0.99).add_(g, alpha=0.01)
    return p


def rotary(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * c - b * s, b * c + a * s), -1)


def rotated(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    q, k, v = x.unbind(2)
    turn = [(lambda a, b: torch.cat((a * c - b * s, b * c + a * s), -1))(*y.chunk(2, -1))
            for y in (q, k)]  # fmt: skip
    return torch.stack((*turn, v), 2)


# fmt: off
# ---- reductions with several results, over the middle and over sets of dimensions
case("reduce", "four statistics of rows", "f16384x4096",
     lambda x: (x.sum(-1), x.amax(-1), x.amin(-1), x.var(-1)))
case("reduce", "two statistics of columns", "f16384x4095", lambda x: (x.mean(0), x.amax(0)))
case("reduce", "moments of channels", "f64x96x113x111", lambda x: torch.var_mean(x, (0, 2, 3)))
case("reduce", "moments of 0 and 2 bf16", "b512x64x4095", lambda x: torch.var_mean(x, (0, 2)))
case("reduce", "moments of 1 and 3", "f32x63x127x255", lambda x: torch.var_mean(x, (1, 3)))
case("reduce", "logsumexp of the middle bf16", "b64x2049x1000", lambda x: x.logsumexp(1))
case("reduce", "logsumexp of the middle grad", "f32x1025x1536", lambda x: x.logsumexp(1))
case("reduce", "argmin of the middle bf16", "b128x1000x1023", lambda x: x.argmin(1))
case("reduce", "maximum of the middle grad", "f64x512x1025", lambda x: x.max(1)[0])
case("reduce", "range of rows grad", "b32768x2500", lambda x: x.amax(1) - x.amin(1))
case("reduce", "masked mean of the middle", "b64x1023x1024 m64x1023",
     lambda x, m: (x * m[..., None]).sum(1) / m.sum(1)[:, None].clamp(min=1))
case("reduce", "masked maximum of rows", "f16384x4097 m16384x4097",
     lambda x, m: x.masked_fill(~m, NINF).amax(-1))
case("reduce", "any, all, sum of a mask", "m16384x20001",
     lambda x: (x.any(-1), x.all(-1), x.sum(-1)))
case("reduce", "sums of int8 columns", "c65536x4000", lambda x: x.sum(0))
case("reduce", "sum of the first of three", "f513x257x1023", lambda x: x.sum(0))
case("reduce", "sum of the middle of 4095", "f32x4096x4095", lambda x: x.sum(1))
case("reduce", "one step of a power iteration", "f8192x8192 f8192", power_step)
# ---- long rows
case("long", "softmax f32", "f1024x100000", lambda x: x.softmax(-1))
case("long", "softmax bf16 grad", "b4096x32000", lambda x: x.softmax(-1))
case("long", "log softmax grad", "f2048x50257", lambda x: x.log_softmax(-1))
case("long", "layer norm bf16", "b1024x131072 b131072 b131072",
     lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b))
case("long", "rms norm f32", "f2048x65536 f65536", rms)
case("long", "layer norm f32 grad", "f2048x49152 f49152 f49152",
     lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b))
case("long", "standardised", "b4096x40000", lambda x: standardised(x.float(), -1).to(BF16))
# ---- norms with gradients
case("norm", "rms norm 768 grad", "f65536x768 f768", rms)
case("norm", "rms norm 1536 bf16 grad", "b49152x1536 b1536", rms)
case("norm", "layer norm 1536 grad", "f32768x1536 f1536 f1536",
     lambda x, w, b: F.layer_norm(x, (1536,), w, b))
case("norm", "layer norm 5120 f32 grad", "f12288x5120 f5120 f5120",
     lambda x, w, b: F.layer_norm(x, (5120,), w, b))
case("norm", "layer norm 1000 bf16 grad", "b65536x1000 b1000",
     lambda x, w: F.layer_norm(x, (1000,), w))
case("norm", "group norm grad", "f32x256x63x64 f256 f256",
     lambda x, w, b: F.group_norm(x, 32, w, b))
case("norm", "instance norm affine grad", "f64x64x112x112 f64 f64",
     lambda x, w, b: F.instance_norm(x, weight=w, bias=b))
case("norm", "batch norm of lines grad", "f64x256x3000 f256 f256",
     lambda x, w, b: F.batch_norm(x, None, None, w, b, True))
case("norm", "batch norm relu odd grad", "f64x128x55x55 f128 f128",
     lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)))
case("norm", "batch norm of volumes bf16 grad", "b16x64x16x56x56 b64 b64",
     lambda x, w, b: F.batch_norm(x, None, None, w, b, True))
case("norm", "weight norm of filters grad", "f4096x1024x3x3 f4096x1x1x1", weight_norm)
case("norm", "columns standardised grad", "f32768x1023", lambda x: standardised(x, 0))
case("norm", "softmax of channels grad", "f32x64x112x112", lambda x: x.softmax(1))
case("norm", "log softmax of the middle bf16 grad", "b16x8x1024x257", lambda x: x.log_softmax(2))
case("norm", "masked softmax f32 grad", "f8192x4097 m8192x4097",
     lambda x, m: x.masked_fill(m, -1e9).softmax(-1))
# ---- losses
case("loss", "weighted smoothed cross entropy grad", "f16384x5000 i5000:16384 u5000",
     lambda x, i, w: F.cross_entropy(x, i, w / 64, ignore_index=7, label_smoothing=0.1))
case("loss", "cross entropy of images grad", "f16x21x512x513 i21:16x512x513",
     lambda x, i: F.cross_entropy(x, i))
case("loss", "divergence of log softmaxes grad", "f8192x5000 f8192x5000", lambda x, y: F.kl_div(
    x.log_softmax(-1), y.log_softmax(-1), reduction="batchmean", log_target=True))
case("loss", "jensen-shannon grad", "f8192x5000 f8192x5000", lambda x, y: (lambda p, q: (
    lambda m: 0.5 * (F.kl_div(m, p, reduction="batchmean")
     + F.kl_div(m, q, reduction="batchmean")))(
    ((p + q) / 2).log()))(x.softmax(-1), y.softmax(-1)))
case("loss", "cosine similarity grad", "b65536x768 b65536x768",
     lambda x, y: F.cosine_similarity(x, y))
case("loss", "pairwise distance grad", "f65536x1000 f65536x1000", F.pairwise_distance)
case("loss", "chamfer grad", "f16x2048x3 f16x2048x3",
     lambda x, y: (lambda d: d.amin(1).mean() + d.amin(2).mean())(
    (x[:, :, None] - y[:, None]).square().sum(-1)))
case("loss", "reparametrised divergence grad", "f65536x512 f65536x512 f65536x512",
     lambda m, v, e: (
    (m + (v / 2).exp() * e).square() - 0.5 * (1 + v - m.square() - v.exp())).sum())
case("loss", "multi-label margins grad", "b32768x4096 m32768x4096",
     lambda x, m: F.softplus(torch.where(m, -x, x).float()).mean())
# ---- scans
case("scan", "cumsum of the middle grad", "f64x1023x512", lambda x: x.cumsum(1))
case("scan", "exclusive masked cumsum bf16", "b16384x5000 m16384x5000",
     lambda x, m: (lambda y: y.cumsum(-1) - y)(x * m))
# ---- windows
case("pool", "average without padding grad", "f32x64x113x113",
     lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False))
case("pool", "dilated maximum grad", "f32x64x112x112", lambda x: F.max_pool2d(x, 3, 1, 1, 2))
case("pool", "adaptive average of 50 to 7 grad", "f64x256x50x50",
     lambda x: F.adaptive_avg_pool2d(x, 7))
case("pool", "power average grad", "+f32x64x112x112", lambda x: F.lp_pool2d(x, 2, 3, 2))
case("pool", "bilinear, corners aligned grad", "f16x64x56x56",
     lambda x: F.interpolate(x, size=(113, 113), mode="bilinear", align_corners=True))
# ---- what moves
case("move", "pixel shuffle bias relu", "b32x256x56x56 b64x1x1",
     lambda x, b: F.relu(F.pixel_shuffle(x, 2) + b))
case("move", "rolled and flipped", "b32x96x113x112", lambda x: x.roll((3, 5), (2, 3)) + x.flip(3))
case("move", "padded, joined, relu", "f16384x2047 f16384x2045",
     lambda x, y: F.relu(torch.cat((F.pad(x, (1, 2)), F.pad(y, (2, 1))), 1)))
case("move", "circular padding grad", "f32x64x112x112",
     lambda x: F.pad(x, (2, 2, 2, 2), "circular"))
case("move", "interleaved", "b8192x8191 b8192x8191",
     lambda x, y: torch.stack((x, y), -1).flatten(-2))
case("move", "triangle mirrored", "f16x2048x2047",
     lambda x: torch.triu(x, 1) + torch.tril(x * 2, -1))
case("move", "smoothed one-hot", "i1000:65536", lambda i: F.one_hot(i, 1000) * 0.9 + 1e-4)
case("move", "segment means grad", "f524288x128 i65536:524288", segment_means)
case("move", "gathered of the middle grad", "f64x1000x256 i1000:64x500x256",
     lambda x, i: x.gather(1, i))
case("move", "rotary of packed", "b8x2048x3x16x128 f2048x1x64 f2048x1x64", rotated)
# ---- points
case("point", "gelu tanh f32", "f16384x8192", lambda x: F.gelu(x, approximate="tanh"))
case("point", "mish chain grad", "f8192x8192", lambda x: F.mish(x * 2 + 1))
case("point", "chain of activations", "f16384x8192", lambda x: F.silu(x) * x.tanh() + F.softplus(x))
case("point", "outer differences", "f12000 f9001",
     lambda x, y: torch.exp(-(x[:, None] - y).square()))
case("point", "l1 distances of pairs", "f2048x64 f2048x64",
     lambda x, y: (x[:, None] - y[None]).abs().sum(-1))
case("point", "bessel j0", "f8192x4096", torch.special.bessel_j0)
case("point", "masks", "m16384x16384 m16384x16384", lambda a, b: (a ^ b) & ~a)
case("point", "gated relu packed grad", "b16384x8192",
     lambda x: (lambda a, b: a.relu() * b)(*x.chunk(2, -1)))
case("point", "glu of channels grad", "b32x256x56x56", lambda x: F.glu(x, 1))
case("point", "dropout of channels grad", "b64x256x56x56", lambda x: F.dropout2d(x, 0.2))
case("point", "int8 add relu", "c16384x8192 c16384x8192", lambda a, b: (
    ((a.float() * 0.1 + b.float() * 0.2).relu() / 0.05).round().clamp(-128, 127).to(torch.int8)))
case("quantise", "rows to int8", "b16384x5120", quantised_rows)
case("quantise", "columns there and back", "f16384x4096", lambda x: (lambda s: (
    x / s).round().clamp(-127, 127) * s)(x.abs().amax(0) / 127))
case("quantise", "straight through of channels grad", "f4096x16384 +f4096", straight_through)
case("optimizer", "f16 with f32 master in place",
     "h8192x4096 f8192x4096 h8192x4096 f8192x4096 +f8192x4096",
     master_step)
case("optimizer", "signs f16 in place", "h8192x8192 h8192x8192 h8192x8192", sign_step)
case("point", "f64 chain", "d4096x4096", lambda x: torch.tanh(x) * x.exp().clamp(max=9) + x.sin())
case("scan", "cumsum of a mask", "m8192x8192", lambda x: x.cumsum(-1))
case("move", "rotary of three quarters of a head", "b8x2048x32x80 b2048x1x30 b2048x1x30",
     lambda x, c, s: torch.cat((rotary(x[..., :60], c, s), x[..., 60:]), -1))
case("move", "reflect pad 3", "f16x64x200x200", lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"))
case("move", "dynamic rolled", "b8192x8192", lambda x: x.roll((3, -5), (0, 1)))
case("move", "dynamic rotary grad", "b8x32x2048x128 f2048x64 f2048x64",
     lambda x, c, s: rotary(x.float(), c, s).to(BF16))
case("norm", "dynamic group norm of 48 grad", "b32x48x96x96 b48 b48",
     lambda x, w, b: F.group_norm(x, 6, w, b))
case("pool", "bilinear by 2", "f16x64x128x128",
     lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"))
case("reduce", "argmax of classes", "f8x21x512x512", lambda x: x.argmax(1))
# fmt: on
