"""Kernels that read a tensor once for several reductions, at sizes that fill a GPU, against f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import compile_cli  # noqa: F401  # registers the backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], w, b)


def gradients(fn: Callable[..., Tensor], args: list[Tensor], seed: Tensor) -> tuple[Tensor, ...]:
    leaves = [a.detach().clone().requires_grad_() for a in args]
    return torch.autograd.grad(fn(*leaves), leaves, seed.to(leaves[0].dtype))


def near(got: Tensor, want: Tensor, by: float) -> None:
    torch.testing.assert_close(
        got.double(), want.double(), rtol=by, atol=by * float(want.abs().max()), equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("rows", "width"),
    [(16384, 4096), (8191, 3000), (65536, 256), (2048, 8192), (512, 20000), (3, 64)],
)
def test_gradients_of_a_norm(rows: int, width: int, dtype: torch.dtype, fresh_dynamo: None) -> None:
    args = [torch.randn(n, device="cuda", dtype=dtype) for n in ((rows, width), width, width)]
    seed = torch.randn(rows, width, device="cuda", dtype=dtype)
    got = gradients(torch.compile(norm, backend="compile_cli"), args, seed)
    want = gradients(norm, [a.double() for a in args], seed.double())
    for g, w in zip(got, want, strict=True):
        near(g, w, 2e-2 if dtype is torch.bfloat16 else 1e-4)


def test_gradients_of_a_norm_of_dynamic_rows(fresh_dynamo: None) -> None:
    compiled: Any = torch.compile(norm, backend="compile_cli", dynamic=True)
    params = [torch.randn(1024, device="cuda") for _ in range(2)]
    for rows in (5000, 1, 263, 20000):
        args = [torch.randn(rows, 1024, device="cuda"), *params]
        seed = torch.randn(rows, 1024, device="cuda")
        want = gradients(norm, [a.double() for a in args], seed.double())
        for g, w in zip(gradients(compiled, args, seed), want, strict=True):
            near(g, w, 1e-4)


def divergence(x: Tensor, y: Tensor) -> Tensor:
    p, q = x.softmax(-1), y.softmax(-1)
    return (p * (p.log() - q.log())).sum() / x.shape[0]


def penalised(x: Tensor, y: Tensor) -> Tensor:
    own = (x.square() - y).sum(tuple(range(1, x.dim())))
    return (x * y.exp()).square().mean() + own.sigmoid().sum() + own.amax()


@pytest.mark.parametrize("fn", [divergence, penalised])
@pytest.mark.parametrize("size", [(8192, 1000), (256, 8, 4096), (3, 2, 500000), (700, 5001)])
def test_totals_of_rows(
    fn: Callable[..., Tensor], size: tuple[int, ...], fresh_dynamo: None
) -> None:
    args = [torch.randn(size, device="cuda") for _ in range(2)]
    exact = [a.double() for a in args]
    compiled: Any = torch.compile(fn, backend="compile_cli")
    near(compiled(*args), fn(*exact), 1e-4)
    seed = torch.tensor(1.0, device="cuda")
    for g, w in zip(gradients(compiled, args, seed), gradients(fn, exact, seed), strict=True):
        near(g, w, 1e-4)


@pytest.mark.parametrize("width", [1000, 32000, 128256])
def test_cross_entropy(width: int, fresh_dynamo: None) -> None:
    x = torch.randn(300, width, device="cuda", dtype=torch.bfloat16) * 5
    target = torch.randint(0, width, (300,), device="cuda")
    target[7] = -100

    def loss(x: Tensor) -> Tensor:
        return functional.cross_entropy(x.float() if x.dtype != torch.float64 else x, target)

    compiled: Any = torch.compile(loss, backend="compile_cli")
    near(compiled(x), loss(x.double()), 1e-5)
    one = torch.ones((), device="cuda")
    leaf, wide = x.clone().requires_grad_(), x.double().requires_grad_()
    (got,) = torch.autograd.grad(compiled(leaf), leaf, one)
    (want,) = torch.autograd.grad(loss(wide), wide, one.double())
    near(got, want, 1e-2)


@pytest.mark.parametrize("width", [20000, 65536, 1 << 21])
def test_softmax_of_long_rows(width: int, fresh_dynamo: None) -> None:
    x = torch.randn(6, width, device="cuda") * 4
    x[1, : width // 2] = -float("inf")
    x[2] = -float("inf")
    x[3, 5] = float("inf")
    x[4, 7] = float("nan")
    for name in ("softmax", "log_softmax", "logsumexp"):

        def fn(x: Tensor, name: str = name) -> Any:
            return getattr(x, name)(-1)

        compiled: Any = torch.compile(fn, backend="compile_cli")
        got, want = compiled(x), fn(x.double())
        finite = want.isfinite()
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got[~finite & ~want.isnan()].double(), want[~finite & ~want.isnan()])
        near(got[finite], want[finite], 1e-5)
        torch._dynamo.reset()


@pytest.mark.parametrize("sections", [(16, 24, 24), (5, 7, 20), (1, 30, 1)], ids=str)
def test_parts_of_a_tensor_that_are_chosen_by_place(
    sections: tuple[int, ...], fresh_dynamo: None
) -> None:
    """Rotary embeddings whose angles are of three tensors by section: one load of each operand,
    whatever the sections' lengths let a lane read at once."""
    width = 2 * sum(sections)
    x = torch.randn(2, 4, 300, width, device="cuda", dtype=torch.bfloat16)
    tables = torch.randn(2, 3, 2, 300, width, device="cuda")

    def rotary(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
        parts = [torch.cat([m[n % 3] for n, m in enumerate(t.split(sections * 2, -1))], -1)
                 for t in (c, s)]  # fmt: skip
        turned = torch.cat((-x[..., width // 2 :], x[..., : width // 2]), -1)
        return x * parts[0][:, None] + turned * parts[1][:, None]

    compiled: Any = torch.compile(rotary, backend="compile_cli")
    torch.testing.assert_close(compiled(x, *tables), rotary(x, *tables), rtol=1e-6, atol=1e-6)
