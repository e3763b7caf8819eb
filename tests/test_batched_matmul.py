"""Batched matmuls as templates: what becomes one, and that every form is right in every emitter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves, tree_map

import compile_cli
from compile_cli.cli.measure import relative_error
from planner.matmul.problem import MOST_PRODUCTS
from wrapper_ir import ExternCall, If, Launch
from wrapper_ir.analysis import walk

EMITS = ("fx", "hop", "cpp")
B, H, M, N, K = 2, 3, 20, 24, 16


def attention(q: Any, k: Any, mask: Any) -> Any:
    scores = torch.matmul(q, k.transpose(-1, -2)) * 0.25
    return torch.where(mask, scores, -1e4)


FORMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "bmm": (torch.bmm, lambda: (torch.randn(B, M, K), torch.randn(B, K, N))),
    "bmm + gelu": (
        lambda a, b, c: F.gelu(torch.bmm(a, b) * 0.5 + c),
        lambda: (torch.randn(B, M, K), torch.randn(B, N, K).mT, torch.randn(B, 1, N)),
    ),
    "one b": (  # of rows that are copied to be one dimension
        lambda a, b: torch.einsum("bmk,kn->bmn", a.transpose(0, 1), b).relu(),
        lambda: (torch.randn(M, B, K), torch.randn(K, N)),
    ),
    "einsum": (
        lambda a, b: torch.einsum("mbk,bnk->bmn", a, b),
        lambda: (torch.randn(M, B, K), torch.randn(B, N, K)),
    ),
    "expanded": (
        lambda a, b: torch.bmm(a, b.expand(B, K, N)).tanh(),
        lambda: (torch.randn(B, M, K), torch.randn(1, K, N)),
    ),
    "heads, one mask for all": (
        attention,
        lambda: (torch.randn(B, H, M, K), torch.randn(B, H, N, K), torch.rand(B, 1, M, N) < 0.8),
    ),
    "heads, a mask for each": (
        attention,
        lambda: (torch.randn(B, H, M, K), torch.randn(B, H, N, K), torch.rand(1, H, M, N) < 0.8),
    ),
    "parts of one tensor": (
        lambda x: torch.bmm(x[..., :K], x[..., K + 1 :].mT).relu(),
        lambda: (torch.randn(B, M, 2 * K + 1),),
    ),
    "with itself": (
        lambda x: torch.bmm(x, x.mT) + 1.0,
        lambda: (torch.randn(B, M, K),),
    ),
    "baddbmm": (
        lambda c, a, b: torch.baddbmm(c, a, b, alpha=0.125, beta=2.0),
        lambda: (torch.randn(B, M, N), torch.randn(B, M, K), torch.randn(B, K, N)),
    ),
    "baddbmm of a column + gelu": (
        lambda c, a, b: F.gelu(torch.baddbmm(c, a, b, alpha=0.125)),
        lambda: (torch.randn(B, M, 1), torch.randn(B, M, K), torch.randn(B, K, N)),
    ),
    "baddbmm of a row": (
        torch.baddbmm,
        lambda: (torch.randn(N), torch.randn(B, M, K), torch.randn(B, K, N)),
    ),
    "baddbmm of nothing": (
        lambda c, a, b: torch.baddbmm(c, a, b, alpha=0.5, beta=0) * 2,
        lambda: (torch.full((1, 1, 1), torch.nan), torch.randn(B, M, K), torch.randn(B, K, N)),
    ),
    "addmm of a matrix": (
        lambda c, a, b: torch.addmm(c, a, b, alpha=1.5, beta=-1).sigmoid(),
        lambda: (torch.randn(M, N), torch.randn(M, K), torch.randn(K, N)),
    ),
    "one product": (
        lambda a, b, c: torch.bmm(a, b) + c,
        lambda: (torch.randn(1, M, K), torch.randn(1, K, N), torch.randn(1, M, N)),
    ),
}  # fmt: skip


def launches(compiled: Any) -> tuple[int, int]:
    ops = list(walk(compiled.graph.program.ops))
    return sum(isinstance(o, Launch) for o in ops), sum(isinstance(o, ExternCall) for o in ops)


def check(
    compiled: Any, fn: Callable[..., Any], args: tuple[torch.Tensor, ...], tolerance: float = 2e-6
) -> None:
    wide = [x.double() if x.is_floating_point() else x for x in args]
    assert relative_error(compiled(*args), fn(*wide).float()) < tolerance


HOSTS = ("one b", "parts of one tensor")  # two launches, views of one buffer
RUN = {
    *((form, "fx") for form in FORMS),
    *((form, "cpp") for form in HOSTS),
    (HOSTS[0], "hop"),
}
EVERY = [
    pytest.param(form, emit, marks=() if (form, emit) in RUN else pytest.mark.slow)
    for form in FORMS
    for emit in EMITS
]


@pytest.mark.parametrize(("form", "emit"), EVERY)
def test_one_launch_with_all_that_follows(options: dict[str, Any], form: str, emit: str) -> None:
    torch.manual_seed(0)
    fn, make = FORMS[form]
    args = make()
    settings = {**options, "gemm": "template", "emit": emit}
    compiled = compile_cli.compile(fn, args, options=settings)
    check(compiled, fn, args)
    assert launches(compiled) == (2 if form == "one b" else 1, 0)


# Each call of the vendor's, on views and with what follows.
CALLS = (
    "one b", "einsum", "heads, one mask for all", "parts of one tensor", "baddbmm",
    "baddbmm of a column + gelu", "baddbmm of nothing", "addmm of a matrix",
)  # fmt: skip


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=() if form in CALLS else pytest.mark.slow) for form in FORMS],
)
def test_the_vendor_computes_the_same(options: dict[str, Any], form: str) -> None:
    torch.manual_seed(0)
    fn, make = FORMS[form]
    args = make()
    compiled = compile_cli.compile(fn, args, options={**options, "gemm": "extern"})
    check(compiled, fn, args)
    assert launches(compiled)[1] == 1


def heads(p: Any, v: Any) -> Any:
    return torch.matmul(p, v).transpose(1, 2).reshape(B, M, H * K) * 2


def both(a: Any, b: Any) -> Any:
    y = torch.bmm(a, b)
    return y + 1, y * 2


@pytest.mark.parametrize("fn", [heads, both])
def test_what_stays_a_kernel(options: dict[str, Any], fn: Callable[..., Any]) -> None:
    """Heads that are stored side by side, and several results: the product is a template alone."""
    torch.manual_seed(0)
    shape = (B, H) if fn is heads else (B,)
    args = torch.randn(*shape, M, N), torch.randn(*shape, N, K)
    compiled = compile_cli.compile(fn, args, options={**options, "gemm": "template"})
    assert launches(compiled) == (2, 0)
    expected = tree_map(torch.Tensor.float, fn(*(x.double() for x in args)))
    for one, other in zip(*map(tree_leaves, (compiled(*args), expected)), strict=True):
        assert relative_error(one, other) < 2e-6
    why = "does not run over the rows and columns" if fn is heads else "writes 2 results"
    assert why in compiled.graph.explain()


def scores(a: Any, b: Any, c: Any) -> Any:
    return (torch.bmm(a, b.mT) + c).relu()


@pytest.mark.spread(2)
@pytest.mark.parametrize("emit", ["fx", pytest.param("hop", marks=pytest.mark.slow), "cpp"])
def test_a_dynamic_batch(options: dict[str, Any], emit: str) -> None:
    """The grid's second dimension, which has a limit: the vendor serves what is beyond."""
    torch.manual_seed(0)

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(batch, 9, 16), torch.randn(batch, 7, 16), torch.randn(batch, 9, 1)

    compiled = compile_cli.compile(
        scores, inputs(4), dynamic={0: {0}, 1: {0}, 2: {0}},
        options={**options, "gemm": "template", "emit": emit},
    )  # fmt: skip
    (branch,) = (op for op in walk(compiled.graph.program.ops) if isinstance(op, If))
    assert isinstance(branch.condition, sympy.Le)
    assert branch.condition.rhs == MOST_PRODUCTS
    (kernel,) = branch.then
    assert isinstance(kernel, Launch)
    assert kernel.grid[1].free_symbols
    for batch in (4, 1, 2, 7, 0):
        args = inputs(batch)
        if batch:
            check(compiled, scores, args)
        else:
            assert compiled(*args).shape == (0, 9, 7)


@pytest.mark.parametrize(
    "emit", ["fx", *(pytest.param(emit, marks=pytest.mark.slow) for emit in ("hop", "cpp"))]
)
def test_rows_that_are_dynamic(options: dict[str, Any], emit: str) -> None:
    torch.manual_seed(0)

    def inputs(rows: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(3, rows, 16), torch.randn(3, 7, 16), torch.randn(3, rows, 1)

    compiled = compile_cli.compile(
        scores, inputs(5), dynamic={0: {1}, 2: {1}},
        options={**options, "gemm": "template", "emit": emit},
    )  # fmt: skip
    (decided,) = compiled.graph.decided.values()
    assert len(decided) > 1
    assert launches(compiled)[1] == 0
    for rows in (5, 1, 40, 70):
        check(compiled, scores, inputs(rows))


def test_everything_dynamic(options: dict[str, Any]) -> None:
    """Attention of any batch and length: rows, columns and the strides of a batch move together."""
    torch.manual_seed(0)

    def probabilities(x: Any) -> Any:
        return torch.bmm(x, x.mT) * 0.25

    compiled = compile_cli.compile(
        probabilities, (torch.randn(4, 9, 16),), dynamic={0: {0, 1}},
        options={**options, "gemm": "template"},
    )  # fmt: skip
    for batch, length in ((4, 9), (1, 1), (2, 40), (3, 2)):
        check(compiled, probabilities, (torch.randn(batch, length, 16),))


@pytest.mark.parametrize("examples", [5, pytest.param(30, marks=pytest.mark.slow)])
def test_any_sizes_and_layouts(options: dict[str, Any], examples: int) -> None:
    limits = settings(deadline=None, max_examples=examples, suppress_health_check=list(HealthCheck))
    limits(given(st.data())(lambda data: of_any_sizes(options, data)))()


def of_any_sizes(options: dict[str, Any], data: st.DataObject) -> None:
    torch.manual_seed(0)
    size = st.integers(1, 40)
    batch, m, n, k = data.draw(st.integers(1, 5)), *(data.draw(size) for _ in range(3))
    turned = data.draw(st.tuples(st.booleans(), st.booleans()))
    a = torch.randn(batch, k, m).mT if turned[0] else torch.randn(batch, m, k)
    b = torch.randn(batch, n, k).mT if turned[1] else torch.randn(batch, k, n)
    shape = [data.draw(st.sampled_from([1, full])) for full in (batch, m, n)]
    shape = shape[data.draw(st.integers(0, 3)) :]
    alpha, beta = data.draw(st.sampled_from([(1, 1), (0.5, 1), (2, -0.25)]))

    def fn(c: Any, a: Any, b: Any) -> Any:
        return torch.baddbmm(c, a, b, alpha=alpha, beta=beta).tanh() * c

    args = (torch.randn(shape), a, b)
    compiled = compile_cli.compile(fn, args, options={**options, "gemm": "template"})
    check(compiled, fn, args, 1e-5)
