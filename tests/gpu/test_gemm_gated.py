"""`gate(a @ b) * (a @ b2)` on a real GPU, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gemm_templates import Inputs, Problem, bind, choose, device_info
from gemm_templates.epilogues import GELU, RELU, SILU, residual_of
from gemm_templates.model import is_legal
from gemm_templates.registry import FAMILIES, able

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
        reason="needs a GPU with TMA",
    ),
]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
TOLERANCE = {"bf16": 1.6e-2, "f16": 2e-3, "f32": 2e-3}
ALIGNED = frozenset({"a", "b", "b2", "out"})
GATES = {"relu": (RELU, F.relu), "gelu": (GELU, F.gelu), "silu": (SILU, F.silu)}


def make(m, n, k, dtype="bf16", by_rows=False):
    torch.manual_seed(0)
    a = torch.randn(m, k, device="cuda", dtype=DTYPES[dtype])
    shape = (k, n) if by_rows else (n, k)
    b, b2 = torch.randn((2, *shape), device="cuda", dtype=DTYPES[dtype]) * max(k, 1) ** -0.5
    return (a, b, b2) if by_rows else (a, b.t(), b2.t())


def every_config(problem):
    info = device_info("cuda")
    offered = [c for family in FAMILIES.values() for c in family.configs(problem, info)]
    found = [c for c in offered if c.template in able("gate") and is_legal(problem, c, info)]
    assert len(found) >= 4, problem
    return found


def check_all(problem, make_inputs, expected, pool):
    tolerance = TOLERANCE[problem.out_dtype]
    for run in [bind(problem, config, pool=pool) for config in every_config(problem)]:
        inputs = make_inputs()
        inputs.out.fill_(float("nan"))
        run(inputs)
        torch.testing.assert_close(inputs.out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("gate", list(GATES))
@pytest.mark.parametrize(("dtype", "by_rows"), [("bf16", False), ("bf16", True), ("f16", False)])
def test_every_config(gate, dtype, by_rows, pool):
    m, n, k = 1500, 776, 520
    a, b, b2 = make(m, n, k, dtype, by_rows)
    function, torch_function = GATES[gate]
    problem = Problem(
        m, n, k, dtype, dtype, dtype, b_stride=b.stride(), gate=function, aligned=ALIGNED
    )
    expected = torch_function(a.double() @ b.double()) * (a.double() @ b2.double())
    out = torch.empty((m, n), device="cuda", dtype=DTYPES[dtype])
    check_all(problem, lambda: Inputs(a, b, out, b2=b2), expected, pool)


@pytest.mark.parametrize("size", [(1, 8, 8), (64, 2048, 4096), (5, 72, 1000), (2049, 136, 16)])
def test_sizes(size, pool):
    m, n, k = size
    a, b, b2 = make(m, n, k)
    problem = Problem(m, n, k, b_stride=b.stride(), gate=SILU, aligned=ALIGNED)
    expected = F.silu(a.double() @ b.double()) * (a.double() @ b2.double())
    out = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
    check_all(problem, lambda: Inputs(a, b, out, b2=b2), expected, pool)


def test_odd_rows_dynamic_sizes_and_an_epilogue(pool):
    m, n, k = 999, 771, 264
    a, b, b2 = make(m, n, k)
    rest = torch.randn(m, n, device="cuda", dtype=torch.bfloat16)
    problem = Problem(
        m, n, k, b_stride=b.stride(), gate=SILU, dynamic=frozenset({"M"}),
        epilogue=residual_of("bf16", 2, wide=True), aligned=ALIGNED,
    )  # fmt: skip
    expected = F.silu(a.double() @ b.double()) * (a.double() @ b2.double()) + rest.double()
    out = torch.empty_like(rest)
    check_all(problem, lambda: Inputs(a, b, out, None, (rest, n, 1), b2), expected, pool)


def test_the_same_digits_each_time(pool):
    m, n, k = 4096, 2816, 1024
    a, b, b2 = make(m, n, k)
    problem = Problem(m, n, k, b_stride=b.stride(), gate=SILU, aligned=ALIGNED)
    expected = F.silu(a.double() @ b.double()) * (a.double() @ b2.double())
    for run in [bind(problem, config, pool=pool) for config in every_config(problem)]:
        out, again = torch.full((2, m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        run(Inputs(a, b, out, b2=b2))
        torch.testing.assert_close(out.double(), expected, rtol=1.6e-2, atol=1.6e-2)
        for _ in range(10):
            again.fill_(float("nan"))
            run(Inputs(a, b, again, b2=b2))
            assert torch.equal(out, again), run.plan


def test_choose():
    a, b, b2 = make(2048, 5632, 2048)
    problem = Problem(2048, 5632, 2048, b_stride=b.stride(), gate=SILU, aligned=ALIGNED)
    out = torch.empty((2048, 5632), device="cuda", dtype=torch.bfloat16)
    found = choose(problem, Inputs(a, b, out, b2=b2), lambda t: F.silu(t.a @ t.b) * (t.a @ t.b2))
    assert not found.failures, found.explain()
    assert found.config is not None and found.config.template in able("gate"), found.explain()
