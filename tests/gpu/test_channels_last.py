"""Convolutions on channels-last tensors on a real GPU: as near to float64 as eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import compile_cli
from compile_cli.cli.measure import relative_error
from loop_ir import Extern

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


class Block(nn.Module):
    """A stem, a residual block as a ResNet has it, one by depth as a MobileNet has it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.first, self.second = nn.Conv2d(64, 64, 3, 1, 1), nn.Conv2d(64, 256, 1)
        self.deep, self.last = nn.Conv2d(256, 256, 5, 2, 2, groups=256), nn.Conv2d(256, 64, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (64, 64, 256))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.max_pool2d(F.relu(self.norms[0](self.stem(x))), 3, 2, 1)
        x = x + F.relu(self.norms[1](self.first(x)))
        x = F.hardswish(self.norms[2](self.second(x)))
        y = self.last(self.deep(x))
        return y, F.adaptive_avg_pool2d(y, 1).flatten(1)


@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@torch.no_grad()
def test_a_block(options: dict[str, Any], dtype: torch.dtype, emit: str) -> None:
    torch.manual_seed(0)
    net = Block().eval().cuda().to(dtype)
    inputs = [torch.randn(8, 3, 96, 80, device="cuda", dtype=dtype) for _ in range(3)]
    settings = {**options, "emit": emit, "channels_last": "on"}
    compiled = compile_cli.compile(net, (inputs[0],), options=settings)
    exact = copy.deepcopy(net).double()
    for x in inputs:
        for found, eager, wanted in zip(compiled(x), net(x), exact(x.double()), strict=True):
            assert found.stride() == eager.stride()
            limit = 1.5 * relative_error(eager, wanted) + 1e-6
            assert relative_error(found, wanted) < limit
    calls = [n for n in compiled.graph.fused.nodes if isinstance(n, Extern)]
    # Of 16 bits the one by depth, which is small, is a kernel.
    assert sum("convolution" in n.target for n in calls) == (4 if dtype is torch.bfloat16 else 5)


@torch.no_grad()
def test_auto_measures(options: dict[str, Any]) -> None:
    """Both ways, once each, whichever it takes."""
    torch.manual_seed(0)
    net = Block().eval().cuda().bfloat16()
    x = torch.randn(16, 3, 128, 128, device="cuda", dtype=torch.bfloat16)
    state = torch.cuda.get_rng_state()
    texts = []
    for _ in range(2):
        compiled = compile_cli.compile(net, (x,), options=options)
        texts.append(compiled.graph.explain().splitlines()[-1])
    assert torch.equal(state, torch.cuda.get_rng_state())
    assert texts[0] == texts[1] and "5 convolutions of 5 kinds" in texts[0]
    exact = copy.deepcopy(net).double()(x.double())
    for found, eager, wanted in zip(compiled(x), net(x), exact, strict=True):
        assert found.stride() == eager.stride()
        assert relative_error(found, wanted) < 1.5 * relative_error(eager, wanted) + 1e-6


@torch.no_grad()
def test_auto_in_torch_compile(options: dict[str, Any]) -> None:
    """Fake tensors are in force there; what is measured is real."""
    torch.manual_seed(0)
    net = Block().eval().cuda().bfloat16()
    compiled = torch.compile(net, backend="compile_cli", options=options)
    for batch in (4, 6, 8):
        x = torch.randn(batch, 3, 64, 64, device="cuda", dtype=torch.bfloat16)
        for found, eager in zip(compiled(x), net(x), strict=True):
            assert found.stride() == eager.stride()
            assert relative_error(found, eager.double()) < 2e-2


@pytest.mark.parametrize("option", ["on", "off", "auto"])
@torch.no_grad()
def test_lines_that_lie_channels_last(options: dict[str, Any], option: str) -> None:
    """As images of one row they give channels-last results, which fake tensors of lines do not."""
    x = torch.randn(2, 9, 6, device="cuda").permute(0, 2, 1)
    wide = torch.randn(2, 6, 1, device="cuda").expand(2, 6, 9)
    weight = torch.randn(4, 6, 3, device="cuda")

    def lines(x: Tensor, wide: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return F.conv1d(x, weight, padding=1), F.conv1d(wide, weight).relu()

    run = torch.compile(lines, backend="compile_cli", options={**options, "channels_last": option})
    exact = lines(x.double(), wide.double(), weight.double())
    for found, wanted in zip(run(x, wide, weight), exact, strict=True):
        assert relative_error(found, wanted) < 5e-3  # tf32
