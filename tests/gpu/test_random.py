"""Random numbers in kernels on a GPU: the generator's state, CUDA graphs, gradients, sizes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import compile_cli

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def noisy(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.dropout(x, 0.25) + 0.0, torch.randn_like(x)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
def test_state(emit: str, graphs: bool, options: dict[str, Any]) -> None:
    x = torch.ones(300, 1000, device="cuda")
    more = {**options, "emit": emit, "cuda_graphs": graphs}
    model = compile_cli.compile(noisy, (x,), options=more)
    for _ in range(3):  # captured meanwhile
        model(x)
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    calls = [[t.clone() for t in model(x)] for _ in range(3)]
    assert not torch.equal(torch.cuda.get_rng_state(), state)
    torch.cuda.set_rng_state(state)
    for call in calls:
        for old, new in zip(call, model(x), strict=True):
            assert torch.equal(old, new)
    for a, b in pairwise(calls):
        assert not torch.equal(a[0], b[0]) and not torch.equal(a[1], b[1])
    dropped, normal = calls[0]
    assert abs(float((dropped == 0).float().mean()) - 0.25) < 0.005
    assert abs(float(normal.mean())) < 0.01 and abs(float(normal.std()) - 1) < 0.01


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_have_the_mask_of_the_forward_pass(
    dtype: torch.dtype, options: dict[str, Any]
) -> None:
    compiled = torch.compile(
        lambda x: F.dropout(x * 2, 0.5), backend="compile_cli", options=options
    )
    x = torch.ones(1000, 700, device="cuda", dtype=dtype, requires_grad=True)
    out = compiled(x)
    (dx,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(dx, out) and set(out.unique().tolist()) == {0.0, 4.0}


def test_far_places_have_numbers_of_their_own(options: dict[str, Any]) -> None:
    n = 2**32 + 4096
    model = compile_cli.compile(
        lambda x: torch.randint_like(x, 256), (torch.empty(n, device="cuda", dtype=torch.uint8),),
        options=options,
    )  # fmt: skip
    found = model(torch.empty(n, device="cuda", dtype=torch.uint8))
    assert not torch.equal(found[:4096], found[2**32 :])
    assert len(found[2**32 :].unique()) == 256
