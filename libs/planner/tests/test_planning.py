"""Planning without the app: the README's example, and what the plans of a graph say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aten_lowering import decompose, lower
from loop_ir import FuseOptions, Graph, Matmul, Symbol, fuse
from planner import Kernels, Settings, UnboundSize, assemble, plan_graph
from planner.matmul.likeness import likeness


def test_the_example_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    exec(block[1], {})
    printed = capsys.readouterr().out
    assert "extern aten.linear.default" in printed and "launch fused_gelu_layer_norm" in printed


def test_a_size_that_no_input_has_is_refused() -> None:
    graph = Graph("f", (), (), (), symbols=(Symbol("s0", 1, 8),))
    planned = plan_graph(graph, Settings(), Kernels(Settings()))
    assert planned.plans == () and planned.explain() == ""
    with pytest.raises(UnboundSize, match="the size s0 does not follow"):
        assemble(graph, planned.plans)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 16) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        one, two, three, four = (layer(x) for layer in self.layers)
        return F.gelu(one), F.gelu(two), F.relu(three), F.gelu(four) + 1


def test_matmuls_that_differ_in_names_alone_are_alike() -> None:
    exported = torch.export.export(Layers(), (torch.randn(4, 8),))
    graph = fuse(lower(decompose(exported)), FuseOptions(epilogue=True))
    one, two, three, four = [n for n in graph.nodes if isinstance(n, Matmul)]
    assert one.epilogue is not None
    none: frozenset[str] = frozenset()
    assert likeness(one, none) == likeness(two, none)
    assert len({likeness(n, none) for n in (two, three, four)}) == 3
    given = {one.b.buffer}
    assert likeness(one, given) != likeness(one, none)
    assert likeness(one, given) == likeness(two, {two.b.buffer}) != likeness(two, given)
