"""Writes to what the caller passes, sums at places that are data, and alike kernels, on a GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compile_cli
from wrapper_ir import CopyBack, ExternCall, Launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
]


def added(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
    x.mul_(2).add_(x.exp())
    return x + 1


def sliced(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
    x[:, 3:67] = y[:, :64] * 2
    return x.sum(1)


def put(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
    x.index_copy_(0, i, y[: i.shape[0]])
    return y + 1


def normalised(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
    x.copy_(x.softmax(-1))
    return y * 2


def summed(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
    return x.index_add(0, i // 2, y[: i.shape[0]])


@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("fn", [added, sliced, put, normalised, summed])
def test_writes(fn: Callable[..., Any], offset: int, emit: str, options: dict[str, Any]) -> None:
    """`offset`: the tensors begin at an odd place."""

    def make(*size: int) -> Tensor:
        return torch.randn(4096 * 1024 + 8, device="cuda")[offset:][: size[0] * size[1]].view(size)

    args = make(4000, 1000), torch.randperm(4000, device="cuda")[:900], make(4000, 1000)
    compiled = compile_cli.compile(fn, args, options={**options, "emit": emit})
    wanted = copy.deepcopy(args)
    for _ in range(3):
        torch.testing.assert_close(compiled(*args), fn(*wanted), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(args, wanted, rtol=1e-4, atol=1e-4)
    ops = compiled.graph.program.ops
    assert not [o for o in ops if isinstance(o, CopyBack | ExternCall)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1024, 300, 40])
def test_gradient_of_an_embedding(dtype: torch.dtype, width: int) -> None:
    """Many rows of one id: a sum in bf16 would stop growing."""
    ids = torch.randint(0, 50, (20000,), device="cuda")
    weight = torch.randn(500, width, device="cuda", dtype=dtype, requires_grad=True)
    run = torch.compile(nn.functional.embedding, backend="compile_cli")
    (got,) = torch.autograd.grad(run(ids, weight), weight, torch.ones_like(weight[ids]))
    want = torch.bincount(ids, minlength=500)[:, None].expand(-1, width).to(dtype)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_step_of_an_optimizer(kind: Any, options: dict[str, Any]) -> None:
    results = []
    for compile_step in (True, False):
        torch.manual_seed(0)
        sizes = [(64, 32), (32,), (7, 3), (1,)] * 8
        params = [nn.Parameter(torch.randn(n, device="cuda")) for n in sizes]
        optimizer = kind(params, lr=1e-2, foreach=True)
        step = optimizer.step
        if compile_step:
            step = torch.compile(step, backend="compile_cli", options=options)
        for _ in range(3):
            for p in params:
                p.grad = torch.randn_like(p)
            step()
        results.append(params)
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("emit", ["fx", "cpp"])
@pytest.mark.parametrize("odd", [None, 35])
def test_hundreds_of_pointers(odd: int | None, emit: str, options: dict[str, Any]) -> None:
    """Past the 62nd argument of a launch, one that begins at an odd place has all of them read in
    single elements."""
    results = []
    for compile_step in (True, False):
        torch.manual_seed(0)
        params = []
        for n in range(40):
            begin = int(n == odd)
            values = torch.randn(64 * 32 + 1, device="cuda")[begin : begin + 64 * 32]
            params.append(nn.Parameter(values.view(64, 32)))
        optimizer = torch.optim.AdamW(params, lr=1e-2, foreach=True, capturable=True)
        step = optimizer.step
        if compile_step:
            step = torch.compile(step, backend="compile_cli", options={**options, "emit": emit})
        for _ in range(3):
            for p in params:
                p.grad = torch.randn_like(p)
            step()
        results.append(params)
    torch.testing.assert_close(*results)


def test_writes_under_cuda_graphs(options: dict[str, Any]) -> None:
    x, i, y = (
        torch.randn(64, 64, device="cuda"), torch.arange(8, device="cuda"),
        torch.randn(64, 64, device="cuda"),
    )  # fmt: skip
    compiled = compile_cli.compile(added, (x, i, y), options={**options, "cuda_graphs": True})
    x.mul_(0.01)
    wanted = x.clone()
    for _ in range(4):
        torch.testing.assert_close(compiled(x, i, y), added(wanted, i, y), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(x, wanted, rtol=1e-4, atol=1e-5)
    launches = [o for o in compiled.graph.program.ops if isinstance(o, Launch)]
    assert len(launches) == 1
