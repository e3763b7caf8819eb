"""K shared among programs, against float64, on CPU tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from gemm_templates import H200, Config, Inputs, InvalidConfig, Problem, bind, make_plan
from gemm_templates.epilogues import ACTIVATIONS
from gemm_templates.model import is_legal
from gemm_templates.dtypes import DTYPES

TOLERANCE = {"f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}
SPLIT = Config(16, 16, 16, 2, 4, 2, "split_k", split_k=3)
STREAM = Config(16, 16, 16, 2, 4, 2, "split_k", programs=2, split_k=3)
DECOMPOSE = Config(16, 16, 16, 2, 4, 2, "decompose_k", split_k=3)
ALL = [SPLIT, STREAM, DECOMPOSE, replace(DECOMPOSE, overlap=True), replace(SPLIT, split_k=1), replace(SPLIT, split_k=16)]


def tensor(shape, stride, dtype, seed):
    """Random values at the given strides, in a storage that ends where the tensor does."""
    generator = torch.Generator().manual_seed(seed)
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else 0
    storage = torch.randn(size, generator=generator).to(DTYPES[dtype])
    return storage.as_strided(shape, stride)


def run(problem, config, times=2):
    """(what the kernel computes the last of some times, what it should compute)."""
    d = problem.dims()
    m, n, k = problem.m, problem.n, problem.k
    lead = (problem.batch,) if problem.batch > 1 else ()

    def strides(batch, rows, columns):
        return (d[batch], d[rows], d[columns]) if lead else (d[rows], d[columns])

    a = tensor((*lead, m, k), strides("stride_ab", "stride_am", "stride_ak"), problem.a_dtype, 0)
    b = tensor((*lead, k, n), strides("stride_bb", "stride_bk", "stride_bn"), problem.b_dtype, 1)
    out = tensor(
        (*lead, m, n), strides("stride_ob", "stride_om", "stride_on"), problem.out_dtype, 2
    )
    bias = tensor((n,), (problem.bias_stride,), problem.bias, 3) if problem.bias else None
    bound = bind(problem, config)
    for _ in range(times):
        out.fill_(float("nan"))
        bound(Inputs(a, b, out, bias))
    expected = a.double() @ b.double()
    return out, expected if bias is None else expected + bias.double()


def check(out, expected):
    name = {v: k for k, v in DTYPES.items()}[out.dtype]
    tolerance = TOLERANCE[name]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("config", ALL, ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("size", [(16, 32, 96), (17, 33, 150), (1, 1, 1), (5, 20, 16), (33, 18, 7)])
def test_sizes(size, dtype, config):
    check(*run(Problem(*size, dtype, dtype, dtype), config))


@pytest.mark.parametrize("config", [SPLIT, STREAM, DECOMPOSE], ids=str)
@pytest.mark.parametrize("a_stride", [(72, 1), (1, 18), (137, 2)])
@pytest.mark.parametrize("b_stride", [(24, 1), (1, 70), (50, 2)])
def test_strides(a_stride, b_stride, config):
    check(*run(Problem(18, 23, 70, "f32", "f32", "f32", a_stride, b_stride, (1, 30)), config))


@pytest.mark.parametrize("config", [SPLIT, STREAM, DECOMPOSE], ids=str)
@pytest.mark.parametrize("act", ["relu", "gelu"])
def test_bias_and_activation(act, config):
    problem = Problem(18, 33, 80, "f32", "f32", "f32", bias="f32", epilogue=ACTIVATIONS[act])
    out, linear = run(problem, config)
    check(out, {"relu": F.relu, "gelu": F.gelu}[act](linear))


@pytest.mark.parametrize("config", [SPLIT, STREAM, DECOMPOSE], ids=str)
@pytest.mark.parametrize("size", [(0, 8, 40), (8, 0, 40), (20, 8, 0)])
def test_empty_sizes(size, config):
    check(*run(Problem(*size, "f32", "f32", "f32", bias="f32"), config))


@pytest.mark.parametrize("config", [SPLIT, DECOMPOSE], ids=str)
def test_batches(config):
    check(*run(Problem(17, 20, 70, "f32", "f32", "f32", batch=3), config))


@pytest.mark.parametrize("config", [SPLIT, STREAM, DECOMPOSE], ids=str)
def test_dynamic_k_and_strides(config):
    names = frozenset({"K", "stride_am", "stride_bn", "stride_om"})
    check(*run(Problem(19, 21, 71, "f32", "f32", "f32", dynamic=names), config))


@pytest.mark.parametrize("programs", range(1, 9))
@pytest.mark.parametrize("size", [(32, 48, 48), (40, 40, 100)])
def test_stream_k_deals_out_any_number_of_steps(size, programs):
    config = replace(STREAM, programs=programs, split_k=5)
    check(*run(Problem(*size, "f32", "f32", "f32"), config, times=1))


def test_decompose_k_serves_a_range_of_rows():
    from gemm_templates.launch import arguments
    from triton_rt import LazyKernel

    problem = Problem(16, 24, 100, "f32", "f32", "f32", bias="f32", dynamic=frozenset({"M"}))
    assert is_legal(problem, DECOMPOSE, H200) and not is_legal(problem, SPLIT, H200)
    with pytest.raises(InvalidConfig, match="M and N known"):
        make_plan(problem, SPLIT)
    plan = make_plan(problem, DECOMPOSE)
    steps = [LazyKernel(kernel.source) for kernel in plan.steps]
    bias = torch.randn(24)
    for m in (1, 16, 45):
        a, b, out = torch.randn(m, 100), torch.randn(100, 24), torch.full((m, 24), float("nan"))
        memory = {w.name: torch.full((w.elements(m, 24),), float("nan")) for w in plan.workspaces}
        for kernel, lazy in zip(plan.steps, steps, strict=True):
            *tensors, _ = arguments(problem, kernel, Inputs(a, b, out, bias), memory)
            lazy(kernel.grid(m, 24), *tensors, m)
        check(out, a.double() @ b.double() + bias.double())


def test_the_order_of_the_sum_is_fixed():
    """Whoever comes last: two runs give the same bits, although the last program differs from
    those of another grid order only on a GPU; here, that no atomic adds to a float."""
    for config in (SPLIT, STREAM, DECOMPOSE):
        first, _ = run(Problem(32, 32, 200, "f32", "f32", "f32"), config)
        second, _ = run(Problem(32, 32, 200, "f32", "f32", "f32"), config)
        assert torch.equal(first, second)
