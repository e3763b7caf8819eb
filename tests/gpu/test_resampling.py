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


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_points_are_cudas(options: dict[str, Any], mode: str, dims: int) -> None:
    """By factors that floats hold badly, of sizes that stay, that double and others: the places of
    an image, and those of a gradient, which CUDA finds by another rule."""
    factors = (1.1, 1.2, 1.9, 2.2, 2.7, 3.3, 0.6, 0.35)
    sizes = (1, 3, 4, 7, 10, 11, 23, 50)
    images = [
        torch.arange(2.0 * n * 3 ** (dims - 1), device="cuda").view(1, 2, *[3] * (dims - 1), n)
        for n in sizes
    ]

    def enlarge(*images: torch.Tensor) -> list[torch.Tensor]:
        return [
            F.interpolate(x, scale_factor=f, mode=mode)
            for x in images for f in factors if min(int(f * n) for n in x.shape[2:]) > 0
        ]  # fmt: skip

    ours, theirs = ([x.clone().requires_grad_() for x in images] for _ in range(2))
    got = torch.compile(enlarge, backend="compile_cli", options=options)(*ours)
    want = enlarge(*theirs)
    seeds = [torch.randint_like(w, 100) for w in want]
    gradients = (
        torch.autograd.grad(ys, xs, seeds, allow_unused=True)
        for ys, xs in ((got, ours), (want, theirs))
    )
    torch.testing.assert_close([*got], want, rtol=0, atol=0)
    for found, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
