"""Running sums, products and extremes through the whole compiler: sizes, gradients, one kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import compile_cli
from compile_cli.measure import relative_error
from loop_ir import Kernel

EMITS = ("fx", "hop", "cpp")


class Scans(nn.Module):
    """Rows and columns, both ways, with what is pointwise around."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            (x * y).cumsum(-1) + y,
            x.flip(0).cumsum(0).flip(0) * 2,
            x.logcumsumexp(1),
            *x.cummax(1),
        )


@pytest.mark.parametrize("emit", EMITS)
def test_dynamic_sizes(options: dict[str, Any], emit: str) -> None:
    args = (torch.randn(6, 40), torch.randn(6, 40))
    model = compile_cli.compile(
        Scans(), args, dynamic={0: {0, 1}, 1: {0, 1}}, options={**options, "emit": emit}
    )
    assert not model.graph.fallbacks
    for rows, columns in ((6, 40), (2, 3), (3, 300), (70, 2), (1, 5), (5, 1), (0, 4), (4, 0)):
        x, y = torch.randn(rows, columns), torch.randn(rows, columns)
        for got, wanted in zip(model(x, y), Scans()(x.double(), y.double()), strict=True):
            assert got.shape == wanted.shape
            assert relative_error(got, wanted) < 1e-5


def test_gradients(options: dict[str, Any]) -> None:
    """Those of a running sum are one scan from the end."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * x).cumsum(1).sin().sum() + x.cumsum(0).exp().sum() + x.cummin(0)[0].sum()

    x = torch.randn(5, 7, requires_grad=True)
    (wanted,) = torch.autograd.grad(fn(x.double()), x)
    (got,) = torch.autograd.grad(torch.compile(fn, backend="compile_cli", options=options)(x), x)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_one_kernel(options: dict[str, Any]) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (x * y).cumsum(-1) + y

    args = (torch.randn(3, 9).bfloat16(), torch.randn(3, 9).bfloat16())
    model = compile_cli.compile(Model(), args, options=options)
    assert len(model.graph.fused.nodes) == 1 and isinstance(model.graph.fused.nodes[0], Kernel)
    exact = (args[0] * args[1]).double().cumsum(-1) + args[1].double()
    torch.testing.assert_close(model(*args).double(), exact, rtol=2**-7, atol=2**-7)
