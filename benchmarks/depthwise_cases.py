"""Depthwise convolutions, of ours and of the vendor's choice: `convolutions.py` of aten_lowering
says by which figures they are told apart.

`python benchmarks/kernels.py --cases depthwise_cases` measures them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from kernel_cases import BF16, F32, Case
from torch import Tensor

LAST = torch.channels_last


def randn(*size: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(size, device="cuda", dtype=dtype)


def images(size: tuple[int, ...], window: tuple[int, int], dtype: torch.dtype, last: bool) -> Case:
    """3x3 of 64 x 96 x 112 x 112, say."""

    def make() -> tuple[Tensor, ...]:
        x = randn(*size, dtype=dtype)
        x = x.contiguous(memory_format=LAST) if last else x
        return x, randn(size[1], 1, *window, dtype=dtype)

    def run(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, padding=(window[0] // 2, window[1] // 2), groups=size[1])

    kind = "bf16" if dtype is BF16 else "f32"
    name = f"{window[0]}x{window[1]} of {size[-1]} {kind}{' channels-last' if last else ''}"
    return Case("depthwise", name, run, make)


def other(name: str, make: Callable[[], tuple[Tensor, ...]], run: Callable[..., Tensor]) -> Case:
    return Case("depthwise", name, run, make)


def activated(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    y = F.conv2d(x, w, padding=1, groups=w.shape[0])
    return F.silu(y * a[:, None, None] + b[:, None, None])


def causal(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.conv1d(x, w, b, padding=3, groups=w.shape[0])[..., : x.shape[-1]])


CASES = [
    images((32, 64, 256, 256), (3, 3), F32, False),
    images((32, 64, 128, 256), (3, 7), F32, False),
    images((64, 96, 56, 56), (7, 7), F32, False),
    images((64, 96, 56, 56), (7, 7), F32, True),
    images((64, 96, 112, 112), (3, 3), BF16, False),
    images((128, 240, 28, 28), (5, 5), BF16, False),
    images((64, 96, 56, 56), (7, 7), BF16, False),
    images((256, 960, 7, 7), (3, 3), BF16, False),
    images((128, 144, 56, 56), (3, 3), BF16, True),
    images((128, 240, 28, 28), (5, 5), BF16, True),
    images((64, 96, 56, 56), (7, 7), BF16, True),
    other(
        "3x3 in steps of two bf16",
        lambda: (randn(64, 96, 112, 112), randn(96, 1, 3, 3)),
        lambda x, w: F.conv2d(x, w, padding=1, stride=2, groups=96),
    ),
    other(
        "3x3 dilated f32",
        lambda: (randn(32, 64, 128, 128, dtype=F32), randn(64, 1, 3, 3, dtype=F32)),
        lambda x, w: F.conv2d(x, w, padding=2, dilation=2, groups=64),
    ),
    other(
        "3x3 norm silu f32",
        lambda: (
            randn(64, 144, 56, 56, dtype=F32),
            randn(144, 1, 3, 3, dtype=F32),
            randn(144, dtype=F32),
            randn(144, dtype=F32),
        ),
        activated,
    ),
    other("causal, silu", lambda: (randn(8, 2048, 8192), randn(2048, 1, 4), randn(2048)), causal),
]
