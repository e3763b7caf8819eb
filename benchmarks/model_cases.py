"""Pieces cut out of the graphs of whole models: language, vision, losses, optimizers.

`python benchmarks/kernels.py --cases model_cases` measures it. Inputs are the words of `odd_cases`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, F32, Case
from odd_cases import made
from torch import Tensor

CASES: list[Case] = []


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
# fmt: on
