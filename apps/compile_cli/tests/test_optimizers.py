"""Steps of optimizers: kernels that are alike are one launch, whatever the number of parameters."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compile_cli
from wrapper_ir import CopyBack, ExternCall, Launch

SIZES = [(3, 16), (16,), (5,), (1,), (2, 2, 8), (3, 1, 7)]


def launches(compiled: compile_cli.CompiledModel) -> int:
    ops = compiled.graph.program.ops
    assert not [o for o in ops if isinstance(o, CopyBack | ExternCall)]
    return sum(isinstance(o, Launch) for o in ops)


def adamw(
    params: list[Tensor], grads: list[Tensor], means: list[Tensor], squares: list[Tensor],
    step: Tensor,
) -> None:  # fmt: skip
    """Decoupled weight decay (Loshchilov and Hutter), step as a tensor."""
    for p, g, m, v in zip(params, grads, means, squares, strict=True):
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        m_hat, v_hat = m / (1 - 0.9**step), v / (1 - 0.999**step)
        p.mul_(1 - 1e-2 * 1e-3).add_(m_hat / (v_hat.sqrt() + 1e-8), alpha=-1e-3)


def state(count: int) -> tuple[Any, ...]:
    torch.manual_seed(0)
    params, grads, means = (
        [torch.randn(SIZES[n % len(SIZES)]) for n in range(count)] for _ in range(3)
    )
    return params, grads, means, [m.square() for m in means], torch.tensor(3.0)


@pytest.mark.parametrize("emit", ["fx", pytest.param("hop", marks=pytest.mark.slow), "cpp"])
def test_a_step_of_many_parameters(emit: str) -> None:
    """Sizes that are multiples of 16, and others, are a launch each."""
    count = 8 if emit == "fx" else 4
    given, wanted = state(count), state(count)
    compiled = compile_cli.compile(adamw, copy.deepcopy(given), options={"emit": emit})
    for _ in range(2):
        compiled(*given)
        adamw(*wanted)
        torch.testing.assert_close(given, wanted)
    assert launches(compiled) <= 4


@pytest.mark.slow
def test_a_hundred_parameters() -> None:
    compiled = compile_cli.compile(adamw, state(100))
    assert launches(compiled) <= 4


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_optimizers_of_torch(kind: Any) -> None:
    torch._dynamo.reset()
    results = []
    for compile_step in (True, False):
        params = [nn.Parameter(p) for p in state(6)[0]]
        optimizer = kind(params, lr=1e-2, foreach=True)
        step = (
            torch.compile(optimizer.step, backend="compile_cli") if compile_step else optimizer.step
        )
        for _ in range(2):
            for p, g in zip(params, state(6)[1], strict=True):
                p.grad = g
            step()
        results.append(params)
    torch.testing.assert_close(*results)
