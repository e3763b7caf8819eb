"""Products of groups whose ends are data, and layers of experts, through the compiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_cli
import gemm_templates
from compile_cli.cli.measure import relative_error
from planner.matmul.decide import VENDOR, MatmulPlanner
from planner.plan import MatmulPlan
from wrapper_ir import ExternCall, If, Launch
from wrapper_ir.analysis import walk

ENDS = torch.tensor([8, 8, 41, 48], dtype=torch.int32)
E, T, N, K = 4, 48, 64, 32


def halves(*size: int) -> torch.Tensor:
    return torch.randn(size).bfloat16()


def grouped(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """In float64."""
    parts = [slice(s, e) for s, e in zip([0, *ends.tolist()], ends.tolist(), strict=False)]
    a, b = a.double(), b.double()
    if b.dim() == 3:
        return torch.cat([a[p] @ b[i] for i, p in enumerate(parts)])
    if a.dim() == 3:
        return torch.cat([a[i] @ b[:, p] for i, p in enumerate(parts)], 1)
    return torch.stack([a[:, p] @ b[p] for p in parts])


def calls(compiled: Any) -> list[str]:
    return [o.target for o in walk(compiled.graph.program.ops) if isinstance(o, ExternCall)]


CASES = {
    "rows": lambda: (halves(T, K), halves(E, N, K).mT),
    "columns": lambda: (halves(E, N, K), halves(T, K).t()),
    "inner": lambda: (halves(T, N).t(), halves(T, 2 * K)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("emit", ["fx", pytest.param("cpp", marks=pytest.mark.slow)])
def test_groups(options: dict[str, Any], name: str, emit: str) -> None:
    torch.manual_seed(0)
    a, b = CASES[name]()
    compiled = compile_cli.compile(
        lambda a, b, ends: torch._grouped_mm(a, b, offs=ends), (a, b, ENDS),
        options={**options, "gemm": "template", "emit": emit},
    )  # fmt: skip
    assert calls(compiled) == []
    for ends in (ENDS, torch.tensor([0, 16, 16, 48], dtype=torch.int32)):
        got = compiled(a, b, ends)
        assert relative_error(got.double(), grouped(a, b, ends)) < 4e-3


@pytest.mark.parametrize("fast", [False, True])
def test_fp8_with_factors_of_rows_and_of_columns_of_each_group(
    options: dict[str, Any], fast: bool
) -> None:
    """Which are the launch's, as what follows is."""

    def fn(x: Any, w: Any, a: Any, b: Any, ends: Any) -> Any:
        kind = {"out_dtype": torch.bfloat16, "use_fast_accum": fast}
        return F.silu(torch._scaled_grouped_mm(x, w.mT, a, b, offs=ends, **kind))

    torch.manual_seed(0)
    f8 = torch.float8_e4m3fn
    x, w, a, b = (
        torch.randn(T, K).to(f8),
        torch.randn(E, N, K).to(f8),
        torch.rand(T),
        torch.rand(E, N),
    )
    compiled = compile_cli.compile(
        fn, (x, w, a, b, ENDS), options={**options, "gemm": "template"}
    )  # fmt: skip
    ops = list(walk(compiled.graph.program.ops))
    assert sum(isinstance(o, Launch | ExternCall) for o in ops) == 1
    for ends in (ENDS, torch.tensor([0, 16, 16, 48], dtype=torch.int32)):
        wide = x.double() * a[:, None], w.double().mT * b[:, None]
        got, wanted = compiled(x, w, a, b, ends), F.silu(grouped(*wide, ends))
        assert relative_error(got.double(), wanted) < 4e-3


def test_a_batch_is_a_batch(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    a, b = halves(E, T, K), halves(E, N, K).mT
    compiled = compile_cli.compile(
        lambda a, b: torch._grouped_mm(a, b), (a, b), options={**options, "gemm": "template"}
    )
    assert calls(compiled) == []
    assert relative_error(compiled(a, b).double(), a.double() @ b.double()) < 4e-3


def test_what_follows_is_in_the_launch(options: dict[str, Any]) -> None:
    """Unless it says something of rows that are in no group: those are not computed."""

    def weighted(x: Any, w: Any, p: Any, ends: Any) -> Any:
        return F.silu(torch._grouped_mm(x, w.mT, offs=ends)) * p[:, None]

    def masked(x: Any, w: Any, p: Any, ends: Any) -> Any:
        last = torch.arange(x.shape[0])[:, None] < ends[-1]
        return torch.where(last, torch._grouped_mm(x, w.mT, offs=ends), p[:, None])

    torch.manual_seed(0)
    args = halves(T, K), halves(E, N, K), torch.rand(T).bfloat16()
    ends = torch.tensor([8, 8, 20, 40], dtype=torch.int32)
    product = grouped(args[0], args[1].mT, ends)
    expected = F.silu(product) * args[2].double()[:40, None]
    filled = torch.cat([product, args[2].double()[40:, None].expand(-1, N)])
    for fn, launches, wanted in ((weighted, 1, expected), (masked, 2, filled)):
        compiled = compile_cli.compile(
            fn, (*args, ends), options={**options, "gemm": "template"}
        )  # fmt: skip
        ops = list(walk(compiled.graph.program.ops))
        assert sum(isinstance(o, Launch) for o in ops) == launches
        got = compiled(*args, ends)[: len(wanted)]
        assert relative_error(got.double(), wanted) < 4e-3


def halves_of_one(x: Any, w: Any, ends: Any) -> Any:
    one, two = torch._grouped_mm(x, w.mT, offs=ends).chunk(2, -1)
    return F.silu(one) * two


def two_products(x: Any, w: Any, ends: Any) -> Any:
    v, w = w[:, :N], w[:, N:]
    return F.silu(torch._grouped_mm(x, v.mT, offs=ends)) * torch._grouped_mm(x, w.mT, offs=ends)


@pytest.mark.parametrize("fn", [halves_of_one, two_products])
def test_a_gate_of_groups(options: dict[str, Any], fn: Any) -> None:
    torch.manual_seed(0)
    x, w = halves(3 * T, K), halves(E, 2 * N, K)
    ends = torch.tensor([8, 8, 121, 3 * T], dtype=torch.int32)
    compiled = compile_cli.compile(fn, (x, w, ends), options={**options, "gemm": "template"})
    ops = list(walk(compiled.graph.program.ops))
    assert sum(isinstance(o, Launch | ExternCall) for o in ops) == 1
    one, two = grouped(x, w.mT, ends).chunk(2, -1)
    assert relative_error(compiled(x, w, ends).double(), F.silu(one) * two) < 5e-3


def experts(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """Two experts of four for each token."""
    weights, chosen = F.softmax(F.linear(x, gate).float(), -1).topk(2, -1)
    order = chosen.flatten().argsort(stable=True)
    ends = F.one_hot(chosen.flatten(), E).sum(0).cumsum(0).to(torch.int32)
    one, two = torch._grouped_mm(x[order // 2], up.mT, offs=ends).chunk(2, -1)
    y = torch._grouped_mm(F.silu(one) * two, down.mT, offs=ends)
    y = y * weights.flatten()[order][:, None].to(y.dtype)
    return torch.zeros_like(x).index_add(0, order // 2, y)


def each_alone(x: Any, gate: Any, up: Any, down: Any) -> Any:
    weights, chosen = F.softmax(F.linear(x, gate).float(), -1).topk(2, -1)
    one, two = torch.einsum("tk,enk->ten", x, up).chunk(2, -1)
    y = torch.einsum("ten,ekn->tek", F.silu(one) * two, down)
    return (y * (F.one_hot(chosen, E) * weights[..., None]).sum(1)[..., None]).sum(1)


def test_gradients(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the rows is of rows, that of the matrices along what was their size."""
    plan, plans = MatmulPlanner.__call__, list[MatmulPlan]()

    def planned(self: MatmulPlanner, *args: Any) -> MatmulPlan:
        plans.append(plan(self, *args))
        return plans[-1]

    monkeypatch.setattr(MatmulPlanner, "__call__", planned)
    torch.manual_seed(0)
    x, w = halves(T, 64).requires_grad_(), halves(E, N, 64).requires_grad_()
    wide = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
    fn = torch.compile(
        lambda x, w, ends: torch._grouped_mm(x, w.mT, offs=ends),
        backend="compile_cli", fullgraph=True, options={**options, "gemm": "template"},
    )  # fmt: skip
    tangent = halves(T, N)
    got = torch.autograd.grad(fn(x, w, ENDS), (x, w), tangent)
    assert [len(plan.choices) for plan in plans] == [1, 1, 1]
    expected = torch.autograd.grad(grouped(wide[0], wide[1].mT, ENDS), wide, tangent.double())
    for one, two in zip(got, expected, strict=True):
        assert relative_error(one.double(), two) < 4e-3


@pytest.mark.slow
def test_a_layer_of_experts_and_its_gradients(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    args = [halves(T, K), halves(E, K), halves(E, 2 * N, K) / 4, halves(E, K, N) / 4]
    for x in args:
        x.requires_grad_()
    wide = [x.detach().double().requires_grad_() for x in args]
    expected = each_alone(*wide)
    tangent = halves(*expected.shape)
    found = torch.autograd.grad(expected, wide, tangent.double())
    fn = torch.compile(
        experts, backend="compile_cli", fullgraph=True, options={**options, "gemm": "template"}
    )
    got = fn(*args)
    gradients = torch.autograd.grad(got, args, tangent)
    assert relative_error(got.double(), expected) < 1e-2
    eager = torch.autograd.grad(experts(*args), args, tangent)
    for one, two, plain in zip(gradients, found, eager, strict=True):
        error = relative_error(one.double(), two)
        assert error < max(2e-2, 1.5 * relative_error(plain.double(), two))


@pytest.mark.parametrize("emit", ["fx", pytest.param("cpp", marks=pytest.mark.slow)])
@pytest.mark.parametrize("ending", [F.silu, torch.ravel])
def test_rungs_of_dynamic_rows(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, ending: Any, emit: str
) -> None:
    """The vendor's call, which writes into no given buffer, is one of them."""
    torch.manual_seed(0)

    def times(_: Any, node: Any, rung: Any, task: Any, many: bool) -> dict[str, Any]:
        table = gemm_templates.candidates(task.problem, gemm_templates.H200)
        config = next(c.config for c in table if c.config is not None)
        vendor = 16 < rung.rows <= 64
        return {VENDOR: (1.0, None)} if vendor else {f"{rung.rows > 64}": (1.0, config)}

    monkeypatch.setattr(MatmulPlanner, "_times", times)
    x, w = halves(T, K), halves(E, N, K)
    compiled = compile_cli.compile(
        lambda x, w, ends: ending(torch._grouped_mm(x, w.mT, offs=ends)), (x, w, ENDS),
        dynamic={0: {0}}, options={**options, "gemm": "template", "emit": emit},
    )  # fmt: skip
    ops = list(walk(compiled.graph.program.ops))
    conditions = {str(op.condition).split(" ", 1)[1] for op in ops if isinstance(op, If)}
    assert conditions == {"<= 16", "<= 64"}
    assert len(calls(compiled)) == (1 if ending is F.silu else 2)
    for rows in (1, 16, 17, 64, 65, 300):
        x = halves(rows, K)
        ends = torch.tensor([0, rows // 3, rows // 2, rows], dtype=torch.int32)
        got = compiled(x, w, ends)
        assert relative_error(got.double(), ending(grouped(x, w.mT, ends))) < 4e-3


def test_rows_that_are_dynamic(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x, w = halves(T, K), halves(E, N, K)
    compiled = compile_cli.compile(
        lambda x, w, ends: torch._grouped_mm(x, w.mT, offs=ends).relu(), (x, w, ENDS),
        dynamic={0: {0}}, options={**options, "gemm": "template"},
    )  # fmt: skip
    assert calls(compiled) == []
    for rows in (T, 1, 130):
        x = halves(rows, K)
        ends = torch.tensor([0, rows // 3, rows // 2, rows], dtype=torch.int32)
        got = compiled(x, w, ends)
        assert relative_error(got.double(), grouped(x, w.mT, ends).relu()) < 4e-3
