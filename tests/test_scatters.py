"""Reductions at places that are data, through the whole compiler: sizes, gradients, in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import compile_cli

EMITS = ("fx", pytest.param("cpp", marks=pytest.mark.slow))
KINDS = ("sum", "prod", "mean", "amax", "amin")


def reduced(x: Tensor, i: Tensor, v: Tensor) -> list[Tensor]:
    found = [x.scatter_reduce(0, i, v, kind, include_self=kind < "n") for kind in KINDS]
    return [*found, x.index_reduce(1, torch.tensor([2, 2]), x[:, :2], "amax", include_self=False)]


def numbers(rows: int, count: int) -> tuple[Tensor, ...]:
    """`count` rows, some of which meet in one of the places."""
    places = torch.randint(0, 3, (count, 3))
    return torch.randn(rows, 3), places, torch.randn(count, 3)


@pytest.mark.parametrize("emit", EMITS)
def test_dynamic_sizes(options: dict[str, Any], emit: str) -> None:
    torch.manual_seed(0)
    args = numbers(5, 40)
    model = compile_cli.compile(
        reduced, args, dynamic={0: {0}, 1: {0}, 2: {0}}, options={**options, "emit": emit}
    )
    assert not model.graph.fallbacks
    for rows, count in ((5, 40), (3, 1), (4, 0), (4, 300)):
        args = numbers(rows, count)
        for got, wanted in zip(model(*args), reduced(*args), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(options: dict[str, Any], kind: str) -> None:
    """Also where the factor of a product is zero, and where an extreme is one of equals."""
    x = torch.tensor([[1.0, 2.0, 0.0], [4.0, 3.0, 1.0]], requires_grad=True)
    v = torch.tensor([[1.0, 0.0, 2.0, 2.0], [5.0, 2.0, 3.0, 0.5]], requires_grad=True)
    places = torch.tensor([[0, 1, 1, 1], [2, 2, 2, 0]])

    def fn(x: Tensor, v: Tensor) -> Tensor:
        return x.scatter_reduce(1, places, v, kind)

    wanted = torch.autograd.grad(fn(x, v), (x, v), torch.ones(2, 3))
    compiled = torch.compile(fn, backend="compile_cli", options=options)
    got = torch.autograd.grad(compiled(x, v), (x, v), torch.ones(2, 3))
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("emit", EMITS)
def test_many_values_in_few_places(options: dict[str, Any], emit: str) -> None:
    """Places that ask, copies of rows and of numbers, and elements of a row."""

    def fn(x: Tensor, i: Tensor, t: Tensor) -> list[Tensor]:
        rows = x.new_zeros(11, 20).index_add(0, i % 11, x)
        numbers = x.new_zeros(40).index_add(0, i, x[:, 0])
        few = x.new_ones(5).scatter_reduce(0, i % 5, x[:, 1], "mean")
        bins = x.new_zeros(4, 20).t().index_add(1, i % 4, x.t())
        masked = torch.full_like(x, -9.0).scatter(1, t, x.gather(1, t)).softmax(1)
        return [rows, numbers, few, bins, masked]

    torch.manual_seed(0)
    args = torch.randn(700, 20), torch.randint(0, 40, (700,)), torch.randint(0, 20, (700, 3))
    model = compile_cli.compile(fn, args, options={**options, "emit": emit})
    assert not model.graph.fallbacks
    for got, wanted in zip(model(*args), fn(*args), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
