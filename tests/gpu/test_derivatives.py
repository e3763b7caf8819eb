"""Gradients in batches, and functions that ask data, on a GPU, where autograd has threads of its
own and results of CUDA graphs are overwritten by the next call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import compile_cli
from compile_cli.errors import NoSecondDerivative

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
]


def layers(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x @ w)
    return (y @ w.T).exp().sum(-1), y.mT


@pytest.mark.parametrize("options", [{}, {"cuda_graphs": True}, {"emit": "cpp"}])
def test_gradients_in_batches(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x, w = (torch.randn(8, 8, device="cuda", requires_grad=True) for _ in range(2))
    compiled = torch.compile(layers, backend="compile_cli", options=options)
    for which in ((0,), (1,), (0, 1), (0, 1)):
        results = [tuple(outputs[i] for i in which) for outputs in (compiled(x, w), layers(x, w))]
        batches = [torch.randn(5, *y.shape, device="cuda") for y in results[1]]
        got, want = (
            torch.autograd.grad(y, (x, w), batches, is_grads_batched=True) for y in results
        )
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_second_derivatives_are_refused() -> None:
    x, w = (torch.randn(8, 8, device="cuda", requires_grad=True) for _ in range(2))
    y = torch.compile(lambda x, w: torch.tanh(x @ w), backend="compile_cli")(x, w)
    with pytest.raises((NoSecondDerivative, RuntimeError), match=r"create_graph|double backward"):
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (slope.norm() + y.mean()).backward()


@pytest.mark.parametrize("options", [{}, {"cuda_graphs": True}, {"emit": "cpp"}])
def test_autocast_around_a_backward_pass(options: dict[str, Any]) -> None:
    """Of a forward pass outside of it."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)
    model, x = torch.nn.Sequential(*layers).cuda(), torch.randn(32, 64, device="cuda")
    compiled = torch.compile(model, backend="compile_cli", options=options)
    run = compile_cli.compile(model, (x,), options=options)
    for _ in range(2):
        y, expected = compiled(x), model(x)
        with torch.autocast("cuda", torch.bfloat16):
            got = torch.autograd.grad(y.sum(), tuple(model.parameters()))
            torch.testing.assert_close(run(x), expected.detach(), rtol=1e-3, atol=1e-4)
        want = torch.autograd.grad(expected.sum(), tuple(model.parameters()))
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def scores(seed: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(5, 2, 4, device="cuda").log_softmax(-1)


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "ctc": (
        F.ctc_loss,
        lambda n: (
            scores(n),
            torch.tensor([[1, 2], [3, 1]], device="cuda"),
            torch.tensor([5, 4], device="cuda"),
            torch.tensor([2, n % 2 + 1], device="cuda"),
        ),
    ),
    "least squares": (torch.linalg.lstsq, lambda n: (scores(n)[0].T, scores(n + 1)[0].T)),
    "gaussian": (F.gaussian_nll_loss, lambda n: (scores(n), scores(n + 1), -scores(n + 2))),
    "pairs": (torch.combinations, lambda n: (scores(n)[:, 0, 0].clone(),)),
    "classes": (F.one_hot, lambda n: (torch.tensor([n, 2, 0], device="cuda"),)),
    "bytes": (
        lambda x: x.view(torch.uint8).index_put((torch.tensor([0, -1]),), torch.tensor(2).byte()),
        lambda n: (torch.tensor([True, False, bool(n)], device="cuda"),),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_functions_that_ask_data(name: str) -> None:
    f, given = CASES[name]
    compiled = compile_cli.compile(f, given(1))
    for n in (1, 4):
        torch.testing.assert_close(compiled(*given(n)), f(*given(n)), check_stride=True)
