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


@pytest.mark.parametrize(
    ("dtype", "each"),
    [
        (torch.float32, 3),
        *(pytest.param(d, 1, marks=pytest.mark.slow) for d in (torch.float32, torch.float64)),
    ],
    ids=str,
)
def test_functions_of_as_many_steps_as_data_says(
    special_functions: Any, dtype: torch.dtype, each: int, options: dict[str, Any]
) -> None:
    found = {}
    for name, f in list(special_functions.ITERATED.items())[::each]:
        pair = f.grid(dtype)
        compiled = compile_cli.compile(f.fn, pair, options=options)
        assert not compiled.graph.fallbacks
        found[name] = f.faults(*pair, compiled(*pair))
    assert not any(found.values()), {name: fault for name, fault in found.items() if fault}


@pytest.mark.spread(2)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
def test_divisors_and_multiples(
    special_functions: Any, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    pairs = special_functions.whole(dtype)
    least = torch.full_like(pairs[0], torch.iinfo(dtype).min)

    def fn(x: torch.Tensor, y: torch.Tensor, least: torch.Tensor) -> list[torch.Tensor]:
        return [torch.gcd(x, y), torch.lcm(x, y), torch.gcd(least, y), torch.gcd(x, least)]

    compiled = compile_cli.compile(fn, (*pairs, least), options=options)
    assert not compiled.graph.fallbacks
    for got, want in zip(compiled(*pairs, least), fn(*pairs, least), strict=True):
        assert got.dtype == want.dtype and torch.equal(got, want)


def test_orders_as_numbers_and_gradients(options: dict[str, Any]) -> None:
    """One argument a number, sizes that change, and the gradients that there are."""
    special = torch.special

    def fn(x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        order = x.detach()
        return [torch.igamma(n, x), torch.igammac(n, x), special.zeta(n + 1.5, x),
                special.zeta(3.5, x), special.legendre_polynomial_p(order, 7),
                special.chebyshev_polynomial_v(0.3, n), special.zeta(order + 1, 2.0)]  # fmt: skip

    compiled = torch.compile(fn, backend="compile_cli", dynamic=True, options=options)
    for count in (5, 17):
        x = torch.linspace(0.4, 9, count, requires_grad=True)
        n = torch.arange(1.0, count + 1)
        both = []
        for f in (compiled, fn):
            values = f(x, n)
            (slope,) = torch.autograd.grad(torch.cat(values[:4]).sum(), x)
            both.append([*values, slope])
        for got, want in zip(*both, strict=True):
            torch.testing.assert_close(got, want, rtol=2e-5, atol=1e-6)


@pytest.mark.slow
def test_many_steps_are_no_part_of_rows(options: dict[str, Any]) -> None:
    """Each function stands in a kernel once for each element of a thread, and there once only."""

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.special.zeta(x + 1.5, x).sum(-1), torch.igamma(x, x * 2).sin()]

    x = torch.rand(64, 512) + 0.5
    compiled = compile_cli.compile(fn, (x,), options=options)
    assert len(compiled.graph.fused.nodes) == 3 and not compiled.graph.fallbacks
    for got, want in zip(compiled(x), fn(x), strict=True):
        torch.testing.assert_close(got, want)
