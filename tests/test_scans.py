"""Running sums, products and extremes through the whole compiler: sizes, gradients, one kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import compile_cli
from compile_cli.cli.measure import relative_error
from loop_ir import Kernel
from loop_ir.ir import strides
from loop_ir.splitting import split_reductions
from triton_emit.schedule import loops
from wrapper_ir import DefineKernel, Workspace

EMITS = ("fx", pytest.param("cpp", marks=pytest.mark.slow))


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
        Scans(),
        args,
        dynamic={0: {0, 1}, 1: {0, 1}},
        options={**options, "emit": emit, "multikernel": "off"},
    )
    assert not model.graph.fallbacks
    for rows, columns in ((6, 40), (1, 5), (5, 1), (0, 4), (4, 0)):
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


@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_of_products(options: dict[str, Any], dim: int) -> None:
    """Lines with no zero, one, two, and what is not finite around them: as eager in f64."""
    x = torch.tensor(
        [
            [2.0, -3.0, 0.5, 4.0, 1.5],
            [0.0, -3.0, 0.5, 4.0, 1.5],
            [2.0, -3.0, 0.0, 4.0, 1.5],
            [2.0, 0.0, 0.5, 0.0, 1.5],
            [2.0, 0.0, 0.0, 0.0, 0.0],
            [2.0, 0.0, float("nan"), 4.0, float("inf")],
            [2.0, float("inf"), 0.5, 0.0, 1.5],
            [2.0, 0.5, float("nan"), 0.0, 1.5],
        ]
    )
    x = x if dim else x.T.contiguous()
    weights = torch.linspace(0.5, 2.0, x.numel()).view(x.shape)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.cumprod(dim)

    wide = x.double().requires_grad_()
    (wanted,) = torch.autograd.grad(fn(wide), wide, weights.double())
    x.requires_grad_()
    (got,) = torch.autograd.grad(
        torch.compile(fn, backend="compile_cli", options=options)(x), x, weights
    )
    torch.testing.assert_close(got, wanted.float(), rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_both_directions_in_one_kernel(options: dict[str, Any], dynamic: bool) -> None:
    """Rows that a program holds whole: a running sum from the end, reductions of that, and a
    product of those before and after each element."""

    def fn(x: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, ...]:
        back = x.flip(-1).cumsum(-1).flip(-1) * p
        others = p.cumprod(-1) * p.flip(-1).cumprod(-1).flip(-1)
        return back - p * back.sum(-1, keepdim=True), others

    args = torch.randn(6, 40), torch.rand(6, 40) + 0.5
    dims = {0: {0, 1}, 1: {0, 1}} if dynamic else {}
    model = compile_cli.compile(fn, args, dynamic=dims, options={**options, "multikernel": "off"})
    assert len(model.graph.fused.nodes) == (2 if dynamic else 1)  # none is held whole
    for size in [(6, 40), (1, 5), (5, 1), (0, 4), (4, 0)] if dynamic else [(6, 40)]:
        args = torch.randn(*size), torch.rand(*size) + 0.5
        for got, wanted in zip(model(*args), fn(*(a.double() for a in args)), strict=True):
            assert relative_error(got, wanted) < 1e-5


def test_one_kernel(options: dict[str, Any]) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (x * y).cumsum(-1) + y

    args = (torch.randn(3, 9).bfloat16(), torch.randn(3, 9).bfloat16())
    model = compile_cli.compile(Model(), args, options=options)
    assert len(model.graph.fused.nodes) == 1 and isinstance(model.graph.fused.nodes[0], Kernel)
    sums = (args[0] * args[1]).double().cumsum(-1)
    limit = 2**-8 * float(sums.abs().max())  # to which they are rounded
    exact = sums + args[1].double()
    torch.testing.assert_close(model(*args).double(), exact, rtol=2**-7, atol=limit)


@pytest.fixture
def shared_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sizes stand in for those at which it pays that programs share a line."""
    for name, value in (("LAUNCH_BYTES", -(1 << 20)), ("_LEAST_ELEMENTS", 16), ("_LEAST_ROWS", 8),
                        ("_WANTED", 6), ("_SCANNED", 8)):  # fmt: skip
        monkeypatch.setattr(split_reductions, name, value)
    monkeypatch.setattr(strides, "HELD_ROW", 16)
    made = loops.looking_back
    small = {"rblock": 8, "num_warps": 1, "lookback": 32}
    monkeypatch.setattr(loops, "looking_back", lambda *args: replace(made(*args), **small))


@pytest.mark.parametrize(
    ("dim", "dynamic", "emit"),
    [
        (0, False, "fx"),
        (1, True, "fx"),
        pytest.param(0, True, "fx", marks=pytest.mark.slow),
        pytest.param(1, False, "fx", marks=pytest.mark.slow),
        pytest.param(1, True, "cpp", marks=pytest.mark.slow),
    ],
)
def test_lines_that_programs_share(
    options: dict[str, Any], dim: int, dynamic: bool, emit: str, shared_lines: None
) -> None:
    """Columns by three kernels a scan: what chunks fold to, a scan of that, the scan. Rows by one,
    whose programs have a chunk each."""

    def scans(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        back = (x.flip(dim).cumsum(dim).flip(dim), x.flip(dim).logcumsumexp(dim).flip(dim))
        return (x.cumsum(dim) + 1, *back, x.logcumsumexp(dim), *x.cummax(dim))

    x = torch.randn((2, 83) if dim else (83, 2))
    dims = {0: {0, 1}} if dynamic else {}
    model = compile_cli.compile(scans, (x,), dynamic=dims, options={**options, "emit": emit})
    ops = model.graph.program.ops
    kernels = [op.source for op in ops if isinstance(op, DefineKernel)]
    if dim:
        shared = ["tl.atomic_add(state" in text for text in kernels]
        assert any(shared) if dynamic else all(shared) and len(kernels) == 2  # both ways
        assert sum(isinstance(op, Workspace) for op in ops) == 1
    else:
        assert len(kernels) >= 6
    sizes = [(2, 83), (3, 5), (1, 0)] if dynamic else [(2, 83)]
    for size in sizes:
        x = torch.randn(size if dim else size[::-1])
        for got, wanted in zip(model(x), scans(x.double()), strict=True):
            assert relative_error(got, wanted) < 1e-5


def test_lines_as_long_as_data_says(options: dict[str, Any], shared_lines: None) -> None:
    """What programs of one scan share is there before the length of another is known."""

    def scans(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x.cumsum(1)
        picked = y[first.flatten()[: len(y)] > 0]
        return first, picked.cumsum(0), picked.exp().cumsum(0)

    args = torch.randn(2, 83), torch.randn(160)
    model = compile_cli.compile(scans, args, options=options)
    kept = [op for op in model.graph.program.ops if isinstance(op, Workspace)]
    assert [len(op.type.size[0].free_symbols) for op in kept] == [0, 1]
    for _ in range(2):
        args = torch.randn(2, 83), torch.randn(160)
        for got, wanted in zip(model(*args), scans(*args), strict=True):
            assert relative_error(got, wanted.double()) < 1e-5
