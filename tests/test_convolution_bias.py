"""The bias of a convolution is added by the kernel of what follows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import compile_cli
from aten_lowering.passes import convolution_bias as module
from aten_lowering.passes.convolution_bias import convolution_bias
from compile_cli.cli.measure import relative_error
from loop_ir import Extern, Kernel

aten = torch.ops.aten


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEVICES", frozenset({"cpu"}))


def rewritten(fn: Any, *args: Tensor) -> torch.fx.GraphModule:
    gm = make_fx(fn, tracing_mode="fake")(*args)
    convolution_bias(gm.graph)
    gm.graph.lint()
    gm.recompile()
    return gm


def biases(gm: torch.fx.GraphModule) -> list[Any]:
    return [n.args[2] for n in gm.graph.nodes if n.target == aten.convolution.default]


def conv(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    out: Tensor = aten.convolution(
        x, w, b, [1] * (x.dim() - 2), [1] * (x.dim() - 2), [1] * (x.dim() - 2), False,
        [0] * (x.dim() - 2), 1,
    )  # fmt: skip
    return out


def followed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(conv(x, w, b)) + 1


def viewed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = conv(x, w, b)
    return y.flatten(2).sum(1) * y.mean()


def transposed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    dims = x.dim() - 2
    w = w.transpose(0, 1).contiguous()
    return F.silu(
        aten.convolution(x, w, b, [2] * dims, [1] * dims, [1] * dims, True, [0] * dims, 1)
    )


def alone(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return conv(x, w, b)


@pytest.mark.parametrize("fn", [followed, viewed, transposed, alone])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_the_same_numbers(anywhere: None, fn: Any, order: torch.memory_format) -> None:
    x = torch.randn(2, 4, 9, 8).to(memory_format=order)
    w, b = torch.randn(6, 4, 3, 3), torch.randn(6)
    gm = rewritten(fn, x, w, b)
    assert biases(gm) == [None]
    out, wanted = gm(x, w, b), fn(x, w, b)
    torch.testing.assert_close(out, wanted)
    assert out.stride() == wanted.stride()


@pytest.mark.parametrize("dims", [1, 3])
def test_other_dimensions(anywhere: None, dims: int) -> None:
    x, w = torch.randn(2, 4, *[6] * dims), torch.randn(5, 4, *[3] * dims)
    b = torch.randn(5)
    gm = rewritten(followed, x, w, b)
    assert biases(gm) == [None]
    torch.testing.assert_close(gm(x, w, b), followed(x, w, b))


def depthwise(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, w[:4, :1], b[:4], groups=4)


def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.conv2d(x, w)) * b[0]


@pytest.mark.parametrize("fn", [depthwise, plain])
def test_where_nothing_would_take_it(anywhere: None, fn: Any) -> None:
    args = torch.randn(2, 4, 9, 8), torch.randn(6, 4, 3, 3), torch.randn(6)
    before = make_fx(fn, tracing_mode="fake")(*args).code
    assert rewritten(fn, *args).code == before


def test_other_devices_stay_as_they_are() -> None:
    args = torch.randn(2, 4, 9, 8), torch.randn(6, 4, 3, 3), torch.randn(6)
    assert None not in biases(rewritten(followed, *args))


class Squeeze(nn.Module):
    """Squeeze and excitation of each row: of whole images its convolutions would be matmuls."""

    def __init__(self) -> None:
        super().__init__()
        self.less, self.more = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.less(x.mean(3, keepdim=True)))
        return x * F.hardsigmoid(self.more(y))


@pytest.mark.spread(2)
@pytest.mark.parametrize("emit", ["fx", pytest.param("hop", marks=pytest.mark.slow), "cpp"])
@torch.no_grad()
def test_a_block(anywhere: None, options: dict[str, Any], emit: str) -> None:
    torch.manual_seed(0)
    net, x = Squeeze().eval(), torch.randn(2, 16, 7, 5)
    compiled = compile_cli.compile(net, (x,), dynamic={"x": {0}}, options={**options, "emit": emit})
    nodes = compiled.graph.fused.nodes
    assert [type(n) for n in nodes] == [Kernel, Extern, Kernel, Extern, Kernel]
    for batch in (2, 5):
        more = torch.randn(batch, 16, 7, 5)
        assert relative_error(compiled(more), net(more)) < 1e-6


@torch.no_grad()
def test_nothing_moves_where_nothing_fuses(anywhere: None, options: dict[str, Any]) -> None:
    net, x = Squeeze().eval(), torch.randn(2, 16, 7, 5)
    compiled = compile_cli.compile(net, (x,), options={**options, "fuse": False})
    calls = [n for n in compiled.graph.fused.nodes if isinstance(n, Extern)]
    assert all(call.args[2] is not None for call in calls if "convolution" in call.target)
