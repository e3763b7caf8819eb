"""Rows that programs hold together, through the whole compiler: one kernel, one reading."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import compile_cli
from compile_cli.cli.measure import relative_error
from loop_ir.splitting import shared_rows
from wrapper_ir import DefineKernel

EMITS = ("fx", pytest.param("cpp", marks=pytest.mark.slow))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sizes stand in for those at which it pays."""
    for name, value in (("_LEAST", 0), ("_CACHED", 64), ("_HELD", 32), ("_FEWEST", 1)):
        monkeypatch.setattr(shared_rows, name, value)


@pytest.mark.parametrize("emit", EMITS)
def test_any_number_of_rows(options: dict[str, Any], emit: str) -> None:
    def norms(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return x.softmax(-1), F.layer_norm(x, (70,), w), x / x.abs().amax(-1, keepdim=True)

    args = torch.randn(6, 70), torch.randn(70)
    model = compile_cli.compile(
        norms, args, dynamic={0: {0}}, options={**options, "emit": emit, "multikernel": "off"}
    )
    ops = model.graph.program.ops
    kernels = [op.source for op in ops if isinstance(op, DefineKernel)]
    assert kernels
    assert all("leave_zero(" in text for text in kernels)
    for rows in (6, 1, 0, 3):
        x = torch.randn(rows, 70)
        wide = norms(x.double(), args[1].double())
        for got, wanted in zip(model(x, args[1]), wide, strict=True):
            assert relative_error(got, wanted) < 1e-5


def test_statistics_in_training(options: dict[str, Any]) -> None:
    """Of channels, forward and backward; running ones change once."""
    bn = torch.nn.BatchNorm2d(3)
    reference = torch.nn.BatchNorm2d(3).double()

    def both(norm: Any, x: Tensor, seed: Tensor) -> list[Tensor]:
        y = F.group_norm(norm(x), 1).log_softmax(2)
        return [y, *torch.autograd.grad(y, [x, norm.weight, norm.bias], seed)]

    run = torch.compile(bn, backend="compile_cli", options=options)
    x, seed = torch.randn(4, 3, 5, 7, requires_grad=True), torch.randn(4, 3, 5, 7)
    wide = x.detach().double().requires_grad_()
    got = both(run, x, seed)
    for a, b in zip(got, both(reference, wide, seed.double()), strict=True):
        assert relative_error(a, b) < 1e-4
    for a, b in zip(bn.buffers(), reference.buffers(), strict=True):
        assert relative_error(a.double(), b.double()) < 1e-5
