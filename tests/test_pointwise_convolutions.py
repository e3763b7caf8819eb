"""Channels-last convolutions of one place are products of matrices, which take what follows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import compile_cli
from aten_lowering.convolutions import is_vendors
from aten_lowering.passes import channels_last, convolution_bias
from aten_lowering.passes import pointwise_convolutions as module
from aten_lowering.passes.pointwise_convolutions import pointwise_convolutions
from compile_cli import pipeline
from compile_cli.cli.measure import relative_error
from loop_ir import Extern, Kernel, Matmul

aten = torch.ops.aten
LAST = torch.channels_last


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in (module, channels_last, convolution_bias):
        monkeypatch.setattr(one, "DEVICES", frozenset({"cpu"}))


def conv(x: Tensor, w: Tensor, step: int = 1, around: int = 0, groups: int = 1) -> Tensor:
    dims = x.dim() - 2
    how = [step] * dims, [around] * dims, [1] * dims, False, [0] * dims
    return aten.convolution(x, w, None, *how, groups)  # type: ignore[no-any-return]  # of torch


def rewritten(fn: Any, *args: Any) -> torch.fx.GraphModule:
    gm = make_fx(fn, tracing_mode="fake")(*args)
    pointwise_convolutions(gm.graph)
    gm.graph.lint()
    gm.recompile()
    return gm


def made(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    form = torch.channels_last_3d if len(size) == 5 else LAST
    return torch.randn(*size, dtype=dtype).to(memory_format=form)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("size", [(2, 16, 5, 7), (1, 8, 3, 3), (3, 16, 2, 4, 3)])
def test_the_same_numbers_and_strides(size: tuple[int, ...], step: int) -> None:
    x, w = made(*size), torch.randn(24, size[1], *[1] * (len(size) - 2), dtype=torch.bfloat16)
    gm = rewritten(lambda x, w: conv(x, w, step), x, w)
    found, wanted = gm(x, w), conv(x, w, step)
    # A CPU without instructions for bf16 gives results of three dimensions in order, left alone.
    last = len(size) == 4 or wanted.is_contiguous(memory_format=torch.channels_last_3d)
    assert (aten.mm.default in [n.target for n in gm.graph.nodes]) == last
    assert found.stride() == wanted.stride()
    assert relative_error(found, conv(x.double(), w.double(), step)) < 1e-2


@pytest.mark.parametrize(
    ("x", "w", "how"),
    [
        (made(2, 16, 5, 7), made(24, 16, 3, 3), (1, 1)),
        (made(2, 16, 5, 7), made(24, 16, 1, 1), (1, 1)),
        (made(2, 16, 5, 7), made(24, 8, 1, 1), (1, 0, 2)),
        (made(2, 16, 5, 7), made(20, 16, 1, 1), ()),  # rows that begin at odd places
        (made(2, 16, 5, 7).contiguous(), made(24, 16, 1, 1), ()),
        (made(2, 0, 5, 7), made(24, 0, 1, 1), ()),
        (made(2, 16, 5, 7, dtype=torch.float32), torch.randn(24, 16, 1, 1), ()),
    ],
)
def test_others_stay(x: Tensor, w: Tensor, how: tuple[int, ...]) -> None:
    gm = rewritten(lambda x, w: conv(x, w, *how), x, w)
    assert aten.mm.default not in [n.target for n in gm.graph.nodes]


def test_forward_halves_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics follow them, and nothing else."""
    seen: list[bool] = []
    look = lambda graph: seen.append(any(map(is_vendors, graph.nodes)))  # noqa: E731  # a stand-in
    look.__name__ = "look"
    monkeypatch.setattr(pipeline, "pointwise_convolutions", look)
    torch._dynamo.reset()
    run = torch.compile(F.conv2d, backend="compile_cli", options={"tune": "max"})
    x, w = made(1, 8, 3, 3).requires_grad_(), torch.randn(8, 8, 1, 1, dtype=torch.bfloat16)
    run(x, w).sum().backward()
    assert seen == [False]  # of the backward half, which has none
    with torch.no_grad():
        run(x, w)
    assert seen == [False, True]
    with torch.no_grad():  # else it takes the first call of resnet50 from 7 to 40 s
        torch.compile(lambda x, w: F.conv2d(x, w), backend="compile_cli")(x, w)
    assert len(seen) == 2


class Bottleneck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.less, self.wide = nn.Conv2d(32, 16, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.more = nn.Conv2d(16, 32, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (16, 16, 32))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.less(x)))
        y = F.relu(self.norms[1](self.wide(y)))
        return F.relu(self.norms[2](self.more(y)) + x)


@torch.no_grad()
def test_what_follows_is_part_of_the_product(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Bottleneck(), Bottleneck()).eval().bfloat16()
    x = made(2, 32, 4, 4)
    settings = {**options, "channels_last": "on", "gemm": "template", "tune": "max"}
    compiled = compile_cli.compile(net, (x,), options=settings)
    nodes = compiled.graph.fused.nodes
    matmuls = [n for n in nodes if isinstance(n, Matmul)]
    assert len(matmuls) == 4 and all(n.epilogue is not None for n in matmuls)
    assert sum(isinstance(n, Extern) for n in nodes) == 2
    assert sum(isinstance(n, Kernel) for n in nodes) == 2  # windows, channels side by side
    exact = net.double()(x.double())
    assert relative_error(compiled(x), exact) < 2e-2
