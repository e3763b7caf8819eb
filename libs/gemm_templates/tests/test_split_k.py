"""K shared among programs, against float64, on CPU tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from gemm_templates import (
    A100,
    H200,
    Config,
    Inputs,
    InvalidConfig,
    Problem,
    bind,
    candidates,
    make_plan,
)
from gemm_templates.dtypes import DTYPES
from gemm_templates.epilogues import ACTIVATIONS
from gemm_templates.families.decompose_k import family as decompose_k
from gemm_templates.families.split_k import family as split_k
from gemm_templates.model import is_legal
from triton_rt import Target, compile

TOLERANCE = {"f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}
SPLIT = Config(16, 16, 16, 2, 4, 2, "split_k", split_k=3)
DECOMPOSE = Config(16, 16, 16, 2, 4, 2, "decompose_k", split_k=3)
OVERLAP = replace(DECOMPOSE, split_k=5, overlap=True)
ALL = [SPLIT, DECOMPOSE, OVERLAP, replace(SPLIT, split_k=1), replace(SPLIT, split_k=16)]


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


SIZES = ((16, 32, 96), (17, 18, 100), (1, 1, 1), (18, 5, 7))


@pytest.mark.spread(2)
@pytest.mark.parametrize("config", ALL, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_sizes(size, config):
    check(*run(Problem(*size, "f32", "f32", "f32"), config))


@pytest.mark.parametrize("config", ALL, ids=str)
@pytest.mark.parametrize(
    "size", [SIZES[3], *(pytest.param(size, marks=pytest.mark.slow) for size in SIZES[:3])]
)
def test_sizes_in_bf16(size, config):
    check(*run(Problem(*size), config, times=1))


@pytest.mark.parametrize("config", [SPLIT, DECOMPOSE], ids=str)
@pytest.mark.parametrize(
    ("a_stride", "b_stride"), [((1, 18), (50, 2)), ((137, 2), (24, 1)), ((72, 1), (1, 70))]
)
def test_strides(a_stride, b_stride, config):
    problem = Problem(18, 23, 70, "f32", "f32", "f32", a_stride, b_stride, (1, 30))
    check(*run(problem, config, times=1))


@pytest.mark.spread(2)
@pytest.mark.parametrize("config", [SPLIT, DECOMPOSE], ids=str)
@pytest.mark.parametrize("act", ["relu", "gelu"])
def test_bias_and_activation(act, config):
    problem = Problem(18, 33, 80, "f32", "f32", "f32", bias="f32", epilogue=ACTIVATIONS[act])
    out, linear = run(problem, config)
    check(out, {"relu": F.relu, "gelu": F.gelu}[act](linear))


@pytest.mark.parametrize("config", [SPLIT, DECOMPOSE], ids=str)
@pytest.mark.parametrize("size", [(0, 8, 40), (8, 0, 40), (20, 8, 0)])
def test_empty_sizes(size, config):
    check(*run(Problem(*size, "f32", "f32", "f32", bias="f32"), config))


@pytest.mark.parametrize("config", [SPLIT, DECOMPOSE], ids=str)
def test_batches(config):
    check(*run(Problem(17, 20, 70, "f32", "f32", "f32", batch=3), config))


@pytest.mark.parametrize("config", [SPLIT, DECOMPOSE], ids=str)
def test_dynamic_k_and_strides(config):
    names = frozenset({"K", "stride_am", "stride_bn", "stride_om"})
    check(*run(Problem(19, 21, 71, "f32", "f32", "f32", dynamic=names), config))


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


def test_proposals_are_for_few_tiles_and_a_long_k():
    long = Problem(64, 64, 32768, "f16", "f16", "f16")
    found = candidates(long, H200, limit=7)
    assert {c.config.template for c in found if c.config} <= {"split_k", "decompose_k"}
    assert all(c.config.overlap for c in found if c.config and c.config.template == "decompose_k")
    assert not any(c.overlap for c in decompose_k.configs(long, A100))
    for square in (4096, 8192):
        assert not split_k.configs(Problem(square, square, square), H200)


def test_what_is_not_computed_is_refused():
    fp8 = Problem(64, 64, 4096, "f8e4m3", "f8e4m3", b_stride=(1, 4096))
    for config in (SPLIT, DECOMPOSE):
        deep = replace(config, block_k=64)
        assert not is_legal(fp8, deep, H200)
        with pytest.raises(InvalidConfig, match="fp8"):
            make_plan(fp8, deep)
    persistent = replace(SPLIT, programs=2)
    assert not is_legal(Problem(64, 64, 4096), persistent, H200)
    with pytest.raises(InvalidConfig, match="persistent"):
        make_plan(Problem(64, 64, 4096), persistent)
    assert not is_legal(Problem(64, 64, 4096), replace(DECOMPOSE, overlap=True), A100)
    assert not is_legal(
        Problem(64, 64, 4096), replace(SPLIT, block_m=64, block_n=64, split_k=64), H200
    )


@pytest.mark.parametrize("k", [64, 1000])
def test_the_second_kernel_is_launched_early(k):
    """And waits for the first: at the start of a short loop, or at the end of a long one."""
    first, second = make_plan(Problem(32, 32, k), OVERLAP).steps
    assert second.source.pdl and first.source.pdl
    assert f"OVERLAP=True, EARLY={k == 64}" in first.source.text
    check(*run(Problem(32, 32, k, "f32", "f32", "f32"), OVERLAP, times=1))


@pytest.mark.parametrize(
    "config",
    [
        Config(16, 16, 64, 1, 4, 1, "decompose_k", split_k=64, overlap=True),
        pytest.param(
            Config(64, 64, 128, 1, 4, 5, "decompose_k", split_k=8, overlap=True),
            marks=pytest.mark.slow,
        ),
        Config(32, 32, 128, 1, 4, 4, "split_k", split_k=32, overlap=True),
        Config(64, 64, 64, 1, 4, 4, "split_k", split_k=66),
        pytest.param(Config(64, 64, 64, 1, 4, 8, "gemv", split_k=4), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_what_the_compiler_makes_for_hopper(config):
    problem = Problem(64, 256, 65536, aligned=frozenset({"a", "b", "out"}))
    ptx = [
        compile(kernel.source, Target(90), keep_ptx=True).ptx
        for kernel in make_plan(problem, config).steps
    ]
    assert ("wgmma.mma_async" if config.block_m == 64 else "mma.sync") in ptx[0]
    assert ("cp.async.cg" if config.num_stages > 1 else "ld.global.v4") in ptx[0]
    if config.overlap:
        for text in ptx:
            before, _, after = text.partition("griddepcontrol.wait")
            assert not any(op in before for op in ("ld.global", "cp.async", "st.global"))
            assert "global" in after
    if config.template == "decompose_k":
        assert "griddepcontrol.launch_dependents" in ptx[0]
    else:
        assert "atom.global.gpu.acq_rel" in ptx[0] or "atom.acq_rel.gpu.global" in ptx[0]
