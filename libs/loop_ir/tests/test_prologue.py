"""Cheap pointwise producers of a matmul's operands, moved into the matmul."""

from __future__ import annotations

import numpy as np
import pytest

from loop_ir import (
    FuseOptions,
    Kernel,
    Matmul,
    VerifyError,
    fuse,
    fuse_with_report,
    interpret_graph,
    interpret_kernel,
    over_operand,
    parse_graph,
    print_graph,
    verify,
    why_not,
)

# Weights of 8 bits, a scale for each row of them, and a matmul that reads them transposed.
WIDEN = """\
graph g(
    x: f32[4, 6] cpu,
    q: i8[3, 6] cpu,
    s: f32[3] cpu,
):
  kernel widen(
      q: i8[3, 6] cpu,
      s: f32[3] cpu,
      out w: f32[3, 6] cpu,
  ):
    parallel i0 < 3, i1 < 6:
      once:
        v0 = load q[i0*6 + i1] : i8
        v1 = cast(v0)          : f32
        v2 = load s[i0]        : f32
        v3 = mul(v1, v2)       : f32
        store w[i0*6 + i1] = v3
  kernel gate(
      x: f32[4, 6] cpu,
      out g: f32[4, 6] cpu,
  ):
    parallel i0 < 24:
      once:
        v0 = load x[i0]     : f32
        v1 = const 0.0      : f32
        v2 = maximum(v0, v1) : f32
        store g[i0] = v2
  matmul y: f32[4, 3] cpu
    a g: f32[4, 6] cpu
    b w: f32[6, 3] cpu stride (1, 6)
    extern aten.mm.default(g: f32[4, 6] cpu, w: f32[6, 3] cpu stride (1, 6))
      out y: f32[4, 3] cpu
  return (y: f32[4, 3] cpu)
"""
ON = FuseOptions(prologue=True, horizontal=False)


@pytest.fixture
def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    x, s = rng.standard_normal((4, 6)), rng.standard_normal(3)
    return [x.astype(np.float32), rng.integers(-99, 99, (3, 6), np.int8), s.astype(np.float32)]


def test_both_operands(inputs) -> None:
    graph = parse_graph(WIDEN)
    assert "fuse with the option `prologue`" in why_not(graph, "widen", "y")
    assert all(m.prologues == () for m in fuse(graph).nodes if isinstance(m, Matmul))
    fused, report = fuse_with_report(graph, ON)
    (node,) = fused.nodes
    assert isinstance(node, Matmul)
    assert node.operands[0].prologue is not None
    assert node.operands[1].prologue is not None
    assert [f.kind for f in report.fusions] == ["prologue", "prologue"]
    assert report.bytes_after < report.bytes_before
    assert parse_graph(print_graph(fused)) == fused
    np.testing.assert_array_equal(*(interpret_graph(g, inputs)[0] for g in (graph, fused)))
    x, q, s = inputs
    expected = np.maximum(x, 0).astype(float) @ (q * s[:, None]).T.astype(float)
    np.testing.assert_allclose(interpret_graph(fused, inputs)[0], expected, 1e-5, 1e-5)


def test_over_the_elements_of_the_operand(inputs) -> None:
    """What is loaded lies as the operand does, or as the tensor it was made from."""
    (node,) = fuse(parse_graph(WIDEN), ON).nodes
    assert isinstance(node, Matmul)
    assert node.operands[1].prologue is not None
    found = over_operand(node.operands[1].prologue, node.b)
    assert not hasattr(found, "reason")
    assert found.source.buffer == "q"
    assert [int(n) for n in (*found.source.type.size, *found.source.type.stride)] == [6, 3, 1, 6]
    verify(found.kernel)
    _, q, s = inputs
    (made,) = interpret_kernel(found.kernel, {"q": q, "s": s}, {}).values()
    np.testing.assert_array_equal(made.reshape(6, 3), (q * s[:, None]).T)


def refused(text: str, first: str = "widen", second: str = "y") -> str:
    graph = parse_graph(text)
    fused = fuse(graph, ON)
    kernels = [n for n in fused.nodes if isinstance(n, Kernel)]
    assert kernels
    return why_not(graph, first, second)


def test_others_may_not_read_it() -> None:
    two = WIDEN.replace("return (y: f32[4, 3] cpu)", "return (y: f32[4, 3] cpu, w: f32[3, 6] cpu)")
    assert "is read by others, or the caller's" in refused(two)
    both = WIDEN.replace("a g: f32[4, 6] cpu", "a w: f32[3, 6] cpu")
    both = both.replace("matmul y: f32[4, 3]", "matmul y: f32[3, 3]")
    both = both.replace("mm.default(g: f32[4, 6]", "mm.default(w: f32[3, 6]")
    both = both.replace("out y: f32[4, 3]", "out y: f32[3, 3]")
    both = both.replace("return (y: f32[4, 3] cpu)", "return (y: f32[3, 3] cpu)")
    assert "reads w in another place, too" in refused(both)


def test_a_second_prologue_is_told_apart() -> None:
    """One operand's producer fuses, the other's does not; and what makes a bias is no operand."""
    gathers = WIDEN.replace("load q[i0*6 + i1] : i8", "load q[i1] : i8")
    fused = fuse(parse_graph(gathers), ON)
    (kernel, node) = fused.nodes
    assert isinstance(kernel, Kernel)
    assert isinstance(node, Matmul)
    assert node.operands[0].prologue is not None
    assert "at a place of its own" in why_not(fused, "widen", "y")
    bias = WIDEN.replace("    extern aten.mm", "    bias s2: f32[3] cpu\n    extern aten.mm")
    bias = bias.replace(
        "  kernel gate(",
        """\
  kernel twice(
      s: f32[3] cpu,
      out s2: f32[3] cpu,
  ):
    parallel i0 < 3:
      once:
        v0 = load s[i0]    : f32
        v1 = add(v0, v0)   : f32
        store s2[i0] = v1
  kernel gate(""",
    )
    assert "makes no operand" in why_not(parse_graph(bias), "twice", "y")


def test_what_costs_too_much_is_made_once() -> None:
    dear = WIDEN.replace("v1 = cast(v0)          : f32", "\n".join(
        ["v1 = cast(v0) : f32", *(f"        e{i} = exp(v1) : f32" for i in range(5)),
         *(f"        f{i} = add(v1, e{i}) : f32" for i in range(5))]
    ))  # fmt: skip
    dear = dear.replace("v3 = mul(v1, v2)", "f5 = add(f0, f1) : f32\n        f6 = add(f2, f3) : f32"
                        "\n        f7 = add(f5, f6) : f32\n        f8 = add(f7, f4) : f32\n"
                        "        v3 = mul(f8, v2)")  # fmt: skip
    graph = parse_graph(dear)
    assert "operations an element, for every tile" in why_not(graph, "widen", "y")
    assert "fuse" in why_not(graph, "widen", "y", FuseOptions(max_prologue=99))


def test_a_table_lookup_is_a_kernel() -> None:
    """Nothing is read at a place of its own for each element."""
    text = WIDEN.replace("load q[i0*6 + i1] : i8", "load q[i1] : i8")
    assert "reads no tensor at a place of its own" in refused(text)


@pytest.mark.parametrize("place", ["(2 - i0)*6 + i1", "i0*6 + 5 - i1"])
def test_rows_that_are_read_from_the_last_are_a_kernel(place) -> None:
    """No tensor has negative strides."""
    text = WIDEN.replace("load q[i0*6 + i1] : i8", f"load q[{place}] : i8")
    assert "reads no tensor at a place of its own" in refused(text)


def test_what_a_prologue_must_be() -> None:
    (node,) = fuse(parse_graph(WIDEN), ON).nodes
    assert isinstance(node, Matmul)
    text = print_graph(fuse(parse_graph(WIDEN), ON))
    wrong = parse_graph(text.replace("a g: f32[4, 6] cpu\n", "a x: f32[4, 6] cpu\n"))
    with pytest.raises(VerifyError, match="does not make x"):
        verify(wrong)
    later = text.replace("return (y: f32[4, 3] cpu)", "return (y: f32[4, 3] cpu, w: f32[3, 6] cpu)")
    with pytest.raises(VerifyError, match="w"):
        verify(parse_graph(later))


# Weights that three products share, by a factor of each product and column.
BATCH = """\
graph g(
    x: f32[3, 4, 6] cpu,
    q: f32[5, 6] cpu,
    s: f32[3, 5] cpu,
):
  kernel scaled(
      q: f32[5, 6] cpu,
      s: f32[3, 5] cpu,
      out w: f32[3, 5, 6] cpu,
  ):
    parallel i0 < 3, i1 < 5, i2 < 6:
      once:
        v0 = load q[i1*6 + i2]   : f32
        v1 = load s[i0*5 + i1]   : f32
        v2 = mul(v0, v1)         : f32
        store w[i0*30 + i1*6 + i2] = v2
  kernel gate(
      x: f32[3, 4, 6] cpu,
      out g: f32[3, 4, 6] cpu,
  ):
    parallel i0 < 72:
      once:
        v0 = load x[i0]     : f32
        v1 = const 0.0      : f32
        v2 = maximum(v0, v1) : f32
        store g[i0] = v2
  matmul y: f32[3, 4, 5] cpu
    a g: f32[3, 4, 6] cpu
    b w: f32[3, 6, 5] cpu stride (30, 1, 6)
    extern aten.bmm.default(g: f32[3, 4, 6] cpu, w: f32[3, 6, 5] cpu stride (30, 1, 6))
      out y: f32[3, 4, 5] cpu
  return (y: f32[3, 4, 5] cpu)
"""


def test_a_batch() -> None:
    """Both operands; the tensor that is loaded for one has no stride along the batch."""
    rng = np.random.default_rng(0)
    sizes = ((3, 4, 6), (5, 6), (3, 5))
    x, q, s = (rng.standard_normal(size).astype(np.float32) for size in sizes)
    graph = parse_graph(BATCH)
    fused = fuse(graph, ON)
    (node,) = fused.nodes
    assert isinstance(node, Matmul)
    assert node.operands[0].prologue is not None
    assert node.operands[1].prologue is not None
    assert parse_graph(print_graph(fused)) == fused
    np.testing.assert_array_equal(*(interpret_graph(g, [x, q, s])[0] for g in (graph, fused)))
    rows, columns = (
        over_operand(node.operands[0].prologue, node.a),
        over_operand(node.operands[1].prologue, node.b),
    )
    assert not hasattr(rows, "reason")
    assert not hasattr(columns, "reason")
    assert (rows.source.buffer, rows.source.type.stride) == ("x", (24, 6, 1))
    assert (columns.source.buffer, columns.source.type.stride) == ("q", (0, 1, 6))
    verify(columns.kernel)
    (made,) = interpret_kernel(columns.kernel, {"q": q, "s": s}, {}).values()
    expected = (q * s[:, :, None]).transpose(0, 2, 1)
    np.testing.assert_array_equal(made.reshape(3, 6, 5), expected)


def test_a_repeated_operand_of_a_batch_is_a_kernel() -> None:
    text = BATCH.replace("b w: f32[3, 6, 5] cpu stride (30, 1, 6)",
                         "b w: f32[3, 6, 5] cpu stride (0, 1, 6)")  # fmt: skip
    assert "is repeated" in why_not(parse_graph(text), "scaled", "y")
