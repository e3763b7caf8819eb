"""Epilogues that scale, and several in a chain, against float64."""

from __future__ import annotations

import pytest
import torch

from gemm_templates import Config, Inputs, InvalidProblem, Problem, bind
from gemm_templates.dtypes import DTYPES
from gemm_templates.epilogues import (
    RELU,
    chain,
    residual_of,
    scaled_of,
)

ALIGNED = frozenset({"a", "b", "out"})
CONFIGS = [Config(16, 64, 32, 2, 4, 2), Config(32, 128, 32, 2, 4, 2, "tma", 3, 2)]


def run(m, n, epilogue, operands=(), config=CONFIGS[0], out="f32", k=40):
    """What is stored, and the product in float64."""
    generator = torch.Generator().manual_seed(m + n)
    a = torch.randn(m, k, generator=generator)
    b = torch.randn(n, k, generator=generator).t()
    problem = Problem(
        m, n, k, "f32", "f32", out, b_stride=(1, k), epilogue=epilogue, aligned=ALIGNED
    )  # fmt: skip
    result = torch.full((m, n), float("nan")).to(DTYPES[out])
    bind(problem, config)(Inputs(a, b, result, None, operands))
    return result, a.double() @ b.double()


def close(got, expected):
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("a", ["each", "one", "none"])
@pytest.mark.parametrize("b", ["each", "one", "none"])
def test_scales_of_rows_and_columns(a, b):
    rows = {"each": torch.rand(20), "one": torch.rand(1)}.get(a)
    columns = {"each": torch.rand(72), "one": torch.rand(1)}.get(b)
    bias = torch.randn(72)
    given = [t for t in (rows, columns, bias) if t is not None]
    out, product = run(20, 72, scaled_of(20, 72, a, b, "f32"), tuple(given))
    if rows is not None:
        product = product * rows.double()[:, None]
    if columns is not None:
        product = product * columns.double()
    close(out, product + bias.double())


@pytest.mark.parametrize("config", CONFIGS)
def test_a_chain_gives_each_its_operands(config):
    torch.manual_seed(0)  # a product so small that the residual swallows it has no sign
    rows, columns, residual = torch.rand(20), torch.rand(72), torch.randn(20, 72)
    epilogue = chain(scaled_of(20, 72), RELU, residual_of("f32", 4, stride=(72, 1)))
    out, product = run(20, 72, epilogue, (rows, columns, residual), config)
    scaled = (product * rows.double()[:, None] * columns.double()).relu()
    close(out, scaled + residual)
    assert epilogue.instructions > RELU.instructions and not epilogue.free
    with pytest.raises(InvalidProblem, match="chain"):
        chain(Problem(1, 1, 1, epilogue=RELU).epilogue.__class__("s", "", stores=True), RELU)


def test_what_is_refused():
    with pytest.raises(InvalidProblem, match="'each', 'one' or 'none'"):
        scaled_of(8, 8, a="row")
