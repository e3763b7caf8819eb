"""What is computed again to see where it is its own maximum has the bits that it had: the gradient
of a row goes to one of its elements at least."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import compile_cli  # noqa: F401  # registers the backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

# Sums of products may be one rounding, or two; quotients and roots approximations.
COMPARED: dict[str, Callable[[Tensor], Tensor]] = {
    "a sum of products": lambda x: x * 1.7 + (x + 0.3) * (x - 0.9) * x,
    "a quotient": lambda x: (x * x + 1.3) / (x.abs() * 0.7 + 0.9),
    "functions": lambda x: x.tanh().exp() * x.sin() - x.sigmoid().log(),
    "a root": lambda x: (x.square() * 3.1 + 0.2).rsqrt() + (x.abs() + 0.1).sqrt() * x,
    "a power": lambda x: (x.abs() + 0.5) ** 2.3 - x * 0.37,
    "gelu": F.gelu,
    "silu": lambda x: F.silu(x) * 1.1 + x * 0.3,
    "two products": lambda x: x * 1.3 + (x + 1) * (x - 2),
    "gelu in bf16": lambda x: F.gelu(x.bfloat16()) + x.bfloat16() * 0.3,
    "a norm": lambda x: F.layer_norm(x, x.shape[-1:], x[0].abs(), x[1]),
}


def distances(x: Tensor) -> Tensor:
    """Of all points of three coordinates to some of them."""
    return (x[:, None] - x[:64] * 1.3 + 0.1).square().sum(-1)


CASES = {name: (f, (777, 1000)) for name, f in COMPARED.items()}
CASES["distances"] = (distances, (5000, 3))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_a_maximum_is_where_it_was(name: str, dim: int, fresh_dynamo: None) -> None:
    compared, size = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(size, device="cuda")

    def loss(x: Tensor, scale: Tensor) -> Tensor:
        y = compared(x) * scale
        return y.amax(dim).sum()

    found = []
    for run in (torch.compile(loss, backend="compile_cli"), loss):
        scale = torch.ones_like(compared(x), requires_grad=True)
        (grad,) = torch.autograd.grad(run(x, scale), scale)
        found.append(grad)
    got, want = found
    assert got.isfinite().all() and (got != 0).any(dim).all()
    near = torch.isclose(got, want, rtol=1e-4, atol=1e-5).float().mean()
    assert near > 0.999  # a tie of eager's may be none of ours


# What is 0 of a value and its extremes along a dimension, whichever kernel asks.
ZERO: list[Callable[[Tensor, int], Tensor]] = [
    lambda y, dim: (y.amax(dim, True) - y).amin(dim),
    lambda y, dim: (y - y.amin(dim, True)).sqrt().nan_to_num(nan=1.0).amin(dim),
    lambda y, dim: (y.amax(dim, True) - y).clamp(max=0).sum(),
    lambda y, dim: (y == y.amax(dim, True)).sum(dim).clamp(max=1) - 1,
    lambda y, dim: y.amax(dim, True) - y.gather(dim, y.argmax(dim, True)),
    lambda y, dim: (y - y.max(dim, True).values).exp().amax(dim) - 1,
]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_past_its_extremes(name: str, dim: int, fresh_dynamo: None) -> None:
    compared, size = CASES[name]
    torch.manual_seed(1)
    x = torch.randn(size, device="cuda")
    wrong = []
    for i, zero in enumerate(ZERO):
        torch._dynamo.reset()
        run = torch.compile(lambda x, zero=zero: zero(compared(x), dim), backend="compile_cli")
        if run(x).any():
            wrong.append(i)
    assert not wrong
