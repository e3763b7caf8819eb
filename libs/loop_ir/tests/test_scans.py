"""Scans: text, meaning, rules, fusion with what is pointwise, and chunks shared by programs."""

from __future__ import annotations

import re

import numpy as np
import pytest
import sympy

from loop_ir import (
    Graph,
    GraphInput,
    Kernel,
    LoopIRError,
    TensorRef,
    fuse,
    interpret_graph,
    interpret_kernel,
    parse_graph,
    parse_kernel,
    print_graph,
    print_kernel,
    verify,
)
from loop_ir.errors import Arity, BackwardPlaces, ElementType, MisplacedReduce
from loop_ir.ir.affine import product
from loop_ir.ir.analysis import scans
from loop_ir.splitting.chunks import Cut
from loop_ir.splitting.split_reductions import SplitReductions, choose_cut, shares_scans
from loop_ir.splitting.split_scans import can_split_scans, split_scans
from symexpr import CeilDiv

ONE = """
kernel k(
    x: {dtype}[3, 40] cuda:0,
    out y: {out}[3, 40] cuda:0,
):
  parallel i0 < 3:
    over r0 < 40:
      v0 = load x[{at}] : {dtype}
      v1 = scan {op}(v0){tail} : {out}
      store y[{at}] = v1
"""
BOTH = """
kernel k(
    x: f32[3, 40] cuda:0,
    w: f32[3] cuda:0,
    out m: f32[3, 40] cuda:0,
    out a: i64[3, 40] cuda:0,
    out s: f32[3, 40] cuda:0,
):
  parallel i0 < 3:
    once:
      v9 = load w[i0] : f32
    over r0 < 40:
      v0 = load x[i0*40 + r0] : f32
      v1 = add(v0, v0) : f32
      v2 = scan argmin(v1) : i64
      v3 = scan min(v1) : f32
      v4 = scan sum(v0) : f32
      v5 = mul(v4, v9) : f32
      store m[i0*40 + r0] = v3
      store a[i0*40 + r0] = v2
      store s[i0*40 + r0] = v5
"""
OPS = ["sum", "prod", "max", "min", "logsumexp", "argmax", "argmin"]


def one(op: str, dtype: str = "f32", tail: str = "", at: str = "i0*40 + r0") -> Kernel:
    out = "i64" if op.startswith("arg") else dtype
    return parse_kernel(ONE.format(op=op, dtype=dtype, tail=tail, at=at, out=out))


def expected(op: str, x: np.ndarray) -> np.ndarray:
    """What a loop over each row gives."""
    out = np.empty(x.shape, np.int64 if op.startswith("arg") else x.dtype)
    for row, line in enumerate(x):
        best, place = line[0], 0
        for i, v in enumerate(line):
            if op.startswith("arg"):
                better = v >= best if op == "argmax" else v <= best
                if np.isnan(v) or (better and not np.isnan(best)):
                    best, place = v, i
                out[row, i] = place
            else:
                with np.errstate(all="ignore"):
                    out[row, i] = {
                        "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min,
                        "logsumexp": np.logaddexp.reduce,
                    }[op](line[: i + 1].astype(np.float64))  # fmt: skip
    return out


def values() -> np.ndarray:
    x = np.random.default_rng(0).integers(-3, 4, (3, 40)).astype(np.float32) / 2
    x[1, 25] = x[1, 30] = np.nan
    x[2, :3] = -np.inf
    return x


@pytest.mark.parametrize("op", OPS)
def test_meaning_and_text(op):
    kernel = one(op)
    assert parse_kernel(print_kernel(kernel)) == kernel
    verify(graph_of([kernel], kernel))
    x = values()
    np.testing.assert_allclose(interpret_kernel(kernel, {"x": x})["y"], expected(op, x), 1e-5, 1e-6)


@pytest.mark.parametrize("op", OPS[:5])
def test_from_the_end(op):
    kernel = one(op, tail=" reverse")
    assert "reverse" in print_kernel(kernel)
    assert parse_kernel(print_kernel(kernel)) == kernel
    x = values()
    want = expected(op, x[:, ::-1])[:, ::-1]
    np.testing.assert_allclose(interpret_kernel(kernel, {"x": x})["y"], want, 1e-5, 1e-6)


def test_integers_wrap():
    x = np.full((3, 40), 2**62, np.int64)
    got = interpret_kernel(one("sum", "i64"), {"x": x})["y"]
    np.testing.assert_array_equal(got, np.cumsum(x, 1))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("scan sum(v0)", "scan sum(v0, v0)", Arity),
        ("scan sum(v0) : f32", "scan sum(v0) : f64", ElementType),
        ("over r0 < 40:", "once:", MisplacedReduce),
        ("store y", "v2 = scan argmax(v1) reverse : i64\n      store y", BackwardPlaces),
    ],
)
def test_rules(old, new, error):
    text = ONE.format(op="sum", dtype="f32", tail="", at="i0*40 + r0", out="f32")
    if error is MisplacedReduce:
        text = text.replace("+ r0", "")
    kernel = parse_kernel(text.replace(old, new))
    with pytest.raises(error):
        verify(graph_of([kernel], kernel))
    with pytest.raises(LoopIRError, match="a scan of"):
        parse_kernel(text.replace("scan sum", "scan median"))


CHAIN = """
graph g(
    x: f32[6, 40] cuda:0,
    y: f32[40] cuda:0,
):
  kernel double(
      x: f32[6, 40] cuda:0,
      out a: f32[6, 40] cuda:0,
  ):
    parallel i0 < 6, i1 < 40:
      once:
        v0 = load x[i0*40 + i1] : f32
        v1 = add(v0, v0) : f32
        store a[i0*40 + i1] = v1
  kernel scan(
      a: f32[6, 40] cuda:0,
      out b: f32[6, 40] cuda:0,
  ):
    parallel i0 < {rows}:
      over r0 < {width}:
        v0 = load a[{at}] : f32
        v1 = scan sum(v0) : f32
        store b[{at}] = v1
  kernel shift(
      b: f32[6, 40] cuda:0,
      y: f32[40] cuda:0,
      out c: f32[6, 40] cuda:0,
  ):
    parallel i0 < 6, i1 < 40:
      once:
        v0 = load b[i0*40 + i1] : f32
        v1 = load y[i1] : f32
        v2 = add(v0, v1) : f32
        store c[i0*40 + i1] = v2
  kernel back(
      c: f32[6, 40] cuda:0,
      out d: f32[6, 40] cuda:0,
  ):
    parallel i0 < {rows}:
      over r0 < {width}:
        v0 = load c[{at}] : f32
        v1 = scan sum(v0) reverse : f32
        store d[{at}] = v1
  return (c: f32[6, 40] cuda:0, d: f32[6, 40] cuda:0)
"""


@pytest.mark.parametrize("columns", [False, True])
def test_what_is_pointwise_joins_a_scan(columns):
    """One kernel: twice, scan, shift. The scan the other way joins it where a program holds rows
    whole, which it does not where they are columns."""
    text = CHAIN.format(rows=6, width=40, at="i0*40 + r0")
    if columns:
        text = CHAIN.format(rows=40, width=6, at="r0*40 + i0")
    graph = parse_graph(text)
    fused = fuse(graph)
    assert len(fused.nodes) == (2 if columns else 1)
    assert columns or not can_split_scans(fused.nodes[0])
    assert parse_graph(print_graph(fused)) == fused
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((6, 40)).astype(np.float32), np.ones(40, np.float32)]
    for want, got in zip(
        interpret_graph(graph, inputs), interpret_graph(fused, inputs), strict=True
    ):
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)


def graph_of(kernels: list[Kernel], whole: Kernel) -> Graph:
    inputs = tuple(GraphInput(b.name, b.type) for b in whole.buffers if not b.written)
    outputs = tuple(TensorRef(b.name, b.type) for b in whole.buffers if b.written)
    return Graph("g", inputs, tuple(kernels), outputs, whole.symbols)


def agree(kernel: Kernel, cut: Cut, inputs) -> None:
    assert can_split_scans(kernel)
    parts = split_scans(kernel, cut, {kernel.name, *(b.name for b in kernel.buffers)})
    assert len(parts) == 3
    cut_up = graph_of(parts, kernel)
    verify(cut_up)
    whole = interpret_graph(graph_of([kernel], kernel), inputs)
    for want, got in zip(whole, interpret_graph(cut_up, inputs), strict=True):
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)
    for part in parts:
        assert parse_kernel(print_kernel(part)) == part


def cuts(kernel: Kernel):
    axis = kernel.phases[-1].axes[0]
    for length in (1, 7, 10, 64):
        count = -(-40 // length)
        for chunks in (count, count + 2):  # the last two chunks are empty
            yield Cut(axis, sympy.Integer(chunks), sympy.Integer(length), chunks * length == 40)


@pytest.mark.spread(2)
@pytest.mark.parametrize("tail", ["", " reverse"])
@pytest.mark.parametrize("op", OPS)
def test_every_cut_computes_the_same(op, tail):
    if tail and op.startswith("arg"):
        return
    kernel = one(op, tail=tail)
    for cut in cuts(kernel):
        agree(kernel, cut, [values()])


@pytest.mark.spread(2)
@pytest.mark.parametrize("tail", ["", " reverse"])
@pytest.mark.parametrize("op", OPS)
def test_symbolic_extents(op, tail):
    if tail and op.startswith("arg"):
        return
    text = print_kernel(one(op, tail=tail)).replace("40", "s0")
    text = text.replace("):\n", "):\n  where s0 in [0, 4096] hint 40\n", 1)
    kernel = parse_kernel(text)
    axis, count = kernel.phases[-1].axes[0], sympy.Integer(4)
    cut = Cut(axis, count, sympy.sympify(CeilDiv(axis.extent, count)), False)
    # the reference has no extreme of nothing; what a kernel stores for it there nobody reads
    for size in (1, 2, 3, 5, 40) if op in ("max", "min") else (0, 1, 2, 3, 5, 40):
        agree(kernel, cut, [values()[:, :size]])


def test_several_scans_are_cut_together():
    kernel = parse_kernel(BOTH)
    for cut in cuts(kernel):
        agree(kernel, cut, [values(), np.ones(3, np.float32)])


TAKEN = """
kernel k(
    x: i64[3, 40] cuda:0,
    given: f32[60] cuda:0,
    out y: f32[3, 40] cuda:0,
):
  parallel i0 < 3:
    over r0 < 40:
      v0 = load x[i0*40 + r0] : i64
      v1 = scan sum(v0) : i64
      t0 = indirect v1 < 60
      v2 = load given[t0] : f32
      store y[i0*40 + r0] = v2
"""


def test_what_lies_at_places_that_a_scan_gives():
    """As a mask's elements take those of a line, one after the other."""
    kernel = parse_kernel(TAKEN)
    x = np.random.default_rng(0).integers(0, 2, (3, 40))
    for cut in cuts(kernel):
        agree(kernel, cut, [x, np.arange(60, dtype=np.float32)])


def big(op: str, rows: int, width: int, columns: bool = False) -> Kernel:
    text = print_kernel(one(op, at="r0*3 + i0" if columns else "i0*40 + r0"))
    text = text.replace("[3, 40]", "[40, 3]") if columns else text
    return parse_kernel(re.sub(r"\b40\b", str(width), re.sub(r"(?<![a-z])\b3\b", str(rows), text)))


@pytest.mark.parametrize(
    ("rows", "width", "columns", "splits"),
    [(1, 1 << 24, False, True), (4096, 4096, False, False), (2048, 65536, True, True),
     (16384, 4096, True, False), (1, 4096, False, False)],
)  # fmt: skip
def test_when_a_scan_is_shared(rows, width, columns, splits):
    """Columns by kernels of their own, rows in one."""
    kernel = big("sum", rows, width, columns)
    assert (choose_cut(kernel, {}) is not None) == (splits and columns)
    assert shares_scans(kernel, {}) == (splits and not columns)


def test_what_is_not_cut():
    text = print_kernel(one("sum"))
    twice = text.replace("store y", "v2 = scan max(v1) : f32\n      store y").replace(
        "= v1", "= v2"
    )
    assert not can_split_scans(parse_kernel(twice))


ROWS_THEN_SCAN = """
graph g(
    x: f32[{rows}, {width}] cuda:0,
):
  kernel k(
      x: f32[{rows}, {width}] cuda:0,
      out t: f32[{rows}] cuda:0,
      out y: f32[{rows}, {width}] cuda:0,
  ):
    parallel i0 < {rows}:
      over r0 < {width}:
        v0 = load x[i0*{width} + r0] : f32
        v1 = reduce max(v0) : f32
      over r0 < {width}:
        v2 = sub(v0, v1) : f32
        v3 = exp(v2) : f32
        v4 = reduce sum(v3) : f32
      once:
        store t[i0] = v4
      over r0 < {width}:
        v5 = div(v3, v4) : f32
        v6 = scan sum(v5) : f32
        store y[i0*{width} + r0] = v6
  return (t: f32[{rows}] cuda:0, y: f32[{rows}, {width}] cuda:0)
"""


@pytest.mark.parametrize(("rows", "width", "several"), [(2, 1 << 18, True), (512, 1024, False)])
def test_rows_are_reduced_apart_where_their_scan_is_shared(rows, width, several):
    graph = parse_graph(ROWS_THEN_SCAN.format(rows=rows, width=width))
    cut = SplitReductions().run(graph)
    assert (len(cut.nodes) > 1) == several
    verify(cut)
    if several:
        assert all(product(a.extent for a in n.axes) >= 64 for n in cut.nodes[::6])
        x = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)
        for got, want in zip(
            interpret_graph(cut, {"x": x}), interpret_graph(graph, {"x": x}), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-5)


TURNS = """
graph g(
    x: f32[{size}],
):
  kernel k(
      x: f32[{size}],
      out a: f32[{size}],
      out m: f32[{kept}],
      out b: f32[{kept}],
      out c: f32[{size}],
      out d: f32[{size}],
  ):
    parallel i0 < {rows}:
      over r0 < {width}:
        v0 = load x[{at}] : f32
        v1 = scan sum(v0) : f32
        store a[{at}] = v1
        v2 = reduce max(v0) : f32
        v3 = mul(v1, v0) : f32
        v4 = reduce sum(v3) : f32
      once:
        store m[i0] = v2
        store b[i0] = v4
      over r0 < {width}:
        v5 = add(v1, v2) : f32
        v6 = scan max(v5) : f32
        store c[{at}] = v6
        v7 = sub(v6, v4) : f32
        store d[{at}] = v7
  return (a: f32[{size}], m: f32[{kept}], b: f32[{kept}], c: f32[{size}], d: f32[{size}])
"""


def turns(rows: int, width: int, columns: bool) -> Graph:
    at, size = f"i0*{width} + r0", f"{rows}, {width}"
    if columns:
        at, size = f"r0*{rows} + i0", f"{width}, {rows}"
    text = TURNS.format(rows=rows, width=width, at=at, size=size, kept=rows)
    return parse_graph(text.replace("],", "] cuda:0,").replace("])", "] cuda:0)"))


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(16, 1 << 14), (2, 1 << 17)])
def test_scans_and_reductions_that_need_each_other_are_shared(rows, width, columns):
    graph = turns(rows, width, columns)
    cut = SplitReductions().run(graph)
    verify(cut)
    scanning = [k for k in cut.nodes if isinstance(k, Kernel) and scans(k)]
    long = [k for k in scanning if k.phases[-1].axes[0].extent >= 1 << 12]
    assert len(scanning) >= 2
    assert not long if columns else all(shares_scans(k, {}) for k in long)
    x = np.random.default_rng(0).standard_normal(graph.inputs[0].type.size, dtype=np.float32)
    wide = interpret_graph(graph, {"x": x})
    for got, want in zip(interpret_graph(cut, {"x": x}), wide, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-2)


def test_scans_of_many_rows_stay_with_what_they_reduce():
    graph = turns(4096, 1024, False)
    assert SplitReductions().run(graph) == graph
