"""Copies of rows that begin at odd places on a real GPU: eager's digits, in eager's time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_cli
from gemm_templates import device_info
from tuning import added_seconds

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

Case = tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]


def pad(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, 7))


def clone(x: torch.Tensor) -> torch.Tensor:
    return x[:, 1:].contiguous()


def columns(x: torch.Tensor) -> torch.Tensor:
    return x[:, :4097].contiguous()


def even_offset(x: torch.Tensor) -> torch.Tensor:
    return x[:, 2:4098].contiguous()


def cat(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.cat([a, b], 1)


def shifted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[:, :4096] + y


def odd_number(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def backwards(x: torch.Tensor) -> torch.Tensor:
    return x.flip(1)


CASES: list[Case] = [
    (pad, ((4096, 4097),)),
    (clone, ((4096, 4097),)),
    (columns, ((4096, 4104),)),
    (even_offset, ((4096, 4104),)),
    (cat, ((4096, 4097), (4096, 4097))),
    (shifted, ((4096, 4097), (4096, 4096))),
    (odd_number, ((4097, 4097),)),
    (backwards, ((4096, 4096),)),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
@torch.no_grad()
def test_odd_rows(tmp_path: Any, case: Case, dtype: torch.dtype) -> None:
    fn, sizes = case
    torch.manual_seed(0)
    inputs = tuple(torch.randn(size, device="cuda", dtype=dtype) for size in sizes)
    compiled = compile_cli.compile(fn, inputs, options={"cache_dir": str(tmp_path)})
    out, eager = compiled(*inputs), fn(*inputs)
    assert out.stride() == eager.stride() and torch.equal(out, eager)
    ours, theirs = added_seconds(
        [lambda: compiled(*inputs), lambda: fn(*inputs)], device_info("cuda").l2_bytes
    )
    # Eager reads and writes a matrix with an odd number of elements 16 bytes at a time, but for
    # its end; our mask makes that one element at a time.
    bound = 1.1
    assert ours < bound * theirs, f"{ours * 1e6:.1f} us, eager {theirs * 1e6:.1f} us"


def means(x: torch.Tensor) -> torch.Tensor:
    return x.mean((1, 3))


def largest(x: torch.Tensor) -> torch.Tensor:
    return x.amax((1, 3))


def variation(x: torch.Tensor) -> torch.Tensor:
    return x.diff(dim=3).abs().mean()


def weighted(x: torch.Tensor) -> torch.Tensor:
    return (x * torch.linspace(0, 1, x.shape[-1], device=x.device).to(x.dtype)).sum((1, 2, 3))


def channels(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 4).mean((2, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("size", [(32, 128, 56, 113), (64, 32, 9, 1000), (16, 128, 130, 130)])
@pytest.mark.parametrize(
    "fn", [means, largest, variation, weighted, channels], ids=lambda f: f.__name__
)
@torch.no_grad()
def test_reductions_of_pieces_of_rows(
    tmp_path: Any, fn: Callable[..., torch.Tensor], size: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = torch.randn(size, device="cuda", dtype=dtype)
    for given in (x, x.to(memory_format=torch.channels_last)):
        compiled = compile_cli.compile(fn, (given,), options={"cache_dir": str(tmp_path)})
        exact = fn(x.double())
        tolerance = 2e-2 if dtype is torch.bfloat16 else 2e-5
        torch.testing.assert_close(
            compiled(given).double(),
            exact,
            rtol=tolerance,
            atol=tolerance * float(exact.abs().max()),
        )
