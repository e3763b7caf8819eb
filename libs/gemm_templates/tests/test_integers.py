"""Products of int8 in every family that multiplies them, against int64."""

from __future__ import annotations

import pytest
import torch

from gemm_templates import Config, InvalidConfig, Problem, UnsupportedProblem, bind, source
from gemm_templates.epilogues import scaled_of
from gemm_templates.launch import Inputs
from gemm_templates.registry import able, make_plan
from triton_rt import Target, compile

M, N, K = 36, 48, 80
ALIGNED = frozenset({"a", "b", "out"})
CONFIGS = (
    Config(16, 32, 32, 2, 4, 2),
    Config(16, 32, 32, 2, 4, 2, "tma", 3),
    Config(16, 32, 32, 1, 4, 2, "split_k", split_k=2),
    Config(16, 32, 32, 1, 4, 2, "decompose_k", split_k=2),
    Config(16, 32, 32, 1, 4, 2, "gemv", split_k=2),
    Config(1, 16, 64, 1, 4, 1, "gemv", split_k=2),
)


def problem(**more):
    return Problem(M, N, K, "i8", "i8", b_stride=(1, K), aligned=ALIGNED, **more)


def operands():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-128, 128, (n, K), dtype=torch.int8, generator=generator) for n in (M, N))
    return a, b.t(), a.long() @ b.t().long()


@pytest.mark.spread(2)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_sums(config):
    a, b, expected = operands()
    out = torch.zeros(M, N, dtype=torch.int32)
    bind(problem(out_dtype="i32"), config)(Inputs(a, b, out))
    assert torch.equal(out.long(), expected)


@pytest.mark.parametrize("config", CONFIGS[:3], ids=str)
def test_factors_of_rows_and_columns(config):
    a, b, sums = operands()
    rows, columns = torch.rand(M), torch.rand(N)
    out = torch.zeros(M, N)
    epilogue = scaled_of(M, N)
    bind(problem(out_dtype="f32", epilogue=epilogue), config)(
        Inputs(a, b, out, operands=(rows, columns))
    )  # fmt: skip
    expected = sums.double() * rows[:, None].double() * columns.double()
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-6)


def test_gluon_compiles():
    """`wgmma` of s8 has 128 columns at most."""
    config = Config(128, 128, 128, 8, 8, 6, "gluon", 132, 2)
    (step,) = make_plan(problem(out_dtype="i32"), config).steps
    assert compile(step.source, Target(90)).cubin
    with pytest.raises(InvalidConfig, match="128 columns"):
        make_plan(problem(out_dtype="i32"), Config(64, 256, 128, 16, 8, 5, "gluon", 132, 4))


@pytest.mark.parametrize(
    "more", [{"bias": "f32"}, {"batch": 2}, {"out_dtype": "i32", "a_dtype": "bf16"}]
)
def test_what_no_integers_have(more):
    given = {"a_dtype": "i8", "b_dtype": "i8", **more}
    with pytest.raises(UnsupportedProblem):
        Problem(M, N, K, **given)


def test_batches_are_no_integers():
    with pytest.raises(InvalidConfig, match="integers are for"):
        source(problem(out_dtype="i32"), Config(64, 64, 64, template="batched_tma", programs=3))
    assert "batched_tma" not in able("integers")
