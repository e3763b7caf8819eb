"""Depthwise convolutions on the GPU, in any order of memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import compile_cli  # noqa: F401  # registers the backend

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("channels", "size", "taps", "step"),
    [(64, 128, 3, 1), (96, 56, 7, 1), (144, 57, 5, 2), (960, 7, 3, 1), (3, 224, 3, 2)],
)
def test_images(
    dtype: torch.dtype,
    order: torch.memory_format,
    channels: int,
    size: int,
    taps: int,
    step: int,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, channels, size, size, device="cuda", dtype=dtype)
    x = x.contiguous(memory_format=order)
    w = torch.randn(channels, 1, taps, taps, device="cuda", dtype=dtype)
    scale = torch.randn(channels, 1, 1, device="cuda", dtype=dtype)

    def run(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.silu(F.conv2d(x, w, padding=taps // 2, stride=step, groups=channels) * scale)

    torch._dynamo.reset()
    found = torch.compile(run, backend="compile_cli")(x, w, scale)
    exact, eager = run(x.double(), w.double(), scale.double()), run(x, w, scale)
    assert found.stride() == eager.stride()
    near = 1e-5 if dtype is torch.float32 else 1e-2
    assert (found - exact).abs().max() <= near * exact.abs().max()
