"""K shared among programs, and few rows, on a real GPU against float64."""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from gemm_templates import Bound, Config, Inputs, Problem, bind, device_info
from gemm_templates.epilogues import GELU, residual_of
from gemm_templates.model import is_legal
from gemm_templates.registry import FAMILIES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
TOLERANCE = {"bf16": 1.6e-2, "f16": 4e-3, "f32": 1e-4}
ALIGNED = frozenset({"a", "b", "bias", "out"})
OURS = ("split_k", "decompose_k", "gemv")
FORMS = [
    Config(16, 16, 32, 1, 2, 3, "split_k", split_k=7),
    Config(32, 64, 64, 2, 4, 1, "split_k", split_k=5),
    Config(64, 64, 64, 8, 4, 4, "split_k", split_k=4),
    Config(128, 128, 64, 8, 8, 3, "split_k", split_k=3),
    Config(128, 128, 64, 4, 8, 3, "split_k", split_k=1),
    Config(16, 16, 64, 1, 4, 4, "decompose_k", split_k=9),
    Config(64, 64, 64, 4, 4, 4, "decompose_k", split_k=4, overlap=True),
    Config(32, 32, 32, 1, 4, 5, "decompose_k", split_k=16, overlap=True),
    Config(1, 4, 1024, 1, 4, 4, "gemv", split_k=3),
    Config(1, 64, 32, 1, 2, 1, "gemv", split_k=8),
    Config(1, 512, 4, 1, 2, 3, "gemv", split_k=2),
    Config(8, 64, 64, 1, 4, 4, "gemv", split_k=3),
    Config(16, 64, 128, 1, 4, 3, "gemv", split_k=2),
    Config(64, 128, 64, 1, 8, 4, "gemv"),
]


def make(m, n, k, dtype, transposed=False, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    a = torch.randn(m, k, device="cuda", generator=generator).to(DTYPES[dtype])
    b = (torch.randn(k, n, device="cuda", generator=generator) / max(k, 1) ** 0.5).to(DTYPES[dtype])
    return a, (b.t().contiguous().t() if transposed else b)


def run(bound, inputs):
    inputs.out.fill_(float("nan"))
    bound(inputs)
    return inputs.out.clone()


def check(out, expected, dtype):
    torch.testing.assert_close(out.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def prepared(cases, pool):
    """(problem, config, Bound) with all compiled side by side."""
    found = [(problem, config, Bound(problem, config, None, pool)) for problem, config in cases]
    wait([future for *_, bound in found for future in bound.compile()])
    return found


SIZES = [(1, 1, 1), (5, 40, 7), (17, 33, 650), (48, 136, 1000), (130, 200, 2048), (64, 64, 4096)]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_every_form(dtype, transposed, pool):
    """Odd sizes, with bias and epilogue and without, twice each: the counters are left at zero."""
    cases = []
    for m, n, k in SIZES if dtype == "bf16" else SIZES[1::2]:
        a, b = make(m, n, k, dtype, transposed)
        plain = Problem(m, n, k, dtype, dtype, dtype, a.stride(), b.stride())
        ended = replace(plain, bias=dtype, epilogue=GELU)
        cases += [(plain, c) for c in FORMS] + [(ended, c) for c in FORMS[1::2]]
    info = device_info("cuda")
    small = 1024 if dtype == "f32" else 2**20  # exact f32 products are unrolled: slow to compile
    cases = [(p, c) for p, c in cases if is_legal(p, c, info) and c.block_m * c.block_n <= small]
    assert len(cases) > 30
    for problem, _, bound in prepared(cases, pool):
        m, n, k = problem.m, problem.n, problem.k
        a, b = make(m, n, k, dtype, transposed)
        bias = torch.randn(n, device="cuda").to(DTYPES[dtype]) if problem.bias else None
        expected = a.double() @ b.double()
        if bias is not None:
            expected = F.gelu(expected + bias.double())
        inputs = Inputs(a, b, torch.empty(m, n, device="cuda", dtype=DTYPES[dtype]), bias)
        first, second = run(bound, inputs), run(bound, inputs)
        check(first, expected, dtype)
        assert torch.equal(first, second)


def test_every_proposal(pool):
    """All that the families propose for the sizes that they are for."""
    info = device_info("cuda")
    sizes = [(16, 16, 4096), (48, 48, 4096), (128, 128, 8192), (1, 1000, 2048), (8, 1000, 2048)]
    cases = []
    for m, n, k in sizes:
        problem = Problem(m, n, k, "f16", "f16", "f16", b_stride=(1, k), aligned=ALIGNED)
        for name in OURS:
            cases += [(problem, c) for c in FAMILIES[name].configs(problem, info)[::3]]
    cases = [(p, c) for p, c in cases if is_legal(p, c, info)]
    assert {c.template for _, c in cases} == set(OURS) and len(cases) > 40
    for problem, _, bound in prepared(cases, pool):
        a, b = make(problem.m, problem.n, problem.k, "f16", True)
        out = torch.empty(problem.m, problem.n, device="cuda", dtype=torch.float16)
        check(run(bound, Inputs(a, b, out)), a.double() @ b.double(), "f16")


@pytest.mark.parametrize("config", [FORMS[2], FORMS[4], FORMS[7], FORMS[10], FORMS[13]], ids=str)
def test_strides_empty_k_and_residual(config):
    m, n, k = 33, 70, 500
    big = torch.randn(2 * m, 3 * k, device="cuda")[::2, ::3]
    b = torch.randn(n, k, device="cuda").t()
    out = torch.empty(n, m, device="cuda").t()
    problem = Problem(
        m, n, k, "f32", "f32", "f32", big.stride(), b.stride(), out.stride(),
        input_precision="tf32",
    )  # fmt: skip
    got = run(bind(problem, config), Inputs(big, b, out))
    torch.testing.assert_close(got.double(), big.double() @ b.double(), rtol=5e-3, atol=0.2)
    empty = Problem(m, n, 0, bias="bf16", aligned=ALIGNED)
    a, b = make(m, n, 0, "bf16")
    bias = torch.randn(n, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    check(run(bind(empty, config), Inputs(a, b, out, bias)), bias.double().expand(m, n), "bf16")
    a, b = make(m, n, k, "bf16")
    residual = torch.randn(m, n, device="cuda", dtype=torch.bfloat16)
    problem = Problem(m, n, k, epilogue=residual_of("bf16", 2, stride=(n, 1)))
    got = run(bind(problem, config), Inputs(a, b, out, None, (residual,)))
    check(got, a.double() @ b.double() + residual.double(), "bf16")


@pytest.mark.parametrize("config", [FORMS[2], FORMS[7], FORMS[10]], ids=str)
def test_batches(config):
    a = torch.randn(3, 20, 900, device="cuda", dtype=torch.float16)
    b = torch.randn(3, 900, 72, device="cuda", dtype=torch.float16) / 30
    out = torch.empty(3, 20, 72, device="cuda", dtype=torch.float16)
    problem = Problem(20, 72, 900, "f16", "f16", "f16", batch=3)
    check(run(bind(problem, config), Inputs(a, b, out)), a.double() @ b.double(), "f16")


@pytest.mark.parametrize("config", [FORMS[1], FORMS[4], FORMS[8], FORMS[9]], ids=str)
def test_who_comes_last_changes_no_bit(config):
    """Many calls, beside another stream that disturbs their timing, and through a graph."""
    m, n, k = 60, 192, 6000
    a, b = make(m, n, k, "bf16", True)
    problem = Problem(m, n, k, a_stride=a.stride(), b_stride=b.stride())
    bound = bind(problem, config)
    outs = [torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    first = run(bound, Inputs(a, b, outs[0]))
    check(first, a.double() @ b.double(), "bf16")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    noise = torch.randn(1024, 1024, device="cuda")
    for _ in range(100):
        with torch.cuda.stream(side):
            outs[1].fill_(float("nan"))
            bound(Inputs(a, b, outs[1]))
            noise @ noise
        assert torch.equal(run(bound, Inputs(a, b, outs[0])), first)
    torch.cuda.synchronize()
    assert torch.equal(outs[1], first)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound(Inputs(a, b, outs[1]))
    for _ in range(3):
        outs[1].fill_(float("nan"))
        graph.replay()
        assert torch.equal(outs[1], first)


def test_fp8_summed_by_the_tensor_cores():
    a = torch.randn(64, 2048, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(128, 2048, device="cuda").to(torch.float8_e4m3fn).t()
    out = torch.empty(64, 128, device="cuda", dtype=torch.bfloat16)
    problem = Problem(
        64, 128, 2048, "f8e4m3", "f8e4m3", "bf16", None, (1, 2048), aligned=ALIGNED,
        fast_accum=True,
    )  # fmt: skip
    got = run(bind(problem, Config(64, 64, 128, 1, 4, 3, "split_k", split_k=4)), Inputs(a, b, out))
    expected = a.float().double() @ b.float().double()
    torch.testing.assert_close(got.double(), expected, rtol=2e-2, atol=1.0)
