"""Sums of columns that a kernel of rows makes on its way give what kernels of their own gave."""

from __future__ import annotations

import re

import numpy as np
import pytest

from loop_ir import Graph, Kernel, interpret_graph, parse_graph, print_graph, verify
from loop_ir.errors import MisplacedSum
from loop_ir.fusion.mix_orders import MixOrders, share
from loop_ir.ir.analysis import hints_of
from loop_ir.splitting.split_reductions import SplitReductions

# the gradient of a norm: of its input by rows, of its weight and bias by columns
NORM = """
graph g(
    x: f32[40, 6] cuda:0,
    w: f32[6] cuda:0,
):
  kernel rows(
      x: f32[40, 6] cuda:0,
      w: f32[6] cuda:0,
      out t: f32[40, 6] cuda:0,
      out y: f32[40, 6] cuda:0,
  ):
    parallel i0 < 40:
      over r0 < 6:
        v0 = load x[i0*6 + r0] : f32
        v1 = load w[r0] : f32
        v2 = mul(v0, v1) : f32
        store t[i0*6 + r0] = v2
        v3 = reduce sum(v2) : f32
      over r0 < 6:
        v4 = sub(v2, v3) : f32
        store y[i0*6 + r0] = v4
  kernel columns(
      t: f32[40, 6] cuda:0,
      x: f32[40, 6] cuda:0,
      w: f32[6] cuda:0,
      out a: f32[6] cuda:0,
      out b: f32[6] cuda:0,
  ):
    parallel i0 < 6:
      once:
        v0 = load w[i0] : f32
      over r0 < 40:
        v1 = load t[r0*6 + i0] : f32
        v2 = mul(v1, v0) : f32
        v3 = reduce sum(v2) : f32
        v4 = load x[r0*6 + i0] : f32
        v5 = reduce sum(v4) : f32
      once:
        v6 = mul(v3, v0) : f32
        store a[i0] = v6
        store b[i0] = v5
  return (y: f32[40, 6] cuda:0, a: f32[6] cuda:0, b: f32[6] cuda:0)
"""


def of_rows(text: str, rows: int | str) -> Graph:
    text = re.sub(r"\b40\b", str(rows), text)
    if isinstance(rows, str):
        where = f"where {rows} in [0, 64] hint 40\n"
        text = text.replace("):\n  kernel", f"):\n  {where}  kernel", 1)
        text = re.sub(r"( +)parallel", rf"\1{where}\1parallel", text)
    return parse_graph(text)


def agree(graph: Graph, rows: int) -> Graph:
    mixed = MixOrders().run(graph)
    verify(mixed)
    assert parse_graph(print_graph(mixed)) == mixed
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(n).astype(np.float32) for n in ((rows, 6), (6,))]
    for want, got in zip(interpret_graph(graph, given), interpret_graph(mixed, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return mixed


@pytest.mark.parametrize("rows", [4, 7, 40, 41, 1500])
def test_one_reading(rows: int) -> None:
    mixed = agree(of_rows(NORM, rows), rows)
    walk, finish = mixed.nodes
    assert isinstance(walk, Kernel) and isinstance(finish, Kernel)
    assert (walk.name, finish.name) == ("rows", "columns")
    assert "t" not in {b.name for b in walk.buffers}  # nothing else read it
    assert print_graph(mixed).count("sum=") == 2
    assert SplitReductions().run(mixed) is mixed


MOMENTS = """
graph g(
    x: f32[40, 6] cuda:0,
    r: f32[40] cuda:0,
    c: f32[6] cuda:0,
):
  kernel rows(
      x: f32[40, 6] cuda:0,
      out r: f32[40] cuda:0,
  ):
    parallel i0 < 40:
      over r0 < 6:
        v0 = load x[i0*6 + r0] : f32
        v1 = reduce sum(v0) : f32
      once:
        v2 = load r[i0] : f32
        v3 = add(v1, v2) : f32
        store r[i0] = v3
  kernel columns(
      x: f32[40, 6] cuda:0,
      out c: f32[6] cuda:0,
  ):
    parallel i0 < 6:
      over r0 < 40:
        v0 = load x[r0*6 + i0] : f32
        v1 = reduce sum(v0) : f32
      once:
        v2 = load c[i0] : f32
        v3 = sub(v1, v2) : f32
        store c[i0] = v3
  return (r: f32[40] cuda:0, c: f32[6] cuda:0)
"""


def test_sums_that_go_to_running_ones() -> None:
    """The second moments of Adafactor: of rows and of columns, each updated in place."""
    graph = of_rows(MOMENTS, 1500)
    mixed = MixOrders().run(graph)
    verify(mixed)
    assert print_graph(mixed).count("load x") == 1
    rng = np.random.default_rng(0)
    x, r, c = (rng.standard_normal(n).astype(np.float32) for n in ((1500, 6), 1500, 6))
    want = x.sum(-1) + r, x.sum(0) - c
    for a, b in zip(interpret_graph(mixed, [x, r, c]), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 40, 63])
def test_dynamic_rows(rows: int) -> None:
    mixed = agree(of_rows(NORM, "s0"), rows)
    assert len(mixed.nodes) == 2 and "sum=" in print_graph(mixed)


def test_two_kernels_of_columns() -> None:
    both = of_rows(NORM, 40)
    columns = both.nodes[1]
    again = print_graph(Graph("g", both.inputs, (columns,), both.outputs))
    again = re.sub(r"\b([ab])\b", r"\1_2", again).replace("kernel columns", "kernel more")
    text = print_graph(both)
    start = again.index("  kernel more")
    kernel = again[start : again.index("  return")]
    text = text.replace("  return (", kernel + "  return (a_2: f32[6] cuda:0, b_2: f32[6] cuda:0, ")
    mixed = agree(parse_graph(text), 40)
    assert len(mixed.nodes) == 3 and print_graph(mixed).count("sum=") >= 2


def test_columns_that_come_first() -> None:
    graph = of_rows(NORM.replace("      out t: f32[40, 6] cuda:0,\n", "").replace(
        "        store t[i0*6 + r0] = v2\n", "").replace(
        "      t: f32[40, 6] cuda:0,\n", "").replace("load t[", "load x["), 40)  # fmt: skip
    rows, columns = graph.nodes
    swapped = Graph(graph.name, graph.inputs, (columns, rows), graph.outputs)
    assert "sum=" in print_graph(agree(swapped, 40))


# a kernel of columns that makes on its way what rows are reduced of
MADE = """
graph g(
    x: f32[40, 6] cuda:0,
    w: f32[6] cuda:0,
):
  kernel columns(
      x: f32[40, 6] cuda:0,
      w: f32[6] cuda:0,
      out t: f32[40, 6] cuda:0,
      out a: f32[6] cuda:0,
  ):
    parallel i0 < 6:
      over r0 < 40:
        v0 = load x[r0*6 + i0] : f32
        v1 = exp(v0) : f32
        store t[r0*6 + i0] = v1
        v2 = load w[i0] : f32
        v3 = mul(v1, v2) : f32
        v4 = reduce sum(v3) : f32
      once:
        store a[i0] = v4
  kernel rows(
      t: f32[40, 6] cuda:0,
      a: f32[6] cuda:0,
      out y: f32[40, 6] cuda:0,
  ):
    parallel i0 < 40:
      over r0 < 6:
        v0 = load t[i0*6 + r0] : f32
        v1 = load FACTOR[PLACE] : f32
        v2 = mul(v0, v1) : f32
        v3 = reduce sum(v2) : f32
      over r0 < 6:
        v4 = sub(v0, v3) : f32
        store y[i0*6 + r0] = v4
  return (y: f32[40, 6] cuda:0, a: f32[6] cuda:0)
"""


def test_rows_that_need_what_is_made_on_the_way() -> None:
    """As the gradient of a norm's input does, which is that of its weight and of several sums."""
    text = MADE.replace("FACTOR[PLACE]", "t[i0*6 + r0]").replace("      a: f32[6] cuda:0,\n", "")
    mixed = agree(of_rows(text, 40), 40)
    assert [node.name for node in mixed.nodes if isinstance(node, Kernel)] == ["rows", "columns"]
    assert not re.search(r"(load|store) t\b", print_graph(mixed))  # nothing else reads it
    kept = text.replace("return (", "return (t: f32[40, 6] cuda:0, ")
    assert print_graph(agree(of_rows(kept, 40), 40)).count("store t[") == 1


@pytest.mark.parametrize(("factor", "place"), [("a", "r0"), ("t", "r0*6")])
def test_rows_that_need_more_than_that(factor: str, place: str) -> None:
    """The sums themselves, or other points of what is made, are read by kernels that follow."""
    text = MADE.replace("FACTOR[PLACE]", f"{factor}[{place}]")
    text = text if factor == "a" else text.replace("      a: f32[6] cuda:0,\n", "")
    graph = of_rows(text, 40)
    assert MixOrders().run(graph) is graph


def test_what_stays_as_it_is() -> None:
    wide = re.sub(r"\b6\b", "30000", NORM)
    graph = of_rows(wide, 40)
    assert MixOrders().run(graph) is graph  # sums do not fit into registers
    needed = NORM
    for old, new in (
        ("load x[i0*6 + r0]", "load z[i0*6 + r0]"),
        ("  kernel rows(\n      x:", "  kernel rows(\n      z:"),
        ("    w: f32[6] cuda:0,\n):", "    w: f32[6] cuda:0,\n    z: f32[40, 6] cuda:0,\n):"),
        ("load t[", "load x["),
        ("      t: f32[40, 6] cuda:0,\n      x", "      x"),
    ):
        needed = needed.replace(old, new)
    graph = of_rows(needed, 40)
    assert MixOrders().run(graph) is graph  # they read different tensors


# sums of columns, rows divided by what comes of them, and sums of columns of the quotients
CHAIN = """
graph g(
    x: f32[40, 6] cuda:0,
    w: f32[6] cuda:0,
):
  kernel first(
      x: f32[40, 6] cuda:0,
      out a: f32[6] cuda:0,
  ):
    parallel i0 < 6:
      over r0 < 40:
        v0 = load x[r0*6 + i0] : f32
        v1 = reduce sum(v0) : f32
      once:
        v2 = exp(v1) : f32
        store a[i0] = v2
  kernel rows(
      x: f32[40, 6] cuda:0,
      DIVISOR: f32[6] cuda:0,
      out y: f32[40] cuda:0,
  ):
    parallel i0 < 40:
      over r0 < 6:
        v0 = load x[i0*6 + r0] : f32
        v1 = load DIVISOR[r0] : f32
        v2 = div(v0, v1) : f32
        v3 = reduce max(v2) : f32
      once:
        store y[i0] = v3
  kernel second(
      x: f32[40, 6] cuda:0,
      a: f32[6] cuda:0,
      out b: f32[6] cuda:0,
  ):
    parallel i0 < 6:
      over r0 < 40:
        v0 = load x[r0*6 + i0] : f32
        v1 = load a[i0] : f32
        v2 = mul(v0, v1) : f32
        v3 = reduce sum(v2) : f32
      once:
        store b[i0] = v3
  return (a: f32[6] cuda:0, y: f32[40] cuda:0, b: f32[6] cuda:0)
"""


def test_rows_that_need_the_sums_come_after_them() -> None:
    mixed = agree(parse_graph(CHAIN.replace("DIVISOR", "a")), 40)
    assert [len(k.axes) for k in mixed.nodes if isinstance(k, Kernel)] == [1, 2, 1]  # with `second`


def test_sums_that_need_other_sums_of_the_same_reading() -> None:
    mixed = agree(parse_graph(CHAIN.replace("DIVISOR", "w")), 40)
    assert print_graph(mixed).count("sum=") == 1


def test_what_a_kernel_of_columns_reads_at_its_end_is_stored() -> None:
    text = NORM
    for old, new in (
        ("      once:\n        v0 = load w[i0] : f32\n", ""),
        ("      w: f32[6] cuda:0,\n      out a", "      out a"),
        ("mul(v1, v0)", "abs(v1)"),
        ("v6 = mul(v3, v0)", "v6 = load t[i0]"),
    ):
        assert old in text
        text = text.replace(old, new)
    assert "sum=" in print_graph(agree(of_rows(text, 40), 40))


def test_sums_of_rows_are_verified() -> None:
    mixed = print_graph(MixOrders().run(of_rows(NORM, 40)))
    row = re.search(r"(store \w+\[)(i1\*6 \+ r0)(\] sum= )", mixed)
    assert row is not None
    wrong = mixed.replace(row[0], f"{row[1]}i0*6 + r0{row[3]}")
    with pytest.raises(MisplacedSum, match="i0"):
        verify(parse_graph(wrong))


@pytest.mark.parametrize(
    ("rows", "parts", "length"), [(16384, 256, 64), (8191, 256, 32), (100, 25, 4), (3, 1, 3)]
)
def test_shares_of_the_rows(rows: int, parts: int, length: int) -> None:
    (axis,) = of_rows(NORM, rows).nodes[0].axes
    found = share(axis.extent, hints_of(()))
    assert found[0] * found[1] >= rows
    assert found == (parts, length)
