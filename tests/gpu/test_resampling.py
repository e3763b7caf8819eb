"""Upsampling, reflection and their gradients, compiled for a real GPU, against eager."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_cli  # noqa: F401  # registers the backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
]
HOW: list[dict[str, Any]] = [
    {"scale_factor": 2, "mode": "nearest"}, {"scale_factor": 3, "mode": "nearest-exact"},
    {"scale_factor": 2, "mode": "bilinear"}, {"scale_factor": 0.5, "mode": "bilinear"},
    {"size": (50, 71), "mode": "bilinear"},
    {"size": (200, 130), "mode": "bilinear", "align_corners": True},
]  # fmt: skip
# Of sizes that are not known, the number of places of a point is not: those stay calls.
ANTIALIASED: list[dict[str, Any]] = [
    {"size": (23, 90), "mode": "bilinear", "antialias": True},
    {"scale_factor": 0.5, "mode": "bilinear", "antialias": True},
]
TOLERANCES = {torch.float32: (1e-5, 2e-4), torch.bfloat16: (1.6e-2, 1e-2)}


@pytest.mark.parametrize(
    ("how", "dynamic"),
    [*itertools.product(HOW, (False, True)), *((how, False) for how in ANTIALIASED)],
    ids=str,
)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_upsampling_and_its_gradient(
    options: dict[str, Any], how: dict[str, Any], dynamic: bool, order: Any, dtype: torch.dtype
) -> None:
    def enlarge(a: torch.Tensor) -> torch.Tensor:
        return F.interpolate(a, **how)

    x = torch.randn(4, 48, 64, 64, device="cuda", dtype=dtype).to(memory_format=order)
    x.requires_grad_()
    got = torch.compile(enlarge, backend="compile_cli", options=options, dynamic=dynamic)(x)
    assert got.stride() == enlarge(x).stride()
    # Eager adds up 16-bit gradients one by one, in 16 bits: what is right is known in float64.
    exact = x.detach().double().requires_grad_()
    want = enlarge(exact)
    # A coordinate of up to 64 is right to half a place of its 24 bits.
    tolerance = dict(zip(("rtol", "atol"), TOLERANCES[dtype], strict=True))
    torch.testing.assert_close(got.double(), want, **tolerance)
    seed = torch.randn_like(got)
    (found,) = torch.autograd.grad(got, x, seed)
    (wanted,) = torch.autograd.grad(want, exact, seed.double())
    if dynamic and dtype is torch.bfloat16:  # of sizes not known it is added up in 16 bits, too
        tolerance = {"rtol": 5e-2, "atol": 1.5e-1}
    torch.testing.assert_close(found.double(), wanted, **tolerance)


@pytest.mark.parametrize("size", [(8, 32, 64, 130), (2, 3, 9, 9)], ids=str)
def test_reflection_and_its_gradient(options: dict[str, Any], size: tuple[int, ...]) -> None:
    def pad(a: torch.Tensor) -> torch.Tensor:
        return F.pad(a, (3, 1, 2, 3), "reflect") * 2

    x = torch.randn(size, device="cuda", requires_grad=True)
    got, want = torch.compile(pad, backend="compile_cli", options=options)(x), pad(x)
    torch.testing.assert_close(got, want)
    seed = torch.randn_like(want)
    found, wanted = (torch.autograd.grad(y, x, seed)[0] for y in (got, want))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
