"""Batch and instance norm in training, of 16-bit inputs: the types of the statistics are eager's
on a GPU, with weights and running statistics of either type."""

from __future__ import annotations

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


def batch(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return functional.batch_norm(x, mean, var, w, b, training=True)


def instance(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return functional.instance_norm(x, mean, var, w, b, use_input_stats=True)


@pytest.mark.parametrize("norm", [batch, instance])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=str)
def test_bf16_norms_in_training(
    norm: Any, layout: torch.memory_format, weights: torch.dtype, fresh_dynamo: None
) -> None:
    base = torch.randn(6, 8, 7, 5, device="cuda", dtype=torch.bfloat16).to(memory_format=layout)
    params = torch.randn(2, 8, device="cuda", dtype=weights)

    def run(fn: Any) -> list[Tensor]:
        x = base.clone().requires_grad_()
        w, b = (p.clone().requires_grad_() for p in params)
        running = [torch.zeros(8, device="cuda", dtype=weights), params[0].abs() + 1]
        out = fn(x, w, b, *running)
        wave = torch.arange(out.numel(), device="cuda").cos().reshape(out.shape)
        grads = torch.autograd.grad((out.float() * wave).sum(), [x, w, b])
        return [out.detach(), *grads, *running]

    # Torch's fake tensors say that the statistics of bf16 inputs are bf16, where eager's kernel
    # saves them in f32: gradients in f32 are no nearer than those in bf16.
    results = zip(run(torch.compile(norm, backend="compile_cli")), run(norm), strict=True)
    for place, (got, want) in enumerate(results):
        assert (got.dtype, got.stride()) == (want.dtype, want.stride())
        near = 2e-2 if want.dtype == torch.bfloat16 or place in (1, 2, 3) else 1e-3
        torch.testing.assert_close(got, want, rtol=near, atol=near * float(want.abs().max()))
