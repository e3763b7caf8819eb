"""Derivatives that autograd takes of what is compiled: batches of gradients, second ones, and
those of forward mode. Right, or an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor

import compile_cli
from compile_cli.errors import BadInput, NoSecondDerivative
from loop_ir.fusion import take_over


@pytest.fixture(autouse=True)
def fresh_dynamo(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def layers(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x @ w)
    return (y @ w.T).exp().sum(-1), y.mT


def complexes(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return torch.complex(x, x.sin()) * 2j, (x @ w).conj()


def images(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.nn.functional.conv2d(x.reshape(1, 1, 4, 4), w.reshape(4, 1, 2, 2))
    return y, w.sum(0)


@pytest.mark.spread(2)
@pytest.mark.parametrize("emit", ["fx", "hop"])
@pytest.mark.parametrize("f", [layers, complexes, images])
def test_gradients_in_batches(
    f: Callable[..., tuple[Tensor, Tensor]], emit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a batch has eager's, though backward may write to what forward kept for it."""
    monkeypatch.setattr(take_over, "LEAST", 0)
    torch.manual_seed(0)
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    compiled = torch.compile(f, backend="compile_cli", options={"emit": emit})
    for which in ((0,), (1,), (0, 1)):
        results = [tuple(outputs[i] for i in which) for outputs in (compiled(x, w), f(x, w))]
        batches = [torch.randn(3, *y.shape, dtype=y.dtype) for y in results[1]]
        got, want = (
            torch.autograd.grad(y, (x, w), batches, is_grads_batched=True, allow_unused=True)
            for y in results
        )
        for ours, theirs in zip(got, want, strict=True):
            if theirs is not None:  # of what it has not used, a compiled graph's is zero
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_jacobian_of_rows_at_once() -> None:
    def f(x: Tensor) -> Tensor:
        return (x.sin() * x.roll(1)).cumsum(0)

    x = torch.linspace(-1.0, 1.0, 5)
    compiled = torch.compile(f, backend="compile_cli")
    got = torch.autograd.functional.jacobian(compiled, x, vectorize=True)
    torch.testing.assert_close(got, torch.autograd.functional.jacobian(f, x))


def penalty(f: Callable[..., Tensor], x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = f(x, w)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return torch.autograd.grad(y.mean() + (slope.norm() - 1) ** 2, (x, w), allow_unused=True)


@pytest.mark.parametrize(
    "f",
    [lambda x, w: torch.tanh(x @ w), lambda x, w: x @ w, lambda x, w: x.exp() * 2 + w],
    ids=["tanh", "product", "exp"],
)
def test_second_derivatives_are_refused(f: Callable[..., Tensor]) -> None:
    """Torch took gradients for constants where forward kept no input, but views and results: the
    penalty's part of the gradient was left out."""
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    with pytest.raises((NoSecondDerivative, RuntimeError), match=r"create_graph|double backward"):
        penalty(torch.compile(f, backend="compile_cli"), x, w)


def test_second_derivatives_inside_of_the_graph() -> None:
    """What the message advises."""
    x, w = (torch.randn(4, 4) for _ in range(2))

    def loss(w: Tensor, x: Tensor) -> Tensor:
        def of(x: Tensor) -> Tensor:
            return torch.tanh(x @ w).sum()

        return (torch.func.grad(of)(x).norm() - 1) ** 2

    compiled = torch.compile(torch.func.grad(loss), backend="compile_cli")
    torch.testing.assert_close(compiled(w, x), torch.func.grad(loss)(w, x))


def test_a_linear_function_has_none() -> None:
    x = torch.ones(4, requires_grad=True)
    y = torch.compile(lambda x: x[1:] * 3 - 1, backend="compile_cli")(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(slope, torch.tensor([0.0, 3, 3, 3]))


@pytest.mark.parametrize("first", [False, True])
def test_forward_mode(first: bool) -> None:
    """Tangents were lost without a word: kernels do not carry them."""

    def f(x: Tensor) -> Tensor:
        return (x.sin() * x).sum(-1)

    compiled = torch.compile(f, backend="compile_cli")
    x, t = torch.randn(3, 4), torch.randn(3, 4)
    if first:
        compiled(x)  # what was compiled before is not taken for dual numbers
    tangents = []
    with forward_mode.dual_level(), pytest.warns(UserWarning, match="dual numbers"):
        for g in (f, compiled):
            tangents.append(forward_mode.unpack_dual(g(forward_mode.make_dual(x, t))).tangent)
    torch.testing.assert_close(tangents[1], tangents[0])
    torch.testing.assert_close(compiled(x), f(x))


def duals(f: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    with forward_mode.dual_level():
        return f(forward_mode.make_dual(x, x))


@pytest.mark.parametrize(
    "use",
    [
        lambda f, x: torch.func.jvp(f, (x,), (x,)),
        lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
        lambda f, x: torch.vmap(f)(x[None]),
        duals,
    ],
)
def test_a_compiled_model_says_that_it_has_none(use: Callable[..., Any]) -> None:
    x = torch.ones(3)
    model = compile_cli.compile(lambda x: x.sin() @ x, (x,))
    with pytest.raises(BadInput, match="no derivatives"):
        use(model, x)
    torch.testing.assert_close(model(x), x.sin() @ x)


@pytest.mark.parametrize(
    "use",
    [
        lambda f, x: torch.func.jvp(lambda w: w * f(x), (x,), (x,)),
        lambda f, x: torch.func.grad(lambda w: (w * f(x)).sum())(x),
        lambda f, x: torch.vmap(lambda w: w * f(x))(x),
        lambda f, x: duals(lambda w: w * f(x), x),
    ],
)
def test_a_compiled_model_of_constants_is_a_constant(use: Callable[..., Any]) -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin() * x.cumsum(0)

    x = torch.ones(3)
    torch.testing.assert_close(use(compile_cli.compile(f, (x,)), x), use(f, x))
