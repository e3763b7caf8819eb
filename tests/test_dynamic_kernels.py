"""Pointwise kernels and reductions of dynamic sizes: several schedules, integers decide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import compile_cli
from compile_cli.cli.measure import relative_error
from compile_cli.options import Options
from loop_ir import Graph, Kernel
from loop_ir.ir import hints_of
from planner.plan import LaunchPlan, NodePlan
from planner.select import HINT_RATIO, MAX_VARIANTS, select
from symexpr import evaluate
from triton_emit import default_schedule
from wrapper_ir import DefineKernel, If
from wrapper_ir.analysis import walk


class Norm(nn.Module):
    """Rows and columns are both dynamic: a reduction, and a pointwise kernel beside it."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(x + 1, -1), F.gelu(y) * 2


def compiled(options: dict[str, Any], **more: Any) -> Any:
    args = (torch.randn(6, 40), torch.randn(3, 10))
    return compile_cli.compile(
        Norm(), args, dynamic={0: {0, 1}, 1: {0, 1}}, options={**options, **more}
    )


@pytest.mark.spread(2)
@pytest.mark.parametrize("emit", ["fx", pytest.param("hop", marks=pytest.mark.slow), "cpp"])
def test_right_on_every_side_of_every_comparison(options: dict[str, Any], emit: str) -> None:
    model = compiled(options, emit=emit)
    ops = model.graph.program.ops
    branches = [op for op in walk(ops) if isinstance(op, If)]
    assert branches
    # Both sizes of the reduction, whose places 32 bits hold, and of the pointwise kernel.
    assert len({str(s) for op in branches for s in op.condition.free_symbols}) == 4
    for rows, columns in ((2, 3), (6, 40), (300, 40), (3, 1500)):
        args = (torch.randn(rows, columns), torch.randn(columns, rows))
        for got, wanted in zip(model(*args), Norm()(*args), strict=True):
            assert relative_error(got, wanted) < 1e-6


def test_off_is_one_kernel(options: dict[str, Any]) -> None:
    model = compiled(options, multikernel="off")
    assert not any(isinstance(op, If) for op in model.graph.program.ops)


@pytest.mark.parametrize(
    ("args", "multikernel"),
    [((torch.randn(7, 6), torch.randn(5, 40)), "off"), ((torch.randn(7, 5),) * 2, "auto")],
    ids=["one kernel", "no axis of dynamic size"],
)
def test_places_take_64_bits_where_nothing_asks_how_large_sizes_are(
    options: dict[str, Any], args: tuple[torch.Tensor, ...], multikernel: str
) -> None:
    def corners(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[:4, :4].flip(1) + (y.argmax(-1)[:4] if multikernel == "off" else 1)

    model = compile_cli.compile(
        corners, args, dynamic={0: {0, 1}, 1: {0, 1}},
        options={**options, "multikernel": multikernel},
    )  # fmt: skip
    kernels = [op.source for op in model.graph.program.ops if isinstance(op, DefineKernel)]
    assert kernels and not any(isinstance(op, If) for op in model.graph.program.ops)
    assert all("program_id(0).to(tl.int64)" in source for source in kernels)
    assert torch.equal(model(*args), corners(*args))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    model = compiled({"cache_dir": str(tmp_path_factory.mktemp("cache"))})
    fused: Graph = model.graph.fused
    return fused


@given(st.data())
@settings(max_examples=8, deadline=None)
def test_the_hint_and_the_ends_get_the_schedules_they_want(
    graph: Graph, data: st.DataObject
) -> None:
    """And no node more than `MAX_VARIANTS`, but for the one that holds rows near the hint."""
    hints = {s.name: data.draw(st.integers(1, 4096), s.name) for s in graph.symbols}
    symbols = tuple(
        type(s)(s.name, s.low, s.high, hints[s.name]) for s in graph.symbols
    )  # fmt: skip
    hinted = Graph(**{**vars(graph), "symbols": symbols})
    plans = select(hinted, Options(), lambda node, h: None, lambda node, h: pytest.fail("user"))
    for node, plan in zip(graph.nodes, plans, strict=True):
        if not isinstance(node, Kernel):
            continue
        launches = {launch.define.name for launch in plan.launches}
        held = [name for name in launches if "_held_" in name]
        assert len(held) <= 1
        assert len(launches) <= MAX_VARIANTS + len(held)
        low = dict.fromkeys(hints, 1)
        high = {n: v * HINT_RATIO for n, v in hints.items()}
        for env in (hints, low, high):
            taken = next(
                choice
                for condition, choice in plan.choices
                if (condition is None or evaluate(condition, env))
                and choice.define.name not in held
            )
            wanted = default_schedule(node, env)
            assert taken.define.num_warps == wanted.num_warps
            constants = dict(taken.define.constants)
            blocks = [v for k, v in constants.items() if k.startswith("X")]
            assert wanted.xblock in blocks or not blocks


def test_places_take_32_bits_where_sizes_let_them(options: dict[str, Any]) -> None:
    """And 64 where they do not, in a kernel of its own; the numbers are the same."""

    def turned(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x.flip(1), scale_factor=3)

    model = compile_cli.compile(
        turned, (torch.randn(2, 3, 4, 5),), dynamic={0: {0, 1, 2, 3}}, options=options
    )
    plans = select(
        model.graph.fused, Options(), lambda node, h: None, lambda node, h: pytest.fail("user")
    )
    (plan,) = (p for p in plans if isinstance(p, NodePlan) and len(p.choices) > 1)
    choices: Any = plan.choices
    *short, (last, long) = choices
    assert last is None and long.define.name.count("_long") == 1
    assert "program_id(0).to(tl.int64)" in long.define.source
    names = sorted(str(s) for s in choices[0][0].free_symbols)
    for size, fits in ((6, True), (100, True), (200, False), (3000, False)):
        env = dict.fromkeys(names, size)
        found = [choice for condition, choice in short if evaluate(condition, env)]
        assert bool(found) == fits
        for choice in found:
            assert "program_id(0).to(tl.int64)" not in choice.define.source
    for shape in ((2, 3, 4, 5), (1, 1, 1, 1), (3, 2, 17, 9)):
        x = torch.randn(shape)
        assert torch.equal(model(x), turned(x))


def test_rows_near_the_hint_are_held(options: dict[str, Any]) -> None:
    """Up to a quarter of a power of two more; the numbers are those of any length."""

    def norm(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:])

    model = compile_cli.compile(norm, (torch.randn(70, 33),), dynamic={0: {0, 1}}, options=options)
    plans = select(
        model.graph.fused, Options(), lambda node, h: None, lambda node, h: pytest.fail("user")
    )
    hints = hints_of(model.graph.fused.symbols)
    (plan,) = (p for p in plans if isinstance(p, NodePlan))
    (condition, choice), *others = plan.choices
    assert condition is not None and isinstance(choice, LaunchPlan)
    assert "_held_" in choice.define.name and others
    assert "for start" not in choice.define.source  # it reads a row once
    assert "to(tl.int64)" not in choice.define.source
    rows, row = sorted(map(str, condition.free_symbols), key=lambda n: hints[n], reverse=True)
    for sizes, holds in (
        ((70, 33), True),
        ((1, 48), True),
        ((70, 49), False),
        ((1 << 27, 33), False),
    ):
        assert bool(evaluate(condition, dict(zip((rows, row), sizes, strict=True)))) == holds
    for shape in ((70, 33), (5, 48), (3, 1), (2, 49), (1, 3000)):
        x = torch.randn(shape)
        assert relative_error(model(x), norm(x.double()).float()) < 1e-5


@pytest.mark.parametrize("ended", [False, True])
def test_an_integer_of_data_may_pass_32_bits_in_a_place(
    options: dict[str, Any], ended: bool
) -> None:
    def rolled(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        n = by.item()
        if ended:
            torch._check(n >= -(1 << 45))
            torch._check(n <= 1 << 45)
        return x[(torch.arange(20) + n) % 20]

    x = torch.randn(20)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        model = torch.compile(rolled, backend="compile_cli", options=options)
        for by in (3, 1 << 40, -(1 << 45)):
            assert torch.equal(model(x, torch.tensor(by)), rolled(x, torch.tensor(by)))
