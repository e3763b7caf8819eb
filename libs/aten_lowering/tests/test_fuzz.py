"""Random graphs of supported ops: lowered, they do what eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Step = tuple[int, int, int, int]

# Every step takes two tensors and a number, and gives a tensor of rank 1 to 3.
STEPS: list[Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]] = [
    lambda x, y, n: x + y,
    lambda x, y, n: x * y - n,
    lambda x, y, n: x / (y.abs() + 1),
    lambda x, y, n: torch.maximum(x, y),
    lambda x, y, n: torch.where(x > y, x, y * 0.5),
    lambda x, y, n: torch.add(x, y, alpha=n),
    lambda x, y, n: F.gelu(x),
    lambda x, y, n: F.silu(x).clamp(-n, n),
    lambda x, y, n: x.tanh().masked_fill(x < 0, n),
    lambda x, y, n: x.sigmoid().to(torch.float32).to(x.dtype),
    lambda x, y, n: x.transpose(0, -1),
    lambda x, y, n: x.permute(*reversed(range(x.dim()))).contiguous(),
    lambda x, y, n: x.reshape(-1, x.shape[-1]),
    lambda x, y, n: x.flatten(),
    lambda x, y, n: x.unsqueeze(0)[0],
    lambda x, y, n: x[..., n % x.shape[-1] :],
    lambda x, y, n: x[: 1 + n % x.shape[0]],
    lambda x, y, n: x[..., :1].expand(x.shape),
    lambda x, y, n: x.sum(-1, keepdim=True) * 0.1,
    lambda x, y, n: x.mean(0, keepdim=True),
    lambda x, y, n: x.amax(n % x.dim(), keepdim=True),
    lambda x, y, n: x.var(-1, correction=0, keepdim=True),
    lambda x, y, n: x.softmax(n % x.dim()),
    lambda x, y, n: x.log_softmax(-1),
    lambda x, y, n: F.layer_norm(x, x.shape[-1:]),
    lambda x, y, n: torch.cat([x, x * 2], n % x.dim()),
    lambda x, y, n: F.pad(x, (n, 1), value=0.5),
    lambda x, y, n: x.flip(n % x.dim()),
    lambda x, y, n: x.index_select(0, torch.arange(x.shape[0]) // 2),
    lambda x, y, n: x.argmax(-1, keepdim=True) + x * 0,
    lambda x, y, n: x.reshape(-1, x.shape[-1]) @ x.reshape(-1, x.shape[-1]).t() * 0.1,
    lambda x, y, n: x.reshape(-1, x.shape[-1]).triu(n - 1),
]


def program(steps: list[Step]) -> Callable[..., list[torch.Tensor]]:
    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        pool = list(inputs)
        for op, a, b, n in steps:
            x, y = pool[a % len(pool)], pool[b % len(pool)]
            try:
                torch.broadcast_shapes(x.shape, y.shape)
            except RuntimeError:
                y = x
            result = STEPS[op](x, y, n)
            if result.dim() <= 3 and 0 < result.numel() <= 400:
                pool.append(result)
        return pool[-3:]

    return run


STEP = st.tuples(
    st.integers(0, len(STEPS) - 1), st.integers(0, 9), st.integers(0, 9), st.integers(1, 3)
)
SHAPE = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@settings(
    max_examples=35,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(STEP, min_size=1, max_size=8), shape=SHAPE)
def test_random_graphs(oracle: Any, steps: list[Step], shape: list[int]) -> None:
    inputs = [torch.randn(shape, dtype=torch.float64), torch.randn(shape[-1:]).double()]
    oracle(program(steps), *inputs)


@pytest.mark.spread(2)
@pytest.mark.parametrize("index", range(len(STEPS)))
def test_each_step(oracle: Any, index: int) -> None:
    """Keeps a step that never works from passing unseen."""
    oracle(program([(index, 0, 1, 2)]), torch.randn(3, 4), torch.randn(4))
