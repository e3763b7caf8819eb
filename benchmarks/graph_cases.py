"""Pieces cut out of the graphs of whole models (those of `model_cases`, of which this list is the
longer one), of pre- and postprocessing and of collections.

`python benchmarks/kernels.py --cases graph_cases` measures it.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from kernel_cases import BF16, F16
from model_cases import CASES, case
from odd_cases import last
from torch import Tensor

__all__ = ["CASES"]


# fmt: off
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
