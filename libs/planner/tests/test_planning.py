"""Planning without the app: the README's example, and what the plans of a graph say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loop_ir import Graph, Symbol
from planner import Kernels, PlannerSettings, UnboundSize, assemble, plan_graph


def test_the_example_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    exec(block[1], {})
    printed = capsys.readouterr().out
    assert "extern aten.linear.default" in printed and "launch fused_gelu_layer_norm" in printed


def test_a_size_that_no_input_has_is_refused() -> None:
    graph = Graph("f", (), (), (), symbols=(Symbol("s0", 1, 8),))
    planned = plan_graph(graph, PlannerSettings(), Kernels(PlannerSettings()))
    assert planned.plans == () and planned.explain() == ""
    with pytest.raises(UnboundSize, match="the size s0 does not follow"):
        assemble(graph, planned.plans)
