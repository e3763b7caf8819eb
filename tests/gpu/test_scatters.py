"""Reductions at places that are data, samples of grids and windows that begin at random, compiled
for a real GPU, against eager in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import compile_cli  # noqa: F401  # registers the backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
]
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1.6e-2, torch.float64: 1e-10}


def compiled(options: dict[str, Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(fn, backend="compile_cli", options=options)


@pytest.mark.parametrize("kind", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [*TOLERANCES, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("rows", [7, 3000])
def test_many_elements_in_few_places(
    options: dict[str, Any], kind: str, dtype: torch.dtype, rows: int
) -> None:
    """NaN in memory and among the elements; factors whose products are exact."""
    torch.manual_seed(0)
    exponents = torch.randint(-1, 2, (20_000, 3), device="cuda")
    if dtype.is_floating_point:  # few, so that no product of some of them overflows
        exponents[torch.rand(exponents.shape, device="cuda") < 0.99] = 0
    v = torch.exp2(exponents.double()) if dtype.is_floating_point else exponents
    v = v * (torch.randint(0, 2, v.shape, device="cuda") * 2 - 1)
    if kind in ("sum", "mean") and dtype is torch.bfloat16:
        v = v.abs()  # no sum is small beside what is added up
    x = torch.ones(rows, 3, device="cuda", dtype=torch.float64)
    if dtype.is_floating_point:
        x[0, 1], x[1, 2], v[5, 2] = torch.nan, -torch.nan, -torch.nan
    x, v = x.to(dtype), v.to(dtype)

    def fn(x: Tensor, i: Tensor, v: Tensor) -> list[Tensor]:
        made = [x.scatter_reduce(0, i, v, kind, include_self=own) for own in (True, False)]
        if kind == "mean" and dtype is torch.bfloat16:
            made.clear()  # torch's own kernel adds up and counts in 16 bits
        if kind != "sum":
            made.append(x.index_reduce(0, i[:, 0], v, kind))
        return made

    run = compiled(options, fn)
    wide = torch.float64 if dtype.is_floating_point else dtype
    tolerance = TOLERANCES.get(dtype, 0.0)
    for places in sorted({1, 7, rows}):
        i = torch.randint(0, places, v.shape, device="cuda")
        known = fn(x.to(wide), i, v.to(wide))
        for got, wanted in zip(run(x, i, v), known, strict=True):
            wanted = wanted.to(dtype).to(wide)
            torch.testing.assert_close(
                got.to(wide), wanted, rtol=tolerance, atol=tolerance, equal_nan=True
            )


def test_in_place(options: dict[str, Any]) -> None:
    def fn(x: Tensor, i: Tensor, v: Tensor) -> None:
        x.scatter_reduce_(0, i, v, "amin")
        x.index_reduce_(1, i[0], v[:1].expand(x.shape[0], -1), "prod")

    x, v = torch.randn(64, 3, device="cuda"), torch.randn(5000, 3, device="cuda")
    i = torch.randint(0, 3, v.shape, device="cuda")
    x[0, 0] = -torch.nan
    wanted = x.clone()
    fn(wanted, i, v)
    compiled(options, fn)(x, i, v)
    torch.testing.assert_close(x, wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("dims", "mode"),
    [(2, "bilinear"), (2, "nearest"), (2, "bicubic"), (3, "bilinear"), (3, "nearest")],
)
def test_samples_of_a_grid(options: dict[str, Any], dims: int, mode: str) -> None:
    x = torch.randn(2, 5, *(17, 23, 9)[-dims:], device="cuda", requires_grad=True)
    grid = torch.randn(2, *(11, 30, 6)[-dims:], dims, device="cuda", requires_grad=True)

    def fn(x: Tensor, grid: Tensor) -> Tensor:
        ways = itertools.product(("zeros", "border", "reflection"), (False, True))
        return torch.stack([F.grid_sample(x, grid, mode, *how) for how in ways])

    got, wanted = compiled(options, fn)(x, grid), fn(x, grid)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    seed = torch.randn_like(wanted)
    found, known = (torch.autograd.grad(y, (x, grid), seed) for y in (got, wanted))
    torch.testing.assert_close(found, known, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_windows_that_begin_at_random(
    options: dict[str, Any], dims: int, dtype: torch.dtype
) -> None:
    x = torch.randn(2, 4, *(33, 40, 21)[-dims:], device="cuda", dtype=dtype, requires_grad=True)
    samples = torch.rand(2, 4, dims, device="cuda", dtype=dtype)
    pool = F.fractional_max_pool3d if dims == 3 else F.fractional_max_pool2d

    def fn(x: Tensor, samples: Tensor) -> Tensor:
        return pool(x, 2, 13, _random_samples=samples)

    got, wanted = compiled(options, fn)(x, samples), fn(x, samples)
    assert torch.equal(got, wanted)
    seed = torch.ones_like(wanted)
    found, known = (torch.autograd.grad(y, x, seed)[0] for y in (got, wanted))
    torch.testing.assert_close(found, known)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_bags(
    options: dict[str, Any], mode: str, padding: int | None, dtype: torch.dtype
) -> None:
    """Bags of no row and of many; weighted ones too."""
    table = torch.randn(50, 40, device="cuda", dtype=dtype, requires_grad=True)
    ids = torch.randint(0, 50, (900,), device="cuda")
    offsets = torch.tensor([0, 0, 3, 100, 101, 101, 700], device="cuda")
    weights = None
    if mode == "sum" and padding is None:
        weights = torch.randn(900, device="cuda", dtype=dtype, requires_grad=True)
    leaves = [table] if weights is None else [table, weights]

    def fn(*leaves: Tensor) -> Tensor:
        given = {"per_sample_weights": leaves[1]} if len(leaves) > 1 else {}
        return F.embedding_bag(ids, leaves[0], offsets, mode=mode, padding_idx=padding, **given)

    exact = [x.detach().double().requires_grad_() for x in leaves]
    got, wanted = compiled(options, fn)(*leaves), fn(*exact)
    seed = torch.randn_like(got)
    found = torch.autograd.grad(got, leaves, seed)
    known = torch.autograd.grad(wanted, exact, seed.to(wanted.dtype))
    tolerance = TOLERANCES[dtype] * 10
    for a, b in zip(found, known, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance)
