"""Convolutions of one channel at a time are kernels: values, strides, and what fuses with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aten_lowering import convolutions
from loop_ir import Extern, Kernel

LAST = torch.channels_last
pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def conv(x: Tensor, w: Tensor, *more: Tensor, **how: Any) -> Tensor:
    dims = (F.conv1d, F.conv2d, F.conv3d)
    return dims[w.dim() - 3](x, w, *more, groups=w.shape[0], **how)


def check(fx: Any, fn: Callable[..., Tensor], *args: Tensor, ours: bool = True) -> None:
    run = fx(fn)
    exact = fn(*(a.double() for a in args))
    eager, found = fn(*args), run(*args)
    assert (found.dtype, found.shape, found.stride()) == (
        eager.dtype,
        eager.shape,
        eager.stride(),
    )
    near = 1e-5 if args[0].dtype is torch.float32 else 1e-2
    torch.testing.assert_close(found.double(), exact, rtol=near, atol=near * exact.abs().max())
    kinds = [type(n) for n in fx.graphs[-1].fused.nodes]
    assert kinds == [Kernel] if ours else Extern in kinds


@pytest.mark.spread(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [torch.contiguous_format, LAST])
@pytest.mark.parametrize(
    "how",
    [
        {"padding": 1},
        {"stride": 2},
        {"padding": (2, 0), "dilation": 2, "stride": (1, 2)},
        {"padding": "same"},
    ],
)
def test_images(
    fx: Any, dtype: torch.dtype, order: torch.memory_format, how: dict[str, Any]
) -> None:
    x = torch.randn(2, 6, 9, 11, dtype=dtype).contiguous(memory_format=order)
    w, b = torch.randn(6, 1, 3, 3, dtype=dtype), torch.randn(6, dtype=dtype)
    narrow = dtype is torch.bfloat16 and "stride" in how
    ours = order is LAST or not narrow
    check(fx, lambda x, w, b: F.relu(conv(x, w, b, **how)) * 2, x, w, b, ours=ours)


@pytest.mark.parametrize("small", [True, False])
def test_small_channels_last_images(fx: Any, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vendor has the faster kernel for others."""
    x = torch.randn(2, 6, 9, 11, dtype=torch.bfloat16).contiguous(memory_format=LAST)
    monkeypatch.setattr(convolutions, "SMALL", x.nbytes - (not small))
    w = torch.randn(6, 1, 5, 5, dtype=torch.bfloat16)
    check(fx, lambda x, w: F.relu(conv(x, w, stride=2)), x, w, ours=small)


@pytest.mark.parametrize("size", [(5, 5), (7, 7), (1, 3)])
def test_windows(fx: Any, size: tuple[int, int]) -> None:
    check(fx, lambda x, w: conv(x, w, padding=2), torch.randn(1, 4, 8, 7), torch.randn(4, 1, *size))


@pytest.mark.parametrize("size", [(3, 7), (5, 5), (7, 1)])
def test_windows_of_16_bits(fx: Any, size: tuple[int, int]) -> None:
    """The vendor's kernels are for square ones."""
    x, w = (torch.randn(n, dtype=torch.bfloat16) for n in ((1, 4, 8, 7), (4, 1, *size)))
    check(fx, lambda x, w: conv(x, w, padding=3), x, w, ours=size[0] != size[1])


def test_a_sum_of_zeros_below_0_is_0(fx: Any) -> None:
    """Eager begins at 0."""
    x, w = torch.zeros(1, 4, 8, 8), -torch.ones(4, 1, 1, 1)
    found = fx(lambda x, w: conv(x, w, padding=1))(x, w)
    assert not conv(x, w, padding=1).signbit().any() and not found.signbit().any()


def test_lines_and_volumes(fx: Any) -> None:
    x, w, b = torch.randn(2, 5, 17), torch.randn(5, 1, 4), torch.randn(5)
    check(fx, lambda x, w, b: F.silu(conv(x, w, b, padding=3)[..., :17]), x, w, b)
    check(
        fx,
        lambda x, w: conv(x, w, padding=1),
        torch.randn(1, 3, 4, 5, 6),
        torch.randn(3, 1, 3, 3, 3),
    )


def test_several_results_of_a_channel(fx: Any) -> None:
    x, w = torch.randn(2, 3, 6, 6), torch.randn(6, 1, 3, 3)
    check(fx, lambda x, w: F.conv2d(x, w, groups=3), x, w)


def test_sizes_are_read_when_it_runs(fx: Any) -> None:
    run, w = fx(lambda x, w: conv(x, w, padding=1)), torch.randn(4, 1, 3, 3)
    for shape in ((2, 4, 9, 7), (3, 4, 12, 5), (1, 4, 3, 3)):
        x = torch.randn(shape)
        for dim in (0, 2, 3):
            torch._dynamo.maybe_mark_dynamic(x, dim)
        torch.testing.assert_close(run(x, w), conv(x, w, padding=1))
        assert [type(n) for n in fx.graphs[-1].fused.nodes] == [Kernel]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: F.conv2d(x, w[:, :1].repeat(1, 2, 1, 1), groups=2),
        lambda x, w: F.conv_transpose2d(x, w[:, :1], groups=4),
        lambda x, w: F.conv2d(x, F.pad(w[:, :1], (0, 6, 0, 6)), groups=4, padding=4),
    ],
)
def test_others_are_the_vendors(fx: Any, fn: Callable[..., Tensor]) -> None:
    x, w = torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3)
    torch.testing.assert_close(fx(fn)(x, w), fn(x, w), rtol=1e-4, atol=1e-5)
    calls = [n.target for n in fx.graphs[-1].fused.nodes if isinstance(n, Extern)]
    assert calls == ["aten.convolution.default"]


@pytest.mark.spread(2)
@pytest.mark.parametrize("order", [torch.contiguous_format, LAST])
@pytest.mark.parametrize("step", [1, 2])
def test_gradients(options: dict[str, Any], order: torch.memory_format, step: int) -> None:
    """What was read has one by a convolution of ours, where no place is left out."""

    def loss(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return (
            F.silu(conv(x, w, b, padding=(1, 0), stride=step, dilation=(1, 2)) * 2).square().sum()
        )

    x = torch.randn(2, 6, 9, 11, dtype=torch.float64).contiguous(memory_format=order)
    args = [x, torch.randn(6, 1, 3, 3).double(), torch.randn(6).double()]
    leaves = [a.clone().requires_grad_() for a in args]
    given = [a.clone().requires_grad_() for a in args]
    loss(*leaves).backward()
    torch.compile(loss, backend="compile_cli", options=options)(*given).backward()
    for mine, theirs in zip(given, leaves, strict=True):
        assert mine.grad is not None and theirs.grad is not None
        assert mine.grad.stride() == theirs.grad.stride()
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_what_the_gradient_of_an_image_becomes() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from aten_lowering.passes.depthwise_gradients import depthwise_gradients

    def gradients(x: Tensor, w: Tensor, g: Tensor) -> Any:
        how = [1, 1], [1, 1], [1, 1], False, [0, 0], 4, [True, True, False]
        return torch.ops.aten.convolution_backward(g, x, w, [4], *how)[:2]

    args = torch.randn(2, 4, 6, 5), torch.randn(4, 1, 3, 3), torch.randn(2, 4, 6, 5)
    gm = make_fx(gradients, tracing_mode="fake")(*args)
    depthwise_gradients(gm.graph)
    gm.recompile()
    targets = [str(n.target) for n in gm.graph.nodes]
    assert targets.count("aten.convolution.default") == 1
    for mine, theirs in zip(gm(*args), gradients(*args), strict=True):
        torch.testing.assert_close(mine, theirs)
