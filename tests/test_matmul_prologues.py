"""Cheap producers of a matmul's operands, inside of its template: the numbers are the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import compile_cli
import gemm_templates
from compile_cli.cli.measure import relative_error
from compile_cli.cli.report import matmul_lines
from loop_ir import Matmul, print_graph
from planner.matmul.decide import VENDOR, MatmulPlanner, Way
from planner.matmul.ways import layouts_of
from wrapper_ir import ExternCall, If, Launch
from wrapper_ir.analysis import walk

EMITS = ("fx", "hop", "cpp")
M, N, K = 20, 24, 40
SMALL = gemm_templates.Config(16, 16, 32, 4, 1, 1)


def quantized(rows: int, columns: int) -> torch.Tensor:
    return torch.randint(-127, 128, (rows, columns), dtype=torch.int8)


Form = tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]
FORMS: dict[str, Form] = {
    "int8 weights, a scale for each row": (
        lambda x, q, s: F.linear(x, q.to(x.dtype) * s[:, None]),
        lambda: (torch.randn(M, K), quantized(N, K), torch.rand(N)),
    ),
    "int8 weights, one scale, + gelu": (
        lambda x, q, s: F.gelu(x @ (q.to(x.dtype) * s)),
        lambda: (torch.randn(M, K), quantized(K, N), torch.rand(1)),
    ),
    "int8 weights with zero points": (
        lambda x, q, z, s: x @ ((q.to(x.dtype) - z) * s),
        lambda: (torch.randn(M, K), quantized(K, N), torch.randn(K, 1), torch.rand(N)),
    ),
    "gated rows": (
        lambda x, g, w: (x * g) @ w,
        lambda: (torch.randn(M, K), torch.randn(M, K), torch.randn(K, N)),
    ),
    "gated by a transposed tensor": (
        lambda x, g, w: (x * g.t()) @ w,
        lambda: (torch.randn(M, K), torch.randn(K, M), torch.randn(K, N)),
    ),
    "both": (
        lambda x, c, w, r: (x.relu() * c) @ (w + r[:, None]) + 1.0,
        lambda: (torch.randn(M, K), torch.rand(M, 1), torch.randn(K, N), torch.randn(K)),
    ),
    "rank 3": (
        lambda x, w, b: F.linear(x.relu(), w, b),
        lambda: (torch.randn(4, 5, K), torch.randn(N, K), torch.randn(N)),
    ),
    "part of a tensor": (
        lambda x, w: F.silu(x[:, 1 : K + 1]) @ w,
        lambda: (torch.randn(M, K + 3), torch.randn(K, N)),
    ),
    "a batch": (
        lambda x, w, s: torch.bmm(x.relu() * s, w * 2.0),
        lambda: (torch.randn(3, M, K), torch.randn(3, N, K).mT, torch.rand(3, M, 1)),
    ),
    "heads": (
        lambda q, k, s: torch.matmul((q * s).transpose(1, 2), k.transpose(1, 2).mT).tanh(),
        lambda: (torch.randn(1, M, 3, K), torch.randn(1, N, 3, K), torch.rand(3, K)),
    ),
    "a batch of int8 weights": (
        lambda x, q, s: torch.bmm(x, q.float() * s[:, None, :]),
        lambda: (torch.randn(3, M, K), torch.stack([quantized(K, N) for _ in range(3)]),
                 torch.rand(3, N)),
    ),
    "weights that a batch shares": (
        lambda x, w, s: torch.bmm(x, w * s),
        lambda: (torch.randn(3, M, K), torch.randn(K, N), torch.rand(3, K, 1)),
    ),
    "one row": (
        lambda x, q, s: (x + 1) @ (q.float() * s),
        lambda: (torch.randn(1, K), quantized(K, N), torch.rand(N)),
    ),
    "one column": (
        lambda x, q: x @ q.float(),
        lambda: (torch.randn(M, K), quantized(K, 1)),
    ),
}  # fmt: skip


def count(compiled: Any) -> tuple[int, int]:
    ops = list(walk(compiled.graph.program.ops))
    return sum(isinstance(o, Launch) for o in ops), sum(isinstance(o, ExternCall) for o in ops)


def exact(fn: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """In float64; int8 becomes it, too, without rounding."""

    class Wide(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if kwargs.get("dtype") in (torch.float32, torch.bfloat16):
                kwargs["dtype"] = torch.float64
            return op(*args, **kwargs)

    with Wide():
        result: torch.Tensor = fn(*(x.double() if x.is_floating_point() else x for x in args))
    assert result.dtype is torch.float64
    return result.float()


def check(compiled: Any, fn: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> None:
    assert relative_error(compiled(*args), exact(fn, args)) < 5e-6


HOST = "int8 weights with zero points"  # scales beside the operands
RUN = {*((form, "fx") for form in FORMS), (HOST, "cpp"), (HOST, "hop")}
EVERY = [
    pytest.param(form, emit, marks=() if (form, emit) in RUN else pytest.mark.slow)
    for form in FORMS
    for emit in EMITS
]


@pytest.mark.parametrize(("form", "emit"), EVERY)
def test_one_launch(options: dict[str, Any], form: str, emit: str) -> None:
    torch.manual_seed(0)
    fn, make = FORMS[form]
    args = make()
    settings = {**options, "gemm": "template", "emit": emit}
    compiled = compile_cli.compile(fn, args, options=settings)
    assert count(compiled) == (1, 0)
    (decided,) = compiled.graph.decided.values()
    assert str(decided[0]).endswith(" with prologue")
    check(compiled, fn, args)


@pytest.mark.parametrize("emit", ["fx", pytest.param("hop", marks=pytest.mark.slow), "cpp"])
def test_every_way_in_one_program(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, emit: str
) -> None:
    """The vendor's call and a template after kernels that make the operands, and a template that
    makes them itself, by the number of rows."""

    def ways(self: MatmulPlanner, node: Matmul, rung: Any, many: bool) -> Any:
        plain, fused = self._task(node, rung), self._fused(node, rung)
        if rung.rows <= 16:
            return {"fused": (1.0, Way(fused, SMALL))}
        if rung.rows <= 64:
            return {"plain": (1.0, Way(plain, SMALL))}
        return {VENDOR: (1.0, Way(plain, None))}

    monkeypatch.setattr(MatmulPlanner, "_ways", ways)
    fn, _ = FORMS["both"]

    def inputs(rows: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(rows, K), torch.rand(rows, 1), torch.randn(K, N), torch.randn(K)

    compiled = compile_cli.compile(
        fn, inputs(5), dynamic={0: {0}, 1: {0}},
        options={**options, "gemm": "template", "emit": emit},
    )  # fmt: skip
    assert sum(isinstance(op, If) for op in walk(compiled.graph.program.ops)) == 2
    assert count(compiled) == (1 + 3 + 3, 1)
    (line,) = matmul_lines(compiled.graph)
    assert f"<= 16: {SMALL} with prologue" in line
    for rows in (1, 16, 17, 64, 65):
        check(compiled, fn, inputs(rows))


def test_the_vendor_alone_after_kernels(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ways(self: MatmulPlanner, node: Matmul, rung: Any, many: bool) -> Any:
        return {VENDOR: (1.0, Way(self._task(node, rung), None))}

    monkeypatch.setattr(MatmulPlanner, "_ways", ways)
    fn, make = FORMS["both"]
    args = make()
    compiled = compile_cli.compile(fn, args, options={**options, "gemm": "template"})
    assert count(compiled) == (3, 1)
    check(compiled, fn, args)


def test_what_both_sides_of_a_measurement_compute(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels and then the vendor's call, or a template, on the inputs that the fused template
    gets: `choose` compares them."""
    seen: list[str] = []

    def ways(self: MatmulPlanner, node: Matmul, rung: Any, many: bool) -> Any:
        plain, fused = self._task(node, rung), self._fused(node, rung)
        assert plain is not None
        assert fused is not None
        inputs = fused.inputs(rung.hints, {})
        gemm_templates.bind(fused.problem, SMALL)(inputs)
        assert inputs.out is not None
        for config in (None, SMALL):
            steps, _ = self._steps_of(node, rung, Way(plain, config), "")
            run = self.chooser.run(fused, rung.hints, steps, layouts_of(node))
            other = run(inputs)
            assert isinstance(other, torch.Tensor)
            assert relative_error(other, inputs.out) < 2e-6
            seen.append(str(config))
        return {"fused": (1.0, Way(fused, SMALL))}

    monkeypatch.setattr(MatmulPlanner, "_ways", ways)
    for form in ("both", "part of a tensor", "int8 weights, one scale, + gelu"):
        fn, make = FORMS[form]
        compile_cli.compile(fn, make(), options={**options, "gemm": "template"})
    assert len(seen) == 6


@pytest.mark.parametrize(
    "emit", ["fx", *(pytest.param(emit, marks=pytest.mark.slow) for emit in ("hop", "cpp"))]
)
def test_a_batch_of_any_size(options: dict[str, Any], emit: str) -> None:
    def fn(x: Any, q: Any, s: Any) -> Any:
        return torch.bmm(x.relu() * s, q.float() * s)

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        q = torch.randint(-9, 9, (batch, K, N), dtype=torch.int8)
        return torch.randn(batch, M, K), q, torch.rand(batch, 1, 1)

    compiled = compile_cli.compile(
        fn, inputs(3), dynamic={0: {0}, 1: {0}, 2: {0}},
        options={**options, "gemm": "template", "emit": emit},
    )  # fmt: skip
    (decided,) = compiled.graph.decided.values()
    assert str(decided[0]).endswith(" with prologue")
    for batch in (3, 1, 7):
        args = inputs(batch)
        check(compiled, fn, args)
    assert compiled(*inputs(0)).shape == (0, M, N)


def test_rounding_is_that_of_the_operand(options: dict[str, Any]) -> None:
    """bf16 weights are what int8 times the scale is in bf16, as eager has it."""
    torch.manual_seed(0)

    def fn(x: Any, q: Any, s: Any) -> Any:
        return F.linear(x, q.to(torch.bfloat16) * s[:, None])

    x, q, s = torch.randn(M, K).bfloat16(), quantized(N, K), torch.rand(N).bfloat16()
    compiled = compile_cli.compile(fn, (x, q, s), options={**options, "gemm": "template"})
    assert count(compiled) == (1, 0)
    weight = q.to(torch.bfloat16) * s[:, None]
    expected = (x.double() @ weight.double().T).to(torch.bfloat16)
    assert torch.equal(compiled(x, q, s), expected)


def test_the_dump_of_one(options: dict[str, Any]) -> None:
    """`compile-cli dump --stage fused` of weights of 8 bits."""
    fn, make = FORMS["int8 weights, a scale for each row"]
    compiled = compile_cli.compile(fn, make(), options={**options, "gemm": "template"})
    path = Path(__file__).parent / "golden" / "int8_weights.txt"
    text = re.sub(r" at \S+:\d+$", "", print_graph(compiled.graph.fused), flags=re.M)
    assert text == path.read_text(), f"if the change is wanted, rewrite {path.name}"


def test_what_stays_a_kernel(options: dict[str, Any]) -> None:
    settings = {**options, "gemm": "template"}
    x, w = torch.randn(M, K), torch.randn(K, N)

    def twice(x: Any, w: Any) -> Any:
        y = x.relu()
        return y @ w, y

    compiled = compile_cli.compile(twice, (x, w), options=settings)
    assert count(compiled) == (2, 0)
    assert "is read by others, or the caller's" in compiled.graph.explain()
    words = torch.randint(0, 9, (K, N))
    compiled = compile_cli.compile(lambda x, q: x @ q.float(), (x, words), options=settings)
    assert count(compiled) == (2, 0)  # no template loads 64-bit integers
    compiled = compile_cli.compile(lambda x, w: x.flip(0) @ w, (x, w), options=settings)
    assert count(compiled) == (2, 0)  # nor rows from the last to the first
    torch.testing.assert_close(compiled(x, w), x.flip(0) @ w)


@pytest.mark.parametrize("examples", [5, pytest.param(30, marks=pytest.mark.slow)])
def test_any_sizes_and_layouts(options: dict[str, Any], examples: int) -> None:
    limits = settings(deadline=None, max_examples=examples, suppress_health_check=list(HealthCheck))
    limits(given(st.data())(lambda data: of_any_sizes(options, data)))()


def of_any_sizes(options: dict[str, Any], data: st.DataObject) -> None:
    torch.manual_seed(0)
    m, n, k = (data.draw(st.integers(1, 50)) for _ in range(3))
    turned = data.draw(st.tuples(st.booleans(), st.booleans()))
    x = torch.randn(k, m).t() if turned[0] else torch.randn(m, k)
    q = quantized(n, k).t() if turned[1] else quantized(k, n)
    row, column = torch.rand(m, 1) * 0.1, torch.rand(data.draw(st.sampled_from([1, n])))

    def fn(x: Any, q: Any, row: Any, column: Any) -> Any:
        return (x.relu() * row) @ (q.to(x.dtype) * column)

    args = (x, q, row, column)
    compiled = compile_cli.compile(fn, args, options={**options, "gemm": "template"})
    check(compiled, fn, args)


def test_training(options: dict[str, Any], fresh_dynamo: None) -> None:
    """Gates before products, and what their gradients are multiplied with."""

    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.gate = torch.nn.Linear(24, 32), torch.nn.Linear(24, 32)
            self.down = torch.nn.Linear(32, 24)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(F.silu(self.gate(x)) * self.up(x)).relu() @ self.down.weight

    model = Gated()
    compiled = torch.compile(
        model, backend="compile_cli", options={**options, "gemm": "template"}, fullgraph=True
    )
    x = torch.randn(20, 24, requires_grad=True)
    for run in (model, compiled):
        run(x).square().sum().backward()
        found = [p.grad for p in (x, *model.parameters())]
        if run is model:
            expected = found
            model.zero_grad(set_to_none=True)
            x.grad = None
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        assert other is not None
        assert relative_error(one, other) < 1e-5
