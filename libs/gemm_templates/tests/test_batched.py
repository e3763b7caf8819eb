"""Batched matmuls, interpreted, against float64; and their sm_90 code."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gemm_templates import (
    H200,
    Config,
    Epilogue,
    Inputs,
    InvalidArguments,
    InvalidConfig,
    Problem,
    baddbmm,
    bind,
    bmm,
    candidates,
    source,
)
from gemm_templates.dtypes import DTYPES
from gemm_templates.epilogues import RELU
from triton_rt import KernelParam, Target, compile

ALIGNED = frozenset({"a", "b", "bias", "out"})
TILED = Config(16, 16, 16, 2, 4, 2)
TMA = Config(16, 32, 16, 2, 4, 2, "batched_tma", 3)
TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2}


def strided(shape, stride, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    return torch.randn(size, generator=generator).to(DTYPES[dtype]).as_strided(shape, stride)


def run(problem, config, operands=()):
    d = problem.dims()
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    a = strided((batch, m, k), (d["stride_ab"], d["stride_am"], d["stride_ak"]), problem.a_dtype, 0)
    b = strided((batch, k, n), (d["stride_bb"], d["stride_bk"], d["stride_bn"]), problem.b_dtype, 1)
    size = (batch, m, n)
    out = strided(size, (d["stride_ob"], d["stride_om"], d["stride_on"]), problem.out_dtype, 2)
    out.fill_(float("nan"))
    bias = strided((n,), (problem.bias_stride,), problem.bias, 3) if problem.bias else None
    bind(problem, config)(Inputs(a, b, out, bias, operands))
    expected = a.double() @ b.double()
    return out, expected if bias is None else expected + bias.double()


def check(out, expected):
    name = {v: k for k, v in DTYPES.items()}[out.dtype]
    tolerance = TOLERANCE[name]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.spread(2)
@pytest.mark.parametrize("a_rows", [False, True])
@pytest.mark.parametrize("b_rows", [False, True])
@pytest.mark.parametrize("parts", [0, 2])
def test_transposes_and_edges(a_rows, b_rows, parts):
    batch, m, n, k = 3, 36, 40, 24
    problem = Problem(
        m, n, k, "f32", "f32", "f32", (k, 1) if a_rows else (1, m), (n, 1) if b_rows else (1, k),
        batch=batch, bias="f32", epilogue=RELU, aligned=ALIGNED,
    )  # fmt: skip
    config = Config(16, 32, 16, 2, 4, 2, "batched_tma", 3, parts)
    out, linear = run(problem, config)
    check(out, linear.relu())


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("size", [(1, 8, 8), (17, 24, 40), (32, 32, 16), (5, 21, 8)])
def test_narrow_types(size, dtype):
    m, n, k = size
    padded = -(-n // 8) * 8
    problem = Problem(
        m, n, k, dtype, dtype, dtype, b_stride=(padded, 1), batch=2,
        batch_strides=(m * k, k * padded, m * n), aligned=ALIGNED,
    )  # fmt: skip
    check(*run(problem, TMA))


@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize("config", [TILED, TMA], ids=["tiled", "tma"])
def test_an_operand_shared_by_the_batch(operand, config):
    m, n, k = 20, 36, 24
    strides = (0, k * n, m * n) if operand == "a" else (m * k, 0, m * n)
    problem = Problem(m, n, k, "f32", "f32", "f32", batch=3, batch_strides=strides, aligned=ALIGNED)
    check(*run(problem, config))


@pytest.mark.parametrize("config", [TILED, TMA], ids=["tiled", "tma"])
def test_a_batch_that_is_not_outermost(config):
    """[rows, batch, columns] in memory, as the heads of attention are."""
    batch, m, n, k = 3, 18, 16, 20
    problem = Problem(
        m, n, k, "f32", "f32", "f32", (batch * k, 1), (1, batch * k), (batch * n, 1), batch=batch,
        batch_strides=(k, k, n), aligned=ALIGNED,
    )  # fmt: skip
    check(*run(problem, config))


@pytest.mark.parametrize("config", [TILED, TMA], ids=["tiled", "tma"])
def test_dynamic_sizes_and_strides(config):
    names = frozenset({"M", "stride_am", "stride_ab", "stride_ob"})
    problem = Problem(
        19, 20, 24, "f32", "f32", "f32", batch=3, dynamic=names, aligned=ALIGNED,
        divisors=(("stride_am", 4), ("stride_ab", 4), ("stride_ob", 4)),
    )  # fmt: skip
    check(*run(problem, config))


SCALE = Epilogue(
    "scale_by_batch",
    """
@triton.jit
def scale_by_batch(acc, rm, rn, mask, operands):
    batch, scale = operands
    return acc * tl.load(scale + batch)
""",
    (KernelParam("scale", "*f32"),),
    batched=True,
)


@pytest.mark.parametrize("config", [TILED, TMA], ids=["tiled", "tma"])
def test_an_epilogue_that_knows_the_batch(config):
    problem = Problem(18, 20, 16, "f32", "f32", "f32", batch=3, epilogue=SCALE, aligned=ALIGNED)
    scale = torch.tensor([1.0, -2.0, 0.5])
    out, product = run(problem, config, (scale,))
    check(out, product * scale.double().view(3, 1, 1))


def test_an_epilogue_that_knows_the_batch_of_one_product():
    problem = Problem(18, 20, 16, "f32", "f32", "f32", epilogue=SCALE)
    a, b, out = torch.randn(18, 16), torch.randn(16, 20), torch.empty(18, 20)
    bind(problem, TILED)(Inputs(a, b, out, None, (torch.tensor([3.0]),)))
    check(out, 3 * (a.double() @ b.double()))


def test_what_descriptors_cannot_address_is_refused():
    for problem in (
        Problem(16, 16, 16, batch=2),
        Problem(16, 16, 16, aligned=ALIGNED),
        Problem(16, 16, 16, batch=2, batch_strides=(256, 260, 256), aligned=ALIGNED),
    ):
        with pytest.raises(InvalidConfig, match="tensor descriptors need a batch"):
            bind(problem, TMA)


@pytest.mark.parametrize("config", [None, TILED, TMA], ids=["torch", "tiled", "tma"])
def test_public_functions(config):
    a, b = torch.randn(3, 18, 20), torch.randn(3, 24, 20).mT
    product = a.double() @ b.double()
    check(bmm(a, b, config=config), product)
    check(bmm(a[:1].expand(3, 18, 20), b, config=config), a[:1].double() @ b.double())
    for added in (
        torch.randn(3, 18, 24),
        torch.randn(24),
        torch.randn(18, 1),
        torch.randn(3, 1, 24),
    ):
        check(baddbmm(added, a, b, config=config), product + added.double())
        out = baddbmm(added, a, b, beta=0.5, alpha=-2, config=config)
        check(out, 0.5 * added.double() - 2 * product)
    nothing = torch.full((24,), float("nan"))
    check(baddbmm(nothing, a, b, beta=0, alpha=2, config=config), 2 * product)


def test_public_functions_of_one_product_and_of_none():
    a, b = torch.randn(1, 18, 20), torch.randn(1, 20, 24)
    check(bmm(a, b, config=TILED), a.double() @ b.double())
    added = torch.randn(18, 24)
    check(baddbmm(added, a, b, config=TILED), added.double() + a.double() @ b.double())
    assert bmm(a[:0], b[:0]).shape == (0, 18, 24)
    check(bmm(a[..., :0], b[:, :0]), torch.zeros(1, 18, 24).double())


def test_gradients_flow():
    a, b = torch.randn(2, 4, 8, requires_grad=True), torch.randn(2, 8, 3)
    baddbmm(torch.zeros(3), a, b).sum().backward()
    torch.testing.assert_close(a.grad, b.sum(2)[:, None].expand(2, 4, 8))


def test_wrong_tensors_are_refused():
    a, b = torch.randn(2, 4, 8), torch.randn(2, 8, 3)
    for args in ((a, b[:1]), (a[0], b[0]), (a, b.double()), (a, b.mT)):
        with pytest.raises(InvalidArguments):
            bmm(*args)
    with pytest.raises(InvalidArguments, match="broadcast"):
        baddbmm(torch.randn(5), a, b)


BMM = Problem(1000, 1024, 512, batch=16, aligned=ALIGNED)
ROLES = Config(128, 128, 64, 4, 8, 6, "gluon_batched", 132, 4)


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (BMM, Config(128, 128, 64, 8, 4, 3, "batched_tma", 264, 2)),
        pytest.param(BMM, ROLES, marks=pytest.mark.slow),
        (replace(BMM, batch_strides=(0, 512 * 1024, 1000 * 1024), epilogue=SCALE), ROLES),
    ],
    ids=["tma", "roles", "roles, one a, an epilogue"],
)
def test_code_for_hopper(problem, config):
    """What the interpreter does not see: pipelines and warps with roles compile, and fit."""
    kernel = source(problem, config).source
    binary = compile(kernel, Target(90), alignment=(1 << len(kernel.params)) - 1, keep_ptx=True)
    assert "wgmma.mma_async" in binary.ptx and "ld.local" not in binary.ptx
    assert "cp.async.bulk.tensor.3d.global" in binary.ptx  # the result leaves through TMA, too
    assert binary.shared_bytes <= H200.smem
    grid = source(problem, config).grid(1000, 1024)
    assert grid == (config.programs, 1, 1)


def test_both_templates_are_proposed():
    found = {c.config.template for c in candidates(BMM, H200) if c.config}
    assert {"batched_tma", "gluon_batched"} <= found
    unaligned = replace(BMM, aligned=frozenset())
    assert {c.config.template for c in candidates(unaligned, H200) if c.config} == {"tiled"}
    small = candidates(replace(BMM, m=64, n=64), H200)
    assert all(c.predicted < 20e-6 for c in small)
