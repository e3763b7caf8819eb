"""Functions of mathematics on a dense grid, through Triton's interpreter."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

import compile_cli


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_functions_on_a_grid(
    special_functions: Any, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    functions = special_functions.FUNCTIONS
    inputs = [f.grid(dtype, 120) for f in functions.values()]

    def fn(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [f.fn(x) for f, x in zip(functions.values(), xs, strict=True)]

    compiled = compile_cli.compile(fn, tuple(inputs), options=options)
    assert not compiled.graph.fallbacks
    results = zip(functions.items(), inputs, compiled(*inputs), strict=True)
    found = {name: f.faults(x, got) for (name, f), x, got in results}
    assert not any(found.values()), {name: fault for name, fault in found.items() if fault}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_functions_of_bits(dtype: torch.dtype, options: dict[str, Any]) -> None:
    f = torch.finfo(dtype)
    least = f.smallest_normal * f.eps
    numbers = [0.0, 1.0, 1.5, 0.3, 100.0, f.max, math.inf, least, 3 * least, f.tiny, f.tiny - least]
    pairs = itertools.product([*numbers, *(-v for v in numbers), math.nan], repeat=2)
    x, y = torch.tensor(list(pairs)).T.to(dtype)

    def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nextafter(x, y), *torch.frexp(x)]

    compiled = compile_cli.compile(fn, (x, y), options=options)
    assert not compiled.graph.fallbacks
    for got, want in zip(compiled(x, y), fn(x, y), strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got.nan_to_num(7.3), want.nan_to_num(7.3))
        assert torch.equal(got.signbit() & ~got.isnan(), want.signbit() & ~want.isnan())
