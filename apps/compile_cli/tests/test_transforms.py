"""Models that call the transforms of `torch.func`, through `compile_cli.compile`, against eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compile_cli
from compile_cli.errors import BadInput


@pytest.fixture(autouse=True)
def own_folder(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))


def loss(x: Tensor) -> Tensor:
    return (x.sin() ** 2).sum()


def shared(x: Tensor) -> tuple[Tensor, ...]:
    """A gradient beside an argument, a view of it and a write to new memory, which is none."""
    return torch.func.grad(loss)(x), x, x.t(), x.flatten()[:2]


X = torch.linspace(-1.0, 2.0, 6).reshape(2, 3)
MODELS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "a gradient": (torch.func.grad(loss), (X,)),
    "a gradient and its value": (torch.func.grad_and_value(loss), (X,)),
    "gradients of rows": (torch.func.vmap(torch.func.grad(loss)), (X,)),
    "a directional derivative": (lambda x, t: torch.func.jvp(loss, (x,), (t,)), (X, X + 1)),
    "second derivatives": (torch.func.hessian(loss), (X,)),
    "a Jacobian": (torch.func.jacrev(lambda x: x.exp() @ x.T), (X,)),
    "beside inputs": (shared, (X,)),
}


@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_eager(name: str) -> None:
    f, args = MODELS[name]
    compiled = compile_cli.compile(f, args)
    given = tuple(a + 1 for a in args)
    got, expected = compiled(*given), f(*given)
    torch.testing.assert_close(got, expected)
    for a, b in zip(*map(torch.utils._pytree.tree_leaves, (got, expected)), strict=True):
        memory = {t.untyped_storage().data_ptr() for t in given}
        assert (a.untyped_storage().data_ptr() in memory) == (
            b.untyped_storage().data_ptr() in memory
        )


def test_gradients_by_parameters() -> None:
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            def of(parameters: dict[str, Tensor]) -> Tensor:
                return torch.func.functional_call(self.inner, parameters, (x,)).square().sum()

            return torch.func.grad(of)(dict(self.inner.named_parameters()))

    model = Step()
    compiled = compile_cli.compile(model, (X,))
    torch.testing.assert_close(compiled(X + 1), model(X + 1))


def test_sizes_that_decide_are_asked() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.func.grad(loss)(x if x.shape[0] % 2 == 0 else 2 * x)

    compiled = compile_cli.compile(f, (X.repeat(3, 1),), dynamic={0: {0}})
    for n in (4, 8, 3, 5, 1):
        x = torch.linspace(-1.0, 2.0, 3 * n).reshape(n, 3)
        torch.testing.assert_close(compiled(x), f(x))


def adds(x: Tensor) -> Tensor:
    x.add_(1)
    return torch.func.grad(loss)(x)


def sets(x: Tensor) -> Tensor:
    x[0] = 1
    return torch.func.grad(loss)(x)


def augments(x: Tensor) -> Tensor:
    x *= 2
    return torch.func.grad(loss)(x)


def sees(x: Tensor) -> tuple[Tensor, ...]:
    gradient = torch.func.grad(loss)(x)
    x[:, 1:].mul_(gradient[:, 1:])
    return x, x.t(), x[0], gradient, gradient


def rectifies(x: Tensor) -> Tensor:
    return torch.func.grad(loss)(torch.nn.functional.relu(x, True))


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) + torch.func.grad(loss)(x)


@pytest.mark.parametrize("f", [adds, sets, augments, sees, rectifies, Counts()])
def test_writes_beside_a_transform(f: Any) -> None:
    compiled, eager = compile_cli.compile(copy.deepcopy(f), (X.clone(),)), f
    given, wanted = X.clone(), X.clone()
    results, expected = compiled(given), eager(wanted)
    torch.testing.assert_close((given, results), (wanted, expected))
    if f is sees:
        assert all(given.data_ptr() == r.data_ptr() for r in results[:3])
        assert results[3] is results[4] and results[1].stride() == expected[1].stride()


def test_overlaps_beside_a_transform_are_refused() -> None:
    def f(x: Tensor) -> Tensor:
        x.as_strided((2, 2), (1, 1)).add_(x.sum())
        return torch.func.grad(loss)(x)

    with pytest.raises(BadInput, match="clone"):
        compile_cli.compile(f, (X.clone(),))
