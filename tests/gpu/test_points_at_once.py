"""Kernels that do neighbouring points, or several rows, at once, and what gathers instead of adding
atomically: against eager in f64, at sizes with and without whole blocks."""

from __future__ import annotations

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
]


def rotary(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * c - odd * s, odd * c + even * s), -1).flatten(-2)


def pooled(dims: int, *window: int) -> Callable[[Tensor], Tensor]:
    return lambda x: (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1](x, *window)


def windows(x: Tensor, table: Tensor, mask: Tensor) -> Tensor:
    """A softmax of windows with biases of a table, at places that are data, and masks."""
    n = x.shape[-1]
    at = (torch.arange(n, device=x.device)[:, None] * 31 + torch.arange(n, device=x.device) * 7) % 9
    return (x + table[at].permute(2, 0, 1) + mask).softmax(-1)


def gated(x: Tensor, c: Tensor) -> Tensor:
    y = x * c.sigmoid()
    return y * (y.mean(1, True) + y.sum(1, True) / 30).sigmoid()


def folded(x: Tensor) -> Tensor:
    return F.fold(F.unfold(x, 3, padding=1, stride=2).sin(), x.shape[-2:], 3, padding=1, stride=2)


WORK: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "rotary": (rotary, [(4, 300, 5, 64), (300, 1, 32), (300, 1, 32)]),
    "rotary of few": (rotary, [(3, 7, 1, 6), (7, 1, 3), (7, 1, 3)]),
    "pool 1": (pooled(1, 4, 2), [(64, 32, 1023)]),
    "pool 2": (pooled(2, 3, 2, 1), [(8, 32, 56, 58)]),
    "pool 2 odd": (pooled(2, 3, 2, 1), [(8, 32, 57, 55)]),
    "pool 2 dilated": (pooled(2, 3, 2, 1, 2), [(8, 32, 30, 34)]),
    "pool 3": (pooled(3, 3, 2, 1), [(4, 8, 24, 20, 28)]),
    "pool 3 odd": (pooled(3, 3, 2, 1), [(4, 8, 24, 21, 28)]),
    "pool 3 apart": (pooled(3, 2), [(4, 8, 24, 20, 28)]),
    "largest of columns": (lambda x: x.max(1)[0], [(16, 512, 777)]),
    "patches": (
        lambda x: x.view(3, 5, 7, 4, 6, 3).permute(0, 5, 1, 3, 2, 4).reshape(3, 3, 20, 42) * 2,
        [(3, 35, 72)],
    ),
    "channels first": (
        lambda x, m: (x.permute(0, 3, 1, 2) - m[:, None, None]).contiguous(),
        [(4, 30, 41, 3), (3,)],
    ),
    "mixture": (
        lambda x: (x[..., 0].log_softmax(-1) - x[..., 1].square() * x[..., 2]).logsumexp(-1),
        [(40001, 60, 3)],
    ),
    "kernels of pairs": (
        lambda x, y: (-(x[:, :, None] - y[:, None]).square().sum(-1)).exp().sum(1),
        [(2, 5003, 3), (2, 301, 3)],
    ),
    "every second": (lambda x: F.pixel_unshuffle(x, 2).sin(), [(4, 6, 34, 66)]),
    "windows": (windows, [(40, 4, 49, 49), (9, 4), (49, 49)]),
    "gate of channels": (gated, [(6, 200, 30, 31), (6, 200, 1, 1)]),
    "norm of channels": (
        lambda x, w: F.layer_norm(x.permute(0, 2, 3, 1), (192,), w).permute(0, 3, 1, 2).tanh(),
        [(6, 192, 28, 28), (192,)],
    ),
    "largest of overlapping": (lambda x: x.unfold(1, 16, 4).amax(-1), [(500, 999)]),
    "pool of rows": (
        lambda x, w: F.gelu(F.avg_pool3d(F.layer_norm(x + w.sum(), x.shape[-1:], w), 2)),
        [(4, 8, 6, 66, 64), (64,)],
    ),
    "unfold": (lambda x: F.unfold(x, 3, padding=1), [(4, 16, 33, 34)]),
    "unfold and fold": (folded, [(4, 16, 33, 34)]),
    "frames added": (
        lambda x: F.fold(x, (1, 2592), (1, 256), stride=(1, 32)).tanh(),
        [(5, 256, 74)],
    ),
    "experts": (
        lambda x: torch.zeros_like(x).scatter(1, (t := x.softmax(-1).topk(8))[1], t[0].log()),
        [(30000, 64)],
    ),
}


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(
    ("dynamic", "dtype"),
    [(False, torch.float32), (False, torch.bfloat16), (True, torch.float32)],
    ids=["static-f32", "static-bf16", "dynamic-f32"],
)
@pytest.mark.parametrize("name", WORK)
def test_values_and_gradients(name: str, dynamic: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    fn, sizes = WORK[name]
    drawn = [torch.randn(n, device="cuda", dtype=dtype) for n in sizes]
    if name == "experts":  # rows whose probabilities are far enough apart to have no ties in bf16
        drawn = [(x.argsort(-1) / 8).to(dtype) for x in drawn]
    args = [x.requires_grad_() for x in drawn]
    exact = [a.detach().double().requires_grad_() for a in args]
    got, want = torch.compile(fn, backend="compile_cli", dynamic=dynamic)(*args), fn(*exact)
    seed = torch.randn_like(got)
    found = torch.autograd.grad(got, args, seed)
    wanted = torch.autograd.grad(want, exact, seed.double())
    theirs = fn(*args)
    gradients = torch.autograd.grad(theirs, args, seed)
    by = 3e-2 if dtype is torch.bfloat16 else 1e-4
    for a, b, c in zip((got, *found), (want, *wanted), (theirs, *gradients), strict=True):
        near = by * float(b.abs().max()) + 2 * float((c - b).abs().max())  # eager rounds, too
        torch.testing.assert_close(a.double(), b.double(), rtol=by, atol=near)


@pytest.mark.usefixtures("fresh_dynamo")
def test_nibbles() -> None:
    def fn(q: Tensor, s: Tensor) -> Tensor:
        return torch.stack(((q & 15).float() - 8, (q >> 4).float() - 8), -1).flatten(1) * s

    q: Any = torch.randint(0, 256, (1000, 333), device="cuda", dtype=torch.uint8)
    s = torch.randn(1000, 1, device="cuda")
    torch.testing.assert_close(torch.compile(fn, backend="compile_cli")(q, s), fn(q, s))


@pytest.mark.usefixtures("fresh_dynamo")
def test_nibbles_packed() -> None:
    """Each rounding of bf16 that eager does, before and after integers and clamps."""

    def fn(x: Tensor, s: Tensor) -> Tensor:
        q = (x.view(512, 8, 64) / s[..., None] + 8).round().clamp(0, 15).to(torch.uint8)
        return q.flatten(1)[:, ::2] | (q.flatten(1)[:, 1::2] << 4)

    x = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    s = torch.rand(512, 8, device="cuda", dtype=torch.bfloat16) + 0.1
    assert torch.compile(fn, backend="compile_cli")(x, s).equal(fn(x, s))
