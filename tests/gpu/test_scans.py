"""Scans on a GPU, at sizes that every form of kernel serves, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import compile_cli
from compile_cli.cli.measure import relative_error
from wrapper_ir import DefineKernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    "size",
    [(1000, 64), (300, 4097), (100, 100000), (3, 3000001), (1, 1 << 24), (64, 1), (1 << 19, 33)],
)
def test_sums_and_extremes(size: tuple[int, int], dim: int, options: dict[str, Any]) -> None:
    x = torch.randn(size, device="cuda") + 0.1

    def scans(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        back = x.flip(dim).cumsum(dim).flip(dim)
        return (x.cumsum(dim) * 2, back, *x.cummax(dim), x.logcumsumexp(dim) * 2)

    got = compile_cli.compile(scans, (x,), options=options)(x)
    wanted = scans(x.double())
    assert torch.equal(got[2], wanted[2].float()) and torch.equal(got[3], wanted[3])
    for mine, exact in zip((*got[:2], got[4]), (*wanted[:2], wanted[4]), strict=True):
        assert relative_error(mine, exact) < 1e-5


@pytest.mark.parametrize("size", [(9, 1000, 777), (16, 300, 512), (200, 100, 7)])
def test_middle_dimensions(size: tuple[int, ...], options: dict[str, Any]) -> None:
    x = torch.randn(size, device="cuda")

    def scans(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.cumsum(1), x.flip(1).cumsum(1).flip(1), x.logcumsumexp(1)

    got = compile_cli.compile(scans, (x,), options=options)(x)
    for mine, exact in zip(got, scans(x.double()), strict=True):
        assert relative_error(mine, exact) < 1e-5


@pytest.mark.parametrize("size", [(5000, 300), (40, 100003)])
def test_places_of_ties_and_nan(size: tuple[int, int], options: dict[str, Any]) -> None:
    x = torch.randint(-3, 4, size, device="cuda").float()
    x[1, 200:] = float("nan")
    x[2, :50] = float("-inf")

    def scans(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*x.cummax(1), *x.cummin(0))

    got = compile_cli.compile(scans, (x,), options=options)(x)
    for mine, exact in zip(got, scans(x.cpu()), strict=True):
        torch.testing.assert_close(mine.cpu(), exact, rtol=0, atol=0, equal_nan=True)


def test_zeros_of_folds(options: dict[str, Any]) -> None:
    """The sign of zero, along lines of 1, 4 and 5 elements: lanes may all have elements, or some
    none."""

    def folds(x: torch.Tensor) -> list[torch.Tensor]:
        out = [x[0, 0].cumsum(0), x[0, 0].logcumsumexp(0), x[0, 0].sum(0), x[1].cumsum(0)]
        out += [x[1].logcumsumexp(0), x[1:].logcumsumexp(1), x[1, :1].logcumsumexp(0)]
        for y in (x[:, :1], x[:, :4], x):
            out += [y.sum(1), y.sum((0, 1)), y.mean(1), y.cumsum(1), y.logcumsumexp(1)]
            out += [torch.cummax(y, 1)[0], torch.cummin(y, 1)[0]]
        return out

    x = torch.tensor([[-0.0, 0.0, -0.0, 0.0, -0.0], [-0.0] * 5], device="cuda")
    got = compile_cli.compile(folds, (x,), options=options)(x)
    for mine, eager in zip(got, folds(x), strict=True):
        torch.testing.assert_close(1 / mine, 1 / eager, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_scans_of_few_long_rows_that_are_reduced_first(rows: int, options: dict[str, Any]) -> None:
    """As for sampling by the largest shares: no program does a row alone."""
    x = torch.randn(rows, 128256, device="cuda")

    def shares(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1).cumsum(-1)

    compiled = compile_cli.compile(shares, (x,), options=options)
    assert rows > 8 or len(compiled.graph.fused.nodes) > 1
    torch.testing.assert_close(compiled(x), shares(x.double()).float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize(
    ("size", "dim"), [((1, 1 << 24), 1), ((7, 1000003), 1), ((3, 5, 999999), 2), ((1 << 20, 17), 0)]
)
def test_chunks_that_programs_share(
    size: tuple[int, ...], dim: int, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    """Each chunk waits for those before it: the same bits each time, however busy the GPU is, in
    calls and in replays of a CUDA graph, between which memory must be left zero."""
    x = torch.randint(-9, 10, size, device="cuda").to(dtype)

    def scans(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        back = x.flip(dim).cumsum(dim).flip(dim)
        return (x.cumsum(dim), back * 2, *x.cummin(dim))

    compiled = compile_cli.compile(scans, (x,), options=options)
    kernels = [op for op in compiled.graph.program.ops if isinstance(op, DefineKernel)]
    rows = dim == len(size) - 1
    assert any("leave_zero(group" in kernel.source for kernel in kernels) == rows
    first = compiled(x)
    wide = x.double() if dtype.is_floating_point else x
    exact = [y.to(mine.dtype) for y, mine in zip(scans(wide), first, strict=True)]
    for mine, want in zip(
        first, exact, strict=True
    ):  # whole numbers: sums are exact before rounding
        torch.testing.assert_close(mine, want, rtol=0, atol=0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = compiled(x)
    beside = torch.cuda.Stream()
    for again in range(200):
        with torch.cuda.stream(beside):
            torch.randn(1 << 22, device="cuda").sin_()
        graph.replay()
        for mine, want in zip(replayed if again % 2 else compiled(x), first, strict=True):
            assert torch.equal(mine, want)
    beside.synchronize()


@pytest.mark.parametrize("size", [(131072, 16), (3, 1 << 20)])
def test_few_programs_share_scans_and_reductions(
    size: tuple[int, int], options: dict[str, Any]
) -> None:
    """Places of tokens in the queues of experts: two scans, a sum that one needs, and a sum of a
    scan."""
    dim = 0 if size[0] > size[1] else 1
    x = torch.randint(0, 3, size, device="cuda")

    def places(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = x == 0, x == 1
        place = first.cumsum(dim) - 1
        later = second.cumsum(dim) - 1 + first.sum(dim, True)
        return place, later < 400, (place * x).sum(dim), place.cumsum(dim)

    got = compile_cli.compile(places, (x,), options=options)(x)
    for mine, eager in zip(got, places(x), strict=True):
        assert torch.equal(mine, eager)
