"""Totals of rows' totals give what kernels of their own gave."""

from __future__ import annotations

import numpy as np
import pytest

from loop_ir import (
    FuseOptions,
    Graph,
    Kernel,
    bytes_moved,
    fuse,
    interpret_graph,
    parse_graph,
    verify,
)
from loop_ir.fusion.nest_totals import NestTotals
from loop_ir.ir import hints_of

# Sums of rows, and of the squares of all that they hold.
BESIDE = """
graph g(
    x: f32[s0, 3, 1024] cuda:0,
):
  where s0 in [2, 8192] hint 4096
  kernel rows(
      x: f32[s0, 3, 1024] cuda:0,
      out y: f32[s0] cuda:0,
  ):
    where s0 in [2, 8192] hint 4096
    parallel i0 < s0:
      over r0 < 3, r1 < 1024:
        v0 = load x[i0*3072 + r0*1024 + r1] : f32
        v1 = reduce sum(v0) : f32
      once:
        store y[i0] = v1
  kernel all(
      x: f32[s0, 3, 1024] cuda:0,
      out z: f32[] cuda:0,
      out w: f32[] cuda:0,
  ):
    where s0 in [2, 8192] hint 4096
    single:
      once:
        v9 = const 3.0 : f32
      over r0 < s0, r1 < 3, r2 < 1024:
        v0 = load x[r0*3072 + r1*1024 + r2] : f32
        v1 = mul(v0, v0) : f32
        v2 = sub(v1, v9) : f32
        v3 = reduce sum(v2) : f32
        v4 = reduce max(v2) : f32
      once:
        v5 = div(v3, v9) : f32
        store z[0] = v5
        store w[0] = v4
  return (y: f32[s0] cuda:0, z: f32[] cuda:0, w: f32[] cuda:0)
"""

# What is summed of all needs the maximum of its row first.
AFTER = (
    BESIDE.replace("reduce sum(v0)", "reduce max(v0)")
    .replace(
        "  kernel all(\n      x: f32[s0, 3, 1024] cuda:0,",
        "  kernel all(\n      x: f32[s0, 3, 1024] cuda:0,\n      y: f32[s0] cuda:0,",
    )
    .replace("v1 = mul(v0, v0)", "v6 = load y[r0] : f32\n        v1 = sub(v0, v6)")
)


def numbers(graph: Graph) -> list[np.ndarray]:
    x = np.random.default_rng(0).standard_normal((5, 3, 1024)).astype(np.float32)
    return [np.asarray(a) for a in interpret_graph(graph, {"x": x})]


@pytest.mark.parametrize("text", [BESIDE, AFTER], ids=["beside", "after"])
def test_rows_and_their_total_are_read_once(text: str) -> None:
    graph = parse_graph(text)
    nested, decisions = NestTotals().run(graph)
    verify(nested)
    assert len(decisions) == 1
    kernels = [n for n in nested.nodes if isinstance(n, Kernel)]
    assert [len(k.axes) for k in kernels] == [1, 0]
    hints = hints_of(graph.symbols)
    assert 2 * bytes_moved(nested, hints) < 1.01 * bytes_moved(graph, hints)
    for a, b in zip(numbers(nested), numbers(graph), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert any(
        k.name != "all" and len(k.axes) == 1 for k in fuse(graph).nodes if isinstance(k, Kernel)
    )
    assert NestTotals().run(nested).program == nested


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hint 4096", "hint 300"),  # a launch would take as long
        ("v4 = reduce max(v2) : f32", "v4 = reduce argmax(v2) : i64"),
        ("over r0 < 3, r1 < 1024:", "over r0 < 3, r1 < 512:"),  # other rows
    ],
)
def test_what_is_left_alone(old: str, new: str) -> None:
    text = BESIDE.replace(old, new)
    assert text != BESIDE
    if "argmax" in new:
        text = text.replace("out w: f32[]", "out w: i64[]").replace(
            "w: f32[] cuda:0)", "w: i64[] cuda:0)"
        )
    graph = parse_graph(text)
    verify(graph)
    assert NestTotals(FuseOptions()).run(graph).program is graph
