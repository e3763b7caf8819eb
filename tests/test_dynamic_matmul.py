"""Matmuls with a dynamic number of rows: what is decided where, and that every choice is right."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import compile_cli
import gemm_templates
from compile_cli.cli.measure import relative_error
from compile_cli.cli.report import matmul_lines
from planner.matmul.decide import VENDOR, MatmulPlanner
from planner.matmul.ladder import LADDER, Rung, rungs, share
from symexpr import evaluate, symbol
from tuning import MARGINS
from wrapper_ir import Allocate, ExternCall, If, Launch, Symbol
from wrapper_ir.analysis import walk

EMITS = ("fx", "hop", "cpp")
Config = gemm_templates.Config
SMALL, LARGE = Config(16, 16, 32, 4, 1, 1), Config(32, 32, 32, 4, 2, 1)

s0, s1 = symbol("s0"), symbol("s1")


class Layer(nn.Module):
    def __init__(self, bias: bool = True, gelu: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(48, 40, bias=bias)
        self.gelu = gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(x)
        return F.gelu(out) if self.gelu else out


@pytest.fixture
def layer() -> nn.Module:
    torch.manual_seed(0)
    return Layer().eval()


# -- where is decided


sizes = st.integers(1, 300)


@settings(deadline=None)  # symbols are slow on a busy machine
@given(sizes, sizes, st.integers(0, 2), st.one_of(st.none(), st.integers(300, 5000)), st.data())
def test_every_number_of_rows_takes_the_next_rung(
    a: int, b: int, low: int, high: int | None, data: st.DataObject
) -> None:
    a, b = max(a, low), max(b, low)
    rows = data.draw(st.sampled_from([s0, s0 * 32, s0 * s1, s0**2 * 3]))
    symbols = [Symbol("s0", low, high, a), Symbol("s1", low, high, b)]
    found = rungs(rows, symbols, {"s0": a, "s1": b})
    assert [r.rows for r in found] == sorted({r.rows for r in found})
    assert len(found) <= len(LADDER) + 1
    assert int(evaluate(rows, {"s0": a, "s1": b})) in [r.rows for r in found]
    for rung in found:
        assert evaluate(rows, rung.hints) == rung.rows
        assert all(v >= max(1, low) for v in rung.hints.values())
        assert high is None or all(v <= high for v in rung.hints.values())
    env = {"s0": data.draw(st.integers(low, high or 9000)), "s1": data.draw(st.integers(low, 300))}
    m = int(evaluate(rows, env))
    taken = next(r for r in found if r.condition is None or evaluate(r.condition, env))
    if m > found[-1].rows:
        assert taken is found[-1]
    elif m > 0:
        assert taken.rows == min(r.rows for r in found if r.rows >= m)
    assert not taken.exact or m == taken.rows


def test_rows_that_are_no_product_are_decided_once() -> None:
    symbols = [Symbol("s0", 0, None, 8)]
    for rows in (s0 + 3, sympy.Integer(7), s0 * s1):
        found = rungs(rows, symbols, {"s0": 8, "s1": 2})
        assert [r.condition for r in found] == [None]


names = st.sampled_from("abcd")
tables = st.lists(st.dictionaries(names, st.floats(1, 2), min_size=1), min_size=1, max_size=8)


@given(tables)
def test_no_rung_loses_more_than_the_tolerance(times: list[dict[str, float]]) -> None:
    chosen = share(times)
    for rung, name in zip(times, chosen, strict=True):
        assert rung[name] <= min(rung.values()) * (1 + MARGINS.rung)
    # No shorter list of runs exists: greedy runs are as long as they can be.
    changes = sum(a != b for a, b in pairwise(chosen))

    def fewest(i: int) -> int:
        if i == len(times):
            return -1
        able, best = None, len(times)
        for j in range(i, len(times)):
            limit = min(times[j].values()) * (1 + MARGINS.rung)
            good = {n for n, t in times[j].items() if t <= limit}
            able = good if able is None else able & good
            if not able:
                break
            best = min(best, 1 + fewest(j + 1))
        return best

    assert changes == fewest(0)


# -- what runs


def decide(monkeypatch: pytest.MonkeyPatch, table: Callable[[int], Config | None]) -> None:
    """In place of measuring."""

    def times(
        self: MatmulPlanner, node: Any, rung: Rung, task: Any, many: bool
    ) -> dict[str, tuple[float, Config | None]]:
        config = table(rung.rows)
        return {VENDOR if config is None else str(config): (1.0, config)}

    monkeypatch.setattr(MatmulPlanner, "_times", times)


def check(compiled: Any, layer: nn.Module, batches: tuple[int, ...]) -> None:
    for batch in batches:
        x = torch.randn(batch, 48)
        with torch.no_grad():
            assert relative_error(compiled(x), layer(x)) < 1e-6


def mixed(rows: int) -> Config | None:
    return None if 16 < rows <= 64 else SMALL if rows <= 16 else LARGE


# The host programs of the other two differ in their kernels alone.
HOSTS = ("linear+gelu", "mm")
RUN = {(HOSTS[0], "fx"), (HOSTS[0], "hop"), (HOSTS[0], "cpp"), (HOSTS[1], "fx")}
EVERY = [
    pytest.param(form, emit, marks=() if (form, emit) in RUN else pytest.mark.slow)
    for form in ("linear+gelu", "linear", "mm+gelu", "mm")
    for emit in EMITS
]


@pytest.mark.parametrize(("form", "emit"), EVERY)
def test_templates_and_the_vendor_in_one_program(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, emit: str, form: str
) -> None:
    torch.manual_seed(0)
    layer = Layer("linear" in form, "gelu" in form).eval()
    decide(monkeypatch, mixed)
    compiled = compile_cli.compile(
        layer, (torch.randn(5, 48),), dynamic={0: {0}},
        options={**options, "gemm": "template", "emit": emit},
    )  # fmt: skip
    ops = compiled.graph.program.ops
    branches = [op for op in walk(ops) if isinstance(op, If)]
    assert {str(op.condition).split(" ", 1)[1] for op in branches} == {"<= 16", "<= 64"}
    assert sum(isinstance(op, ExternCall) for op in walk(ops)) == 1
    assert sum(isinstance(op, Launch) for op in walk(ops)) == (3 if "gelu" in form else 2)
    check(compiled, layer, (1, 16, 17, 64, 65))


def test_one_row_is_a_size_that_is_known(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, layer: nn.Module
) -> None:
    decide(monkeypatch, lambda rows: SMALL if rows == 1 else LARGE)
    compiled = compile_cli.compile(
        layer, (torch.randn(5, 48),), dynamic={0: {0}}, options={**options, "gemm": "template"}
    )
    (branch,) = (op for op in compiled.graph.program.ops if isinstance(op, If))
    (one,) = branch.then
    (more,) = branch.orelse
    assert isinstance(branch.condition, sympy.Eq)
    assert isinstance(one, Launch)
    assert isinstance(more, Launch)
    assert len(more.args) == len(one.args) + 1  # M
    check(compiled, layer, (1, 2, 33))
    (line,) = matmul_lines(compiled.graph)
    assert f"== 1: {SMALL}; {LARGE}" in line


def test_the_model_decides_by_ranges(options: dict[str, Any], layer: nn.Module) -> None:
    """Nothing is measured on a CPU: the cost model's best at each rung."""
    taken = {**options, "gemm": "template"}
    args = (torch.randn(5, 48),)
    compiled = compile_cli.compile(layer, args, dynamic={0: {0}}, options=taken)
    decided = compiled.graph.decided
    assert all(len(d) > 1 and d[-1].condition is None for d in decided.values())
    check(compiled, layer, (1, 7, 16, 30))
    off = compile_cli.compile(
        layer, args, dynamic={0: {0}}, options={**taken, "multikernel": "off"}
    )
    assert not any(isinstance(op, If) for op in off.graph.program.ops)


def test_two_dynamic_sizes_make_the_rows(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, layer: nn.Module
) -> None:
    decide(monkeypatch, mixed)
    compiled = compile_cli.compile(
        layer, (torch.randn(2, 8, 48),), dynamic={0: {0, 1}},
        options={**options, "gemm": "template"},
    )  # fmt: skip
    assert any(isinstance(op, If) for op in compiled.graph.program.ops)
    for shape in ((1, 1), (2, 8), (5, 4), (3, 30)):
        x = torch.randn(*shape, 48)
        with torch.no_grad():
            assert relative_error(compiled(x), layer(x)) < 1e-6


@pytest.mark.parametrize(("rows", "columns"), [(1, 40), (5, 1), (1, 1)])
def test_one_row_or_column_takes_its_epilogue(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, rows: int, columns: int
) -> None:
    """Whose index is nowhere in the kernel that fusion found."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, columns), nn.GELU()).eval()
    decide(monkeypatch, lambda _: SMALL)
    compiled = compile_cli.compile(
        model, (torch.randn(rows, 48),), options={**options, "gemm": "template"}
    )
    assert sum(isinstance(op, Launch) for op in compiled.graph.program.ops) == 1
    assert not any(isinstance(op, ExternCall) for op in compiled.graph.program.ops)
    x = torch.randn(rows, 48)
    with torch.no_grad():
        assert relative_error(compiled(x), model(x)) < 1e-6


# -- several launches


SPLIT = Config(16, 16, 16, 4, 1, 1, "decompose_k", split_k=2)


@pytest.mark.parametrize(
    ("emit", "dynamic"),
    [
        pytest.param(
            emit, dynamic,
            marks=() if emit == "fx" or (emit, dynamic) == ("cpp", True) else pytest.mark.slow,
        )
        for emit in EMITS
        for dynamic in (False, True)
    ],
)  # fmt: skip
def test_launches_share_a_workspace(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, layer: nn.Module,
    emit: str, dynamic: bool,
) -> None:  # fmt: skip
    decide(monkeypatch, lambda rows: SPLIT if rows < 64 else LARGE)
    compiled = compile_cli.compile(
        layer, (torch.randn(5, 48),), dynamic={0: {0}} if dynamic else None,
        options={**options, "gemm": "template", "emit": emit},
    )  # fmt: skip
    ops = list(walk(compiled.graph.program.ops))
    (memory,) = (o for o in ops if isinstance(o, Allocate) and o.out.endswith("_partials"))
    assert sum(isinstance(op, Launch) for op in ops) == (3 if dynamic else 2)
    assert evaluate(memory.type.numel, {str(s): 5 for s in memory.type.numel.free_symbols}) == 400
    check(compiled, layer, (1, 5, 63, 64) if dynamic else (5,))


@pytest.mark.parametrize(("last", "gelu"), [(40, False), (24, True)])
def test_names_of_choices_are_no_other_nodes(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, last: int, gelu: bool
) -> None:
    """`linear` at one row is not the layer that is called `linear_1`, nor its kernels."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(48, 40), nn.GELU(), nn.Linear(40, last), *([nn.GELU()] if gelu else [])
    ).eval()
    decide(monkeypatch, lambda rows: None if rows == 1 else SMALL)
    compiled = compile_cli.compile(
        model, (torch.randn(5, 48),), dynamic={0: {0}}, options={**options, "gemm": "template"}
    )
    check(compiled, model, (1, 2, 17))
