"""Epilogues that scale, round, quantise, drop out and look at rows, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gemm_templates import Config, Inputs, InvalidConfig, InvalidProblem, Problem, bind, source
from gemm_templates.dtypes import DTYPES
from gemm_templates.epilogues import (
    GELU_TANH,
    RELU,
    chain,
    dropout_of,
    quantized_by_of,
    quantized_of,
    residual_of,
    rounded_of,
    row_maxima_of,
    row_statistics_of,
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


@pytest.mark.parametrize("config", CONFIGS)
def test_tanh_gelu(config):
    out, product = run(36, 72, GELU_TANH, config=config)
    close(out, F.gelu(product, approximate="tanh"))


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
    epilogue = chain(
        scaled_of(20, 72), RELU, rounded_of("bf16"), residual_of("f32", 4, stride=(72, 1))
    )
    out, product = run(20, 72, epilogue, (rows, columns, residual), config)
    scaled = (product * rows.double()[:, None] * columns.double()).relu()
    torch.testing.assert_close(
        out.double(), scaled.bfloat16().double() + residual, rtol=0.01, atol=0.01
    )
    assert torch.equal((out - residual).bfloat16().float().sign(), scaled.float().sign())
    assert epilogue.instructions > RELU.instructions and not epilogue.free
    with pytest.raises(InvalidProblem, match="chain"):
        chain(Problem(1, 1, 1, epilogue=RELU).epilogue.__class__("s", "", stores=True), RELU)


def groups(product, width):
    """[m, n] -> [m, ceil(n / width), width], padded with zeros."""
    n = product.shape[1]
    return F.pad(product, (0, -n % width)).unflatten(1, (-1, width))


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("n", [72, 150, 192])
def test_row_statistics(n, config):
    statistics = torch.full((20, -(-n // 64), 2), float("nan"))
    out, product = run(20, n, row_statistics_of(n, 64), (statistics,), config)
    close(out, product)
    expected = groups(product, 64)
    close(statistics, torch.stack([expected.sum(-1), expected.square().sum(-1)], -1))
    mean, square = statistics.double().sum(1).unbind(-1)
    normed = (out.double() - mean[:, None] / n) * (square / n - (mean / n) ** 2 + 1e-5)[
        :, None
    ].rsqrt()
    close(normed, F.layer_norm(product, (n,)))


@pytest.mark.parametrize("config", CONFIGS)
def test_row_maxima(config):
    maxima = torch.full((20, 3), float("nan"))
    out, product = run(20, 150, chain(RELU, row_maxima_of(150, 64)), (maxima,), config)
    close(out, product.relu())
    close(maxima, groups(product.relu(), 64).amax(-1))


@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
@pytest.mark.parametrize("config", CONFIGS)
def test_quantised_in_groups(config, dtype):
    scales = torch.full((20, 3), float("nan"))
    out, product = run(20, 144, quantized_of(dtype, 144, 64), (scales,), config, dtype)
    largest = torch.finfo(DTYPES[dtype]).max
    close(scales, groups(product, 64).abs().amax(-1) / largest)
    wide = out.float().double() * scales.double().repeat_interleave(64, 1)[:, :144]
    step = {"f8e4m3": 2**-4, "f8e5m2": 2**-3}[dtype]
    error = (wide - product).abs()
    assert bool((error <= step * product.abs() + 2e-3 * product.abs().max()).all())
    assert float(out.float().abs().max()) == largest


def test_groups_of_zeros_have_scale_one():
    a, b = torch.zeros(16, 32), torch.zeros(32, 64)
    out, scales = torch.empty(16, 64, dtype=torch.float8_e4m3fn), torch.empty(16, 1)
    problem = Problem(16, 64, 32, "f32", "f32", "f8e4m3", epilogue=quantized_of("f8e4m3", 64, 64))
    bind(problem, CONFIGS[0])(Inputs(a, b, out, None, (scales,)))
    assert bool((scales == 1).all()) and bool((out.float() == 0).all())


@pytest.mark.parametrize("each", [False, True])
def test_quantised_by_known_scales(each):
    scale = torch.rand(20 if each else 1) * 0.02 + 0.01
    out, product = run(20, 72, quantized_by_of("f8e4m3", 20, each), (scale,), out="f8e4m3")
    expected = (product.float() / (scale[:, None] if each else scale)).clamp(-448, 448)
    assert bool((expected.abs() == 448).any())
    wrong = (out.float() != expected.to(torch.float8_e4m3fn).float()).double().mean()
    assert float(wrong) < 0.01  # those that lie between two by rounding


def philox(seed, counters):
    """Philox 4x32-10 (Salmon et al. 2011): the first word for each 64-bit counter."""
    c = [counters & 0xFFFFFFFF, counters >> 32, np.zeros_like(counters), np.zeros_like(counters)]
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (second >> np.uint64(32)) ^ c[1] ^ key[0], second & low,
            (first >> np.uint64(32)) ^ c[3] ^ key[1], first & low,
        ]  # fmt: skip
        key = [(key[0] + np.uint64(0x9E3779B9)) & low, (key[1] + np.uint64(0xBB67AE85)) & low]
    return c[0].astype(np.uint32)


@pytest.mark.parametrize("config", CONFIGS)
def test_dropout_keeps_what_philox_says(config):
    m, n, p, seed, offset = 36, 72, 0.3, 2**40 + 17, 2**33 + 5
    out, product = run(m, n, dropout_of(n, p), (seed, offset), config)
    words = philox(seed, np.arange(m * n, dtype=np.uint64) + np.uint64(offset)).view(np.int32)
    uniform = np.where(words < 0, -words.astype(np.int64) - 1, words) * np.float32(4.6566127342e-10)
    kept = torch.from_numpy(uniform >= p).view(m, n)
    close(out, torch.where(kept, product / (1 - p), 0.0))
    assert 0.65 < kept.double().mean() < 0.75


def test_what_is_refused():
    with pytest.raises(InvalidConfig, match="needs 128 columns"):
        source(Problem(64, 256, 64, epilogue=row_maxima_of(256)), Config(64, 64, 32))
    with pytest.raises(InvalidConfig, match="needs 64 columns"):
        problem = Problem(64, 256, 64, epilogue=row_statistics_of(256), aligned=ALIGNED)
        source(problem, Config(64, 128, 32, 8, 4, 2, "tma", 132, 4))
    with pytest.raises(InvalidProblem, match="dropout"):
        dropout_of(8, 1.0)
    with pytest.raises(InvalidProblem, match="'each', 'one' or 'none'"):
        scaled_of(8, 8, a="row")
