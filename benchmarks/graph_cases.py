"""Pieces cut out of the graphs of whole models, of pre- and postprocessing and of collections.

`python benchmarks/kernels.py --cases graph_cases` measures it. The inputs of a case are a line of
words, each a kind and a size: `b64x128` is bf16, h f16, f f32, d f64, u uint8, c int8, m a mask,
`i9:64` are indices below nine, a sign before the kind makes values positive, and a dot after the
size makes it channels-last. A name that ends in "grad" is differentiated.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, F16, F32, Case
from odd_cases import ids, last, mask, randn
from torch import Tensor

CASES: list[Case] = []
KINDS = {"b": BF16, "h": F16, "f": F32, "d": torch.float64}


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


# fmt: off
# ---- language models
def t5_bias(x: Tensor, table: Tensor) -> Tensor:
    at = torch.arange(x.shape[-1], device=x.device)
    d = at[None] - at[:, None]
    far = 8 + (torch.log(d.abs().float() / 8) / math.log(16) * 8).long()
    bucket = (d > 0) * 16 + torch.where(d.abs() < 8, d.abs(), far.clamp(max=15))
    return (x + table[bucket].permute(2, 0, 1)).float().softmax(-1).to(x.dtype)


def alibi(x: Tensor) -> Tensor:
    heads, k = x.shape[1], torch.arange(x.shape[-1], device=x.device)
    s = 2.0 ** (-8 * torch.arange(1, heads + 1, device=x.device) / heads)
    bias = s[:, None, None] * (k[None] - k[:, None])
    return (x.float() + bias).masked_fill(k[None] > k[:, None], -1e9).softmax(-1).to(BF16)


def halves(x: Tensor) -> Tensor:
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)


def segments(x: Tensor) -> Tensor:
    s = x.cumsum(-1)
    keep = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).tril()
    return (s[..., :, None] - s[..., None, :]).masked_fill(~keep, float("-inf")).exp()


def time_mix(x: Tensor, *m: Tensor) -> Tensor:
    d = F.pad(x, (0, 0, 1, -1)) - x
    return torch.cat([x + d * w for w in m], -1)


def capacity(x: Tensor) -> tuple[Tensor, ...]:
    p = x.softmax(-1)
    first = F.one_hot(p.argmax(-1), 16)
    second = F.one_hot(p.masked_fill(first.bool(), 0.0).argmax(-1), 16)
    place, later = first.cumsum(0) - 1, second.cumsum(0) - 1 + first.sum(0, True)
    first, second = first * (place < 8192), second * (later < 8192)
    return (p * first).sum(-1), (p * second).sum(-1), (place * first).sum(-1)


def balance(x: Tensor) -> Tensor:
    p = x.float().softmax(-1)
    return 64 * (F.one_hot(p.topk(2, -1)[1], 64).float().mean((0, 1)) * p.mean(0)).sum()


def relative_shift(x: Tensor) -> Tensor:
    b, h, q, k = x.shape
    return F.pad(x, (1, 0)).view(b, h, k + 1, q)[:, :, 1:].reshape(b, h, q, k)


def logp(x: Tensor, t: Tensor) -> Tensor:
    return x.float().log_softmax(-1).gather(-1, t[:, None])[:, 0]


case("text", "bert embeddings grad", "i30522:32x512 i2:32x512 f30522x768 f2x768 f512x768 f768 f768",
     lambda i, t, e, k, p, w, b: F.layer_norm(e[i] + k[t] + p, (768,), w, b))
case("text", "t5 bias softmax", "b16x12x512x512 b32x12", t5_bias)
case("text", "t5 bias softmax grad", "b16x12x512x512 b32x12", t5_bias)
case("text", "alibi softmax", "b4x16x1024x1024", alibi)
case("text", "relative shift softmax", "b8x16x512x512 b8x16x512x512",
     lambda x, y: ((x + relative_shift(y)) * 0.125).softmax(-1))
case("text", "selective scan inputs", "+f4x1024x512 f512x16 f4x1024x16 f4x1024x512",
     lambda t, a, b, x: ((t[..., None] * -a.exp()).exp(), (t * x)[..., None] * b[:, :, None]))
case("text", "selective scan step", "f64x4096x16 f64x4096 f4096x16 f64x16 f64x16 f64x4096 f4096",
     lambda h, t, a, b, c, x, d: (lambda s: (s, (s * c[:, None]).sum(-1) + d * x))(
         h * (F.softplus(t)[..., None] * a).exp() + (F.softplus(t) * x)[..., None] * b[:, None]))
case("text", "mamba output gate grad", "b8x2048x4096 b8x2048x4096 b8x2048x4096 f4096",
     lambda y, x, z, d: ((y + x * d) * F.silu(z.float())).to(BF16))
case("text", "segment sums exp", "f4x24x8x256", segments)
case("text", "time mixing grad", "b8x2048x2048 b2048 b2048 b2048", time_mix)
case("text", "time mixing of five", "b8x2048x2048 b2048 b2048 b2048 b2048 b2048",
     lambda x, *m: [x + (F.pad(x, (0, 0, 1, -1)) - x) * w for w in m])
case("text", "rwkv decay", "f8x2048x2048 f2048", lambda x, w: (-(w + torch.tanh(x)).exp()).exp())
case("text", "rotary of a quarter", "b8x2048x32x128 f2048x1x32 f2048x1x32",
     lambda x, c, s: torch.cat(
         (x[..., :32] * c + halves(x[..., :32]) * s, x[..., 32:]), -1).to(BF16))
case("text", "rotary of two axes", "b16x1024x16x80 f1024x40 f1024x40",
     lambda x, a, b: (lambda t: (x.float() * t.cos() + halves(x.float()) * t.sin()).to(BF16))(
         torch.cat((a, b), -1)[:, None]))
case("text", "rotary sections", "b4x32x2048x128 f3x4x2048x128 f3x4x2048x128",
     lambda x, c, s: (lambda c, s: (x * c + halves(x) * s).to(BF16))(
         *(torch.cat([m[n % 3] for n, m in enumerate(t.split((16, 24, 24, 16, 24, 24), -1))], -1)[
             :, None] for t in (c, s))))
case("text", "rotary of positions grad", "b8x16x2048x128 i2048:8x2048",
     lambda x, i: (lambda t: (x * t.cos() + halves(x) * t.sin()).to(BF16))(
         (lambda h: torch.cat((h, h), -1)[:, None])(i[..., None].float() * 10000.0 ** (
             -torch.arange(0, 128, 2, device=x.device) / 128))))
case("text", "heads repeated grad", "b8x8x2048x128 b8x32x2048x128",
     lambda k, q: k[:, :, None].expand(-1, -1, 4, -1, -1).reshape(8, 32, 2048, 128) * q)
case("text", "split qkv of groups", "b8x2048x6144",
     lambda x: [t.transpose(1, 2).contiguous() for t in (lambda g: (
         g[:, :, :, :4].flatten(2, 3), g[:, :, :, 4], g[:, :, :, 5]))(x.view(8, 2048, 8, 6, 128))])
case("text", "expert capacity", "f131072x16", capacity)
case("text", "balance of experts grad", "f262144x64", balance)
case("text", "combine experts grad", "b16384x8x1024 f16384x8",
     lambda y, w: (y * w[..., None]).sum(1).to(BF16))
case("text", "sigmoid routing of groups", "f131072x256 f256", lambda x, b: (
    lambda p: p.masked_fill(~(lambda g: torch.zeros_like(g).scatter(
        -1, g.topk(4, -1)[1], 1.0))(p.view(-1, 8, 32).amax(-1)).bool().repeat_interleave(
            32, -1), 0.0)
)(x.sigmoid() + b))
case("text", "modulate of six grad", "b32x1024x1152 b32x6912", lambda x, m: (
    lambda s, t, g, *r: x + g[:, None] * (F.layer_norm(x, (1152,)) * (1 + s[:, None]) + t[:, None])
    + (r[0] + r[1] + r[2])[:, None])(*m.chunk(6, -1)))
case("text", "deep norm residual grad", "b16384x2048 b16384x2048 f2048 f2048",
     lambda x, y, w, b: F.layer_norm(x * 2.5 + y, (2048,), w.to(BF16), b.to(BF16)))
case("text", "hyper connections grad", "b4096x4x2048 f4096x4 f4096x4",
     lambda x, a, b: (lambda h: x + b[..., None] * h[:, None])((x * a[..., None]).sum(1)))
case("text", "unigram ngram hash", "i50000:8192x2048",
     lambda i: ((i * 31 + F.pad(i, (1, -1)) * 17 + F.pad(i, (2, -2))) % 65537))
case("text", "no repeat ngram mask", "i99:4096x2048",
     lambda i: (i[:, 1:] == i[:, :1]) & (i[:, :-1] > 3))

# ---- images and volumes
def giou_loss(a: Tensor, b: Tensor) -> Tensor:
    """The loss between boxes, each given as a corner and a size."""
    inner = torch.min(a[:, :2] + a[:, 2:], b[:, :2] + b[:, 2:]) - torch.max(a[:, :2], b[:, :2])
    hull = torch.max(a[:, :2] + a[:, 2:], b[:, :2] + b[:, 2:]) - torch.min(a[:, :2], b[:, :2])
    both, around = inner.clamp(min=0).prod(-1), hull.prod(-1) + 1e-6
    union = a[:, 2:].prod(-1) + b[:, 2:].prod(-1) - both + 1e-6
    return (1 - both / union + (around - union) / around).mean()


def ssim_loss(x: Tensor, y: Tensor) -> Tensor:
    a, b, xx, yy, xy = (F.avg_pool2d(t, 7, 1) for t in (x, y, x * x, y * y, x * y))
    top = (2 * a * b + 1e-4) * (2 * (xy - a * b) + 9e-4)
    return 1 - (top / ((a * a + b * b + 1e-4) * (xx - a * a + yy - b * b + 9e-4))).mean()


def sine_positions(m: Tensor) -> Tensor:
    scale = 10000 ** (torch.arange(128, device=m.device) // 2 * 2 / 128)
    axes = (m.cumsum(k).float()[..., None] / scale for k in (1, 2))
    both = [torch.stack((v[..., ::2].sin(), v[..., 1::2].cos()), -1).flatten(3) for v in axes]
    return torch.cat(both, 3).permute(0, 3, 1, 2)


case("vision", "swin masked softmax grad", "b1024x8x49x49 f169x8 i169:49x49 f64x49x49",
     lambda x, t, i, m: ((x.view(16, 64, 8, 49, 49) + t[i].permute(2, 0, 1) + m[None, :, None])
                         .softmax(-1).to(BF16)))
case("vision", "swin reverse roll add", "b4096x7x7x192 b64x56x56x192", lambda x, y: y + torch.roll(
    x.view(64, 8, 8, 7, 7, 192).permute(0, 1, 3, 2, 4, 5).reshape(64, 56, 56, 192), (3, 3), (1, 2)))
case("vision", "swin merge norm grad", "b64x56x56x192 f768 f768", lambda x, w, b: F.layer_norm(
    torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1).float(), (768,), w, b))
case("vision", "unpatchify", "b64x1024x768",
     lambda x: x.view(64, 32, 32, 16, 16, 3).permute(0, 5, 1, 3, 2, 4).reshape(64, 3, 512, 512))
case("vision", "class token positions grad", "b64x768x24x24 b768 b577x768",
     lambda x, c, p: torch.cat((c.expand(64, 1, -1), x.flatten(2).transpose(1, 2)), 1) + p)
case("vision", "norm of channels grad", "b64x192x56x56 b192 b192", lambda x, w, b: F.layer_norm(
    x.permute(0, 2, 3, 1), (192,), w, b).permute(0, 3, 1, 2).contiguous())
case("vision", "layer scale from channels-last", "b64x56x56x384 b384 b64x384x56x56",
     lambda x, g, y: y + (g * x).permute(0, 3, 1, 2))
case("vision", "squeeze excite channels-last grad", "b64x576x28x28. b144x576 b576x144",
     lambda x, a, b: x * F.hardsigmoid(F.relu(x.mean((2, 3)) @ a.t()) @ b.t())[:, :, None, None])
case("vision", "batch norm eval hard swish f16", "h64x240x56x56 +h240 +h240 h240 h240",
     lambda x, m, v, w, b: F.hardswish(F.batch_norm(x, m, v, w, b)))
case("vision", "gate of channels and places", "f32x256x56x56 f32x256x1x1",
     lambda x, c: (lambda y: y * (y.mean(1, True) + y.amax(1, True)).sigmoid())(x * c.sigmoid()))
case("vision", "up cat group norm silu", "b16x128x64x64 b16x128x128x128 b256 b256",
     lambda x, y, w, b: F.silu(F.group_norm(
         torch.cat((F.interpolate(x, scale_factor=2), y), 1), 32, w, b)))
case("vision", "pyramid sum", "b16x256x128x128 b16x256x64x64 b16x256x32x32",
     lambda x, y, z: x + F.interpolate(y + F.interpolate(z, scale_factor=2), scale_factor=2))
case("vision", "time bias group norm silu grad", "b32x320x64x64 b32x320 b320 b320",
     lambda x, t, w, b: F.silu(F.group_norm(x + t[:, :, None, None], 32, w, b)))
case("vision", "sine positions of masks", "m32x96x96", sine_positions)
case("vision", "timestep embedding", "i1000:4096",
     lambda t: (lambda a: torch.cat((a.cos(), a.sin()), -1))(
    t[:, None].float() * (-math.log(10000) / 160 * torch.arange(160, device=t.device)).exp()))
case("vision", "noised images", "f64x4x128x128 f64x4x128x128 i1000:64 +f1000", lambda x, e, t, a: (
    lambda s: s.sqrt() * x + (1 - s).clamp(min=0).sqrt() * e)(
        (-a.cumsum(0)).exp()[t][:, None, None, None]))
case("vision", "guided step", "h128x4x128x128 h64x4x128x128 h64x4x128x128", lambda e, x, z: (
    lambda g: x + (x - 0.3 * g.clamp(-9, 9)) * 0.1 + 0.2 * z)(
        (lambda u, c: u + 7.5 * (c - u))(*e.chunk(2))))
case("vision", "guidance rescaled", "h128x4x128x128", lambda e: (lambda u, c: (
    lambda g: 0.7 * g * (c.std((1, 2, 3), keepdim=True) / g.std(
        (1, 2, 3), keepdim=True)) + 0.3 * g)(
        u + 7.5 * (c - u)))(*e.chunk(2)))
case("vision", "weighted noise loss grad", "b64x4x256x256 b64x4x256x256 +f64",
     lambda x, y, w: ((x.float() - y.float()).square().mean((1, 2, 3)) * w).mean())
case("vision", "vector quantiser straight through grad", "f64x256x32x32 f64x256x32x32",
     lambda x, q: (x + (q - x).detach() + 0 * q).permute(0, 2, 3, 1).contiguous())
case("vision", "reparametrised kl grad", "f256x8x64x64 f256x8x64x64 f256x8x64x64", lambda m, v, e: (
    (m + (0.5 * v).exp() * e).square().mean() - 0.5 * (
        1 + v - m * m - v.exp()).sum((1, 2, 3)).mean()))
case("vision", "spatial softmax coordinates grad", "f64x128x64x64",
     lambda x: (lambda p, a: torch.stack(
    ((p.sum(2) * a).sum(-1), (p.sum(3) * a).sum(-1)), -1))(
        x.flatten(2).softmax(-1).view_as(x), torch.linspace(-1, 1, 64, device=x.device)))
case("vision", "bilinear rows by hand grad", "f16x65536x64 f16x32768x2",
     lambda v, p: (lambda i, f: (
    v.gather(1, i.clamp(0, 65534)[..., None].expand(-1, -1, 64)) * (1 - f)
    + v.gather(1, (i + 1).clamp(0, 65535)[..., None].expand(-1, -1, 64)) * f))(
        (p[..., 0].abs() * 9999).long(), p[..., 1:].sigmoid()))
case("vision", "giou loss grad", "+f1048576x4 +f1048576x4", giou_loss)
case("vision", "boxes decoded", "f16x60000x4 +f60000x4", lambda d, a: (lambda c, s: torch.cat(
    (c - s / 2, c + s / 2), -1).clamp(0, 1024))(a[:, :2] + d[..., :2] * 0.1 * a[:, 2:],
                                              a[:, 2:] * (d[..., 2:] * 0.2).clamp(max=4.1).exp()))
case("vision", "depthwise shift", "b64x256x56x56", lambda x: torch.cat((
    F.pad(x[:, :64], (1, -1)), F.pad(x[:, 64:128], (-1, 1)), F.pad(x[:, 128:192], (0, 0, 1, -1)),
    F.pad(x[:, 192:], (0, 0, -1, 1))), 1))
case("vision", "ssim grad", "f32x3x256x256 f32x3x256x256", ssim_loss)


# ---- losses and metrics
case("loss", "jensen-shannon grad", "f8192x5000 f8192x5000", lambda x, y: (lambda p, q: (lambda m: (
    F.kl_div(m, p, reduction="batchmean") + F.kl_div(m, q, reduction="batchmean")) / 2)(
        ((p + q) / 2).log()))(x.softmax(-1), y.softmax(-1)))
case("loss", "focal softmax grad", "f32x21x256x256 i21:32x256x256", lambda x, t: (
    lambda c: ((1 - (-c).exp()).square() * c).mean())(F.cross_entropy(x, t, reduction="none")))
case("loss", "contrastive pairs grad", "f65536x512 f65536x512 m65536",
     lambda x, y, m: (lambda d: torch.where(
    m, d.square(), (1 - d).clamp(min=0).square()).mean())(F.pairwise_distance(x, y)))
case("loss", "sigmoid of pairs grad", "b8192x8192", lambda x: -F.logsigmoid(x.float() * 10 * (
    2 * torch.eye(x.shape[0], device=x.device) - 1)).sum() / x.shape[0])
case("loss", "supervised contrastive grad", "f4096x4096 i100:4096", lambda x, t: (lambda s, m: (
    -((s - s.exp().sum(1, True).log()) * m).sum(1) / m.sum(1).clamp(min=1)).mean())(
        x - x.amax(1, True).detach(), (t[:, None] == t[None]).float()))
case("loss", "preferences grad", "b4096x32000 b4096x32000 i32000:4096", lambda x, y, t: (lambda d:
     -F.logsigmoid(0.1 * (d[0] - d[1])).mean())((logp(x, t) - logp(y, t)).view(2, -1)))
case("loss", "angular margin grad", "f4096x10000 i10000:4096",
     lambda x, t: F.cross_entropy(torch.where(
    F.one_hot(t, 10000).bool(), (x.tanh().acos() + 0.5).cos(), x.tanh()) * 64, t))
case("loss", "off-diagonal grad", "f8192x8192",
     lambda c: (c - torch.eye(8192, device=c.device)).square().mul(
    torch.where(torch.eye(8192, device=c.device).bool(), 1.0, 5e-3)).sum())
case("loss", "variance and covariance grad", "f16384x4096", lambda x: (lambda c: F.relu(
    1 - (c.var(0) + 1e-4).sqrt()).mean() + c.square().mean())(x - x.mean(0)))
case("loss", "quantiles grad", "f262144x9x8 f262144x8", lambda x, y: (lambda d, q: torch.max(
    q * d, (q - 1) * d).mean())(
        y[:, None] - x, torch.linspace(0.1, 0.9, 9, device=x.device)[:, None]))
case("loss", "charbonnier edges grad", "f32x3x512x512 f32x3x512x512", lambda x, y: (lambda d: (
    d.square() + 1e-6).sqrt().mean() + (d[..., 1:] - d[..., :-1]).abs().mean())(x - y))
case("loss", "mixture log-likelihood grad", "f131072x64x3 f131072", lambda p, y: -(
    p[..., 0].log_softmax(-1) - p[..., 2]
    - 0.5 * ((y[:, None] - p[..., 1]) * (-p[..., 2]).exp()).square()
    ).logsumexp(-1).mean())
case("loss", "ctc step", "f4096x1024 f4096x1024 m4096x1024", lambda a, x, m: x + torch.stack((
    a, F.pad(a, (1, -1), value=-1e9),
    F.pad(a, (2, -2), value=-1e9).masked_fill(m, -1e9))).logsumexp(0))
case("loss", "gumbel straight through grad", "f65536x512 +f65536x512", lambda x, u: (lambda p: (
    F.one_hot(p.argmax(-1), 512) - p).detach() + p + 0 * u)((x - u.log()).softmax(-1)))
case("loss", "calibration bins", "f131072x100 i100:131072", lambda x, t: (lambda c, b: torch.zeros(
    15, device=x.device).index_add(0, b, c[0] - (c[1] == t).float()))(*(lambda c: (
        c, (c[0] * 15).long().clamp(max=14)))(x.softmax(-1).max(-1))))
case("loss", "confusion matrix", "i19:16x512x1024 i19:16x512x1024", lambda p, t: torch.zeros(
    361, dtype=torch.int64, device=p.device).index_add(
        0, (t * 19 + p).flatten(), torch.ones_like(t).flatten()).view(19, 19))
case("loss", "policy log-probs and entropy grad", "f262144x17 f262144x17 f17", lambda a, m, s: (
    (-0.5 * ((a - m) / s.exp()).square() - s - 0.919).sum(-1) + (s + 1.419).sum()))
case("loss", "advantages", "f8192x64 f8192x65 m8192x64", lambda r, v, d: (lambda t: (lambda a: (
    a - a.mean()) / (a.std() + 1e-8))(sum(F.pad(t[:, k:], (0, k)) * 0.95**k for k in range(8))))(
        r + 0.99 * v[:, 1:] * ~d - v[:, :-1]))

# ---- optimizers
def adamw_clipped(*state: Tensor) -> Tensor:
    groups = [state[k::4] for k in range(4)]
    scale = (1 / (torch.stack([g.norm() for g in groups[1]]).norm() + 1e-6)).clamp(max=1.0)
    for p, g, m, v in zip(*groups, strict=True):
        m.lerp_(g * scale, 0.1)
        v.mul_(0.99).addcmul_(g * scale, g * scale, value=0.01)
        p.mul_(1 - 1e-4).addcdiv_(m, v.abs().sqrt() + 1e-8, value=-1e-3)
    return scale


def lamb(*state: Tensor) -> Tensor:
    for p, g, m, v in zip(*(state[k::4] for k in range(4)), strict=True):
        m.lerp_(g, 0.1)
        v.lerp_(g * g, 0.01)
        u = m / (v.abs().sqrt() + 1e-6) + 0.01 * p
        p.sub_(1e-3 * (p.norm() / (u.norm() + 1e-6)).clamp(0, 10) * u)
    return state[0].new_ones(1)


def muon(p: Tensor, g: Tensor, m: Tensor) -> Tensor:
    m.lerp_(g, 0.05)
    u = g.lerp(m, 0.95).bfloat16()
    return u / (u.norm() + 1e-7) * max(1, p.shape[0] / p.shape[1]) ** 0.5


def adam_int8(p: Tensor, g: Tensor, m: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    now = (m.float() * s[:, None]).lerp(g.view(m.shape), 0.1)
    scale = now.abs().amax(-1) / 127 + 1e-12
    return p - 1e-3 * now.view(p.shape).sign(), (now / scale[:, None]).round().to(torch.int8), scale


STATE = "f1024x1000 f1024x1000 f1024x1000 +f1024x1000 "
case("optimizer", "adamw clipped in place", STATE * 24, adamw_clipped)
case("optimizer", "lamb in place", STATE * 16, lamb)
case("optimizer", "muon momentum in place", "f8192x4096 f8192x4096 f8192x4096", muon)
case("optimizer", "adam of int8 states", "f8192x4096 f8192x4096 c131072x256 +f131072", adam_int8)
case("optimizer", "stochastic rounding", "f8192x8192 i65536:8192x8192", lambda x, r: (
    (x.view(torch.int32) + r.int()) & -65536).view(F32).to(BF16))

# ---- preprocessing of images, audio, points
def hue(x: Tensor) -> Tensor:
    r, g, b = x.unbind(1)
    v = x.amax(1)
    c = v - x.amin(1) + 1e-9
    h = torch.where(g == v, (b - r) / c + 2, (r - g) / c + 4)
    return torch.stack((torch.where(r == v, (g - b) / c % 6, h) / 6, c / (v + 1e-9), v), 1)


def sobel(x: Tensor) -> Tensor:
    p = F.pad(x, (1, 1, 1, 1), "replicate")
    a, b, c = p[..., :-2, :], p[..., 1:-1, :], p[..., 2:, :]
    across, down = (a + 2 * b + c), c - a
    return torch.hypot(across[..., 2:] - across[..., :-2],
                       down[..., 2:] + 2 * down[..., 1:-1] + down[..., :-2])


def halved_yuv(x: Tensor) -> tuple[Tensor, ...]:
    r, g, b = x.float().unbind(-1)
    u, v = 0.5 * b - 0.169 * r - 0.331 * g, 0.5 * r - 0.419 * g - 0.081 * b
    return ((0.299 * r + 0.587 * g + 0.114 * b).round().to(torch.uint8),
            F.avg_pool2d(u[:, None], 2) + 128, F.avg_pool2d(v[:, None], 2) + 128)


def cut_out(x: Tensor, a: Tensor, i: Tensor, c: Tensor) -> Tensor:
    at = torch.arange(224, device=x.device)
    rows, columns = (at - c[:, :1]).abs() < 32, (at - c[:, 1:]).abs() < 32
    inside = rows[:, None, :, None] & columns[:, None, None]
    return (x * a.sigmoid() + x[i] * (1 - a.sigmoid())) * ~inside


def rotations(q: Tensor) -> Tensor:
    w, x, y, z = F.normalize(q, dim=-1).unbind(-1)
    rows = (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y))
    return torch.stack(rows, -1).view(-1, 3, 3)


def inverses(m: Tensor) -> Tensor:
    a, b, c = m.unbind(1)
    columns = (torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b))
    return torch.stack(columns, -1) / (a * columns[0]).sum(-1)[:, None, None]


def harmonics(d: Tensor, c: Tensor) -> Tensor:
    x, y, z = F.normalize(d, dim=-1).unbind(-1)
    bases = (0.282 + 0 * x, -0.488 * y, 0.488 * z, -0.488 * x, 1.09 * x * y, -1.09 * y * z,
             0.315 * (3 * z * z - 1), -1.09 * x * z, 0.546 * (x * x - y * y))
    return (c * torch.stack(bases, -1)).sum(-1)


case("prepare", "bytes cropped and normalised", "u128x256x256x3 f3 f3", lambda x, m, s: (
    (x[:, 16:240, 16:240].permute(0, 3, 1, 2).float() / 255 - m[:, None, None])
    / s[:, None, None]).contiguous())
case("prepare", "flipped by chance f16", "u128x224x224x3 m128", lambda x, m: (lambda y: torch.where(
    m[:, None, None, None], y.flip(-1), y))(x.permute(0, 3, 1, 2).to(F16) / 255))
case("prepare", "colour jitter", "f64x3x256x256 +f64x1x1x1 +f64x1x1x1", lambda x, b, c: (lambda y: (
    lambda g: ((y - g) * c + g).clamp(0, 1))(
        (y * y.new_tensor([0.3, 0.59, 0.11])[:, None, None]).sum(
        1, True).mean((2, 3), True)))((x * b).clamp(0, 1)))
case("prepare", "hue and saturation", "+f64x3x256x256", hue)
case("prepare", "mixup and cutout", "f128x3x224x224 f128x1x1x1 i128:128 i224:128x2", cut_out)
case("prepare", "yuv of rgb, halved", "u64x512x512x3", halved_yuv)
case("prepare", "rgb of yuv", "u64x512x512 u64x256x256x2",
     lambda y, c: (lambda u, v, y: torch.stack(
    (y + 1.4 * v, y - 0.34 * u - 0.71 * v, y + 1.77 * u), -1).clamp(0, 255).to(torch.uint8))(*(
        (c.float() - 128).repeat_interleave(2, 1).repeat_interleave(2, 2).unbind(-1)), y.float()))
case("prepare", "sobel magnitude", "f64x1x512x512", sobel)
case("prepare", "blur of reflected", "f32x3x512x512", lambda x: (lambda p: sum(
    w * v for w, v in zip((1 / 16, 0.25, 0.375, 0.25, 1 / 16),
    (p[..., k : k + 512] for k in range(5)), strict=True)))(F.pad(x, (2, 2, 0, 0), "reflect")))
case("prepare", "integral image box means", "f32x3x512x512", lambda x: (lambda s: (
    s[..., 9:, 9:] - s[..., :-9, 9:] - s[..., 9:, :-9] + s[..., :-9, :-9]) / 81)(
        x.cumsum(-1).cumsum(-2)))
case("prepare", "gamma by table", "u64x3x512x512 f256", lambda x, t: t[x.long()])
case("prepare", "histogram of bytes", "u16x3x1024x1024", lambda x: torch.zeros(
    256, dtype=torch.int32, device=x.device).index_add(
        0, x.flatten().int(), torch.ones_like(x, dtype=torch.int32).flatten()))
case("prepare", "posterised and solarised", "u128x3x512x512",
     lambda x: torch.where(x < 128, x, 255 - x) & 0xF0 | (x >> 6))
case("prepare", "alpha blending of layers", "+f16x4x4x512x512", lambda x: (lambda a: (
    x[:, :, :3] * a * (F.pad((1 - a).cumprod(1), (0, 0, 0, 0, 0, 0, 1, -1), value=1.0))).sum(1))(
        x[:, :, 3:].clamp(max=1)))
case("audio", "frames windowed", "f128x160000 f400", lambda x, w: (lambda y: (
    y.unfold(1, 400, 160) * w))(torch.cat((x[:, :1], x[:, 1:] - 0.97 * x[:, :-1]), 1)))
case("audio", "frames energy", "f256x160000",
     lambda x: (x.unfold(1, 400, 160).square().mean(-1) + 1e-10).log())
case("audio", "log mel clamped", "f64x80x6000", lambda x: (lambda y: (torch.max(
    y, y.amax((1, 2), True) - 8) + 4) / 4)(x.abs().clamp(min=1e-10).log10()))
case("audio", "power of complex pairs", "f64x201x3000x2", lambda x: x.square().sum(-1))
case("audio", "mean and variance of time", "f128x80x6000 m128x6000",
     lambda x, m: (lambda k, c: (lambda u: (
    (x - u) * k / (((x - u) * k).square().sum(-1, True) / c + 1e-5).sqrt()))(
        (x * k).sum(-1, True) / c))(
        m[:, None], m.sum(-1)[:, None, None].clamp(min=1)))
case("audio", "mu-law there and back", "f256x160000", lambda x: (lambda q: (
    q, (lambda y: y.sign() / 255 * (256 ** y.abs() - 1))(2 * q.float() / 255 - 1)))(
        ((x.tanh().sign() * torch.log1p(255 * x.tanh().abs()) / math.log(256) + 1) * 127.5 + 0.5
         ).to(torch.uint8)))
case("audio", "group norm of channels gelu", "b16x512x12799 b512 b512",
     lambda x, w, b: F.gelu(F.group_norm(x, 512, w, b)))
case("audio", "transposed gelu positions", "b32x1280x1500 b1500x1280",
     lambda x, p: F.gelu(x).permute(0, 2, 1) + p)
case("audio", "gated tanh grad", "f32x512x8192",
     lambda x: (lambda a, b: a.tanh() * b.sigmoid())(*x.chunk(2, 1)))
case("audio", "overlap and add", "f64x512x2000",
     lambda x: F.fold(x, (1, 256384), (1, 512), stride=(1, 128)))
case("audio", "snake grad", "f32x256x8192 f256x1",
     lambda x, a: x + (a * x).sin().square() / (a + 1e-9))
case("points", "nearest of points", "f16x8192x3 f16x512x3",
     lambda x, y: (x[:, :, None] - y[:, None]).square().sum(-1).min(-1))
case("points", "chamfer grad", "f16x2048x3 f16x2048x3",
     lambda x, y: (lambda d: d.amin(1).mean() + d.amin(2).mean())(
    (x[:, :, None] - y[:, None]).square().sum(-1)))
case("points", "neighbours grouped", "f16x4096x64 i4096:16x4096x16",
     lambda x, i: (lambda g: torch.cat(
    (g - x[:, :, None], x[:, :, None].expand_as(g)), -1))(
        x.gather(1, i.view(16, -1, 1).expand(-1, -1, 64)).view(16, 4096, 16, 64)))
case("points", "neighbours maximum grad", "f16x4096x64 i4096:16x4096x16", lambda x, i: x.gather(
    1, i.view(16, -1, 1).expand(-1, -1, 64)).view(16, 4096, 16, 64).amax(2))
case("points", "attention of edges grad", "f524288x8 i65536:524288",
     lambda x, i: (lambda e: e / (torch.zeros(
    65536, 8, device=x.device).index_add(0, i, e)[i] + 1e-9))(F.leaky_relu(x, 0.2).exp()))
case("points", "voxel keys", "f8388608x3",
     lambda x: (lambda v: (v[:, 0] * 73856093) ^ (v[:, 1] * 19349663) ^ (
    v[:, 2] * 83492791))((x * 20).floor().int()))
case("points", "rotations of quaternions grad", "f2097152x4", rotations)
case("points", "3 x 3 products", "f2097152x3x3 f2097152x3x3",
     lambda a, b: (a[..., None] * b[:, None]).sum(2))
case("points", "3 x 3 inverses", "f4194304x3x3", inverses)
case("points", "harmonics of directions", "f2097152x3 f2097152x9", harmonics)
case("points", "radial bases", "f1048576x3 f32",
     lambda x, c: (-(x.norm(dim=-1)[:, None] - c).square() * 10).exp())
case("points", "nerf frequencies", "f1048576x3",
     lambda x: (lambda a: torch.cat((x, a.sin(), a.cos()), -1))(
    (x[..., None] * 2.0 ** torch.arange(10, device=x.device)).flatten(1)))

# ---- bits, blocks, layouts, types
def hadamard(x: Tensor) -> Tensor:
    for k in (1, 2, 4, 8):
        a, b = x.view(-1, 8 // k, 2, k).unbind(2)
        x = torch.stack((a + b, a - b), 2).view(-1, 16)
    return x


def bits_set(i: Tensor) -> Tensor:
    a = i.int()
    a = a - ((a >> 1) & 0x55555555)
    a = (a & 0x33333333) + ((a >> 2) & 0x33333333)
    return ((a + (a >> 4)) & 0x0F0F0F0F) * 0x01010101 >> 24


def xor_shifts(i: Tensor) -> Tensor:
    a = i.int()
    a = a ^ (a << 13)
    a = a ^ (a >> 17)
    return a ^ (a << 5)


def butterflies(x: Tensor, w: Tensor) -> Tensor:
    (a, c), (b, d), (u, v) = x[:, :4096].unbind(-1), x[:, 4096:].unbind(-1), w.unbind(-1)
    b, d = b * u - d * v, b * v + d * u
    return torch.stack((torch.cat((a + b, a - b), 1), torch.cat((c + d, c - d), 1)), -1)


case("bits", "int4 packed", "b8192x8192 +b8192x64",
     lambda x, s: (lambda q: q[:, ::2] | (q[:, 1::2] << 4))((
    x.view(8192, 64, 128) / s[..., None] + 8
    ).round().clamp(0, 15).to(torch.uint8).view(8192, 8192)))
case("bits", "int4 of int32 unpacked", "i2000000000:4096x1024 h4096x64", lambda q, s: ((
    (q.int()[..., None] >> torch.arange(0, 32, 4, device=q.device, dtype=torch.int32)) & 15).view(
        4096, 64, 128) - 8) * s[..., None])
case("bits", "normal floats of 4 bits", "u16777216 f16 f524288", lambda q, t, s: (t[torch.stack((
    q >> 4, q & 15), -1).long()].view(-1, 64) * s[:, None]).to(BF16))
case("bits", "blocks of 32 to int8", "h8192x8192", lambda x: (lambda y: (lambda d: (
    (y / d).round().to(torch.int8), d.half()))(y.abs().amax(-1, True) / 127 + 1e-9))(
        x.float().view(-1, 32)))
case("bits", "fake quantised grad", "f8192x4096 f4096x1", lambda x, s: (lambda v: (
    (v + (v.round() - v).detach()).clamp(-128, 127) * s.t()))(x / s.t()))
case("bits", "packed bools", "b8192x8192",
     lambda x: ((x > 0).view(8192, 1024, 8).to(torch.uint8) << torch.arange(
    8, device=x.device, dtype=torch.uint8)).sum(-1, dtype=torch.uint8))
case("bits", "bits to signs", "u8192x2048", lambda q: ((q[..., None] >> torch.arange(
    8, device=q.device, dtype=torch.uint8)) & 1).to(BF16).view(8192, -1) * 2 - 1)
case("bits", "xor shifts", "i2000000000:16777216", xor_shifts)
case("bits", "population count", "i2000000000:33554432", bits_set)
case("bits", "hadamard of 16", "b4194304x16", hadamard)
case("bits", "butterflies", "f4096x8192x2 f4096x2", butterflies)
case("layout", "five axes to half", "f8x16x32x64x96",
     lambda x: x.permute(0, 3, 1, 4, 2).half().contiguous())
case("layout", "reversed axes", "b48x96x64x160", lambda x: x.permute(3, 2, 1, 0).contiguous())
case("layout", "channels-last to float", "h64x96x112x112.", lambda x: x.float().contiguous())
case("layout", "to channels-last bf16", "f64x96x112x112", lambda x: last(x.to(BF16)))
case("layout", "channels-last add of both", "b64x128x56x56. b64x128x56x56",
     lambda x, y: F.relu(x + y))
case("layout", "space to depth", "f32x64x128x128", lambda x: F.pixel_unshuffle(x, 2))
case("layout", "channel shuffle grad", "f64x232x56x56", lambda x: F.relu(
    x.view(64, 2, 116, 56, 56).transpose(1, 2).reshape(64, 232, 56, 56)))
case("layout", "circular pad", "b64x64x112x112", lambda x: F.pad(x, (3, 3, 3, 3), "circular"))
case("layout", "replicate pad grad", "f32x64x112x112",
     lambda x: F.pad(x, (2, 2, 2, 2), "replicate"))
case("layout", "reflect pad 3-D", "f8x16x48x64x64",
     lambda x: F.pad(x, (2, 2, 2, 2, 2, 2), "reflect"))
case("layout", "sliding maximum of unfold", "f4096x4096", lambda x: x.unfold(1, 16, 4).amax(-1))
case("layout", "haar wavelet", "f64x32x256x256", lambda x: (lambda a, b, c, d: torch.cat((
    a + b + c + d, a - b + c - d, a + b - c - d, a - b - c + d), 1) / 2)(
        x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]))
case("layout", "strides of three", "f8192x6144", lambda x: x[:, ::3] * x[:, 1::3] + x[:, 2::3])
case("layout", "rolled three axes", "f64x64x96x128",
     lambda x: torch.roll(x, (5, 7, 9), (1, 2, 3)) - x)
case("layout", "triangle gathered", "f8192x64x64", lambda x: (lambda i: x[:, i[0], i[1]])(
    torch.tril_indices(64, 64, -1, device=x.device)))
case("layout", "block diagonal mask", "b64x1024x1024 i8:64x1024",
     lambda x, d: x.masked_fill(d[:, :, None] != d[:, None], -1e4))
case("layout", "outer products softmax", "f4096x128 f4096x128",
     lambda x, y: (x[:, :, None] * y[:, None]).softmax(-1))
case("layout", "layer norm f64 grad", "d16384x1024 d1024 d1024",
     lambda x, w, b: F.layer_norm(x, (1024,), w, b))
case("layout", "int64 remainders", "i1000000:33554432 i999:33554432",
     lambda a, b: (a // (b + 1)) * 7 + a % (b + 1))
case("layout", "bools of three", "m16384x4096 m16384x4096 m4096",
     lambda a, b, c: (a & ~b) | (c ^ b))
case("layout", "bytes and halves", "c8192x8192 h8192x1 b8192",
     lambda x, s, t: (x.to(F16) * s).to(BF16) + t)

# ---- tails of collections
case("tail", "bias divide sigmoid of columns", "f16384x8192 f8192 f1",
     lambda x, w, b: torch.sigmoid((
    (x - w) / 2 + b) * x))
case("tail", "batch norm scale softmax", "f16384x4096 f4096 f4096 f1",
     lambda x, w, b, s: (F.batch_norm(x, None, None, w, b, True) * s).softmax(-1))
case("tail", "channel minimum tanh twice", "f128x64x256x256",
     lambda x: x.amin(1, True).tanh().tanh())
case("tail", "softmax bias scale sigmoid", "f64x64x128x128 f64x1x1",
     lambda x, b: ((x.softmax(1) + b) * 2).sigmoid())
case("tail", "group norm minimum clamp", "f16x16x16x128x128 f16 f16",
     lambda x, w, b: F.group_norm(x, 8, w, b).clamp(0, 1).minimum(w.sum()))
case("tail", "pool 3-D logsumexp relu", "f4x64x32x96x96",
     lambda x: F.relu(F.max_pool3d(x, 2, 2).logsumexp(1, True)))
case("tail", "pool clamp softmax of places", "f32x64x16x32x32 f64x1x1x1", lambda x, s: (
    lambda y: y.flatten(2).softmax(-1).view_as(y) * s)(F.avg_pool3d(x, 2).clamp(0, 1)))
case("tail", "mean of depth bias softmax tanh", "f16x64x32x128x128 f64x1x1x1",
     lambda x, b: (x.mean(2, True) + b).softmax(1).tanh() * 2)
case("tail", "two leaky maximum pool", "f16x32x32x64x64 f32x1x1x1",
     lambda x, m: F.max_pool3d(F.leaky_relu(F.leaky_relu(x, 0.2) * m, 0.2), 2))
case("tail", "layer norm pool gelu", "f32x64x32x64x64 f64",
     lambda x, w: F.gelu(F.avg_pool3d(F.layer_norm(x + w.sum(), (64,), w), 2)))
case("tail", "sum of channels pool", "f32x64x32x64x64", lambda x: F.max_pool3d(x, 2).sum(1, True))
case("tail", "means bias logsumexp", "f64x128x128x128 f128x1x1",
     lambda x, b: (x.mean((2, 3), True) + b).logsumexp(1, True).sum((2, 3)) * 10)
case("tail", "pool gelu scale maximum", "f16384x8192",
     lambda x: (F.gelu(F.avg_pool1d(x[:, None], 4)[:, 0]) * 2).amax(1))
case("tail", "group norm leaky sum", "f16384x8192 f8192 f8192",
     lambda x, w, b: (lambda y: y + y)(F.leaky_relu(F.group_norm(x, 512, w, b), 0.01)))
case("tail", "instance norm of rows residual", "f16384x4096 f16384x4096",
     lambda x, y: (F.instance_norm(x[:, None, None])[:, 0, 0] + y) * y)
case("tail", "hinge of rows grad", "f32768x1024 f32768x1",
     lambda x, t: (1 - x * t).clamp(min=0).mean())
case("tail", "soft sign", "f16384x4096", F.softsign)
case("tail", "hard sigmoid f16", "h16384x8192", F.hardsigmoid)
case("tail", "log sigmoid grad", "b16384x4096", F.logsigmoid)
case("tail", "matrix by scalar of a tensor", "f16384x4096 f1", lambda x, s: x * s)
case("tail", "gelu by hand", "f8192x8192",
     lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3)))))
# fmt: on
