"""Products of one matrix with several weights, of which one launch may compute all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_cli
import gemm_templates
from compile_cli.cli.measure import relative_error
from gemm_templates import H100, Inputs, is_legal, offered
from planner.matmul.chooser import MatmulChooser
from wrapper_ir import Describe, ExternCall, If, Launch
from wrapper_ir.analysis import walk

K, COLUMNS = 128, (256, 128)


def queries(x: Any, *weights: Any) -> tuple[Any, ...]:
    return tuple(F.linear(x, w) for w in weights)


def biased(x: Any, q: Any, k: Any, b: Any, c: Any) -> tuple[Any, ...]:
    return F.linear(x, q, b), F.linear(x, k, c)


def changed(x: Any, q: Any, k: Any) -> tuple[Any, ...]:
    """A weight is written between the products."""
    first = F.linear(x, q)
    k.add_(1)
    return first, F.linear(x, k)


def operands(rows: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(n, K).bfloat16() for n in (rows, *COLUMNS))


def timer(joined: float) -> Callable[..., list[float]]:
    """What was before takes a second, each template `joined`."""
    return lambda runs, info: [1.0, *[joined] * (len(runs) - 1)]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`only(template)`: no other is offered, and run on the CPU to be compared."""

    def choose(template: str) -> None:
        every = MatmulChooser.sayable

        def sayable(self: MatmulChooser, task: Any, config: gemm_templates.Config) -> bool:
            return config.template == template and every(self, task, config)

        monkeypatch.setattr(MatmulChooser, "sayable", sayable)

    return choose


@pytest.mark.parametrize("rows", [16, *(pytest.param(m, marks=pytest.mark.slow) for m in (8, 40))])
def test_one_launch_for_all(options: dict[str, Any], as_on_gpu: Any, rows: int) -> None:
    """In each family of templates, which read the matrices where they lie."""
    choices = as_on_gpu(timer(0.5))
    args = operands(rows)
    compiled = compile_cli.compile(queries, args, options=options)
    ops = list(walk(compiled.graph.program.ops))
    assert not any(isinstance(o, ExternCall) for o in ops)
    joined = choices[-1]
    assert joined.problem.n == sum(COLUMNS)
    assert joined.config is not None
    launches = len(gemm_templates.make_plan(joined.problem, joined.config).steps)
    assert sum(isinstance(o, Launch) for o in ops) == launches
    for got, w in zip(compiled(*args), args[1:], strict=True):
        assert got.stride() == (w.shape[0], 1)
        assert relative_error(got.double(), args[0].double() @ w.double().t()) < 4e-3
    legal = [c for c in offered(joined.problem, H100) if is_legal(joined.problem, c, H100)]
    smallest = {c.template: c for c in sorted(legal, key=lambda c: -c.block_m * c.block_n)}
    assert smallest.keys() == {"tiled", "tma", "split_k", "decompose_k", "gemv"}
    for config in smallest.values():
        outs = tuple(torch.zeros(rows, n).bfloat16() for n in COLUMNS)
        inputs = Inputs(args[0], args[1], None, None, outs, before=args[1:])
        gemm_templates.bind(joined.problem, config)(inputs)
        for got, w in zip(outs, args[1:], strict=True):
            assert relative_error(got.double(), args[0].double() @ w.double().t()) < 4e-3


def test_one_through_a_descriptor(
    options: dict[str, Any], as_on_gpu: Any, only: Callable[[str], None]
) -> None:
    choices = as_on_gpu(timer(0.5))
    only("tma")
    args = operands(64)
    compiled = compile_cli.compile(queries, args, options=options)
    config = choices[-1].config
    assert config is not None and config.template == "tma" and choices[-1].problem.pick_b
    assert any(isinstance(o, Describe) for o in walk(compiled.graph.program.ops))
    for got, w in zip(compiled(*args), args[1:], strict=True):
        assert relative_error(got.double(), args[0].double() @ w.double().t()) < 4e-3


@pytest.mark.parametrize("emit", ["fx", "cpp"])
def test_dynamic_rows(
    options: dict[str, Any], as_on_gpu: Any, only: Callable[[str], None], emit: str
) -> None:
    """One launch where that is the fastest, and a call for each where there are more rows."""

    def some(runs: Any, info: Any) -> list[float]:
        problems = [run.func.problem for run in runs[1:]]
        return [1.0, *(0.5 if p.n == sum(COLUMNS) and p.m == 16 else 2.0 for p in problems)]

    as_on_gpu(some)
    only("tiled")
    args = operands(40)
    compiled = compile_cli.compile(
        queries, args, dynamic={0: {0}}, options={**options, "emit": emit}
    )
    ops = list(walk(compiled.graph.program.ops))
    assert sum(isinstance(op, Launch) for op in ops) == 1
    assert sum(isinstance(op, ExternCall) for op in ops) == 4  # of one row, and of more than 16
    for rows in (1, 5, 16, 17, 100):
        x = operands(rows)[0]
        for got, w in zip(compiled(x, *args[1:]), args[1:], strict=True):
            assert relative_error(got.double(), x.double() @ w.double().t()) < 4e-3


def test_what_was_decided_once_serves_rows_nearby(
    options: dict[str, Any], as_on_gpu: Any, only: Callable[[str], None]
) -> None:
    """Where more than the number of rows is dynamic: a tile for few rows is slow for many."""
    as_on_gpu(timer(0.5))
    only("tiled")
    sizes: dict[int | str, set[int]] = {0: {0, 1}, 1: {1}}
    args = torch.randn(40, 128), torch.randn(256, 128)
    compiled = compile_cli.compile(F.linear, args, dynamic=sizes, options=options)
    (branch,) = (op for op in compiled.graph.program.ops if isinstance(op, If))
    assert branch.condition.rhs == 80
    assert isinstance(branch.orelse[-1], ExternCall)
    for rows in (1, 80, 81, 300):
        x, w = torch.randn(rows, 96), torch.randn(256, 96)
        assert relative_error(compiled(x, w), F.linear(x, w)) < 1e-5


def test_each_has_its_bias(
    options: dict[str, Any], as_on_gpu: Any, only: Callable[[str], None]
) -> None:
    choices = as_on_gpu(timer(0.5))
    only("tiled")
    args = *operands(16), *(torch.randn(n).bfloat16() for n in COLUMNS)
    compiled = compile_cli.compile(biased, args, options=options)
    assert choices[-1].problem.n == sum(COLUMNS)
    expected = biased(*(x.double() for x in args))
    for got, one in zip(compiled(*args), expected, strict=True):
        assert relative_error(got.double(), one) < 4e-3


@pytest.mark.slow
def test_the_faster_way_is_taken(options: dict[str, Any], as_on_gpu: Any) -> None:
    as_on_gpu(timer(2.0))
    args = operands(16)
    compiled = compile_cli.compile(queries, args, options=options)
    ops = list(walk(compiled.graph.program.ops))
    assert [o.target for o in ops if isinstance(o, ExternCall)] == 2 * ["aten.linear.default"]
    for got, w in zip(compiled(*args), args[1:], strict=True):
        assert relative_error(got.double(), args[0].double() @ w.double().t()) < 4e-3


def test_products_of_what_changes_stay_apart(options: dict[str, Any], as_on_gpu: Any) -> None:
    choices = as_on_gpu(timer(0.5))
    args = operands(16)
    compiled = compile_cli.compile(changed, args, options=options)
    assert all(choice.problem.n < sum(COLUMNS) for choice in choices)
    expected = changed(*(x.double() for x in args))
    for got, one in zip(compiled(*args), expected, strict=True):
        assert relative_error(got.double(), one) < 4e-3


@pytest.mark.slow
@pytest.mark.parametrize("emit", ["hop", "cpp"])
def test_other_hosts(options: dict[str, Any], as_on_gpu: Any, emit: str) -> None:
    """Of weights that are parts of one."""

    def parts(x: Any, w: Any) -> tuple[Any, ...]:
        return tuple(F.linear(x, part) for part in w.split(COLUMNS))

    choices = as_on_gpu(timer(0.5))
    x, *weights = operands(16)
    args = x, torch.cat(weights)
    compiled = compile_cli.compile(parts, args, options={**options, "emit": emit})
    assert choices[-1].problem.n == sum(COLUMNS)
    for got, w in zip(compiled(*args), weights, strict=True):
        assert relative_error(got.double(), x.double() @ w.double().t()) < 4e-3
