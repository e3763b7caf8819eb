"""A copy that is begun ahead and waited for, on tensors of the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from aten_lowering.passes.base import call
from compile_cli import pipeline
from compile_cli.options import Options
from compile_cli.record import Record


@pytest.mark.parametrize("emit", ["fx", pytest.param("cpp", marks=pytest.mark.slow)])
def test_what_was_waited_for_is_read(emit: str, options: dict[str, Any]) -> None:
    graph, ours = fx.Graph(), torch.ops.aten_lowering
    x, y = graph.placeholder("x"), graph.placeholder("y")
    with FakeTensorMode():
        x.meta["val"], y.meta["val"] = torch.empty(4, 4), torch.empty(4, 4)
        begun = call(graph, ours.fetch.default, x, torch.device("cpu"))
        there = call(graph, ours.fetched.default, begun)
        product = call(graph, torch.ops.aten.mm.default, y, there)
        total = call(graph, torch.ops.aten.add.Tensor, product, there)
    graph.output((total,))
    module = fx.GraphModule(torch.nn.Module(), graph)
    compiled = pipeline.compile_graph(module, Options(**options, emit=emit), Record())
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    torch.testing.assert_close(compiled.run(a, b)[0], b @ a + a)
