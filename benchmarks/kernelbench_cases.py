"""The chains of KernelBench (level 2): a convolution or matrix product and what follows it.

`python benchmarks/kernels.py --cases kernelbench_cases` measures these and its single operators.
Sizes as in `kernelbench_single_cases`; a chain's name is the operators after the first.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from kernelbench_single_cases import CASES, Run, weighted
from torch import Tensor

__all__ = ["CASES"]


def conv(name: str, x: str, weight: str, more: str, tail: Run, **how: Any) -> None:
    run = (F.conv1d, F.conv2d, F.conv3d)[weight.count("x") - 2]
    more = f"{x[0]}{weight.split('x')[0]} {more}"
    weighted("conv", name, x, weight, more, lambda x, w, b, *m: tail(run(x, w, b, **how), *m))


def up(name: str, x: str, weight: str, more: str, tail: Run, **how: Any) -> None:
    """A transposed convolution, by default one that doubles its input, and what follows."""
    run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[weight.count("x") - 2]
    how = how or {"stride": 2, "padding": 1, "output_padding": 1}
    more = f"{x[0]}{weight.split('x')[1]} {more}"
    weighted("up", name, x, weight, more, lambda x, w, b, *m: tail(run(x, w, b, **how), *m))


def gemm(name: str, x: str, outs: int, more: str, tail: Run) -> None:
    size = f"{outs}x{x.split('x')[1]}"
    weighted("gemm", name, x, size, f"{x[0]}{outs} {more}",
             lambda x, w, b, *m: tail(F.linear(x, w, b), *m))  # fmt: skip


def trained(x: Tensor, m: Tensor, v: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, m, v, w, b, True)


def norm(channels: int) -> str:
    """What a batch norm has: running mean and variance, weight, bias."""
    return f"f{channels} +f{channels} f{channels} f{channels}"


def rows_of(x: Tensor) -> Tensor:
    return F.instance_norm(x[:, None, None])[:, 0, 0]


def least(x: Tensor) -> Tensor:
    return torch.min(x, dim=1, keepdim=True)[0]


def total(x: Tensor) -> Tensor:
    return torch.logsumexp(x, dim=1, keepdim=True)


def places_softmax(x: Tensor) -> Tensor:
    return torch.softmax(torch.clamp(x, 0, 1).flatten(2), 2).view_as(x)


# fmt: off
# ---- convolutions
A, B, C = "f128x64x128x128", "f64x64x256x256", "f128x8x256x256"
conv("relu, bias", A, "128x64x3x3", "f128x1x1", lambda x, b: torch.relu(x) + b)
conv("relu, bias bf16", "b" + A[1:], "128x64x3x3", "b128x1x1", lambda x, b: torch.relu(x) + b)
conv("mish, mish", B, "128x64x3x3", "", lambda x: F.mish(F.mish(x)))
conv("softmax, max pool, max pool", "f128x3x16x32x32", "16x3x3x3x3", "",
     lambda x: F.max_pool3d(F.max_pool3d(torch.softmax(x, 1), 2), 2))
conv("five activations, bias", "f64x8x32x64x64", "32x8x3x3x3", "f32x1x1x1",
     lambda x, b: torch.sigmoid(F.gelu(F.leaky_relu(torch.relu(x), 0.01))) + b)
conv("divide, max pool, mean, bias, sum", "f128x8x16x64x64", "16x8x3x3x3", "f16x1x1x1",
     lambda x, b: torch.sum(F.adaptive_avg_pool3d(F.max_pool3d(x / 2, 2), 1) + b, dim=1))
conv("instance norm, divide", A, "128x64x3x3", "", lambda x: F.instance_norm(x) / 2)
conv("bias, scale, sigmoid, group norm", C, "32x8x3x3", "f32x1x1 f32x1x1 f32 f32",
     lambda x, b, s, w, c: F.group_norm(torch.sigmoid((x + b) * s), 8, w, c))
conv("group norm, mean of all", "f128x3x24x32x32", "24x3x3x3x3", "f24 f24",
     lambda x, w, b: F.group_norm(x, 8, w, b).mean(dim=[1, 2, 3, 4]))
conv("minimum of depth, softmax", "f128x3x24x32x32", "24x3x3x3x3", "",
     lambda x: torch.softmax(torch.min(x, dim=2)[0], dim=1))
conv("minimum, tanh, tanh", "f128x16x256x256", "64x16x3x3", "",
     lambda x: torch.tanh(torch.tanh(least(x))))
conv("minimum, tanh, tanh f16", "h128x16x256x256", "64x16x3x3", "",
     lambda x: torch.tanh(torch.tanh(least(x))))
conv("hard swish, group norm, mean", "f1024x3x16x32x32", "16x3x4x4x4", "f16 f16",
     lambda x, w, b: torch.mean(F.group_norm(F.hardswish(x), 4, w, b), dim=[2, 3, 4]))
conv("minimum with 0.5, bias, scale", A, "128x64x3x3", "f128x1x1",
     lambda x, b: (torch.min(x, torch.tensor(0.5, device=x.device)) + b) * 2)
conv("scale, minimum", B, "128x64x3x3", "", lambda x: least(x * 2))
conv("subtract, hard swish, pool, mish", A, "128x64x3x3", "",
     lambda x: F.mish(F.max_pool2d(F.hardswish(x - 0.5), 2)))
conv("max pool, logsumexp, relu", "f4x32x32x128x128", "64x32x3x3x3", "",
     lambda x: torch.relu(total(F.max_pool3d(x, 2, 2))), padding=1)
conv("subtract, tanh, subtract, pool", A, "128x64x3x3", "",
     lambda x: F.avg_pool2d(torch.tanh(x - 0.5) - 0.2, 2))
conv("mish, tanh", "f16x32x32x64x64", "64x32x3x3x3", "", lambda x: torch.tanh(F.mish(x)))
conv("scale, tanh, multiply, sigmoid", "f128x3x16x64x64", "16x3x3x3x3", "f16x1x1x1 f16x1x1x1",
     lambda x, s, b: torch.sigmoid(torch.tanh(x * s) * b))
conv("softplus tanh, batch norm", "f64x64x128x128", "128x64x3x3", norm(128),
     lambda x, *n: trained(torch.tanh(F.softplus(x)) * x, *n))
conv("multiply, leaky relu, gelu", B, "64x64x3x3", "f64x1x1",
     lambda x, m: F.gelu(F.leaky_relu(x * m)))
conv("relu, hard swish by hand", "f128x8x128x128", "64x8x3x3", "",
     lambda x: (lambda y: y * torch.clamp((y + 3) / 6, 0, 1))(torch.relu(x)))
conv("average pool, sigmoid, sum", C, "64x8x3x3", "",
     lambda x: torch.sum(torch.sigmoid(F.avg_pool2d(x, 4)), dim=[1, 2, 3]))
conv("gelu, mean of places", C, "64x8x3x3", "",
     lambda x: F.adaptive_avg_pool2d(F.gelu(x), 1).squeeze(-1).squeeze(-1))
conv("hard swish, relu", "f128x8x128x128", "64x8x3x3", "", lambda x: torch.relu(F.hardswish(x)))
conv("divide, leaky relu f16", "h128x8x128x128", "64x8x3x3", "", lambda x: F.leaky_relu(x / 2))
conv("batch norm, scale", "f128x8x128x128", "64x8x3x3", norm(64), lambda x, *n: trained(x, *n) * 2)
conv("multiply, instance norm, max", "f128x3x16x32x32", "16x3x3x3x3", "f16x1x1x1",
     lambda x, m: torch.max(torch.clamp(F.instance_norm(x * m), -1.0, 1.0) * m, dim=1)[0])
conv("tanh, scale, bias, max pool", C, "64x8x3x3", "f64x1x1",
     lambda x, b: F.max_pool2d(torch.tanh(x) * 2 + b, 4))
conv("group norm, minimum, clamp", "f64x3x16x64x64", "16x3x3x3x3", "f16 f16",
     lambda x, w, b: torch.clamp(torch.min(
         F.group_norm(x, 8, w, b), torch.tensor(0.0, device=x.device)), 0.0, 1.0))
conv("group norm, scale, pool, clamp", "f128x8x128x128", "64x8x3x3", "f64 f64 f64x1x1",
     lambda x, w, b, s: torch.clamp(F.max_pool2d(F.group_norm(x, 16, w, b) * s, 4), 0.0, 1.0))
conv("subtract, subtract, mish", C, "64x8x3x3", "", lambda x: F.mish(x - 0.5 - 0.2))
conv("leaky relu, sum, clamp, gelu", "f64x8x16x64x64", "64x8x3x3x3", "f64x1x1x1",
     lambda x, s: F.gelu(torch.clamp(F.leaky_relu(x, 0.2) + s, -1.0, 1.0)))
conv("group norm, tanh, residual, lse", "f128x8x128x128", "64x8x3x3", "f64 f64",
     lambda x, w, b: total(x + F.hardswish(torch.tanh(F.group_norm(x, 16, w, b)))))

# ---- transposed convolutions
E, G = "f128x64x128x128", "f32x32x16x32x32"
SAME: dict[str, Any] = {"stride": 1, "padding": 1}
HALF: dict[str, Any] = {"stride": 2, "padding": 1}
up("bias, clamp, scale, clamp, divide", E, "64x64x3x3", "f64x1x1",
   lambda x, b: torch.clamp(torch.clamp(x + b, 0.0, 1.0) * 2.0, 0.0, 1.0) / 2.0)
up("add, layer norm, pool, gelu", G, "32x64x3x3x3", "f1 f64 f64",
   lambda x, a, w, b: F.gelu(F.avg_pool3d(F.layer_norm(x + a, (64,), w, b), 2)))
up("subtract, tanh", "f32x64x128x128", "64x64x4x4", "f64x1x1", lambda x, b: torch.tanh(x - b))
up("max pool, hard tanh, mean, tanh", "f64x64x256x256", "64x64x3x3", "", lambda x: torch.tanh(
    torch.mean(F.hardtanh(F.max_pool2d(x, 2, 2)), dim=(2, 3), keepdim=True)), **SAME)
up("batch norm, tanh, pool, group norm", "f512x64x32x32", "64x128x5x5", norm(128) + " f128 f128",
   lambda x, m, v, w, b, g, c: F.group_norm(
       F.max_pool2d(torch.tanh(trained(x, m, v, w, b)), 2), 8, g, c), **SAME)
up("mean of depth, softmax, tanh", "f16x16x32x128x128", "16x64x3x3x3", "f64x1x1x1",
   lambda x, b: torch.tanh(torch.softmax(x.mean(dim=2, keepdim=True) + b, dim=1)) * 2, **SAME)
up("batch norm, subtract mean", "f16x16x16x32x32", "16x32x3x3x3", norm(32),
   lambda x, *n: (lambda y: y - torch.mean(y, dim=(2, 3, 4), keepdim=True))(trained(x, *n)), **HALF)
up("mish, add, hard tanh, scale", E, "64x64x3x3", "", lambda x: F.hardtanh(F.mish(x) + 0.5) * 2)
up("gelu, group norm", "f64x64x256x256", "64x64x3x3", "f64 f64",
   lambda x, w, b: F.group_norm(F.gelu(x), 8, w, b), stride=1)
up("sum and residuals", "f16x32x16x32x32", "32x64x3x3x3", "f64x1x1x1",
   lambda x, b: (lambda o: (x + b + o) * o + o)(x.clone().detach()))
up("add, hard swish", "f64x32x16x16x16", "32x64x3x3x3", "f64x64x32x32x32",
   lambda x, a: (x + a) * F.hardswish(x + a))
up("layer norm, gelu, scale", G, "32x64x4x4x4", "f64 f64",
   lambda x, w, b: F.gelu(F.layer_norm(x, (64,), w, b)) * 1.5, **HALF)
up("minimum, sum, gelu, add", "f16x64x128x128", "64x128x3x3", "f1x1x1",
   lambda x, b: F.gelu(torch.sum(least(x), dim=2, keepdim=True)) + b)
up("clamp, softmax of places, scale", "f32x32x16x32x32", "32x64x3x3x3", "f1x64x1x1x1",
   lambda x, s: places_softmax(x) * s)
up("means, bias, logsumexp, sum", "f16x64x256x256", "64x128x3x3", "f128x1x1",
   lambda x, b: total(torch.mean(x, dim=(2, 3), keepdim=True) + b).sum((2, 3)) * 10.0, stride=1)
up("multiply, mean, mean", "f16x64x128x128", "64x128x3x3", "",
   lambda x: torch.mean(torch.mean(x * 0.5, dim=[2, 3], keepdim=True), dim=[2, 3], keepdim=True))
up("softmax, sigmoid", "f16x32x16x32x32", "32x64x3x3x3", "",
   lambda x: torch.sigmoid(torch.softmax(x, dim=1)))
up("scale, average pool, bias, scale", "f128x3x16x32x32", "3x16x3x3x3", "f1 f16x1x1x1 f1",
   lambda x, s, b, t: (F.avg_pool3d(x * s, 2) + b) * t, **HALF)
up("logsumexp, hard swish, clamp", "f128x3x16x32x32", "3x16x3x3x3", "f1x1x1x1",
   lambda x, b: (lambda y: torch.clamp(y * torch.sigmoid(y + 3) / 6 - b, -1, 1))(total(x)), **HALF)
up("swish, group norm, hard swish", "f128x3x16x32x32", "3x16x3x3x3", "f16 f16",
   lambda x, w, b: F.hardswish(F.group_norm(torch.sigmoid(x) * x, 4, w, b)), **HALF)
up("relu, group norm", "f16x64x32x32x32", "64x128x3x3x3", "f128 f128",
   lambda x, w, b: F.group_norm(torch.relu(x), 8, w, b), stride=1)
up("batch norm, average pool, pool", "f64x3x32x32x32", "3x16x3x3x3", norm(16),
   lambda x, *n: F.avg_pool3d(F.avg_pool3d(trained(x, *n), 2), 2), **HALF)
up("leaky, multiply, leaky, max pool", "f16x16x16x32x32", "16x32x3x3x3", "f32x1x1x1",
   lambda x, m: F.max_pool3d(F.leaky_relu(F.leaky_relu(x, 0.2) * m, 0.2), 2))
up("scale, batch norm, means", "f16x64x16x32x32", "64x128x5x5x5", norm(128),
   lambda x, *n: F.adaptive_avg_pool3d(trained(x * 2.0, *n), 1), stride=1)
up("max pool, max pool, sum", "f16x32x32x32x32", "32x64x5x5x5", "",
   lambda x: torch.sum(F.max_pool3d(F.max_pool3d(x, 2), 3), dim=1, keepdim=True),
   stride=2, padding=2)
up("pool, softmax, subtract, swish, max", "f128x3x16x32x32", "3x16x3x3x3", "f16", lambda x, s: (
    lambda y: torch.max(torch.sigmoid(y) * y, dim=1)[0])(
        torch.softmax(F.max_pool3d(x, 2, 2), dim=1) - s.view(1, -1, 1, 1, 1)))
up("softmax, bias, scale, sigmoid", "f128x64x64x64", "64x128x4x4", "f128x1x1",
   lambda x, b: torch.sigmoid((torch.softmax(x, dim=1) + b) * 2.0))
up("softmax, bias, scale, sigmoid bf16", "b128x64x64x64", "64x128x4x4", "b128x1x1",
   lambda x, b: torch.sigmoid((torch.softmax(x, dim=1) + b) * 2.0))
up("add, minimum, gelu, multiply", "f128x64x64x64", "64x128x4x4", "",
   lambda x: F.gelu(torch.min(x + 0.5, torch.tensor(0.0, device=x.device))) * 2.0, stride=2)
up("multiply, max pool, means, clamp", "f128x3x16x32x32", "3x16x3x3x3", "",
   lambda x: torch.clamp(F.adaptive_avg_pool3d(F.max_pool3d(x * 0.5, 2), 1), 0, 1), **HALF)
up("clamp, divide", "f16x64x12x48x48", "64x128x3x3x3", "", lambda x: torch.clamp(x, min=-1.0) / 2.0,
   **HALF)

# ---- matrix products
M, N = "f1024x8192", "f16384x4096"
gemm("subtract, multiply, relu", M, 8192, "", lambda x: torch.relu((x - 2.0) * 1.5))
gemm("multiply, leaky relu bf16", "b1024x8192", 8192, "", lambda x: F.leaky_relu(x * 2.0, 0.1))
gemm("divide, sum, scale", M, 8192, "", lambda x: torch.sum(x / 2, dim=1, keepdim=True) * 1.5)
gemm("sum, max, mean, lse, lse", M, 8192, "", lambda x: total(total(torch.mean(torch.max(
    torch.sum(x, dim=1, keepdim=True), dim=1, keepdim=True)[0], dim=1, keepdim=True))))
gemm("scale, residual, clamp, lse, mish", M, 8192, "", lambda x: (
    lambda y: y * F.mish(y))(total(torch.clamp(x * 2 + x * 2, -10.0, 10.0))))
gemm("instance norm, residual, multiply", M, 8192, "f1024x8192", lambda x, y: (rows_of(x) + y) * y)
gemm("mish, mish", M, 8192, "", lambda x: F.mish(F.mish(x)))
gemm("mish, mish f16", "h" + M[1:], 8192, "", lambda x: F.mish(F.mish(x)))
gemm("group norm, hard tanh", M, 8192, "f8192 f8192",
     lambda x, w, b: F.hardtanh(F.group_norm(x, 16, w, b), -2.0, 2.0))
gemm("scale, batch norm", N, 4096, "f4096 " + norm(4096), lambda x, s, *n: trained(x * s, *n))
gemm("swish, bias, group norm", "f32768x1024", 4096, "f4096 f4096 f4096",
     lambda x, c, w, b: F.group_norm(torch.sigmoid(x) * x + c, 64, w, b))
gemm("swish, bias, group norm bf16", "b32768x1024", 4096, "b4096 b4096 b4096",
     lambda x, c, w, b: F.group_norm(torch.sigmoid(x) * x + c, 64, w, b))
gemm("scale, residual", N, 4096, "", lambda x: x * 0.5 + x.clone().detach())
gemm("batch norm, gelu, relu", N, 4096, norm(4096),
     lambda x, *n: torch.relu(F.gelu(trained(x, *n))))
gemm("sigmoid, gemm, logsumexp", "f16384x2048", 4096, "f1024x4096 f1024",
     lambda x, w, b: torch.logsumexp(F.linear(torch.sigmoid(x), w, b), dim=1))
gemm("subtract, mean, lse, gelu, add", "f2048x8192", 8192, "f8192 f2048x8192",
     lambda x, s, y: (F.gelu(total(torch.mean(x - s, dim=1, keepdim=True))) + y))
gemm("scale, hard tanh, gelu bf16", "b2048x8192", 8192, "",
     lambda x: F.gelu(F.hardtanh(x * 0.5, -2, 2)))
gemm("max pool, sum, scale", "f128x16384", 16384, "",
     lambda x: torch.sum(F.max_pool1d(x.unsqueeze(1), 2).squeeze(1), dim=1) * 0.5)
gemm("sigmoid, sum", "f128x16384", 16384, "",
     lambda x: torch.sum(torch.sigmoid(x), dim=1, keepdim=True))
gemm("sigmoid, sum f16", "h128x32768", 32768, "",
     lambda x: torch.sum(torch.sigmoid(x), dim=1, keepdim=True))
gemm("swish, scale", "f128x16384", 16384, "", lambda x: x * torch.sigmoid(x) * 2.0)
gemm("group norm, leaky relu, sum", M, 8192, "f8192 f8192",
     lambda x, w, b: (lambda y: y + y)(F.leaky_relu(F.group_norm(x, 512, w, b), 0.01)))
gemm("lse, leaky, leaky, gelu, gelu", M, 8192, "", lambda x: F.gelu(F.gelu(
    F.leaky_relu(F.leaky_relu(total(x), 0.01), 0.01))))
gemm("minimum, subtract", "f128x16384", 16384, "f1", lambda x, c: torch.min(x, c) - c)
gemm("sigmoid, scale, residual", M, 8192, "", lambda x: torch.sigmoid(x) * 2.0 + x)
gemm("group norm, minimum, bias", M, 8192, "f8192 f8192 f1x8192x1x1",
     lambda x, w, b, c: least(F.group_norm(x, 512, w, b)) + c)
gemm("maximum, subtract mean, gelu", M, 8192, "", lambda x: (
    lambda y: F.gelu(y - y.mean(dim=1, keepdim=True)))(torch.max(x, dim=1, keepdim=True).values))
gemm("swish, divide, clamp, tanh, clamp", M, 8192, "", lambda x: torch.clamp(torch.tanh(
    torch.clamp(x * torch.sigmoid(x) / 2.0, -1.0, 1.0)), -1.0, 1.0))
gemm("batch norm, scale, softmax", M, 8192, norm(8192) + " f1",
     lambda x, m, v, w, b, s: torch.softmax(s * trained(x, m, v, w, b), dim=1))
gemm("divide, gelu", M, 8192, "", lambda x: F.gelu(x / 10.0))
gemm("group norm, swish, multiply, swish", M, 8192, "f8192 f8192 f8192",
     lambda x, w, b, m: (lambda y: y * torch.sigmoid(y))(
         (lambda y: y * torch.sigmoid(y) * m)(F.group_norm(x, 256, w, b))))
gemm("bias, hard tanh, mish, group norm", M, 8192, "f8192 f8192 f8192", lambda x, c, w, b:
     F.group_norm(F.mish(F.hardtanh(x + c)), 256, w, b))
gemm("add, swish, tanh, gelu, hard tanh", M, 8192, "f8192", lambda x, c: F.hardtanh(F.gelu(
    torch.tanh((lambda y: torch.sigmoid(y) * y)(x + c)))))
gemm("batch norm, bias, divide, swish", M, 8192, norm(8192) + " f1",
     lambda x, m, v, w, b, c: (lambda y: y * torch.sigmoid(y))((trained(x, m, v, w, b) + c) / 1.0))
gemm("average pool, gelu, scale, maximum", M, 8192, "", lambda x: torch.max(
    F.gelu(F.avg_pool1d(x.unsqueeze(1), 16).squeeze(1)) * 2.0, dim=1)[0])
gemm("gelu, softmax", M, 8192, "", lambda x: torch.softmax(F.gelu(x), dim=1))
gemm("gelu, softmax bf16", "b1024x8192", 8192, "", lambda x: torch.softmax(F.gelu(x), dim=1))
# fmt: on
