"""fp8 and 8-bit weights against float64, on CPU tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from gemm_templates import (
    Config,
    InvalidArguments,
    InvalidConfig,
    Problem,
    candidates,
    mixed_mm,
    scaled_mm,
    source,
)
from gemm_templates.device import A100, H200
from gemm_templates.epilogues import (
    scaled_of,
)
from gemm_templates.families.gluon_scaled import family as gluon_scaled
from gemm_templates.ops.scaled import SCALED_MM
from gemm_templates.prologues import block_scale_of, cast_of
from triton_rt import Target, compile

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TILED = Config(16, 32, 32, 2, 4, 2)
TMA = Config(16, 32, 32, 2, 4, 2, "tma", 3)
TOLERANCE = {torch.float32: 5e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def operands(m, n, k, a_dtype=E4M3, b_dtype=E4M3):
    generator = torch.Generator().manual_seed(m * n + k)
    a = torch.randn(m, k, generator=generator).to(a_dtype)
    return a, torch.randn(n, k, generator=generator).to(b_dtype).t()


def scale(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.5


def check(out, expected):
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("config", [TILED, TMA, None])
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_and_columns(out, config):
    a, b = operands(20, 40, 48)
    rows, columns, bias = scale(20, 1), scale(1, 40), torch.randn(40)
    got = scaled_mm(a, b, rows, columns, bias, out, act="gelu", config=config)
    check(got, F.gelu((a.double() @ b.double()) * rows.double() * columns.double() + bias.double()))


@pytest.mark.parametrize("config", [TILED, TMA])
@pytest.mark.parametrize("shapes", [((1,), (1, 1)), ((), (1, 40)), ((20, 1), (1,))])
def test_one_scale_for_a_tensor(shapes, config):
    a, b = operands(20, 40, 48)
    scales = [torch.rand(s) + 0.5 for s in shapes]
    got = scaled_mm(a, b, *scales, out_dtype=torch.float32, use_fast_accum=True, config=config)
    check(got, (a.double() @ b.double()) * scales[0].double() * scales[1].double())


@pytest.mark.parametrize(("k", "fast"), [(4096, True), (4112, False)])
def test_long_sums_leave_the_tensor_cores(k, fast):
    a, b = operands(16, 16, k)
    given = (a, b, torch.ones(1), torch.ones(1), None)
    out = torch.empty(16, 16, dtype=torch.bfloat16)
    assert SCALED_MM.problem(given, (None, True, "none"), out).fast_accum == fast
    assert not SCALED_MM.problem(given, (None, False, "none"), out).fast_accum


@pytest.mark.parametrize("types", [(E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)])
def test_types_and_layouts(types):
    a, b = operands(17, 33, 31, *types)
    rows, columns = scale(17, 1), scale(1, 33)
    expected = (a.double() @ b.double()) * rows.double() * columns.double()
    for x in (a, a.t().contiguous().t()):
        for y in (b, b.contiguous()):
            check(scaled_mm(x, y, rows, columns, out_dtype=torch.float32, config=TILED), expected)


def spread(scales, rows, columns):
    return scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)


@pytest.mark.spread(2)
@pytest.mark.parametrize("config", [TILED, TMA, Config(16, 256, 128, 2, 4, 2), None])
@pytest.mark.parametrize(
    ("a_rows", "b_columns", "k"),
    [
        (1, 128, 208), (1, 1, 256), (128, 128, 208),
        *(pytest.param(*c, marks=pytest.mark.slow)
          for c in ((1, 128, 256), (1, 1, 208), (128, 128, 256))),
    ],
)  # fmt: skip
def test_blocks(k, a_rows, b_columns, config):
    m, n = (144 if a_rows > 1 else 40), (272 if b_columns > 1 else 40)  # whole blocks and a part
    if a_rows > 1 and config in (TILED, TMA):  # few programs, for the interpreter
        config = replace(config, block_m=64, block_n=64)
    a, b = operands(m, n, k)
    scale_a = scale(-(-m // a_rows), -(-k // 128)).t().contiguous().t()
    scale_b = scale(-(-k // 128), -(-n // b_columns))
    bias = torch.randn(n).bfloat16()
    wide_a = a.double() * spread(scale_a.double(), a_rows, 128)[:m, :k]
    wide_b = b.double() * spread(scale_b.double(), 128, b_columns)[:k, :n]
    got = scaled_mm(a, b, scale_a, scale_b, bias, torch.float32, config=config)
    check(got, wide_a @ wide_b + bias.double())


def test_blocks_of_one_operand_and_a_scale_for_each_row_of_the_other():
    a, b = operands(20, 40, 256)
    rows, blocks = scale(20, 1), scale(2, 1)
    expected = (a.double() * rows.double()) @ (b.double() * spread(blocks.double(), 128, 40))
    for config in (TILED, None):
        check(scaled_mm(a, b, rows, blocks, out_dtype=torch.float32, config=config), expected)
        one = scaled_mm(a, b, rows[:1], blocks, out_dtype=torch.float32, config=config)
        check(one, expected / rows.double() * rows[:1].double())


@pytest.mark.parametrize("size", [(0, 8, 16), (8, 0, 16), (8, 8, 0)])
def test_empty(size):
    a, b = operands(*size)
    m, n, _ = size
    for config in (TILED, None):
        out = scaled_mm(a, b, torch.ones(1), torch.ones(1), torch.ones(n), config=config)
        assert out.shape == (m, n) and bool((out == 1).all())


@pytest.mark.parametrize("config", [TILED, TMA, None])
@pytest.mark.parametrize("weights", [torch.int8, E4M3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_8_bits(dtype, weights, config):
    a = torch.randn(20, 48).to(dtype)
    w = (torch.randn(40, 48) * 40).to(weights)
    columns, bias = scale(40), torch.randn(40)
    expected = F.silu(a.double() @ w.double().t() * columns.double() + bias.double())
    got = mixed_mm(a, w.t(), columns, bias, "silu", out_dtype=torch.float32, config=config)
    if config is not None:
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-3)
    assert float((got.double() - expected).norm() / expected.norm()) < 5e-3


@pytest.mark.parametrize("config", [TILED, TMA, Config(16, 16, 64), None])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_weights_with_scales_of_groups(layout, config):
    a = torch.randn(20, 256).bfloat16()
    w = torch.randint(-128, 128, (256, 48), dtype=torch.int8)
    w = w if layout == "rows" else w.t().contiguous().t()
    groups = scale(4, 48).bfloat16()
    expected = a.double() @ (w.double() * spread(groups.double(), 64, 1))
    got = mixed_mm(a, w, groups, out_dtype=torch.float32, config=config)
    bound = 1e-6 if config else 5e-3  # torch rounds the scaled weights
    assert float((got.double() - expected).norm() / expected.norm()) < bound


def test_what_is_refused():
    a, b = operands(20, 40, 48)
    one = torch.ones(1)
    with pytest.raises(InvalidArguments, match="expected one element"):
        scaled_mm(a, b, torch.ones(19, 1), one)
    with pytest.raises(InvalidArguments, match="expected fp8"):
        scaled_mm(a.bfloat16(), b, one, one)
    with pytest.raises(InvalidArguments, match=r"expected torch\.float32"):
        scaled_mm(a, b, one.half(), one)
    with pytest.raises(InvalidArguments, match="bias"):
        scaled_mm(a, b, one, one, torch.ones(39))
    with pytest.raises(InvalidArguments, match="groups"):
        mixed_mm(a.bfloat16(), b, torch.ones(7, 40))
    with pytest.raises(InvalidArguments, match="expected bf16 or f16"):
        mixed_mm(a.float(), b, torch.ones(40))
    with pytest.raises(InvalidConfig, match="block_k >= 32"):
        source(Problem(32, 32, 32, "f8e4m3", "f8e4m3"), Config(16, 16, 16))


def test_candidates():
    problem = Problem(
        4096, 4096, 4096, "f8e4m3", "f8e4m3", b_stride=(1, 4096),
        aligned=frozenset({"a", "b", "out"}),
    )  # fmt: skip
    assert {c.config.template for c in candidates(problem, H200) if c.config} >= {"tma"}
    assert all(c.config is None for c in candidates(problem, A100))
    wide = Problem(4096, 4096, 4096, b_stride=(1, 4096), aligned=problem.aligned)
    fast = {p: min(c.predicted for c in candidates(p, H200)) for p in (problem, wide)}
    assert 0.4 < fast[problem] / fast[wide] < 0.8


ALIGNED = frozenset({"a", "b", "out"})
FP8 = Problem(
    4096, 4096, 4096, "f8e4m3", "f8e4m3", b_stride=(1, 4096), epilogue=scaled_of(4096, 4096),
    aligned=ALIGNED, fast_accum=True,
)  # fmt: skip
BLOCKS = replace(
    FP8, epilogue=None, block_scale=block_scale_of(a=(1, 1, 4096), b=(128, 1, 32))
)  # fmt: skip
INT8 = replace(
    FP8, a_dtype="bf16", b_dtype="i8", prologue_b=cast_of("bf16"), fast_accum=False
)  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "config", "depth", "sums"),
    [
        (replace(FP8, fast_accum=False), Config(128, 128, 128, 8, 8, 3), 32, 64),
        (
            replace(FP8, fast_accum=False), Config(128, 128, 128, 8, 8, 6, "gluon_scaled", 132, 2),
            32, 64,
        ),
        (BLOCKS, Config(128, 128, 128, 8, 8, 3, "tma", 132, 2), 32, 0),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (
            (FP8, Config(128, 128, 128, 8, 8, 3), 32, 0),
            (INT8, Config(128, 128, 64, 8, 8, 3), 16, 0),
            (FP8, Config(128, 256, 128, 8, 8, 3, "tma", 132, 2), 32, 0),
            (FP8, Config(128, 256, 128, 8, 8, 4, "gluon", 132, 4), 32, 0),
            (replace(FP8, fast_accum=False), Config(128, 128, 128, 8, 8, 3, "tma", 132), 32, 64),
            (BLOCKS, Config(128, 128, 128, 8, 8, 6, "gluon_scaled", 132, 2), 32, 0),
        )),
    ],
)  # fmt: skip
def test_hopper_code(problem, config, depth, sums):
    """Products by `wgmma` of the right type, nothing in local memory, and sums in f32 where they
    are asked for: one for each accumulator after 128 along K."""
    kernel = source(problem, config).source
    everything = sum(1 << i for i, p in enumerate(kernel.params) if p.may_align)
    binary = compile(kernel, Target(90), alignment=everything, keep_ptx=True)
    kind = "f32.e4m3.e4m3" if depth == 32 else "f32.bf16.bf16"
    assert f"k{depth}.{kind}" in binary.ptx
    assert "ld.local" not in binary.ptx and "mma.sync" not in binary.ptx
    added = binary.ptx.count("add.f32") + binary.ptx.count("add.rn.f32")
    assert added >= sums if sums else added == 0
    if config.template == "gluon_scaled":
        assert binary.shared_bytes <= gluon_scaled.shared_memory(problem, config) <= H200.smem
