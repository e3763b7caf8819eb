"""Pieces of diffusion models, state-space and linear-attention models, detectors, audio front ends,
losses, quantisation, optimizers and embeddings, that no other list has.

`python benchmarks/kernels.py --cases fresh_cases` measures it. Inputs are the words of
`odd_cases`; a name that begins with "dynamic" is compiled with dynamic sizes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, Case
from odd_cases import FP8, NINF, made, rms
from torch import Tensor

CASES: list[Case] = []


def case(family: str, name: str, inputs: str, run: Any) -> None:
    words = inputs.split()
    CASES.append(Case(family, name, run, lambda: tuple(map(made, words)), name.endswith("grad")))


def modulated(x: Tensor, w: Tensor, b: Tensor, s: Tensor, t: Tensor) -> Tensor:
    y = F.group_norm(x, 32, w, b) * (1 + s[:, :, None, None]) + t[:, :, None, None]
    return F.silu(y)


def adaptive(x: Tensor, m: Tensor) -> Tensor:
    s, t, g = m[:, None].chunk(3, -1)
    return x + g * (F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + s) + t)


def times(t: Tensor, w: Tensor) -> Tensor:
    angles = t.float()[:, None] * (w * -0.01).exp()
    return torch.cat((angles.cos(), angles.sin()), -1).to(BF16)


def guided(c: Tensor, u: Tensor) -> Tensor:
    y = u + 7.5 * (c - u)
    scale = c.std((1, 2, 3), keepdim=True) / y.std((1, 2, 3), keepdim=True)
    return 0.7 * y * scale + 0.3 * y


def ddim(x: Tensor, e: Tensor, a: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    a = a.sigmoid()  # what is left of the image: between 0 and 1
    now = a[t][:, None, None, None]
    past = torch.where(t > 0, a[(t - 20).clamp(min=0)], torch.ones_like(t.float()))
    past = past[:, None, None, None]
    clean = ((x - (1 - now).sqrt() * e) / now.sqrt()).clamp(-1, 1)
    return past.sqrt() * clean + (1 - past).sqrt() * e, clean


def chunk_states(x: Tensor, a: Tensor) -> Tensor:
    c = (-F.softplus(a.float())).cumsum(2)
    return (x * (c[:, :, -1:] - c).exp()[..., None]).to(BF16)


def causal_conv(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    padded = F.pad(x, (0, 0, 3, 0))
    y = sum(padded[:, k : k + x.shape[1]] * w[k] for k in range(4))
    return F.silu(y + b)


def gated_norm(y: Tensor, z: Tensor, w: Tensor) -> Tensor:
    h = (y.float() * F.silu(z.float())).unflatten(-1, (8, -1))
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-5)
    return (h.flatten(-2) * w).to(y.dtype)


def min_gru(k: Tensor, h: Tensor) -> Tensor:
    a = (-F.softplus(k)).cumsum(1)
    values = -F.softplus(-k) + torch.where(h >= 0, (F.relu(h) + 0.5).log(), -F.softplus(-h))
    return (a + (values - a).logcumsumexp(1)).exp()


def decays(w: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.exp(-torch.exp(w.float())).unflatten(1, (-1, 16)).cumprod(2)
    return (k.unflatten(1, (-1, 16)) * (p[:, :, -1:] / (p + 1e-4))).to(BF16), p[:, :, -1]


def feature_sums(q: Tensor, k: Tensor) -> Tensor:
    q, k = F.elu(q.float()) + 1, F.elu(k.float()) + 1
    return 1 / ((q * k.cumsum(2)).sum(-1) + 1e-6)


def interleaved(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    a, b = x.float()[..., ::2], x.float()[..., 1::2]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2).to(x.dtype)


def turned(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * c + torch.cat((-b, a), -1) * s


def packed_heads(x: Tensor, w: Tensor, u: Tensor, c: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    x = x.unflatten(-1, (48, 128))
    q, k, v = x.split((32, 8, 8), 2)
    q, k = (turned(rms(y, z).transpose(1, 2), c, s) for y, z in ((q, w), (k, u)))
    return q, k, v.transpose(1, 2)


def yarn(p: Tensor, f: Tensor, ramp: Tensor) -> tuple[Tensor, Tensor]:
    f = f / 32 * ramp + f * (1 - ramp)
    a = p[..., None].float() * f
    a = torch.cat((a, a), -1)
    return (a.cos() * 1.2).to(BF16), (a.sin() * 1.2).to(BF16)


def dfl_boxes(x: Tensor, p: Tensor, s: Tensor) -> Tensor:
    bins = torch.arange(16, device=x.device, dtype=torch.float32)
    d = (x.unflatten(1, (4, 16)).softmax(2) * bins[:, None]).sum(2)
    low, high = p - d[:, :2], p + d[:, 2:]
    return torch.cat(((low + high) / 2, high - low), 1) * s


def peaks(x: Tensor) -> Tensor:
    heat = x.sigmoid()
    return heat * (F.max_pool2d(heat, 3, 1, 1) == heat)


def roi_points(x: Tensor, p: Tensor) -> Tensor:
    """Bilinear samples of channels-last features `[b, h, w, c]` at points between 0 and 90."""
    b = torch.arange(x.shape[0], device=x.device)[:, None]
    p = (p * 30).clamp(0, 90)
    low = p.floor()
    i, (r, s) = low.long(), (p - low).unbind(-1)
    y, z = i.unbind(-1)
    r, s = r[..., None], s[..., None]
    top = x[b, y, z] * (1 - s) + x[b, y, z + 1] * s
    bottom = x[b, y + 1, z] * (1 - s) + x[b, y + 1, z + 1] * s
    return top * (1 - r) + bottom * r


def giou(x: Tensor, y: Tensor) -> Tensor:
    (a, b), (c, d) = (torch.stack((z[:2], z[:2] + z[2:].abs())) for z in (x, y))
    both = (torch.minimum(b, d) - torch.maximum(a, c)).clamp(min=0).prod(0)
    hull = (torch.maximum(b, d) - torch.minimum(a, c)).prod(0)
    union = (b - a).prod(0) + (d - c).prod(0) - both
    return (1 - both / (union + 1e-7) + (hull - union) / (hull + 1e-7)).mean()


def matched(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The best of a picture's boxes for each anchor, if they overlap well enough."""
    lo = torch.maximum(a[:, :2], b[:, :, None, :2])
    hi = torch.minimum(a[:, 2:] + 5, b[:, :, None, 2:] + 5)
    both = (hi - lo).clamp(min=0).prod(-1)
    size = (a[:, 2:] + 5 - a[:, :2]).prod(-1)
    other = (b[..., 2:] + 5 - b[..., :2]).prod(-1)
    value, place = (both / (size + other[..., None] - both)).max(1)
    return value, torch.where(value > 0.5, place, torch.where(value < 0.4, -1, -2))


def focal(x: Tensor, t: Tensor) -> Tensor:
    x, t = x.float(), t.float()
    p = x.sigmoid()
    entropy = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    hit = p * t + (1 - p) * (1 - t)
    return (entropy * (1 - hit).square() * (0.25 * t + 0.75 * (1 - t))).sum() / 1000


def dice(x: Tensor, t: Tensor) -> Tensor:
    p = x.softmax(1)
    y = (t[:, None] == torch.arange(x.shape[1], device=x.device)[:, None, None]).float()
    hit, total = (p * y).sum((2, 3)), (p + y).sum((2, 3))
    return F.cross_entropy(x, t) + 1 - ((2 * hit + 1) / (total + 1)).mean()


def hardest(d: Tensor, t: Tensor) -> Tensor:
    same = t[:, None] == t
    far = d.masked_fill(~same, NINF).amax(1)
    near = d.masked_fill(same, float("inf")).amin(1)
    return F.relu(far - near + 0.3).mean()


def info_nce(x: Tensor) -> Tensor:
    t = torch.arange(x.shape[0], device=x.device)
    y = x.float() * 14.3
    return (F.cross_entropy(y, t) + F.cross_entropy(y.t(), t)) / 2


def sinkhorn(c: Tensor) -> Tensor:
    k = -c / 0.1
    v = torch.zeros_like(k[:, 0])
    for _ in range(2):
        u = -(k + v[:, None]).logsumexp(2)
        v = -(k + u[..., None]).logsumexp(1)
    return (k + u[..., None] + v[:, None]).exp()


def z_loss(x: Tensor, t: Tensor) -> Tensor:
    x = 30 * torch.tanh(x.float() / 30)
    z = x.logsumexp(-1)
    return (z - x.gather(-1, t[:, None])[:, 0]).mean() + 1e-4 * z.square().mean()


def asymmetric(x: Tensor, t: Tensor) -> Tensor:
    p = x.float().sigmoid()
    q = (1 - p + 0.05).clamp(max=1)
    loss = torch.where(t, (1 - p) * p.clamp(min=1e-8).log(), (1 - q) ** 4 * q.log())
    return -loss.sum(-1).mean()


def int8_transposed(x: Tensor) -> tuple[Tensor, Tensor]:
    g = x.float().unflatten(1, (-1, 128))
    s = g.abs().amax(-1, True).clamp(min=1e-6) / 127
    return (g / s).round().to(torch.int8).flatten(1).t().contiguous(), s[..., 0].t().contiguous()


def fp8_tiles(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x.float().unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
    s = y.abs().amax((1, 3), keepdim=True).clamp(min=1e-4) / 448
    q = (y / s).to(FP8).flatten(2).flatten(0, 1)
    return q, q.t().contiguous(), s[:, 0, :, 0]


def mx(x: Tensor) -> tuple[Tensor, Tensor]:
    g = x.float().unflatten(-1, (-1, 32))
    e = g.abs().amax(-1, True).clamp(min=1e-30).log2().floor() - 8
    return (g * torch.exp2(-e)).clamp(-448, 448).to(FP8).flatten(-2), (e[..., 0] + 127).to(
        torch.uint8
    )


def gate_to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.chunk(2, -1)
    g = (F.silu(a.float()) * b.float()).unflatten(-1, (-1, 128))
    s = g.abs().amax(-1, True).clamp(min=1e-10) / 448
    return (g / s).to(FP8).flatten(-2), s[..., 0]


def zero_points(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.float().aminmax(dim=-1, keepdim=True)
    s = (high - low).clamp(min=1e-6) / 255
    z = (-low / s).round()
    return ((x / s).round() + z).clamp(0, 255).to(torch.uint8), s, z.to(torch.uint8)


def int4_out(q: Tensor, s: Tensor, z: Tensor) -> Tensor:
    y = torch.stack((q & 15, q >> 4), -1).flatten(1).unflatten(1, (-1, 128))
    return ((y - z[..., None]) * s[..., None]).flatten(1)


def fbank(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    f = x.unfold(1, 400, 160)
    f = f - f.mean(-1, True)
    energy = f.square().sum(-1).clamp(min=1e-8).log()
    return (f - 0.97 * F.pad(f, (1, 0), "replicate")[..., :-1]) * w, energy


def magnitude_phase(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.unbind(-1)
    return torch.log1p((a * a + b * b + 1e-9).sqrt()), torch.atan2(b, a)


def whisper(x: Tensor) -> Tensor:
    y = x.clamp(min=1e-10).log10()
    return (torch.maximum(y, y.amax((1, 2), keepdim=True) - 8) + 4) / 4


def augmented(x: Tensor, t: Tensor, f: Tensor) -> Tensor:
    i = torch.arange(x.shape[1], device=x.device)[:, None]
    j = torch.arange(x.shape[2], device=x.device)
    t, f = t[:, None, None], f[:, None, None]
    hidden = ((i >= t) & (i < t + 300)) | ((j >= f) & (j < f + 20))
    return torch.where(hidden, x.mean((1, 2), keepdim=True), x)


def deltas(x: Tensor) -> Tensor:
    y = F.pad(x, (2, 2), "replicate")
    n = x.shape[-1]
    d = sum(k * (y[..., 2 + k : 2 + k + n] - y[..., 2 - k : 2 - k + n]) for k in (1, 2)) / 10
    return torch.cat((x, d), 1)


def adafactor(p: Tensor, g: Tensor, r: Tensor, c: Tensor) -> Tensor:
    s = g.square() + 1e-30
    r.lerp_(s.mean(1), 0.01)
    c.lerp_(s.mean(0), 0.01)
    u = g * (r / r.mean()).rsqrt()[:, None] * c.rsqrt()
    u = u / (u.square().mean().sqrt() / 1.0).clamp(min=1.0)
    return p.sub_(1e-3 * u)


def nesterov(*state: Tensor) -> Tensor:
    for p, g, m in zip(*(state[k::3] for k in range(3)), strict=True):
        d = g.float() + 1e-4 * p
        m.mul_(0.9).add_(d)
        p.sub_(0.1 * (d + 0.9 * m))
    return state[0].new_ones(1)


def adan(*state: Tensor) -> Tensor:
    for p, g, m, v, s, o in zip(*(state[k::6] for k in range(6)), strict=True):
        d = g - o
        m.lerp_(g, 0.02)
        v.lerp_(d, 0.08)
        s.lerp_((g + 0.92 * d).square(), 0.01)
        p.mul_(1 - 1e-4).sub_(1e-3 * (m + 0.92 * v) / (s.sqrt() + 1e-8))
        o.copy_(g)
    return state[0].new_ones(1)


def hashed(i: Tensor, *tables: Tensor) -> Tensor:
    primes = 2654435761, 805459861, 3674653429
    pairs = zip(tables, primes, strict=True)
    return sum(t[(i * p + k) % t.shape[0]] for k, (t, p) in enumerate(pairs))


def involution(x: Tensor, w: Tensor) -> Tensor:
    y = F.unfold(F.pad(x, (1, 1, 1, 1), "reflect"), 3).unflatten(1, (x.shape[1], 9))
    return (y * w.flatten(2)[:, None]).sum(2)


def drawdown(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 0.01).cumsum(-1)
    fall = y.cummax(-1)[0] - y
    return fall.amax(-1), fall.mean(-1)


def running(x: Tensor) -> tuple[Tensor, Tensor]:
    n = torch.arange(1, x.shape[1] + 1, device=x.device)
    mean = x.cumsum(1) / n
    return mean, (x.square().cumsum(1) / n - mean.square()).clamp(min=0).sqrt()


def document_positions(i: Tensor) -> tuple[Tensor, Tensor]:
    n = torch.arange(i.shape[1], device=i.device)
    start = torch.where(i == 0, n + 1, 0).cummax(1)[0]
    return n - torch.cat((torch.zeros_like(start[:, :1]), start[:, :-1]), 1).clamp(max=n), (
        i == 0
    ).cumsum(1)


def nucleus(x: Tensor) -> Tensor:
    y, place = x.float().sort(-1, descending=True)
    p = y.softmax(-1)
    cut = p.cumsum(-1) - p > 0.9
    return torch.empty_like(y).scatter(-1, place, y.masked_fill(cut, -1e4))


def sampled(x: Tensor) -> Tensor:
    """Probabilities in falling order: what top-p leaves of them, scaled to one."""
    p = x.softmax(-1)
    p = torch.where(p.cumsum(-1) - p > 0.9, 0, p)
    return p / p.sum(-1, keepdim=True)


# fmt: off
case("softmax", "of the first, given out turned", "f6000x11000", lambda x: x.t().softmax(-1)
     .contiguous())
case("rotary", "norms and turns of packed heads", "b4x2048x6144 f128 f128 b2048x128 b2048x128",
     packed_heads)
case("select", "top-p of falling", "f4000x20000", sampled)
case("pool", "adaptive maxima grad", "f32x128x112x112", lambda x: F.adaptive_max_pool2d(x, 14))
case("pool", "adaptive maxima of odd bf16 grad", "b32x200x75x75", lambda x: F.adaptive_max_pool2d(
    x, (6, 9)))
case("diffusion", "group norm modulated silu grad", "b8x320x64x64 b320 b320 b8x320 b8x320",
     modulated)
case("diffusion", "adaptive layer norm gated grad", "b16x4096x1152 b16x3456", adaptive)
case("quantise", "int8 of groups, turned", "b8192x11008", int8_transposed)
case("detect", "boxes of bins", "b64x64x8400 f2x8400 f8400", dfl_boxes)
case("loss", "focal of classes grad", "b16x8400x80 m16x8400x80", focal)
case("loss", "dice and entropy grad", "f16x21x300x300 i21:16x300x300", dice)
case("loss", "contrastive both ways grad", "b8000x8000", info_nce)
case("optimizer", "adafactor in place", "f5001x4003 f5001x4003 +f5001 +f4003", adafactor)
case("scan", "drawdown", "f8000x5003", drawdown)
case("ssm", "minimal gru grad", "f16x2048x768 f16x2048x768", min_gru)
case("audio", "frames without mean, emphasised", "f96x240000 f400", fbank)
case("dynamic", "dynamic adaptive layer norm", "b16x4100x1152 b16x3456", adaptive)
case("embed", "bags of 40 means", "i200000:30000x40 f200000x96", lambda i, e: F.embedding_bag(i, e))
case("quantise", "fp8 of tiles, turned", "b8192x7168", fp8_tiles)
case("loss", "hardest triplets grad", "f8000x8000 i300:8000", hardest)
case("loss", "soft-capped with z grad", "b4000x50257 i50257:4000", z_loss)
case("ssm", "states of chunks grad", "b4x16x256x48x64 b4x16x256x48", chunk_states)
case("ssm", "causal convolution silu grad", "b8x2048x3072 b4x3072 b3072", causal_conv)
case("detect", "peaks of heat", "b32x80x152x152", peaks)
case("detect", "roi points", "f8x96x96x256 f8x12544x2", roi_points)
case("rwkv", "decays of chunks", "b16x2048x2048 b16x2048x2048", decays)
case("window", "involution of reflected grad", "b16x96x80x80 b16x9x80x80", involution)
case("dynamic", "dynamic group norm modulated silu", "b9x320x65x65 b320 b320 b9x320 b9x320",
     modulated)
# The second half.
case("ssm", "gated norm of groups grad", "b16000x4096 b16000x4096 f4096", gated_norm)
case("loss", "generalised overlap grad", "f4x5000001 f4x5000001", giou)
case("linear", "sums of features", "b16x16x2048x64 b16x16x2048x64", feature_sums)
case("rotary", "interleaved grad", "b8x2048x24x128 f2048x1x64 f2048x1x64", interleaved)
case("diffusion", "guidance rescaled", "f48x4x300x300 f48x4x300x300", guided)
case("loss", "sinkhorn", "f160x500x500", sinkhorn)
case("quantise", "powers of two for 32", "b9000x8192", mx)
case("quantise", "gate to fp8", "b8000x14336", gate_to_fp8)
case("quantise", "zero points of rows", "b9001x6000", zero_points)
case("detect", "anchors matched", "f16800x4 f32x30x4", matched)
case("loss", "asymmetric of labels grad", "b20001x3001 m20001x3001", asymmetric)
case("scan", "running moments", "f9000x4100", running)
case("scan", "positions in documents", "i300:6000x4096", document_positions)
case("dynamic", "dynamic contrastive both ways grad", "b7001x7001", info_nce)
case("select", "nucleus", "b500x50257", nucleus)
case("embed", "hashed of three grad", "i90000000:300000 f65536x64 f65521x64 f50000x64", hashed)
case("embed", "bags of 40 sums grad", "i200000:20000x40 f200000x64", lambda i, e: F.embedding_bag(
    i, e, mode="sum"))
case("rotary", "tables of positions", "i90000:64x8192 f64 f64", yarn)
case("diffusion", "times", "i1000:300000 f160", times)
case("diffusion", "step and clean", "f96x4x200x200 f96x4x200x200 +f1000 i1000:96", ddim)
case("diffusion", "packed gelu gate grad", "b16384x5120", lambda x: (lambda a, b: a * F.gelu(b))(
    *x.chunk(2, -1)))
case("diffusion", "nearest, joined, group norm", "b12x256x40x40 b12x128x80x80 b384 b384",
     lambda x, y, w, b: F.silu(F.group_norm(torch.cat((F.interpolate(x, scale_factor=2), y), 1),
                                            32, w, b)))
case("quantise", "int4 out with zeros", "u14336x4096 b14336x64 b14336x64", int4_out)
case("audio", "magnitude and phase", "f64x513x700x2", magnitude_phase)
case("audio", "log mel of whisper", "+f64x128x3000", whisper)
case("audio", "masked times and bands grad", "f128x3000x80 i2700:128 i60:128", augmented)
case("audio", "deltas", "b128x80x3001", deltas)
case("optimizer", "nesterov of bf16 in place", "f901x1100 b901x1100 f901x1100 " * 24, nesterov)
case("optimizer", "adan in place", "f999x1200 f999x1200 f999x1200 f999x1200 +f999x1200 f999x1200 "
     * 8, adan)
case("dynamic", "dynamic drawdown", "f8001x5000", drawdown)
case("complex", "roots of complex", "f20000000x2", lambda x: torch.view_as_real(
    torch.view_as_complex(x).sqrt().tanh()))
# fmt: on
