"""Functions of torch's that ask data whether arguments are valid, or how large results are: graphs
that say so when they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import compile_cli

Function = Callable[..., Any]
SCORES = torch.linspace(-1.0, 2.0, 40).reshape(5, 2, 4).sin().log_softmax(-1)
TARGETS = torch.tensor([[1, 2], [3, 1]])
X = torch.linspace(-2.0, 3.0, 12).reshape(4, 3).cos()


@pytest.fixture(autouse=True)
def fresh_dynamo(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    torch._dynamo.reset()


def packed(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    made = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    return made.data * 2, made.batch_sizes


def asserted(x: Tensor) -> Tensor:
    torch._assert((x > -5).all(), "too small")
    return x + 1


# a function, what it is compiled for, and what it is called with then
CASES: dict[str, tuple[Function, tuple[Any, ...], tuple[Any, ...]]] = {
    "ctc": (
        F.ctc_loss,
        (SCORES, TARGETS, torch.tensor([5, 4]), torch.tensor([2, 1])),
        (SCORES.flip(0), TARGETS, torch.tensor([4, 5]), torch.tensor([1, 1])),
    ),
    "ctc of numbers": (
        lambda x, y: F.ctc_loss(x, y, (5, 4), (2, 1), reduction="none", zero_infinity=True),
        (SCORES, TARGETS),
        (SCORES.flip(1), TARGETS.flip(0)),
    ),
    "one ctc": (
        lambda x, y: F.ctc_loss(x, y, (5,), (2,), reduction="sum"),
        (SCORES[:, 0], TARGETS[0]),
        (SCORES[:, 1], TARGETS[1]),
    ),
    "least squares": (torch.linalg.lstsq, (X, X[:, :2]), (X.exp(), X[:, 1:])),
    "least squares of vectors": (
        lambda a, b: tuple(torch.linalg.lstsq(a, b, driver="gels")),
        (X.expand(2, 4, 3), X[:, :2].mT.contiguous()),
        (X.exp().expand(2, 4, 3), X[:, 1:].mT.contiguous()),
    ),
    "gaussian": (F.gaussian_nll_loss, (X, X + 1, X.abs()), (X, X - 1, X.exp())),
    "pairs": (torch.combinations, (X[0],), (X[1],)),
    "threes": (lambda x: torch.combinations(x, 3, True), (X[:, 0],), (X[:, 1],)),
    "classes": (F.one_hot, (torch.tensor([1, 2, 0]),), (torch.tensor([4, 0, 1]),)),
    "weights": (
        lambda x, n, w: torch.cov(x, fweights=n, aweights=w),
        (X, torch.tensor([1, 2, 3]), torch.tensor([0.5, 1.0, 0.25])),
        (X.exp(), torch.tensor([3, 0, 1]), torch.tensor([1.5, 1.0, 2.0])),
    ),
    "packed": (
        packed,
        (torch.arange(24.0).reshape(2, 3, 4), torch.tensor([3, 2])),
        (torch.arange(24.0).reshape(2, 3, 4), torch.tensor([2, 1])),
    ),
    "assertions": (asserted, (X,), (X + 1,)),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_eager(name: str) -> None:
    f, first, then = CASES[name]
    compiled = compile_cli.compile(f, first)
    for args in (first, then):
        torch.testing.assert_close(compiled(*args), f(*args), check_stride=True)


REFUSED: dict[str, tuple[Function, tuple[Any, ...], tuple[Any, ...]]] = {
    "gaussian": (F.gaussian_nll_loss, (X, X, X.abs()), (X, X, X)),
    "classes": (F.one_hot, (torch.tensor([1, 0]),), (torch.tensor([1, -1]),)),
    "weights": (lambda x, w: torch.cov(x, aweights=w), (X, X[0].abs()), (X, -X[0].abs())),
    "assertions": (asserted, (X,), (X - 9,)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    f, valid, other = REFUSED[name]
    compiled = compile_cli.compile(f, valid)
    compiled(*valid)
    for g in (f, compiled):
        with pytest.raises((RuntimeError, ValueError, AssertionError)):
            g(*other)


def weighted(x: Tensor, counts: Tensor | None, weights: Tensor | None) -> Tensor:
    return torch.cov(x, fweights=counts, aweights=weights)


BY_LAYOUT: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "a weight for all": (weighted, (X, None, X[0, :1].abs())),
    "a count for all": (weighted, (X, torch.tensor([2]), None)),
    "truth values": (weighted, (X, torch.tensor([True, False, True]), None)),
    "sizes": (F.binary_cross_entropy, (X.sigmoid(), X.sigmoid(), X[0, :2])),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", BY_LAYOUT)
def test_what_eager_refuses_by_layout_is_refused(name: str, dynamic: bool) -> None:
    f, args = BY_LAYOUT[name]
    torch._dynamo.reset()
    with pytest.raises(RuntimeError):
        torch.compile(f, backend="compile_cli", dynamic=dynamic)(*args)


def test_eager_says_what_it_said() -> None:
    """That Dynamo takes weights of symbolic sizes is nothing that eager sees."""
    f, args = BY_LAYOUT["sizes"]
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        f(*args)


DYNAMIC: dict[str, tuple[Function, Callable[[int], tuple[Tensor, ...]]]] = {
    "pairs": (torch.combinations, lambda n: (torch.arange(1.0, n + 1),)),
    "threes": (lambda x: torch.combinations(x, 3, True), lambda n: (torch.arange(1.0, n + 1),)),
    "covariance": (
        lambda x, n, w: torch.cov(x, correction=2, fweights=n, aweights=w),
        lambda n: (
            torch.arange(3.0 * n).reshape(3, n).sin(),
            torch.arange(1, n + 1),
            torch.ones(n),
        ),
    ),
    "quantile": (
        lambda x: torch.quantile(x, 0.3, dim=0, keepdim=True),
        lambda n: (torch.arange(3.0 * n).reshape(n, 3).sin(),),
    ),
    "cross entropy": (
        lambda x, w: F.binary_cross_entropy(x.sigmoid(), x.sigmoid(), w, reduction="none"),
        lambda n: (torch.arange(3.0 * n).reshape(n, 3).sin(), torch.ones(n, 1)),
    ),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_sizes_that_change(name: str) -> None:
    """Dynamo raised for these: torch's kernels know no symbolic sizes."""
    f, given = DYNAMIC[name]
    compiled = torch.compile(f, backend="compile_cli", dynamic=True, fullgraph=True)
    pairs = zip(given(4), given(7), strict=True)
    dims = {
        i: {d - x.dim() for d in range(x.dim()) if x.shape[d] != y.shape[d]}  # from the last on
        for i, (x, y) in enumerate(pairs)
    }
    model = compile_cli.compile(f, given(4), dynamic=dims)
    for n in (4, 7, 5):
        torch.testing.assert_close(compiled(*given(n)), f(*given(n)))
        torch.testing.assert_close(model(*given(n)), f(*given(n)))


@pytest.mark.parametrize("name", ["ctc", "ctc of numbers", "one ctc", "least squares"])
def test_gradients(name: str) -> None:
    f, (x, *rest), _ = CASES[name]
    found = []
    for g in (f, torch.compile(f, backend="compile_cli")):
        leaf = x.clone().requires_grad_()
        result = g(leaf, *rest)
        found.append(torch.autograd.grad(torch.utils._pytree.tree_leaves(result)[0].sum(), leaf))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
