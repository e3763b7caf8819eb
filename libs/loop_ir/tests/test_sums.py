"""What follows the products of a matmul, as one kernel over their sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loop_ir import (
    FuseOptions,
    Matmul,
    fuse,
    interpret_graph,
    interpret_kernel,
    is_plain,
    parse_graph,
    print_graph,
    verify,
    whole_epilogue,
    why_not,
)
from loop_ir.errors import LayoutMismatch

SUM = """\
graph g(
    x: f32[6, 4, 5] cpu,
    w: f32[6, 5, 3] cpu,
    c: f32[6, 4, 1] cpu,
    m: bool[2, 4, 3] cpu,
):
  matmul y: f32[6, 4, 3] cpu
    a x: f32[6, 4, 5] cpu
    b w: f32[6, 5, 3] cpu
    bias c: f32[6, 4, 3] cpu stride (4, 1, 0)
    alpha 0.5
    beta -2.0
    extern aten.baddbmm.default(c: f32[6, 4, 1] cpu, x: f32[6, 4, 5] cpu, w: f32[6, 5, 3] cpu)
      out y: f32[6, 4, 3] cpu
  kernel masked(
      y: f32[6, 4, 3] cpu,
      m: bool[2, 4, 3] cpu,
      out z: f32[6, 4, 3] cpu,
  ):
    parallel i0 < 2, i1 < 3, i2 < 12:
      once:
        v0 = load y[i0*36 + i1*12 + i2] : f32
        v1 = load m[i0*12 + i2]         : bool
        v2 = const 7.0                  : f32
        v3 = where(v1, v0, v2)          : f32
        store z[i0*36 + i1*12 + i2] = v3
  return (z: f32[6, 4, 3] cpu)
"""


SCALED = """\
graph g(
    x: f32[4, 5] cpu,
    w: f32[3, 5] cpu,
    r: f32[4, 1] cpu,
    c: f32[] cpu,
    d: f32[3] cpu,
):
  matmul y: f32[4, 3] cpu
    a x: f32[4, 5] cpu
    b w: f32[5, 3] cpu stride (1, 5)
    scale_a r: f32[4] cpu
    scale_b c: f32[3] cpu stride (0,)
    fast
    bias d: f32[3] cpu
    extern aten._scaled_mm.default(x: f32[4, 5] cpu, w: f32[5, 3] cpu stride (1, 5), r: f32[4, 1] cpu, c: f32[] cpu, d: f32[3] cpu)
      out y: f32[4, 3] cpu
  return (y: f32[4, 3] cpu)
"""  # noqa: E501


def test_factors_of_rows_and_columns() -> None:
    """One factor may serve all; the bias is added to what they give."""
    graph = parse_graph(SCALED)
    verify(graph)
    assert parse_graph(print_graph(graph)) == graph
    assert [*map(str.split, print_graph(graph).split("\n"))] == [
        *map(str.split, SCALED.split("\n"))
    ]
    rng = np.random.default_rng(0)
    x, w, r, d = (rng.random(s, np.float32) for s in ((4, 5), (3, 5), (4, 1), (3,)))
    c = np.asarray(0.5, np.float32)
    expected = r * (x @ w.T) * c + d
    (got,) = interpret_graph(graph, [x, w, r, c, d])
    np.testing.assert_allclose(got, expected, 1e-6)
    (node,) = graph.nodes
    assert isinstance(node, Matmul)
    assert not is_plain(node)
    kernel, sums = whole_epilogue(node)
    assert kernel is not None
    verify(kernel)
    given = {sums: x @ w.T, "r": r.reshape(-1), "c": c.reshape(-1), "d": d}
    np.testing.assert_allclose(interpret_kernel(kernel, given)["y"], expected, 1e-6)


def test_factors_of_blocks() -> None:
    """Of each row of `x` and three of its elements, and of blocks of 3 x 2 of `w`."""
    blocks = SCALED.replace("fast", "blocks (1, 3, 2)")
    blocks = blocks.replace("r: f32[4] cpu", "r: f32[4, 2] cpu").replace(
        "c: f32[3] cpu stride (0,)", "c: f32[2, 2] cpu"
    )
    blocks = blocks.replace("r: f32[4, 1]", "r: f32[4, 2]").replace("c: f32[]", "c: f32[2, 2]")
    graph = parse_graph(blocks)
    verify(graph)
    assert parse_graph(print_graph(graph)) == graph
    rng = np.random.default_rng(0)
    x, w, r, c, d = (rng.random(s, np.float32) for s in ((4, 5), (3, 5), (4, 2), (2, 2), (3,)))
    k, n = [0, 0, 0, 1, 1], [0, 0, 1]
    (got,) = interpret_graph(graph, [x, w, r, c, d])
    np.testing.assert_allclose(got, (x * r[:, k]) @ (w.T * c[k][:, n]) + d, 1e-6)
    with pytest.raises(LayoutMismatch, match="scales of"):
        verify(parse_graph(blocks.replace("blocks (1, 3, 2)", "blocks (1, 2, 2)")))


GROUPED = """\
graph g(
    x: bf16[5, 3] cpu,
    w: bf16[2, 3, 4] cpu,
    ends: i32[2] cpu,
):
  matmul y: bf16[5, 4] cpu
    a x: bf16[5, 3] cpu
    b w: bf16[2, 3, 4] cpu
    groups ends: i32[2] cpu
    extern aten._grouped_mm.default(x: bf16[5, 3] cpu, w: bf16[2, 3, 4] cpu, ends: i32[2] cpu)
      out y: bf16[5, 4] cpu
  return (y: bf16[5, 4] cpu)
"""


def test_groups_of_rows() -> None:
    graph = parse_graph(GROUPED)
    verify(graph)
    assert parse_graph(print_graph(graph)) == graph
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, s).astype(np.float32) for s in ((5, 3), (2, 3, 4)))
    (got,) = interpret_graph(graph, [x, w, np.asarray([2, 4], np.int32)])
    np.testing.assert_array_equal(got[:4], np.concatenate([x[:2] @ w[0], x[2:4] @ w[1]]))
    assert np.isnan(got[4]).all()
    (node,) = graph.nodes
    assert isinstance(node, Matmul)
    assert node.jagged == "M"
    factors = "    r: f32[5] cpu,\n    c: f32[2, 4] cpu,\n):"
    taken = "    scale_a r: f32[5] cpu\n    scale_b c: f32[2, 4] cpu\n    groups"
    scaled = parse_graph(GROUPED.replace("):", factors, 1).replace("    groups", taken, 1))
    verify(scaled)
    assert parse_graph(print_graph(scaled)) == scaled
    r, c = (rng.integers(1, 3, s).astype(np.float32) for s in ((5,), (2, 4)))
    (found,) = interpret_graph(scaled, [x, w, np.asarray([2, 4], np.int32), r, c])
    np.testing.assert_array_equal(found[:4], got[:4] * r[:4, None] * c[[0, 0, 1, 1]])
    for wrong in ("groups ends: i32[1] cpu", "groups x: bf16[2] cpu"):
        with pytest.raises(LayoutMismatch):
            verify(parse_graph(GROUPED.replace("groups ends: i32[2] cpu", wrong)))


@pytest.mark.parametrize("wrong", ["scale_a r: f32[3] cpu", "scale_a r: f32[4, 1] cpu"])
def test_factors_must_fit_the_result(wrong: str) -> None:
    with pytest.raises(LayoutMismatch, match="scales of"):
        verify(parse_graph(SCALED.replace("scale_a r: f32[4] cpu", wrong)))


@pytest.fixture
def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    x, w, c = (rng.standard_normal(s, np.float32) for s in ((6, 4, 5), (6, 5, 3), (6, 4, 1)))
    return [x, w, c, rng.random((2, 4, 3)) < 0.5]


def test_text_and_meaning(inputs) -> None:
    graph = parse_graph(SUM)
    verify(graph)
    assert parse_graph(print_graph(graph)) == graph
    assert [x.split() for x in print_graph(graph).split("\n")] == [
        x.split() for x in SUM.split("\n")
    ]
    x, w, c, m = inputs
    expected = np.where(np.repeat(m, 3, 0), 0.5 * (x @ w) - 2 * c, 7)
    (got,) = interpret_graph(graph, inputs)
    np.testing.assert_allclose(got, expected, 1e-6)


def test_the_batch_of_an_epilogue_may_be_split(inputs) -> None:
    """Heads that share a mask: the parts of the batch number are divisions of one integer."""
    graph = parse_graph(SUM)
    assert "fuse with the option `epilogue`" in why_not(graph, "y", "masked")
    fused = fuse(graph, FuseOptions(epilogue=True))
    (node,) = fused.nodes
    assert isinstance(node, Matmul)
    assert node.epilogue is not None
    assert [int(a.extent) for a in node.epilogue.axes] == [6, 4, 3]
    assert "load m[i0//3*12" in print_graph(fused)
    assert parse_graph(print_graph(fused)) == fused
    np.testing.assert_array_equal(*(interpret_graph(g, inputs)[0] for g in (graph, fused)))


def test_a_batch_that_is_stored_in_another_order_is_a_kernel_of_its_own() -> None:
    """Attention's output: the products of heads lie side by side in a row."""
    graph = parse_graph(SUM.replace("store z[i0*36 + i1*12 + i2]", "store z[i0*36 + i1 + i2*3]"))
    assert "stores the products of a batch in another order" in why_not(graph, "y", "masked")
    twice = SUM.replace(
        "out z: f32[6, 4, 3] cpu,", "out z: f32[6, 4, 3] cpu,\n      out u: f32[6, 4, 3] cpu,"
    )
    twice = twice.replace("= v3\n", "= v3\n        store u[i0*36 + i1*12 + i2] = v0\n")
    twice = twice.replace("(z: f32[6, 4, 3] cpu)", "(z: f32[6, 4, 3] cpu, u: f32[6, 4, 3] cpu)")
    assert "writes 2 results, or parts of one" in why_not(parse_graph(twice), "y", "masked")


def test_rows_may_not_be_split() -> None:
    """Their number differs inside of a tile, and with it a division would."""
    graph = parse_graph(SUM.replace("i0 < 2, i1 < 3, i2 < 12", "i0 < 12, i1 < 2, i2 < 3")
                        .replace("i0*36 + i1*12 + i2", "i0*6 + i1*3 + i2")
                        .replace("m[i0*12 + i2]", "m[i1*3 + i2]"))  # fmt: skip
    assert "walks 4 rows or columns in parts" in why_not(graph, "y", "masked")


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("beta", [-2.0, 0.0])
def test_one_kernel_over_the_sums(inputs, fused: bool, beta: float) -> None:
    graph = fuse(parse_graph(SUM), FuseOptions(epilogue=fused))
    node = replace(graph.nodes[0], beta=beta)
    graph = replace(graph, nodes=(node, *graph.nodes[1:]))
    assert not is_plain(node)
    kernel, sums = whole_epilogue(node)
    assert kernel is not None
    verify(kernel)
    x, w, c, m = inputs
    given = {sums: x @ w, "c": c.reshape(-1), "m": m}
    given = {b.name: given[b.name] for b in kernel.buffers if not b.written}
    got = interpret_kernel(kernel, given, {})["z" if fused else "y"]
    expected = 0.5 * (x @ w) + beta * c
    if fused:
        expected = np.where(np.repeat(m, 3, 0), expected, 7)
    np.testing.assert_allclose(got, expected, 1e-5, 1e-6)


def test_a_plain_matmul_has_its_own_epilogue() -> None:
    graph = fuse(parse_graph(SUM), FuseOptions(epilogue=True))
    node = replace(graph.nodes[0], bias=None, alpha=1, beta=1)
    assert whole_epilogue(node) == (node.epilogue, "y")


DOUBLED = """\
graph doubled(
    x: f32[4, 5] cpu,
    w: f32[5, 3] cpu,
):
  matmul y: f32[4, 3] cpu{stride}
    a x: f32[4, 5] cpu
    b w: f32[5, 3] cpu
    extern aten.mm.default(x: f32[4, 5] cpu, w: f32[5, 3] cpu)
      out y: f32[4, 3] cpu{stride}
  kernel double(
      y: f32[4, 3] cpu{stride},
      out z: f32[4, 3] cpu,
  ):
    parallel {axes}:
      once:
        v0 = load y[{at}] : f32
        v1 = add(v0, v0) : f32
        store z[r*3 + c] = v1
  return (z: f32[4, 3] cpu)
"""


@pytest.mark.parametrize(
    ("axes", "stride", "at"),
    [
        ("r < 4, c < 3", "", "r*3 + c"),
        ("c < 3, r < 4", "", "r*3 + c"),
        ("r < 4, c < 3", " stride (1, 4)", "c*4 + r"),
    ],
)
def test_an_epilogue_walks_the_result_in_any_order(axes: str, stride: str, at: str) -> None:
    graph = parse_graph(DOUBLED.format(axes=axes, stride=stride, at=at))
    verify(graph)
    fused = fuse(graph, FuseOptions(epilogue=True))
    assert [n.epilogue is not None for n in fused.nodes if isinstance(n, Matmul)] == [True]
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s, np.float32) for s in ((4, 5), (5, 3))]
    np.testing.assert_array_equal(*(interpret_graph(g, given)[0] for g in (graph, fused)))
