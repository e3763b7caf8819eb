"""Functions of an operand's tile, given as text, and block scales."""

from __future__ import annotations

import pytest
import torch

from gemm_templates import Config, Inputs, InvalidArguments, InvalidConfig, Problem, bind, source
from gemm_templates.dtypes import DTYPES
from gemm_templates.epilogues import RELU
from gemm_templates.errors import InvalidProblem, UnsupportedProblem
from gemm_templates.fused import Prologue
from gemm_templates.prologues import block_scale_of, cast_of
from triton_rt import KernelParam

ALIGNED = frozenset({"a", "b", "out"})
TILED, TMA = Config(16, 32, 16, 2, 4, 2), Config(16, 32, 16, 2, 4, 2, "tma", 3)

# e**x of a row's element less the row's maximum: not 0 where x is, so that what lies outside of
# the matrix along K must not count.
EXPONENTS = Prologue(
    "exponents",
    """
@triton.jit
def exponents(tile, r_outer, rk, first_k, mask, operands):
    maxima, factor = operands
    return tl.exp(tile - tl.load(maxima + r_outer + 0 * rk, mask=mask, other=0.0)) * factor
""",
    (KernelParam("maxima", "*f32"), KernelParam("factor", "f32")),
    "f32",
)
SIGMOIDS = Prologue(
    "sigmoids",
    """
@triton.jit
def sigmoids(tile, r_outer, rk, first_k, mask, operands):
    (shift,) = operands
    return tl.sigmoid(tile + tl.load(shift + rk + 0 * r_outer, mask=mask, other=0.0))
""",
    (KernelParam("shift", "*f32"),),
    "f32",
)


def strided(shape, contiguous):
    rows, columns = shape
    return torch.randn(shape) if contiguous else torch.randn(columns, rows).t()


@pytest.mark.spread(4)
@pytest.mark.parametrize("config", [TILED, TMA])
@pytest.mark.parametrize("a_rows", [False, True])
@pytest.mark.parametrize("b_rows", [False, True])
@pytest.mark.parametrize("size", [(32, 64, 32), (20, 36, 28)])
def test_both_operands(size, b_rows, a_rows, config):
    m, n, k = size
    a, b = strided((m, k), a_rows), strided((k, n), b_rows)
    maxima, shift, bias = a.amax(1), torch.randn(k), torch.randn(n)
    problem = Problem(
        m, n, k, "f32", "f32", "f32", a.stride(), b.stride(), bias="f32", epilogue=RELU,
        prologue_a=EXPONENTS, prologue_b=SIGMOIDS, aligned=ALIGNED,
    )  # fmt: skip
    out = torch.full((m, n), float("nan"))
    bind(problem, config)(Inputs(a, b, out, bias, before=(maxima, 0.5, shift)))
    left = (a.double() - maxima.double()[:, None]).exp() * 0.5
    right = (b.double() + shift.double()[:, None]).sigmoid()
    torch.testing.assert_close(
        out.double(), (left @ right + bias.double()).relu(), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("dynamic", [frozenset(), frozenset({"M", "K", "stride_am"})])
def test_parameters_come_in_the_order_of_the_documentation(dynamic):
    problem = Problem(
        17, 33, 19, "f32", "f32", "f32", prologue_a=EXPONENTS, prologue_b=SIGMOIDS,
        block_scale=block_scale_of(b=(1, 33, 1), block_k=16), dynamic=dynamic,
    )  # fmt: skip
    names = [p.name for p in source(problem, TILED).source.params]
    assert names == [
        "a", "b", "out", "maxima", "factor", "shift", "b_scale",
        *(d for d in ("M", "K", "stride_am") if d in dynamic),
    ]  # fmt: skip
    a, b = torch.randn(17, 19), torch.randn(19, 33)
    maxima, shift, scale = a.amax(1), torch.randn(19), torch.rand(2, 33)
    out = torch.empty(17, 33)
    bind(problem, TILED)(Inputs(a, b, out, before=(maxima, 1.0, shift, scale)))
    left = (a.double() - maxima.double()[:, None]).exp()
    right = (b.double() + shift.double()[:, None]).sigmoid()
    right = right * scale.double().repeat_interleave(16, 0)[:19]
    torch.testing.assert_close(out.double(), left @ right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e5m2])
def test_casts(stored, dtype):
    w = (torch.randn(32, 48) * 30).to(stored)
    a = torch.eye(32).to(DTYPES[dtype])
    kind = "i8" if stored == torch.int8 else "f8e5m2"
    problem = Problem(32, 48, 32, dtype, kind, "f32", prologue_b=cast_of(dtype))
    out = torch.empty(32, 48)
    bind(problem, TILED)(Inputs(a, w, out))
    assert torch.equal(out, w.float())


def test_what_is_refused():
    with pytest.raises(UnsupportedProblem, match="a prologue can convert"):
        Problem(8, 8, 8, "bf16", "i8")
    with pytest.raises(InvalidProblem, match="expected one of"):
        cast_of("f8e4m3")
    with pytest.raises(InvalidProblem, match="neither"):
        block_scale_of()
    with pytest.raises(InvalidProblem, match="power of two"):
        block_scale_of(b=(96, 1, 1))
    problem = Problem(32, 32, 64, "bf16", "i8", prologue_b=cast_of("bf16"))
    with pytest.raises(InvalidConfig, match="prologues are for"):
        source(problem, Config(64, 64, 64, template="gluon"))
    with pytest.raises(InvalidConfig, match="does not divide"):
        scaled = Problem(32, 32, 64, block_scale=block_scale_of(b=(1, 32, 1), block_k=32))
        source(scaled, Config(16, 16, 64))
    with pytest.raises(InvalidArguments, match="before the sums"):
        a, b, out = torch.zeros(8, 8), torch.zeros(8, 8), torch.empty(8, 8)
        exponents = Problem(8, 8, 8, "f32", "f32", "f32", prologue_a=EXPONENTS)
        bind(exponents, TILED)(Inputs(a, b, out))


# `tile * scale[batch, row]`, of `rows` rows, and 1: not 0 where K has ended.
BATCHED = Prologue(
    "of_batch",
    """
@triton.jit
def of_batch(tile, r_outer, rk, first_k, mask, operands):
    batch, scale, rows = operands
    return tile * tl.load(scale + batch * rows + r_outer, r_outer < rows, other=0.0) + 1.0
""",
    (KernelParam("scale", "*f32"), KernelParam("rows", "i32")),
    "f32",
    batched=True,
)
BATCHED_CONFIGS = (
    TILED, Config(1, 16, 32, 1, 2, 2, "gemv", split_k=2), Config(16, 32, 16, 1, 2, 2, "gemv"),
    Config(16, 32, 16, 1, 2, 2, "split_k", split_k=3),
    Config(16, 32, 16, 1, 2, 2, "decompose_k", split_k=3),
)  # fmt: skip


@pytest.mark.spread(2)
@pytest.mark.parametrize("config", BATCHED_CONFIGS, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_batches(batch, config):
    """Each product with its own operands; the end of K does not count."""
    m, n, k = 5, 40, 37
    lead = (batch,) if batch > 1 else ()
    a, b = torch.randn(*lead, m, k), torch.randn(*lead, k, n)
    scale, out = torch.rand(batch, m), torch.empty(*lead, m, n)
    problem = Problem(
        m, n, k, "f32", "f32", "f32", batch=batch, prologue_a=BATCHED, prologue_b=cast_of("f32"),
        aligned=ALIGNED,
    )  # fmt: skip
    bind(problem, config)(Inputs(a, b, out, before=(scale, m)))
    left = a.double() * scale.reshape(*lead, m, 1).double() + 1.0
    torch.testing.assert_close(out.double(), left @ b.double(), rtol=1e-5, atol=1e-5)


def test_batches_that_are_refused():
    with pytest.raises(UnsupportedProblem, match=r"exponents of a batched matmul .* Prologue\."):
        Problem(8, 8, 8, "f32", "f32", batch=2, prologue_a=EXPONENTS)
    with pytest.raises(UnsupportedProblem, match="block scales of a batched"):
        Problem(8, 8, 8, batch=2, block_scale=block_scale_of(b=(1, 8, 1), block_k=16))
    batched = Problem(64, 64, 64, batch=2, prologue_a=cast_of("bf16"), aligned=ALIGNED)
    for template in ("batched_tma", "gluon_batched", "tma"):
        with pytest.raises(InvalidConfig):
            source(batched, Config(64, 64, 64, 8, 4, 3, template, 132))
