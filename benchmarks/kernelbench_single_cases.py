"""The single operators of KernelBench (level 1), in the larger of its sizes.

`python benchmarks/kernels.py --cases kernelbench_single_cases` measures it. Where a tensor had over
2 GiB, the batch is a quarter or an eighth. The inputs of a case are the words of `odd_cases`; a
convolution's weights are a list of sizes beside its input and are scaled to keep variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, F16, F32, Case
from odd_cases import made, randn

CASES: list[Case] = []
Run = Callable[..., Any]


def case(family: str, name: str, inputs: str, run: Run) -> None:
    words = inputs.split()
    CASES.append(Case(family, name, run, lambda: tuple(map(made, words))))


def weighted(family: str, name: str, x: str, weight: str, more: str, run: Run) -> None:
    """A case with a matrix or filter, of sizes `weight`, after its input."""
    dtype = {"f": F32, "h": F16, "b": BF16}[x[0]]
    size = [int(s) for s in weight.split("x")]

    def make() -> tuple[Any, ...]:
        w = randn(*size, dtype=dtype) / math.sqrt(math.prod(size[1:]))
        return (made(x), w, *map(made, more.split()))

    CASES.append(Case(family, name, run, make))


def conv(name: str, x: str, weight: str, **how: Any) -> None:
    run = (F.conv1d, F.conv2d, F.conv3d)[weight.count("x") - 2]
    weighted("conv", name, x, weight, "", lambda x, w: run(x, w, **how))


def transposed(name: str, x: str, weight: str, **how: Any) -> None:
    run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[weight.count("x") - 2]
    weighted("transposed", name, x, weight, "", lambda x, w: run(x, w, **how))


# fmt: off
case("matmul", "square", "f4096x4096 f4096x4096", torch.matmul)
case("matmul", "standard", "f2048x8192 f8192x4096", torch.matmul)
case("matmul", "standard bf16", "b2048x8192 b8192x4096", torch.matmul)
case("matmul", "batched", "f128x512x1024 f128x1024x2048", torch.bmm)
case("matmul", "matrix by vector", "f2048x262144 f262144x1", torch.matmul)
case("matmul", "matrix by vector f16", "h4096x262144 h262144x1", torch.matmul)
case("matmul", "by scalar", "f32768x16384", lambda a: a * 3.14)
case("matmul", "large k", "f256x524288 f524288x256", torch.matmul)
case("matmul", "large k f16", "h256x524288 h524288x256", torch.matmul)
case("matmul", "small k", "f16384x64 f64x16384", torch.matmul)
case("matmul", "small k f16", "h32768x64 h64x32768", torch.matmul)
case("matmul", "irregular", "f8205x2949 f2949x5921", torch.matmul)
case("matmul", "irregular f16", "h8205x2949 h2949x5921", torch.matmul)
case("matmul", "tall and skinny", "f16384x32 f32x16384", torch.matmul)
case("matmul", "three axes", "f16x1024x2048 f2048x768", torch.matmul)
case("matmul", "four axes", "f4x256x512x256 f256x768",
     lambda a, b: torch.einsum("bijl,lk->bijk", a, b))
case("matmul", "four axes bf16", "b8x256x512x256 b256x768",
     lambda a, b: torch.einsum("bijl,lk->bijk", a, b))
case("matmul", "diagonal", "f4096 f4096x4096", lambda a, b: torch.diag(a) @ b)
case("matmul", "diagonal of 16384", "f16384 f16384x16384", lambda a, b: torch.diag(a) @ b)
case("matmul", "symmetric", "f4096x4096",
     lambda a: (lambda s: torch.matmul(s, s))((a + a.t()) / 2))
case("matmul", "upper triangles", "f4096x4096 f4096x4096",
     lambda a, b: torch.triu(torch.matmul(torch.triu(a), torch.triu(b))))
case("matmul", "lower triangles bf16", "b4096x4096 b4096x4096",
     lambda a, b: torch.tril(torch.matmul(torch.tril(a), torch.tril(b))))
case("matmul", "first transposed", "f8192x2048 f8192x4096", lambda a, b: a.T @ b)
case("matmul", "second transposed", "f2048x8192 f4096x8192", lambda a, b: a @ b.T)
case("matmul", "both transposed f16", "h8192x2048 h4096x8192", lambda a, b: a.T @ b.T)

LONG = "f1024x393216"
for name, function in {
    "relu": torch.relu, "leaky relu": F.leaky_relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "softmax": lambda x: torch.softmax(x, 1), "log softmax": lambda x: F.log_softmax(x, 1),
    "swish": lambda x: x * torch.sigmoid(x), "gelu": F.gelu, "selu": torch.selu,
    "hard sigmoid": F.hardsigmoid, "softplus": F.softplus,
    "softsign": lambda x: x / (1 + torch.abs(x)), "elu": F.elu, "hard tanh": F.hardtanh,
}.items():
    case("activation", name, LONG, function)
case("activation", "softmax f16", "h2048x393216", lambda x: torch.softmax(x, 1))
case("activation", "gelu bf16", "b2048x393216", F.gelu)
case("activation", "new gelu", "f8192x8192", lambda x: 0.5 * x * (
    1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))))

IMAGES = "f28x64x512x512"
case("norm", "batch norm training", "f16x64x512x512 f64 +f64 f64 f64",
     lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True))
case("norm", "instance norm", IMAGES, F.instance_norm)
case("norm", "group norm", IMAGES + " f64 f64", lambda x, w, b: F.group_norm(x, 8, w, b))
case("norm", "group norm bf16", "b28x64x512x512 b64 b64", lambda x, w, b: F.group_norm(x, 8, w, b))
case("norm", "rms norm of channels", IMAGES,
     lambda x: x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-5))
case("norm", "rms norm of channels f16", "h28x64x512x512",
     lambda x: x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-5))
case("norm", "frobenius norm", IMAGES, lambda x: x / torch.norm(x, p="fro"))
case("norm", "l1 norm", "f8192x65535", lambda x: x / torch.mean(torch.abs(x), dim=1, keepdim=True))
case("norm", "l2 norm", "f8192x65535", lambda x: x / torch.norm(x, p=2, dim=1, keepdim=True))
case("norm", "layer norm of three axes", "f64x64x256x256 f64x256x256 f64x256x256",
     lambda x, w, b: F.layer_norm(x, (64, 256, 256), w, b))

case("pool", "max 1-D dilated", "f16x192x65536", lambda x: F.max_pool1d(x, 8, 1, 4, 3))
case("pool", "max 2-D", "f16x64x512x512", lambda x: F.max_pool2d(x, 4, 1, 1, 1))
case("pool", "max 3-D dilated", "f8x32x128x128x128", lambda x: F.max_pool3d(x, 3, 2, 1, 3))
case("pool", "average 1-D", "f32x128x65536", lambda x: F.avg_pool1d(x, 8, 1, 4))
case("pool", "average 2-D of 11", "f2x64x2048x2048", lambda x: F.avg_pool2d(x, 11))
case("pool", "average 3-D", "f4x32x128x128x256", lambda x: F.avg_pool3d(x, 3, 2, 1))
case("pool", "average 2-D f16", "h32x64x512x512", lambda x: F.avg_pool2d(x, 3, 2, 1))

MIDDLE = "f32x4096x4095"
for name, reduce in {
    "sum": lambda x: torch.sum(x, 1, keepdim=True), "mean": lambda x: torch.mean(x, 1),
    "maximum": lambda x: torch.max(x, 1)[0], "argmax": lambda x: torch.argmax(x, 1),
    "argmin": lambda x: torch.argmin(x, 1), "minimum": lambda x: torch.min(x, 1)[0],
    "product": lambda x: torch.prod(x, 1),
}.items():
    case("reduce", f"{name} of the middle", MIDDLE, reduce)
case("reduce", "argmax of the middle bf16", "b64x4096x4095", lambda x: torch.argmax(x, 1))
case("reduce", "sum of rows", "f131072x4095", lambda x: torch.sum(x, 1))

SQUARE = "f8192x32768"
case("scan", "cumsum", SQUARE, lambda x: torch.cumsum(x, 1))
case("scan", "cumprod", SQUARE, lambda x: torch.cumprod(x, 1))
case("scan", "reverse cumsum", SQUARE, lambda x: torch.cumsum(x.flip(1), 1).flip(1))
case("scan", "exclusive cumsum", SQUARE, lambda x: torch.cumsum(
    torch.cat((torch.zeros_like(x.select(1, 0).unsqueeze(1)), x), 1)[:-1], 1))
case("scan", "exclusive cumsum narrowed", SQUARE, lambda x: torch.cat(
    (torch.zeros_like(x[:, :1]), torch.cumsum(x[:, :-1], 1)), 1))
case("scan", "masked cumsum", SQUARE + " m8192x32768", lambda x, m: torch.cumsum(x * m, 1))
case("scan", "cumsum of the middle", "f32x4096x4095", lambda x: torch.cumsum(x, 1))
case("scan", "cumprod of the middle", "f32x4096x4095", lambda x: torch.cumprod(x, 1))
case("scan", "reverse cumsum of the middle f16", "h32x4096x4096",
     lambda x: torch.cumsum(x.flip(1), 1).flip(1))

PAIR = "f8192x32768 f8192x32768"
case("loss", "mean squares", PAIR, lambda p, t: torch.mean((p - t) ** 2))
case("loss", "cross entropy", "f32768x4096 i4096:32768", F.cross_entropy)
case("loss", "huber", PAIR, F.smooth_l1_loss)
case("loss", "cosine similarity", PAIR,
     lambda p, t: torch.mean(1 - F.cosine_similarity(p, t, dim=1)))
case("loss", "divergence", "+f16384x16384 +f16384x16384",
     lambda p, t: F.kl_div(torch.log(p + 1e-6), t, reduction="batchmean"))
case("loss", "triplet margin", "f32768x8192 f32768x8192 f32768x8192", F.triplet_margin_loss)
case("loss", "hinge", "f16384x32768 f32768",
     lambda p, t: torch.mean(torch.clamp(1 - p * t, min=0)))

conv("2-D of 11", "f256x3x224x224", "96x3x11x11", stride=4, padding=2)
conv("3-D", "f16x3x64x64x64", "64x3x3x3x3")
conv("2-D wide", "f8x64x512x1024", "128x64x3x3")
conv("2-D of 5 x 7 f16", "h8x64x512x256", "128x64x5x7")
conv("3-D of flat filters", "f16x3x256x256x10", "64x3x3x3x1")
conv("1-D", "f32x64x131072", "128x64x3")
conv("1-D strided dilated", "f16x64x524280", "128x64x3", stride=3, dilation=4)
conv("2-D dilated", "f8x32x512x512", "64x32x5x9", padding=(2, 4), dilation=(2, 3))
conv("depthwise", "f16x64x512x512", "64x1x3x3", groups=64)
conv("depthwise of columns", "f64x8x512x512", "8x1x3x1", groups=8)
conv("depthwise wide", "f32x128x256x512", "128x1x3x3", groups=128)
conv("depthwise of 3 x 7 bf16", "b32x128x128x256", "128x1x3x7", groups=128)
conv("pointwise", "f4x64x1024x1024", "128x64x1x1")
conv("pointwise bf16", "b8x64x1024x1024", "128x64x1x1")
weighted("conv", "depthwise then pointwise", "f16x64x512x512", "128x64x1x1", "f64x1x3x3",
         lambda x, p, d: F.conv2d(F.conv2d(x, d, padding=1, groups=64), p))
transposed("1-D", "f32x128x65536", "128x128x3")
transposed("1-D dilated", "f32x32x131072", "32x64x5", dilation=3)
transposed("2-D", "f8x64x512x512", "64x64x3x3")
transposed("2-D of 3 x 7 bf16", "b8x32x512x1024", "32x32x3x7", padding=(1, 3))
transposed("2-D strided", "f16x32x64x128", "32x64x3x3", stride=5, padding=1, dilation=2)
transposed("2-D of groups", "f16x32x128x256", "32x16x3x5",
           stride=(2, 3), padding=(1, 2), dilation=(2, 1), groups=4)
transposed("3-D", "f8x48x64x64x64", "48x48x3x3x3")
transposed("3-D of groups", "f8x32x12x24x48", "32x8x3x5x7",
           stride=2, padding=(1, 2, 3), output_padding=1, groups=4)
transposed("3-D dilated f16", "h16x32x16x32x32", "32x64x3x3x3", stride=2, padding=1, dilation=2)
# fmt: on
