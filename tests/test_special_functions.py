"""Functions of mathematics on a dense grid, through Triton's interpreter."""

from __future__ import annotations

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
def test_functions_of_bits(
    special_functions: Any, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    pairs, of_bits = special_functions.pairs(dtype), special_functions.of_bits
    compiled = compile_cli.compile(of_bits, tuple(pairs), options=options)
    assert not compiled.graph.fallbacks
    assert all(map(special_functions.same, compiled(*pairs), of_bits(*pairs)))
