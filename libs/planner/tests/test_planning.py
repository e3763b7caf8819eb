"""Planning without the app: the README's example, and what the plans of a graph say."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aten_lowering import decompose, lower
from loop_ir import FuseOptions, Graph, Matmul, Symbol, fuse, parse_kernel
from loop_ir.ir import hints_of
from planner import Kernels, Settings, UnboundSize, assemble, plan_graph
from planner.matmul.likeness import likeness
from planner.plan import LaunchPlan
from planner.schedules.proposals import default_schedule, near_schedule
from planner.select import _kernel


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


TRANSPOSE = """kernel k(
    x: f32[s0, s1] cuda:0,
    out y: f32[s1, s0] cuda:0,
):
  where s0 in [1, *] hint 64
  where s1 in [1, *] hint 64
  parallel i0 < s1, i1 < s0:
    once:
      v0 = load x[i1*s1 + i0] : f32
      store y[i0*s0 + i1] = v0
"""


@pytest.mark.parametrize("multikernel", ["auto", "off"])
def test_places_that_32_bits_may_not_hold_are_launched_under_conditions(multikernel: str) -> None:
    """So are those of kernels that follow a vendor's call, which know none."""
    kernel = parse_kernel(TRANSPOSE)
    hints = hints_of(kernel.symbols)
    choices = _kernel(kernel, hints, Settings(multikernel=multikernel), set()).choices
    bits = [isinstance(c, LaunchPlan) and "to(tl.int64)" in c.define.source for _, c in choices]
    assert bits[-1] and choices[-1][0] is None
    assert (len(bits) > 1) == (multikernel == "auto") and not any(bits[:-1])
    assert near_schedule(kernel, hints).index_bits == 32
    assert default_schedule(kernel, hints).index_bits == 64


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


def test_candidates_are_waited_for_while_kernels_compile_and_for_a_share_of_the_time() -> None:
    def compiled() -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(None)
        return future

    def ends(future: Future[Any], seconds: float) -> None:
        threading.Timer(seconds, future.set_result, (None,)).start()

    kernels = Kernels(Settings())
    assert kernels.in_time([compiled()]) and kernels._end is None
    needed, first, second = (Future[Any]() for _ in range(3))
    kernels.started.append(needed)
    ends(first, 0.02)
    assert kernels.in_time([first]) and kernels._end is None  # a kernel of the program compiles
    ends(needed, 0.02)
    kernels.began = time.perf_counter() - 0.5
    start = time.perf_counter()
    assert not kernels.in_time([second])
    assert 0.1 < time.perf_counter() - start < 0.4
    assert kernels.in_time([compiled()]) and not kernels.in_time([second])


def test_candidates_are_measured_while_kernels_compile_and_half_a_second_more() -> None:
    kernels, needed = Kernels(Settings()), Future[Any]()
    kernels.started.append(needed)
    assert not kernels.spent() and kernels._end is None
    needed.set_result(None)
    kernels.began = time.perf_counter() - 100.0
    assert not kernels.spent() and kernels._end is not None
    assert kernels._end < time.perf_counter() + 1.0  # of a long compilation, too
    kernels._end -= 1.2
    assert not kernels.in_time([Future[Any]()]) and not kernels.spent()
    kernels._end -= 0.5
    assert kernels.spent()
