"""Windows in two dimensions, their gradients, and biases of convolutions, compiled for a real GPU,
against eager."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import compile_cli
from compile_cli.cli.measure import relative_error
from loop_ir import Extern, Kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
aten = torch.ops.aten
WINDOWS: list[Any] = [
    ([2, 2], [2, 2], [0, 0], False), ([3, 3], [2, 2], [1, 1], False),
    ([3, 3], [2, 2], [1, 1], True), ([5, 4], [1, 3], [2, 1], False),
]  # fmt: skip


def image(dtype: torch.dtype, order: torch.memory_format) -> Tensor:
    """Few different numbers, so that windows have several largest, and some NaN."""
    x = torch.randint(-3, 4, (3, 40, 29, 31), device="cuda").to(dtype)
    x[0, 0, 3:5, 4:9] = math.nan
    x[1, 2] = -math.inf
    return x.to(memory_format=order)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_maxima(options: dict[str, Any], window: Any, order: Any, dtype: torch.dtype) -> None:
    size, step, padding, ceil = window

    def fn(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, places = aten.max_pool2d_with_indices(x, size, step, padding, [1, 1], ceil)
        alone = F.max_pool2d(F.relu(x), size, step, padding, 1, ceil)
        return values, places, alone

    x = image(dtype, order)
    compiled = compile_cli.compile(fn, (x,), options=options)
    assert all(isinstance(n, Kernel) for n in compiled.graph.fused.nodes)
    # In windows of minus infinity eager's kernel for channels-last says 0, wherever they are.
    right = fn(x.contiguous())
    for found, wanted, like in zip(compiled(x), right, fn(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        assert found.stride() == like.stride()


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_means(options: dict[str, Any], window: Any, padded: bool, dtype: torch.dtype) -> None:
    def fn(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, *window, padded) * 2

    x = torch.randn(3, 40, 29, 31, device="cuda").to(dtype)
    compiled = compile_cli.compile(fn, (x,), options=options)
    assert [type(n) for n in compiled.graph.fused.nodes] == [Kernel]
    exact = fn(x.double())
    assert relative_error(compiled(x), exact) < 1.2 * relative_error(fn(x), exact) + 1e-7


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.max_pool2d(x, 7, 1, 3),
        lambda x: F.max_pool2d(F.relu(x), (9, 11), (2, 1), (4, 0)),
        lambda x: F.avg_pool2d(x, 7, 1, 3, count_include_pad=False) + 1,
    ],
)
def test_large_windows(options: dict[str, Any], fn: Any, dtype: torch.dtype, order: Any) -> None:
    """One dimension after the other. Maxima are exact, and NaN is one."""
    x = torch.randn(8, 48, 93, 91, device="cuda").to(dtype)
    x[0, 0, 3:5, 4:9] = math.nan
    x = x.to(memory_format=order)
    compiled = compile_cli.compile(fn, (x,), options=options)
    kernels = compiled.graph.fused.nodes
    assert all(isinstance(n, Kernel) for n in kernels)
    by_itself = dtype is torch.bfloat16 and kernels[0].name == "relu"  # its casts count
    assert len(kernels) == 2 + by_itself
    want = fn(x.double())
    if dtype is torch.float32:
        torch.testing.assert_close(compiled(x).double(), want, equal_nan=True)
    torch.testing.assert_close(compiled(x), want.to(dtype), equal_nan=True)
    assert compiled(x).stride() == fn(x).stride()


class Squeeze(nn.Module):
    """Squeeze and excitation, as a MobileNet has it."""

    def __init__(self) -> None:
        super().__init__()
        self.less, self.more = nn.Conv2d(64, 16, 1), nn.Conv2d(16, 64, 1)
        self.deep = nn.Conv2d(64, 64, 5, 1, 2, groups=64)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.deep(x))
        y = F.relu(self.less(x.mean((2, 3), keepdim=True)))
        return x * F.hardsigmoid(self.more(y))


@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_biases(options: dict[str, Any], dtype: torch.dtype, emit: str) -> None:
    torch.manual_seed(0)
    net = Squeeze().eval().cuda().to(dtype)
    x = torch.randn(8, 64, 28, 30, device="cuda", dtype=dtype)
    compiled = compile_cli.compile(net, (x,), options={**options, "emit": emit})
    calls = [n for n in compiled.graph.fused.nodes if isinstance(n, Extern)]
    assert not [c for c in calls if "convolution" in c.target and c.args[2] is not None]
    exact = copy.deepcopy(net).double()(x.double())
    assert relative_error(compiled(x), exact) < 1.5 * relative_error(net(x), exact) + 1e-6


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool2d(x, 3, 2, 1, 2),
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        lambda x: F.avg_pool2d(x, 8, 4),
        lambda x: F.adaptive_avg_pool2d(x, (7, 6)),
        lambda x: F.adaptive_max_pool2d(x, (7, 8)),
    ],
)
def test_gradients(options: dict[str, Any], fn: Any, order: torch.memory_format) -> None:
    """Against eager of contiguous tensors: its gradient of `avg_pool2d` of channels-last ones with
    `count_include_pad=False` is wrong by up to 1.07 here (torch 2.11)."""
    x = torch.randn(4, 32, 29, 31, device="cuda").to(memory_format=order).requires_grad_()
    want = fn(x)
    got = torch.compile(fn, backend="compile_cli", options=options)(x)
    seed = torch.randn_like(want)
    torch.testing.assert_close(got, want)
    found, other = (torch.autograd.grad(y, x, seed)[0] for y in (got, want))
    flat = x.detach().contiguous().requires_grad_()
    wanted = torch.autograd.grad(fn(flat), flat, seed.contiguous())[0]
    torch.testing.assert_close(found, wanted.to(memory_format=order))
    assert found.stride() == other.stride()
