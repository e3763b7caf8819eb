"""The template whose warps have roles on a real GPU, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from gemm_templates import Config, Epilogue, Inputs, Param, Problem, bind, device_info
from gemm_templates.epilogues import GELU, RELU, residual_of
from gemm_templates.families.gluon import family as gluon
from gemm_templates.model import is_legal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs a Hopper GPU",
    ),
]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
TOLERANCE = {"bf16": 1.6e-2, "f16": 2e-3, "f32": 1e-4}
ALIGNED = frozenset({"a", "b", "bias", "out"})


def matrix(rows, columns, dtype, by_rows, pad=0):
    """Contiguous along its columns, or (by_rows=False) its rows, `pad` elements apart."""
    shape = (rows, columns + pad) if by_rows else (columns, rows + pad)
    full = torch.randn(shape, device="cuda", dtype=DTYPES[dtype])
    return full[:, :columns] if by_rows else full[:, :rows].t()


def make(m, n, k, dtype="bf16", a_rows=True, b_rows=True, pad=0):
    torch.manual_seed(0)
    a = matrix(m, k, dtype, a_rows, pad)
    b = matrix(k, n, dtype, b_rows, pad)
    b.mul_(max(k, 1) ** -0.5)
    return a, b


def check(run, inputs, expected):
    inputs.out.fill_(float("nan"))
    run(inputs)
    tolerance = TOLERANCE[run.problem.out_dtype]
    torch.testing.assert_close(inputs.out.double(), expected, rtol=tolerance, atol=tolerance)


def every_run(problem, pool):
    """All legal configs, which compile side by side."""
    info = device_info("cuda")
    found = [c for c in gluon.configs(problem, info) if is_legal(problem, c, info)]
    assert found, problem
    return [bind(problem, config, pool=pool) for config in found]


@pytest.mark.parametrize(("a_rows", "b_rows"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_config_and_layout(a_rows, b_rows, dtype, pool):
    m, n, k = 3000, 1544, 712
    a, b = make(m, n, k, dtype, a_rows, b_rows, pad=8)
    bias = torch.randn(n, device="cuda", dtype=DTYPES[dtype])
    problem = Problem(
        m, n, k, dtype, dtype, dtype, a.stride(), b.stride(), bias=dtype, epilogue=GELU,
        aligned=ALIGNED,
    )  # fmt: skip
    expected = F.gelu(a.double() @ b.double() + bias.double())
    runs = every_run(problem, pool)
    assert len(runs) == len(gluon.configs(problem, device_info("cuda")))
    out = torch.empty((m, n), device="cuda", dtype=DTYPES[dtype])
    for run in runs:
        check(run, Inputs(a, b, out, bias), expected)


@pytest.mark.parametrize(
    "size",
    [(1, 8, 8), (5, 1000, 8), (129, 136, 72), (64, 64, 64), (1, 4096, 4096), (8191, 264, 16)],
)
def test_sizes(size, pool):
    m, n, k = size
    a, b = make(m, n, k)
    expected = a.double() @ b.double()
    problem = Problem(m, n, k, aligned=ALIGNED)
    out = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
    for run in every_run(problem, pool):
        check(run, Inputs(a, b, out), expected)


SHARED = [
    (size, columns, rows, shares)
    for rows, columns, shares in (
        (128, 128, 2),
        (128, 128, 3),
        (128, 128, 8),
        (128, 256, 4),
        (64, 128, 4),
    )
    for size in ((2500, 2504, 1000), (600, 1032, 4096), (129, 136, 712), (2500, 2501, 520))
][::3]  # each size and each shape of tiles at least once


@pytest.mark.parametrize(("size", "columns", "rows", "shares"), SHARED)
def test_tiles_that_programs_share(size, columns, rows, shares, pool):
    """Right, the same to the bit each time, and the counters are zero after; launches overlap."""
    m, n, k = size
    a, b = make(m, n, k, b_rows=False)
    bias = torch.randn(n, device="cuda", dtype=torch.bfloat16)
    problem = Problem(
        m, n, k, b_stride=b.stride(), bias="bf16", epilogue=GELU, aligned=ALIGNED - {"out"}
    )
    shape = next(s for s in gluon._SHAPES if s[:2] == (rows, columns))
    config = Config(*shape[:6], "gluon", 132, shape[6], split_k=shares)
    info = device_info("cuda")
    tiles = -(-m // rows) * -(-n // columns)
    programs = min(tiles * shares, 132)
    assert is_legal(problem, config, info)
    run = bind(problem, replace(config, overlap=True), pool=pool)
    outs = [torch.empty((m, n), device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    expected = F.gelu(a.double() @ b.double() + bias.double())
    check(run, Inputs(a, b, outs[0], bias), expected)
    for out in outs[1:]:
        run(Inputs(a, b, out, bias))
    assert all(torch.equal(out, outs[0]) for out in outs[1:])
    counters = [memory for key, memory in run._zeroed.items() if key[0] == "counters"]
    assert counters and not any(memory.any() for memory in counters)
    if 0 < tiles % programs <= programs // shares:  # else nothing is shared
        whole = bind(problem, replace(config, split_k=1), pool=pool)
        whole(Inputs(a, b, outs[1], bias))
        assert not torch.equal(outs[0], outs[1]) or k < 1000  # sums in another order


def test_gated_tiles_that_programs_share(pool):
    m, n, k = 2500, 2504, 1000
    a, b = make(m, n, k)
    b2 = torch.randn_like(b).mul_(k**-0.5)
    out = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
    problem = Problem(m, n, k, gate=RELU, aligned=ALIGNED | {"b2"})
    expected = torch.relu(a.double() @ b.double()) * (a.double() @ b2.double())
    first = None
    for _ in range(3):
        run = bind(problem, Config(128, 128, 64, 8, 8, 4, "gated_gluon", 132, 2, 4), pool=pool)
        check(run, Inputs(a, b, out, b2=b2), expected)
        first = out.clone() if first is None else first
        assert torch.equal(first, out)


def test_rows_that_no_descriptor_may_write(pool):
    """Odd rows, columns of `out`, unaligned: stored from registers; guards stay untouched."""
    m, n, k = 1001, 999, 520
    a, b = make(m, n, k, b_rows=False)
    expected = a.double() @ b.double()
    guarded = torch.full((m * n + 64,), 7.0, device="cuda", dtype=torch.bfloat16)
    by_columns = torch.empty((n, m), device="cuda", dtype=torch.bfloat16).t()
    for out in (guarded[1 : m * n + 1].view(m, n), guarded[: m * n].view(m, n), by_columns):
        guarded.fill_(7.0)
        problem = Problem(
            m, n, k, b_stride=b.stride(), out_stride=out.stride(), aligned=frozenset({"a", "b"})
        )
        check(every_run(problem, pool)[0], Inputs(a, b, out), expected)
        if out is not by_columns:
            assert (guarded[m * n + 1 :] == 7.0).all()


def test_other_output_types(pool):
    a, b = make(1024, 768, 512)
    expected = a.double() @ b.double()
    for name in ("f32", "f16"):
        problem = Problem(1024, 768, 512, out_dtype=name, aligned=ALIGNED)
        out = torch.empty((1024, 768), device="cuda", dtype=DTYPES[name])
        for run in every_run(problem, pool):
            check(run, Inputs(a, b, out), expected)


@pytest.mark.parametrize("m", [1, 5000])
def test_dynamic_rows_and_a_residual(m, pool):
    n, k = 768, 256
    a, b = make(m, n, k)
    residual = torch.randn(m, n, device="cuda", dtype=torch.bfloat16)
    expected = a.double() @ b.double() + residual.double()
    for dynamic in (frozenset({"M"}), frozenset({"M", "K", "stride_am", "stride_om"})):
        problem = Problem(
            m, n, k, epilogue=residual_of("bf16", 2, wide=True), dynamic=dynamic,
            aligned=ALIGNED | (dynamic - {"M"}),
        )  # fmt: skip
        out = torch.empty_like(residual)
        for run in every_run(problem, pool):
            check(run, Inputs(a, b, out, None, (residual, n, 1)), expected)


def test_an_epilogue_that_stores(pool):
    text = """
@triton.jit
def both(acc, rm, rn, mask, operands):
    first, second = operands
    tl.store(first + (rm * 1544 + rn), tl.maximum(acc, 0.0), mask=mask)
    tl.store(second + (rm * 1544 + rn), -acc, mask=mask)
    return acc
"""
    operands = (Param("first", "*f32", mutated=True), Param("second", "*f32", mutated=True))
    m, n, k = 1100, 1544, 256
    a, b = make(m, n, k)
    expected = a.double() @ b.double()
    epilogue = Epilogue("both", text, operands, True, bytes_per_element=8)
    problem = Problem(m, n, k, epilogue=epilogue, aligned=ALIGNED)
    for run in every_run(problem, pool):
        first, second = torch.full((2, m, n), float("nan"), device="cuda")
        run(Inputs(a, b, None, None, (first, second)))
        for found, wanted in ((first, expected.relu()), (second, -expected)):
            torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(8192, 2048, 64), (4096, 4096, 4096), (16384, 768, 3072)])
def test_many_tiles_give_the_same_digits_each_time(size, pool):
    """Rings that wrap, groups that take turns, stores that overlap: a race would move digits."""
    m, n, k = size
    a, b = make(m, n, k, b_rows=False)
    residual = torch.randn(m, n, device="cuda", dtype=torch.bfloat16)
    product = a.double() @ b.double()
    cases = (
        (RELU, (), product.relu()),
        (residual_of("bf16", 2, stride=(n, 1)), (residual,), product + residual.double()),
    )
    for epilogue, operands, expected in cases:
        problem = Problem(m, n, k, b_stride=b.stride(), epilogue=epilogue, aligned=ALIGNED)
        out, again = torch.empty((2, m, n), device="cuda", dtype=torch.bfloat16)
        for run in every_run(problem, pool):
            check(run, Inputs(a, b, out, None, operands), expected)
            for _ in range(20):
                again.fill_(float("nan"))
                run(Inputs(a, b, again, None, operands))
                assert torch.equal(out, again), run.plan
