"""Prologues where few rows multiply much weight, against float64, on CPU tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gemm_templates import (
    H200,
    Config,
    Inputs,
    InvalidConfig,
    Problem,
    bind,
    candidates,
    make_plan,
    mixed_mm,
)
from gemm_templates.dtypes import DTYPES
from gemm_templates.epilogues import RELU
from gemm_templates.families import dense
from gemm_templates.families.gemv import family as gemv
from gemm_templates.families.split_k import family as split_k
from gemm_templates.fused import Prologue
from gemm_templates.model import is_legal
from gemm_templates.prologues import block_scale_of, cast_of
from gemm_templates.registry import FAMILIES, able
from triton_rt import KernelParam, Target, compile

VECTOR = Config(1, 16, 32, 1, 2, 2, "gemv")
SKINNY = Config(16, 32, 32, 1, 2, 2, "gemv")
SPLIT = Config(16, 32, 32, 1, 2, 2, "split_k")
DECOMPOSED = Config(16, 32, 32, 1, 2, 2, "decompose_k", split_k=4)
CONFIGS = (
    VECTOR, replace(VECTOR, split_k=4), SKINNY, replace(SKINNY, split_k=4),
    replace(SPLIT, split_k=4), DECOMPOSED,
)  # fmt: skip

# `bf16(a * r[m])`, as eager rounds it.
ROWS = Prologue(
    "rows_scaled",
    """
@triton.jit
def rows_scaled(tile, r_outer, rk, first_k, mask, operands):
    (scale,) = operands
    wide = tile.to(tl.float32) * tl.load(scale + r_outer + 0 * rk, mask=mask, other=0.0)
    return wide.to(tl.bfloat16)
""",
    (KernelParam("row_scale", "*f32"),),
)
# `bf16((bf16(q) + z[k]) * s[n])`: not 0 where q is, nor where K has ended.
COLUMNS = Prologue(
    "columns_scaled",
    """
@triton.jit
def columns_scaled(tile, r_outer, rk, first_k, mask, operands):
    zero, scale = operands
    z = tl.load(zero + rk + 0 * r_outer, mask=mask, other=7.0)
    s = tl.load(scale + r_outer + 0 * rk, mask=mask, other=5.0)
    return ((tile.to(tl.float32) + z) * s).to(tl.bfloat16)
""",
    (KernelParam("zero", "*f32"), KernelParam("scale", "*f32")),
)
# Infinite where there is nothing: an element outside of the matrix must not meet a zero.
INVERSES = Prologue(
    "inverses",
    """
@triton.jit
def inverses(tile, r_outer, rk, first_k, mask, operands):
    return 1.0 / tile
""",
    (),
    "f32",
)


def weights(n, k, columns):
    generator = torch.Generator().manual_seed(1)
    shape = (n, k) if columns else (k, n)
    q = torch.randint(-127, 128, shape, dtype=torch.int8, generator=generator)
    return q.t() if columns else q


@pytest.mark.spread(3)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize(
    ("m", "n", "k", "layout"),
    [
        (1, 64, 160, "N contiguous"), (3, 50, 131, "K contiguous"), (3, 50, 131, "N contiguous"),
        (18, 33, 40, "N contiguous"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (
            (16, 33, 128, "K contiguous"), (1, 64, 256, "K contiguous"),
            (16, 33, 128, "N contiguous"),
            (18, 33, 40, "K contiguous"), (33, 40, 200, "K contiguous"),
            (33, 40, 200, "N contiguous"), (64, 32, 100, "K contiguous"),
            (64, 32, 100, "N contiguous"),
        )),
    ],
)  # fmt: skip
def test_int8_weights_of_scaled_rows(m, n, k, layout, config):
    if config.block_m == 1:
        m = min(m, 3)  # a program a row: more rows are more of the same
    torch.manual_seed(0)
    columns = layout == "K contiguous"
    a, q = torch.randn(m, k).bfloat16(), weights(n, k, columns)
    row, zero, scale = torch.rand(m) + 0.5, torch.randn(k) * 20, torch.rand(n) * 0.01
    bias, out = torch.randn(n), torch.full((m, n), float("nan"))
    problem = Problem(
        m, n, k, "bf16", "i8", "f32", b_stride=q.stride(), bias="f32", epilogue=RELU,
        prologue_a=ROWS, prologue_b=COLUMNS,
    )  # fmt: skip
    bind(problem, config)(Inputs(a, q, out, bias, before=(row, zero, scale)))
    left = (a.float() * row[:, None]).bfloat16().double()
    right = ((q.float() + zero[:, None]) * scale).bfloat16().double()
    torch.testing.assert_close(
        out.double(), (left @ right + bias.double()).relu(), rtol=1e-4, atol=1e-4
    )


@pytest.mark.spread(3)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("columns", [True, False], ids=["K contiguous", "N contiguous"])
def test_what_lies_outside_never_counts(columns, config):
    """Both operands are infinite there; infinity times zero is no number."""
    torch.manual_seed(0)
    m, n, k = 3, 37, 75
    a, b = torch.rand(m, k) + 0.5, torch.rand(n, k).t() + 0.5
    b = b if columns else b.contiguous()
    out = torch.empty(m, n)
    problem = Problem(
        m, n, k, "f32", "f32", "f32", b_stride=b.stride(), prologue_a=INVERSES,
        prologue_b=INVERSES,
    )  # fmt: skip
    bind(problem, config)(Inputs(a, b, out))
    torch.testing.assert_close(
        out.double(), 1 / a.double() @ (1 / b.double()), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.template != "decompose_k"], ids=str)
def test_wide_offsets_and_sizes_at_run_time(config):
    torch.manual_seed(0)
    m, n, k = 3, 50, 131
    a, q = torch.randn(m, k).bfloat16(), weights(n, k, True)
    zero, scale, out = torch.randn(k), torch.rand(n) * 0.01, torch.empty(m, n)
    problem = Problem(
        m, n, k, "bf16", "i8", "f32", b_stride=q.stride(), prologue_b=COLUMNS, wide=True,
        dynamic=frozenset({"K", "stride_bn"}),
    )  # fmt: skip
    bind(problem, config)(Inputs(a, q, out, before=(zero, scale)))
    right = ((q.float() + zero[:, None]) * scale).bfloat16().double()
    torch.testing.assert_close(out.double(), a.double() @ right, rtol=1e-4, atol=1e-4)


@pytest.mark.spread(3)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("stored", ["i8", "f8e4m3", pytest.param("f8e5m2", marks=pytest.mark.slow)])
def test_mixed_mm(stored, config):
    """Casts before the products, a factor of each column after the sums."""
    torch.manual_seed(0)
    a = torch.randn(3, 70).bfloat16()
    w = (torch.randn(70, 33) * 30).to(DTYPES[stored])
    scale, bias = torch.rand(33) * 0.01, torch.randn(33)
    found = mixed_mm(a, w, scale, bias, config=config)
    expected = a.double() @ (w.double() * scale.double()) + bias.double()
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-2)


def test_what_is_refused():
    problem = Problem(16, 64, 64, "bf16", "i8", prologue_b=cast_of("bf16"))
    for template in set(FAMILIES) - able("prologues") - {"gated", "gated_gluon", "grouped"}:
        with pytest.raises(InvalidConfig, match="prologues are for"):
            make_plan(problem, Config(64, 64, 64, template=template, split_k=2, programs=132))
    scaled = Problem(16, 64, 64, block_scale=block_scale_of(b=(1, 64, 1), block_k=64))
    for config in (VECTOR, SKINNY, DECOMPOSED):
        with pytest.raises(InvalidConfig, match="block scales are for"):
            make_plan(scaled, config)
        assert not is_legal(scaled, config, H200)


@pytest.mark.parametrize("columns", [True, False], ids=["K contiguous", "N contiguous"])
@pytest.mark.parametrize("m", [1, 16, 64])
def test_proposals(m, columns):
    """Other configs than for wide weights, all legal; predicted before tiles."""
    stride = (1, 4096) if columns else None
    problem = Problem(m, 4096, 4096, "bf16", "i8", b_stride=stride, prologue_b=cast_of("bf16"))
    wide = Problem(m, 4096, 4096, b_stride=stride)
    found = [c for c in candidates(problem, H200) if c.config]
    assert found[0].config.template == "gemv"
    legal = [c for c in gemv.configs(problem, H200) if is_legal(problem, c, H200)]
    assert legal == list(gemv.configs(problem, H200)) != list(gemv.configs(wide, H200))
    assert any(c.split_k == 1 for c in legal) or (m == 1 and not columns)
    best = min(gemv.predict(problem, c, H200)[0] for c in legal)
    tiled = FAMILIES["tiled"]
    others = [c for c in tiled.configs(problem, H200) if is_legal(problem, c, H200)]
    assert best < min(tiled.predict(problem, c, H200)[0] for c in others)


def test_shared_memory_is_of_what_is_loaded():
    """Half the bytes a stage: more stages fit, and the estimate says so."""
    config = Config(64, 64, 256, 1, 4, 4, "split_k", split_k=2)
    wide = Problem(64, 4096, 4096)
    narrow = replace(wide, b_dtype="i8", prologue_b=cast_of("bf16"))
    assert split_k.stage_bytes(wide, config) == 2 * 64 * 256 * 2
    assert split_k.stage_bytes(narrow, config) == 64 * 256 * 3
    assert not is_legal(wide, config, H200)
    assert is_legal(narrow, config, H200)


# A factor for each column, loaded as compilers say it: not for each element.
WEIGHTS = Prologue(
    "weights",
    """
@triton.jit
def weights(tile, r_outer, rk, first_k, mask, operands):
    scale = tl.load(operands[0] + r_outer, r_outer < 4096).to(tl.float32)
    return (tile.to(tl.bfloat16).to(tl.float32) * scale).to(tl.bfloat16)
""",
    (KernelParam("scale", "*bf16"),),
)
HOPPER = (
    (1, Config(1, 4, 4096, 1, 8, 1, "gemv"), "ld.global.v4.b32"),
    (1, Config(1, 4, 1024, 1, 4, 4, "gemv"), "cp.async.cg"),
    (16, Config(16, 32, 256, 1, 2, 4, "gemv", split_k=4), "mma.sync"),
    (64, Config(64, 64, 128, 1, 4, 4, "gemv", split_k=2), "wgmma.mma_async"),
    *(
        pytest.param(
            64,
            Config(64, 64, 128, 1, 4, 4, template, split_k=4),
            "wgmma.mma_async",
            marks=pytest.mark.slow,
        )
        for template in ("split_k", "decompose_k")
    ),
)


@pytest.mark.parametrize(("m", "config", "how"), HOPPER, ids=str)
def test_hopper_code(m, config, how):
    """Loads of 16 elements of 8 bits, and shared memory as the estimate has it."""
    problem = Problem(
        m, 4096, 4096, "bf16", "i8", b_stride=(1, 4096), prologue_b=WEIGHTS,
        aligned=frozenset({"a", "b", "out"}),
    )  # fmt: skip
    assert is_legal(problem, config, H200)
    source = make_plan(problem, config).steps[0].source
    everything = (1 << len(source.params)) - 1
    binary = compile(source, Target(90), alignment=everything, keep_ptx=True)
    assert binary.cubin[:4] == b"\x7fELF"
    assert how in binary.ptx
    kept = dense.shared_memory(problem, config) if config.block_m > 1 else H200.smem
    assert binary.shared_bytes <= kept
