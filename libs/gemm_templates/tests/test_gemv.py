"""One and few rows, against float64, on CPU tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from gemm_templates import H200, Config, Inputs, InvalidConfig, Problem, bind, candidates, make_plan
from gemm_templates.dtypes import DTYPES
from gemm_templates.epilogues import ACTIVATIONS
from gemm_templates.families.gemv import family as gemv
from gemm_templates.model import is_legal

TOLERANCE = {"f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}
VECTOR = Config(1, 16, 32, 1, 2, 2, "gemv", split_k=3)
SKINNY = Config(8, 32, 16, 1, 4, 2, "gemv", split_k=3)


def run(problem, config, times=2):
    """(what the kernel computes the last of some times, what it should compute)."""
    d = problem.dims()
    m, n, k = problem.m, problem.n, problem.k
    lead = (problem.batch,) if problem.batch > 1 else ()
    generator = torch.Generator().manual_seed(0)

    def tensor(shape, stride, dtype):
        reach = sum((size - 1) * s for size, s in zip(shape, stride, strict=True))
        storage = torch.randn(1 + max(reach, 0), generator=generator).to(DTYPES[dtype])
        return storage.as_strided(shape, stride)

    def strides(batch, rows, columns):
        return (d[batch], d[rows], d[columns]) if lead else (d[rows], d[columns])

    a = tensor((*lead, m, k), strides("stride_ab", "stride_am", "stride_ak"), problem.a_dtype)
    b = tensor((*lead, k, n), strides("stride_bb", "stride_bk", "stride_bn"), problem.b_dtype)
    out = tensor((*lead, m, n), strides("stride_ob", "stride_om", "stride_on"), problem.out_dtype)
    bias = tensor((n,), (1,), problem.bias) if problem.bias else None
    bound = bind(problem, config)
    for _ in range(times):
        out.fill_(float("nan"))
        bound(Inputs(a, b, out, bias))
    expected = a.double() @ b.double()
    return out, expected if bias is None else expected + bias.double()


def check(out, expected):
    tolerance = TOLERANCE[{v: k for k, v in DTYPES.items()}[out.dtype]]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.spread(2)
@pytest.mark.parametrize("config", [VECTOR, SKINNY, replace(VECTOR, split_k=1)], ids=str)
@pytest.mark.parametrize("columns", [True, False], ids=["K contiguous", "N contiguous"])
@pytest.mark.parametrize("size", [(1, 32, 96), (3, 50, 131), (1, 1, 1)])
def test_sizes_and_layouts(size, columns, config):
    b_stride = (1, size[2]) if columns else None
    for dtype, times in (("f32", 2), ("bf16", 1)):
        check(*run(Problem(*size, dtype, dtype, dtype, None, b_stride), config, times))


@pytest.mark.parametrize("config", [VECTOR, SKINNY], ids=str)
def test_strides_batches_and_epilogue(config):
    check(*run(Problem(3, 23, 70, "f32", "f32", "f32", (140, 2), (1, 75), (1, 5)), config))
    check(*run(Problem(2, 20, 70, "f32", "f32", "f32", batch=3), config))
    check(
        *run(Problem(2, 20, 70, "f32", "f32", "f32", wide=True, dynamic=frozenset({"K"})), config)
    )
    problem = Problem(3, 33, 80, "f32", "f32", "f32", bias="f32", epilogue=ACTIVATIONS["gelu"])
    out, linear = run(problem, config)
    check(out, F.gelu(linear))


@pytest.mark.parametrize("config", [VECTOR, SKINNY], ids=str)
def test_empty_sizes(config):
    check(*run(Problem(2, 20, 0, "f32", "f32", "f32", bias="f32"), config))
    check(*run(Problem(0, 20, 40, "f32", "f32", "f32"), config))


def test_configs_that_make_no_sense():
    problem = Problem(4, 64, 64)
    for config in (
        replace(VECTOR, programs=2),
        replace(SKINNY, block_m=4),
        Config(template="gemv"),
    ):
        with pytest.raises(InvalidConfig, match="block_m"):
            make_plan(problem, config)
    dynamic = Problem(4, 64, 64, dynamic=frozenset({"M"}))
    for config in (VECTOR, SKINNY):
        with pytest.raises(InvalidConfig, match="known"):
            make_plan(dynamic, config)


def test_proposals():
    for m in (1, 8, 64):
        problem = Problem(m, 4096, 4096, b_stride=(1, 4096))
        found = gemv.configs(problem, H200)
        assert found and all(is_legal(problem, c, H200) for c in found)
        assert any(c.config and c.config.template == "gemv" for c in candidates(problem, H200))
    assert not gemv.configs(Problem(65, 4096, 4096), H200)
