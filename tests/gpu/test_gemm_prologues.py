"""Weights of 8 bits under few rows, on a real GPU against float64."""

from __future__ import annotations

from concurrent.futures import wait
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_cli
import gemm_templates
from compile_cli.cli.measure import relative_error
from gemm_templates import Bound, Config, Inputs, Problem, device_info
from gemm_templates.epilogues import GELU
from gemm_templates.fused import Prologue
from gemm_templates.model import is_legal
from gemm_templates.prologues import cast_of
from gemm_templates.registry import FAMILIES
from planner.matmul.decide import MatmulPlanner, Way
from triton_rt import CompilePool, KernelParam

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
ALIGNED = frozenset({"a", "b", "out"})
OURS = ("gemv", "split_k", "decompose_k")

# `bf16((bf16(q) + z[k]) * s[n])`: not 0 where K has ended.
SHIFTED = Prologue(
    "shifted",
    """
@triton.jit
def shifted(tile, r_outer, rk, first_k, mask, operands):
    zero, scale, K, N = operands
    z = tl.load(zero + rk, rk < K, other=3.0)
    s = tl.load(scale + r_outer, r_outer < N, other=5.0)
    return ((tile.to(tl.float32) + z) * s).to(tl.bfloat16)
""",
    (
        KernelParam("zero", "*f32"), KernelParam("scale", "*f32"), KernelParam("b_k", "i32"),
        KernelParam("b_n", "i32"),
    ),
)  # fmt: skip
# `bf16(a * r[m])`.
ROWS = Prologue(
    "rows_scaled",
    """
@triton.jit
def rows_scaled(tile, r_outer, rk, first_k, mask, operands):
    scale, M = operands
    return (tile.to(tl.float32) * tl.load(scale + r_outer, r_outer < M, other=2.0)).to(tl.bfloat16)
""",
    (KernelParam("row_scale", "*f32"), KernelParam("a_m", "i32")),
)
FORMS = [
    Config(1, 4, 1024, 1, 4, 4, "gemv", split_k=3),
    Config(1, 4, 4096, 1, 8, 1, "gemv"),
    Config(1, 64, 32, 1, 2, 1, "gemv", split_k=8),
    Config(16, 64, 128, 1, 4, 3, "gemv", split_k=2),
    Config(16, 32, 128, 1, 2, 4, "gemv"),
    Config(64, 64, 64, 1, 4, 3, "gemv", split_k=4),
    Config(32, 64, 64, 1, 4, 3, "gemv", split_k=2),
    Config(16, 64, 64, 1, 4, 3, "split_k", split_k=5),
    Config(64, 64, 128, 8, 4, 4, "split_k", split_k=4),
    Config(64, 64, 64, 8, 4, 3, "decompose_k", split_k=4, overlap=True),
]
SIZES = [(1, 40, 7), (3, 33, 650), (16, 136, 1000), (33, 200, 2048), (64, 64, 4096)]


def rows(m: int, k: int) -> torch.Tensor:
    return torch.randn(m, k, device="cuda", dtype=torch.bfloat16)


def weights(n: int, k: int, columns: bool = True) -> torch.Tensor:
    """[k, n], contiguous along K or along N."""
    shape = (n, k) if columns else (k, n)
    q = torch.randint(-127, 128, shape, device="cuda", dtype=torch.int8)
    return q.t() if columns else q


def check_all(cases: list[tuple[Problem, Config]], pool: CompilePool) -> None:
    """Each twice, all compiled side by side: counters are left at zero."""
    found = [(problem, config, Bound(problem, config, None, pool)) for problem, config in cases]
    wait([future for *_, bound in found for future in bound.compile()])
    for problem, config, bound in found:
        m, n, k = problem.m, problem.n, problem.k
        torch.manual_seed(0)
        a, b = rows(m, k), weights(n, k, problem.dims()["stride_bk"] == 1)
        row, zero = torch.rand(m, device="cuda") + 0.5, torch.randn(k, device="cuda") * 20
        scale = torch.rand(n, device="cuda") / 70 / max(k, 1) ** 0.5
        left, right = a.double(), b.double()
        before: list[Any] = []
        if problem.prologue_a:
            before += [row, m]
            left = (a.float() * row[:, None]).bfloat16().double()
        if problem.prologue_b is SHIFTED:
            before += [zero, scale, k, n]
            right = ((b.float() + zero[:, None]) * scale).bfloat16().double()
        expected = left @ right
        if problem.epilogue:
            expected = F.gelu(expected)
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        results = []
        for _ in range(2):
            out.fill_(float("nan"))
            bound(Inputs(a, b, out, before=tuple(before)))
            results.append(out.clone())
        assert relative_error(results[0].double(), expected) < 4e-3, (problem, config)
        assert torch.equal(*results), (problem, config)


@pytest.mark.parametrize("columns", [True, False])
def test_every_form(columns: bool, pool: CompilePool) -> None:
    """Odd sizes and ends of K that do not count; both operands by prologues."""
    info = device_info("cuda")
    cases = []
    for m, n, k in (*SIZES[:2], SIZES[3]) if columns else SIZES[2:3]:  # more would be compile time
        stride = (1, k) if columns else (n, 1)
        plain = Problem(m, n, k, "bf16", "i8", "bf16", b_stride=stride, prologue_b=SHIFTED)
        both = Problem(
            m, n, k, "bf16", "i8", "bf16", b_stride=stride, prologue_a=ROWS, prologue_b=SHIFTED,
            epilogue=GELU,
        )  # fmt: skip
        cases += [(p, c) for p in (plain, both) for c in FORMS if is_legal(p, c, info)]
    assert {c.template for _, c in cases} == set(OURS)
    check_all(cases, pool)


@pytest.mark.parametrize("columns", [True, False])
def test_proposals(columns: bool, pool: CompilePool) -> None:
    """What is proposed for sizes that it is for."""
    info = device_info("cuda")
    cases = []
    for m in (1, 16, 64) if columns else (16,):
        n, k = 1536, 4096
        problem = Problem(
            m, n, k, "bf16", "i8", "bf16", b_stride=(1, k) if columns else (n, 1),
            prologue_b=SHIFTED if m > 1 else cast_of("bf16"), aligned=ALIGNED,
        )  # fmt: skip
        for name in OURS:
            offered = FAMILIES[name].configs(problem, info)
            some = offered[:: 4 if name == "gemv" else 18]
            cases += [(problem, c) for c in some if is_legal(problem, c, info)]
    assert {c.template for _, c in cases} == set(OURS)
    check_all(cases, pool)


def linear(x: Any, q: Any, s: Any) -> Any:
    return F.gelu(F.linear(x, q.to(x.dtype) * s[:, None]))


def exact(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    weight = (q.to(x.dtype) * s[:, None]).double()
    return F.gelu(F.linear(x.double(), weight))


@pytest.mark.parametrize("emit", ["fx", "cpp"])
@pytest.mark.parametrize(
    ("m", "family"),
    [(1, "gemv"), (16, "gemv"), (16, "decompose_k"), (64, "gemv"), (64, "split_k"),
     (64, "decompose_k")],
)  # fmt: skip
def test_each_family_in_a_program(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, m: int, family: str, emit: str
) -> None:
    seen: list[Config] = []

    def ways(self: MatmulPlanner, node: Any, rung: Any, many: bool) -> dict[str, Any]:
        task = self._fused(node, rung)
        assert task is not None
        info = device_info("cuda")
        seen.append(
            next(
                c
                for c in FAMILIES[family].configs(task.problem, info)
                if is_legal(task.problem, c, info) and self.chooser.sayable(task, c)
            )
        )
        return {family: (1.0, Way(task, seen[-1]))}

    monkeypatch.setattr(MatmulPlanner, "_ways", ways)
    torch.manual_seed(0)
    args = rows(m, 4096), weights(1000, 4096).t(), rows(1, 1000)[0] * 0.01
    options = {"cache_dir": str(tmp_path), "gemm": "template", "emit": emit}
    compiled = compile_cli.compile(linear, args, options=options)
    assert seen
    with torch.no_grad():
        for _ in range(2):
            assert relative_error(compiled(*args).double(), exact(*args)) < 8e-3


@pytest.mark.parametrize("m", [1, 16, 64])
def test_what_is_measured(tmp_path: Any, m: int) -> None:
    """No candidate fails or disagrees with kernels and the vendor's call, and one of them wins."""
    torch.manual_seed(0)
    args = rows(m, 4096), weights(4096, 4096).t(), rows(1, 4096)[0] * 0.01
    compiled = compile_cli.compile(
        linear, args, options={"cache_dir": str(tmp_path), "tune": "max"}
    )
    with torch.no_grad():
        assert relative_error(compiled(*args).double(), exact(*args)) < 8e-3
    found = {name: c for name, c in compiled.graph.matmuls.items() if "prologue" in name}
    (choice,) = found.values()
    assert choice.config is not None
    assert not choice.failures
    assert any(c.config and c.config.template == "gemv" for c in choice.candidates)


@pytest.mark.parametrize("config", FORMS[3:], ids=str)
def test_mixed_mm(config: Config) -> None:
    torch.manual_seed(0)
    a, w, scale = rows(16, 1024), weights(1000, 1024), torch.rand(1000, device="cuda") * 0.01
    found = gemm_templates.mixed_mm(a, w, scale, config=config)
    expected = a.double() @ (w.double() * scale.double())
    assert relative_error(found.double(), expected) < 4e-3


def scaled_batch(x: Any, q: Any, s: Any) -> Any:
    return torch.bmm(x.relu(), q.to(x.dtype) * s)


@pytest.mark.parametrize("m", [1, 16, 200])
@pytest.mark.parametrize("gemm", ["template", "auto"])
def test_a_batch(tmp_path: Any, gemm: str, m: int) -> None:
    """Weights of 8 bits with factors of their own in each product."""
    torch.manual_seed(0)
    x = torch.randn(6, m, 520, device="cuda", dtype=torch.bfloat16)
    q = torch.randint(-127, 128, (6, 520, 264), device="cuda", dtype=torch.int8)
    s = torch.rand(6, 1, 264, device="cuda", dtype=torch.bfloat16) * 0.01
    compiled = compile_cli.compile(
        scaled_batch, (x, q, s), options={"cache_dir": str(tmp_path), "gemm": gemm, "tune": "max"}
    )
    expected = x.relu().double() @ (q.to(x.dtype) * s).double()
    assert relative_error(compiled(x, q, s).double(), expected) < 8e-3
    failures = [why for c in compiled.graph.matmuls.values() for _, why in c.failures]
    slow = ("over 5% longer",)  # that costs, and is right
    assert not [why for why in failures if not any(word in why for word in slow)]
    (decided,) = compiled.graph.decided.values()
    assert gemm == "auto" or str(decided[0]).endswith("with prologue")
