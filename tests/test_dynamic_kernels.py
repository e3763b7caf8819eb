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
from planner.select import HINT_RATIO, MAX_VARIANTS, select
from symexpr import evaluate
from triton_emit import default_schedule
from wrapper_ir import If
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


@pytest.mark.parametrize("emit", ["fx", pytest.param("hop", marks=pytest.mark.slow), "cpp"])
def test_right_on_every_side_of_every_comparison(options: dict[str, Any], emit: str) -> None:
    model = compiled(options, emit=emit)
    ops = model.graph.program.ops
    branches = [op for op in walk(ops) if isinstance(op, If)]
    assert branches
    # The columns of the reduction, and both sizes of the pointwise kernel.
    assert len({str(s) for op in branches for s in op.condition.free_symbols}) == 3
    for rows, columns in ((2, 3), (6, 40), (300, 40), (3, 1500)):
        args = (torch.randn(rows, columns), torch.randn(columns, rows))
        for got, wanted in zip(model(*args), Norm()(*args), strict=True):
            assert relative_error(got, wanted) < 1e-6


def test_off_is_one_kernel(options: dict[str, Any]) -> None:
    model = compiled(options, multikernel="off")
    assert not any(isinstance(op, If) for op in model.graph.program.ops)


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
    """And no node more than `MAX_VARIANTS`."""
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
        assert len(launches) <= MAX_VARIANTS
        low = dict.fromkeys(hints, 1)
        high = {n: v * HINT_RATIO for n, v in hints.items()}
        for env in (hints, low, high):
            taken = next(
                choice
                for condition, choice in plan.choices
                if condition is None or evaluate(condition, env)
            )
            wanted = default_schedule(node, env)
            assert taken.define.num_warps == wanted.num_warps
            constants = dict(taken.define.constants)
            blocks = [v for k, v in constants.items() if k.startswith("X")]
            assert wanted.xblock in blocks or not blocks
