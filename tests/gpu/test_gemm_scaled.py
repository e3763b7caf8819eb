"""fp8, 8-bit weights, prologues and the epilogues that look at rows, on a real GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from gemm_templates import (
    Config,
    Inputs,
    Problem,
    bind,
    candidates,
    choose,
    device_info,
    mixed_mm,
    scaled_mm,
)
from gemm_templates.epilogues import (
    scaled_of,
)
from gemm_templates.model import is_legal
from gemm_templates.ops.scaled import FAST_K
from gemm_templates.prologues import block_scale_of, cast_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
        reason="needs a GPU that multiplies fp8",
    ),
]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
NAMES = {E4M3: "f8e4m3", E5M2: "f8e5m2"}
ALIGNED = frozenset({"a", "b", "out"})


def fp8(m, n, k, a_dtype=E4M3, b_dtype=E4M3):
    torch.manual_seed(m + n + k)
    a = torch.randn(m, k, device="cuda").to(a_dtype)
    return a, torch.randn(n, k, device="cuda").to(b_dtype).t()


def scale(*shape):
    return torch.rand(*shape, device="cuda") + 0.5


def error(out, expected):
    assert out.shape == expected.shape and bool(out.isfinite().all())
    return float((out.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("fast", [False, True])
def test_every_legal_config(fast, pool):
    m, n, k = 272, 400, 1040
    a, b = fp8(m, n, k)
    rows, columns = scale(m), scale(n)
    problem = Problem(
        m, n, k, "f8e4m3", "f8e4m3", "f32", b_stride=(1, k), epilogue=scaled_of(m, n),
        aligned=ALIGNED, fast_accum=fast,
    )  # fmt: skip
    expected = (a.double() @ b.double()) * rows.double()[:, None] * columns.double()
    info = device_info("cuda")
    configs = [c.config for c in candidates(problem, info, limit=100) if c.config]
    more = [Config(64, 64, 128, 8, 4, 4, "split_k", 0, 0, 3), Config(16, 32, 256, 8, 4, 3)]
    configs += [c for c in more if is_legal(problem, c, info)]
    assert len(configs) >= 12
    expected_family = "gluon" if fast else "gluon_scaled"
    assert info.capability != (9, 0) or expected_family in {c.template for c in configs}
    for config, run in [(c, bind(problem, c, pool=pool)) for c in configs]:
        out = torch.full((m, n), float("nan"), device="cuda")
        run(Inputs(a, b, out, None, (rows, columns)))
        assert error(out, expected) < (3e-3 if fast else 1e-3), config


@pytest.mark.parametrize("size", [(1, 1, 1), (17, 33, 65), (1, 4096, 4096), (300, 257, 999)])
@pytest.mark.parametrize("types", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E5M2)])
def test_sizes_types_and_layouts(size, types):
    m, n, k = size
    a, b = fp8(m, n, k, *types)
    rows, columns, bias = scale(m, 1), scale(1, n), torch.randn(n, device="cuda")
    expected = (a.double() @ b.double()) * rows.double() * columns.double() + bias.double()
    config = Config(64, 64, 64, 8, 4, 3)
    for x in (a, a.t().contiguous().t()):
        for y in (b, b.contiguous()):
            out = scaled_mm(x, y, rows, columns, bias, torch.float32, config=config)
            assert error(out, expected) < 1e-3


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("act", ["none", "gelu"])
def test_as_torch_does_it(act, out):
    a, b = fp8(512, 768, 1024)
    rows, columns = scale(512, 1), scale(1, 768)
    bias = torch.randn(768, device="cuda", dtype=torch.bfloat16)
    expected = (a.double() @ b.double()) * rows.double() * columns.double() + bias.double()
    expected = F.gelu(expected) if act == "gelu" else expected
    config = Config(128, 128, 128, 8, 8, 3, "tma", 132, 2)
    for given in (config, replace(config, template="tiled", programs=0, split_n=0), None):
        result = scaled_mm(a, b, rows, columns, bias, out, act=act, config=given)
        assert result.dtype == out and error(result, expected) < 5e-3
    one = torch.full((), 0.5, device="cuda")
    expected = (a.double() @ b.double()) * 0.25
    assert error(scaled_mm(a, b, one, one, use_fast_accum=True), expected) < 5e-3


def test_sums_in_f32_are_the_more_exact_ones():
    a, b = fp8(128, 128, FAST_K)
    a, b = a.float().abs().to(E4M3), b.float().abs().to(E4M3)  # sums that grow
    expected = a.double() @ b.double()
    one = torch.ones(1, device="cuda")
    config = Config(128, 128, 128, 8, 8, 3)
    fast, exact = (
        error(scaled_mm(a, b, one, one, None, torch.float32, f, config=config), expected)
        for f in (True, False)
    )
    assert exact < 1e-3 and exact < fast < 0.1
    a, b = fp8(128, 128, 16384)
    a, b = a.float().abs().to(E4M3), b.float().abs().to(E4M3)
    long = scaled_mm(a, b, one, one, None, torch.float32, True, config=config)
    assert error(long, a.double() @ b.double()) < 1e-3


@pytest.mark.parametrize("size", [(256, 512, 512), (100, 272, 400)])
@pytest.mark.parametrize(("a_rows", "b_columns"), [(1, 128), (1, 1), (128, 128)])
def test_blocks(a_rows, b_columns, size):
    m, n, k = size
    a, b = fp8(m, n, k)
    scale_a = scale(-(-k // 128), -(-m // a_rows)).t()
    scale_b = scale(-(-k // 128), -(-n // b_columns))
    wide_a = scale_a.double().repeat_interleave(a_rows, 0).repeat_interleave(128, 1)[:m, :k]
    wide_b = scale_b.double().repeat_interleave(128, 0).repeat_interleave(b_columns, 1)[:k, :n]
    expected = (a.double() * wide_a) @ (b.double() * wide_b)
    for config in (
        Config(64, 64, 128, 8, 4, 3), Config(128, 128, 128, 8, 8, 3, "tma", 132, 2),
        Config(64, 256, 64, 8, 8, 3, "tma", 132, 4),
        Config(128, 128, 128, 8, 8, 5, "gluon_scaled", 132, 2),
        Config(128, 64, 128, 8, 8, 4, "gluon_scaled", 132, 0),
    ):  # fmt: skip
        if config.template == "gluon_scaled" and torch.cuda.get_device_capability() != (9, 0):
            continue
        out = scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.float32, config=config)
        assert error(out, expected) < 1e-3
    if m == 256:
        scale_b = scale_b.t().contiguous().t()  # as torch._scaled_mm takes it
        assert error(scaled_mm(a, b, scale_a, scale_b), expected) < 5e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(1, 512, 1024), (33, 65, 320), (200, 512, 512)])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_weights_of_8_bits(layout, size, dtype):
    m, n, k = size
    a = torch.randn(m, k, device="cuda", dtype=dtype)
    w = torch.randint(-128, 128, (n, k), device="cuda", dtype=torch.int8).t()
    w = w if layout == "columns" else w.contiguous()
    columns, groups = scale(n), scale(k // 64, n)
    configs = [Config(64, 64, 64, 8, 4, 3), Config(16, 64, 64, 8, 4, 4)]
    if n % 16 == 0:
        configs += [Config(128, 128, 64, 8, 8, 3, "tma", 132, 2)]
    if m == 200:
        configs += [None]
    plain = a.double() @ w.double()
    grouped = a.double() @ (w.double() * groups.double().repeat_interleave(64, 0))
    for config in configs:
        out = mixed_mm(a, w, columns, out_dtype=torch.float32, config=config)
        assert error(out, plain * columns.double()) < (1e-5 if config else 5e-3)
        out = mixed_mm(a, w, groups, out_dtype=torch.float32, config=config)
        assert error(out, grouped) < (1e-5 if config else 5e-3)


EPILOGUES = [Config(128, 128, 64, 8, 8, 3), Config(128, 256, 64, 8, 8, 3, "tma", 132, 2)]


def matmul(m, n, k, epilogue, operands, config, out=torch.bfloat16):
    torch.manual_seed(n)
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).t()
    name = {torch.bfloat16: "bf16", torch.float32: "f32"}.get(out) or NAMES[out]
    problem = Problem(
        m, n, k, out_dtype=name, b_stride=(1, k), epilogue=epilogue, aligned=ALIGNED
    )  # fmt: skip
    result = torch.empty((m, n), device="cuda", dtype=out)
    bind(problem, config)(Inputs(a, b, result, None, operands))
    return result, a.double() @ b.double()


def test_choose_takes_what_is_fast_and_right(pool):
    m, n, k = 64, 2048, 2048
    a, b = fp8(m, n, k)
    rows, columns = scale(m, 1), scale(1, n)
    problem = Problem(
        m, n, k, "f8e4m3", "f8e4m3", b_stride=(1, k), epilogue=scaled_of(m, n), aligned=ALIGNED
    )  # fmt: skip
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

    def extern(_):
        return torch._scaled_mm(a, b, rows, columns, out_dtype=torch.bfloat16)

    inputs = Inputs(a, b, out, None, (rows.view(-1), columns.view(-1)))
    choice = choose(problem, inputs, extern)
    assert not choice.failures, choice.explain()
    assert len(choice.times) >= 3


def test_a_prologue_of_both_operands():
    m, n, k = 200, 136, 328
    a = torch.randint(-20, 20, (m, k), device="cuda", dtype=torch.int8)
    b = torch.randint(-20, 20, (n, k), device="cuda", dtype=torch.int8).t()
    blocks = scale(-(-k // 64), n)
    problem = Problem(
        m, n, k, "i8", "i8", "f32", b_stride=(1, k), prologue_a=cast_of("f16"),
        prologue_b=cast_of("f16"), aligned=ALIGNED,
        block_scale=block_scale_of(b=(1, *blocks.stride()), block_k=64),
    )  # fmt: skip
    expected = a.double() @ (b.double() * blocks.double().repeat_interleave(64, 0)[:k])
    out = torch.empty(m, n, device="cuda")
    bind(problem, Config(64, 64, 64))(Inputs(a, b, out, before=(blocks,)))
    assert error(out, expected) < 1e-5
