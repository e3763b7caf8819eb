"""Functions of mathematics in kernels, those that come from CUDA's library among them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import compile_cli

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


_ANGLES = ["tan", "asin", "acos", "atan", "sinh", "cosh", "acosh", "asinh", "atanh"]


@pytest.mark.parametrize("name", [*_ANGLES, "erfc", "erfinv", "lgamma", "digamma"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_functions_of_mathematics(name: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    fn = getattr(torch.special, name, None) or getattr(torch, name)
    x = torch.linspace(-6.3, 9, 4001, device="cuda").to(dtype)
    got = compile_cli.compile(fn, (x,), options=options)(x)
    close = {torch.float32: 3e-6, torch.float64: 1e-13, torch.bfloat16: 1e-2}[dtype]
    if name == "digamma":  # of which eager multiplies a rounding beside the poles
        close = max(close, 1e-12)
    torch.testing.assert_close(got, fn(x), rtol=close, atol=close, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floats_times_powers_of_two(dtype: torch.dtype, options: dict[str, Any]) -> None:
    """Exactly, as CUDA's `ldexp`, whether the power alone is a number of the type or none."""
    info = torch.finfo(dtype)
    numbers = [0.0, 1.3, -3.0, info.max, info.tiny, info.tiny * info.eps, math.inf, -math.nan]
    powers = [0, 1, -1, 15, -24, 130, -150, 1100, -1100, 2200, 2**31 - 1, -(2**31)]
    x = torch.tensor(numbers, dtype=dtype, device="cuda")[:, None].expand(-1, len(powers))
    n = torch.tensor(powers, device="cuda").expand_as(x)
    for of in (n, n.int()):
        got = compile_cli.compile(torch.ldexp, (x, of), options=options)(x, of)
        torch.testing.assert_close(got, torch.ldexp(x, of), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("by", [6.0, -0.75, 1.0, 1e-30, 1e-40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_remainders_by_a_number(dtype: torch.dtype, by: float, options: dict[str, Any]) -> None:
    """Exactly, also of numbers that are subnormal and of those 2**100 times the divisor."""
    x = (torch.linspace(-150, 127, 8001, device="cuda", dtype=torch.float64).exp2() * 1.37).float()
    x = torch.cat((x, -x, torch.tensor([0.0, -0.0, math.inf, math.nan], device="cuda"))).to(dtype)
    got = compile_cli.compile(lambda x: torch.fmod(x, by), (x,), options=options)(x)
    divisor = float(torch.tensor(by, dtype=dtype))
    want = [math.fmod(a, divisor) if math.isfinite(a) else math.nan for a in x.tolist()]
    exact = torch.tensor(want, dtype=torch.float64, device="cuda").to(dtype)
    torch.testing.assert_close(got, exact, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_functions_on_a_grid(
    special_functions: Any, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    found = {}
    for name, f in special_functions.FUNCTIONS.items():
        x = f.grid(dtype, 1000).cuda()
        compiled = compile_cli.compile(f.fn, (x,), options=options)
        assert not compiled.graph.fallbacks
        found[name] = f.faults(x, compiled(x))
    assert not any(found.values()), {name: fault for name, fault in found.items() if fault}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_functions_of_bits(
    special_functions: Any, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    pairs, of_bits = special_functions.pairs(dtype), special_functions.of_bits
    compiled = compile_cli.compile(of_bits, tuple(pairs.cuda()), options=options)
    assert not compiled.graph.fallbacks
    results = [t.cpu() for t in compiled(*pairs.cuda())]
    assert all(map(special_functions.same, results, of_bits(*pairs)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_functions_of_as_many_steps_as_data_says(
    special_functions: Any, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    found = {}
    for name, f in special_functions.ITERATED.items():
        pair = tuple(t.cuda() for t in f.grid(dtype))
        compiled = compile_cli.compile(f.fn, pair, options=options)
        assert not compiled.graph.fallbacks
        found[name] = f.faults(*pair, compiled(*pair))
    assert not any(found.values()), {name: fault for name, fault in found.items() if fault}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
def test_divisors_and_multiples(
    special_functions: Any, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    pair = tuple(t.cuda() for t in special_functions.whole(dtype))
    for fn in (torch.gcd, torch.lcm):
        compiled = compile_cli.compile(fn, pair, options=options)
        assert not compiled.graph.fallbacks
        assert torch.equal(compiled(*pair), fn(*pair))


COMPLEX = {
    "roots and exponentials": ("sqrt", "rsqrt", "exp", "log", "log10", "expm1", "log1p"),
    "circular": ("sin", "cos", "tan", "asin", "acos", "atan"),
    "hyperbolic": ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid"),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_functions_of_complex_numbers(name: str, options: dict[str, Any]) -> None:
    """Of numbers from 1e-4 to 40, and those with one part that is 0 or infinite."""
    size = torch.logspace(-4, 1.2, 4096, device="cuda", dtype=torch.float64)
    x = torch.randn(4096, device="cuda", dtype=torch.complex128) * size
    ends = torch.tensor([0.0, -0.0, math.inf, -math.inf, 1.5], device="cuda", dtype=torch.float64)
    special = torch.complex(ends.repeat(5), ends.repeat_interleave(5))

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        return [getattr(torch, function)(x) for function in COMPLEX[name]]

    for dtype in (torch.complex64, torch.complex128):
        model = compile_cli.compile(run, (x.to(dtype),), options=options)
        assert not model.graph.fallbacks
        for got, want in zip(model(x.to(dtype)), run(x.to(dtype).to(x.dtype)), strict=True):
            torch.testing.assert_close(got.to(x.dtype), want, rtol=1e-5, atol=1e-6)
        if dtype is torch.complex64:
            continue
        ended = compile_cli.compile(run, (special,), options=options)(special)
        for function, got, want in zip(COMPLEX[name], ended, run(special.cpu()), strict=True):
            if function in ("expm1", "log1p", "sigmoid"):
                continue  # eager's are not what C99 says, nor the same on every CPU
            for part in ("real", "imag"):
                a, b = getattr(got.cpu(), part).abs(), getattr(want, part).abs()
                torch.testing.assert_close(a, b, equal_nan=True)
