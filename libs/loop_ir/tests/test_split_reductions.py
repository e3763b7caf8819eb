"""Reductions shared between programs give what they gave before."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import sympy

from loop_ir import (
    Buffer,
    DType,
    Graph,
    GraphInput,
    Kernel,
    Reduce,
    TensorRef,
    interpret_graph,
    parse_kernel,
    print_kernel,
    verify,
)
from loop_ir.ir.analysis import inner_axes, statements
from loop_ir.ir.in_place import in_place_buffers
from loop_ir.ir.strides import reduces_columns
from loop_ir.splitting.chunks import Cut
from loop_ir.splitting.split import split
from loop_ir.splitting.split_reductions import SplitReductions, choose_cut
from loop_ir.splitting.stages import separate
from symexpr import CeilDiv, evaluate

SUM = """
kernel k(
    x: f32[3, 40] cuda:0,
    out y: f32[3] cuda:0,
):
  parallel i0 < 3:
    over r0 < 40:
      v0 = load x[i0*40 + r0] : f32
      v1 = reduce sum(v0) : f32
    once:
      v2 = const 40.0 : f32
      v3 = div(v1, v2) : f32
      store y[i0] = v3
"""
EXTREMES = """
kernel k(
    x: f32[3, 40] cuda:0,
    out y: f32[3] cuda:0,
    out z: i64[3] cuda:0,
    out e: f32[3, 40] cuda:0,
):
  parallel i0 < 3:
    over r0 < 40:
      v0 = load x[i0*40 + r0] : f32
      v4 = neg(v0) : f32
      store e[i0*40 + r0] = v4
      v1 = reduce max(v4) : f32
      v2 = reduce argmax(v4) : i64
      v3 = reduce min(v4) : f32
    once:
      v5 = sub(v1, v3) : f32
      store y[i0] = v5
      store z[i0] = v2
"""
NORM = """
kernel k(
    x: f32[3, 40] cuda:0,
    w: f32[40] cuda:0,
    out m: f32[3] cuda:0,
    out y: f32[3, 40] cuda:0,
):
  parallel i0 < 3:
    over r0 < 40:
      v0 = load x[i0*40 + r0] : f32
      v1, v2 = reduce welford(v0) : f32
    once:
      store m[i0] = v1
      v3 = const 40.0 : f32
      v4 = div(v2, v3) : f32
      v5 = rsqrt(v4) : f32
    over r0 < 40:
      v6 = sub(v0, v1) : f32
      v7 = mul(v6, v5) : f32
      v8 = load w[r0] : f32
      v9 = mul(v7, v8) : f32
      store y[i0*40 + r0] = v9
"""
SOFTMAX = """
kernel k(
    x: f32[3, 40] cuda:0,
    out y: f32[3, 40] cuda:0,
):
  parallel i0 < 3:
    over r0 < 40:
      v0 = load x[i0*40 + r0] : f32
      v1 = reduce max(v0) : f32
    over r0 < 40:
      v2 = sub(v0, v1) : f32
      v3 = exp(v2) : f32
      v4 = reduce sum(v3) : f32
    over r0 < 40:
      v5 = div(v3, v4) : f32
      store y[i0*40 + r0] = v5
"""
COLUMNS = """
kernel k(
    x: f32[40, 7] cuda:0,
    m: bool[40, 7] cuda:0,
    out y: f32[7] cuda:0,
    out a: bool[7] cuda:0,
):
  parallel i0 < 7:
    over r0 < 40:
      v0 = load m[r0*7 + i0] : bool
      v1 = load x[r0*7 + i0] if v0 else 1 : f32
      v2 = reduce prod(v1) : f32
      v3 = reduce any(v0) : bool
    once:
      store y[i0] = v2
      store a[i0] = v3
"""
PLANES = """
kernel k(
    x: f32[8, 3, 5] cuda:0,
    out y: f32[3] cuda:0,
    out z: i64[3] cuda:0,
):
  parallel i0 < 3:
    over r0 < 8, r1 < 5:
      v0 = load x[r0*15 + i0*5 + r1] : f32
      v1, v2 = reduce welford(v0) : f32
      v3 = reduce argmin(v0) : i64
    once:
      v4 = add(v1, v2) : f32
      store y[i0] = v4
      store z[i0] = v3
"""
GATHER = """
kernel k(
    x: f32[64] cuda:0,
    i: i64[40] cuda:0,
    out y: f32[1] cuda:0,
):
  single:
    over r0 < 40:
      v0 = load i[r0] : i64
      t0 = indirect v0 < 64
      v1 = load x[t0] : f32
      v2 = reduce sum(v1) : f32
    once:
      store y[0] = v2
"""
CENTRED = """
kernel k(
    out x: f32[3, 40] cuda:0,
    out m: f32[3] cuda:0,
):
  parallel i0 < 3:
    over r0 < 40:
      v0 = load x[i0*40 + r0] : f32
      v1, v2 = reduce welford(v0) : f32
    once:
      v3 = load m[i0] : f32
      v4 = add(v1, v3) : f32
      store m[i0] = v4
    over r0 < 40:
      v5 = sub(v0, v1) : f32
      store x[i0*40 + r0] = v5
"""
SCALED = """
kernel k(
    out x: f32[3, 40] cuda:0,
    out y: f32[3] cuda:0,
    out z: i64[3] cuda:0,
):
  parallel i0 < 3:
    over r0 < 40:
      v0 = load x[i0*40 + r0] : f32
      v1 = exp(v0) : f32
      store x[i0*40 + r0] = v1
      v2 = reduce sum(v1) : f32
      v3 = reduce argmax(v1) : i64
    once:
      store y[i0] = v2
      store z[i0] = v3
"""
BIASED = """
kernel k(
    x: f32[40, 7] cuda:0,
    w: f32[7] cuda:0,
    out y: f32[7] cuda:0,
):
  parallel i0 < 7:
    over r0 < 40:
      v0 = load x[r0*7 + i0] : f32
      v1 = load w[i0] : f32
      v2 = mul(v0, v1) : f32
      v3, v4 = reduce welford(v2) : f32
    once:
      v5 = add(v3, v4) : f32
      store y[i0] = v5
"""
TEXTS = {"sum": SUM, "biased": BIASED, "extremes": EXTREMES, "norm": NORM, "softmax": SOFTMAX,
         "columns": COLUMNS, "planes": PLANES, "gather": GATHER, "centred": CENTRED,
         "scaled": SCALED}  # fmt: skip


def graph_of(kernels: list[Kernel], whole: Kernel, symbols=()) -> Graph:
    """The kernels in order; inputs and results are those of `whole`."""
    inputs = tuple(GraphInput(b.name, b.type) for b in given(whole))
    outputs = tuple(TensorRef(b.name, b.type) for b in whole.buffers if b.written)
    return Graph("g", inputs, tuple(kernels), outputs, whole.symbols)


def given(kernel: Kernel) -> list[Buffer]:
    """What is read before it is written."""
    read = in_place_buffers(kernel)
    return [b for b in kernel.buffers if not b.written or b.name in read]


def arrays(kernel: Kernel, sizes: dict[str, int] | None = None):
    rng = np.random.default_rng(0)
    for buffer in given(kernel):
        shape = [int(evaluate(n, sizes or {})) for n in buffer.type.size]
        if buffer.type.dtype == DType.f32:
            # few different values, so that extremes tie
            yield rng.integers(-3, 4, shape).astype(np.float32) / 2
        else:
            yield rng.integers(0, 2, shape).astype(
                np.bool_ if buffer.type.dtype == DType.bool_ else np.int64
            )


def cut_alike(cut: Cut):
    """Of each stage of reductions, once: in as many chunks as `cut`."""
    done: set[str] = set()

    def cut_of(kernel: Kernel) -> Cut | None:
        reduces = any(isinstance(s, Reduce) for s in statements(kernel))
        if not reduces or kernel.name in done or "partial" in kernel.name:
            return None
        if len(separate(kernel, set())) == 1:
            done.add(kernel.name)
        axis = inner_axes(kernel)[0]
        if axis.extent == cut.axis.extent:
            return replace(cut, axis=axis)
        length = -(-axis.extent // cut.count)
        return Cut(axis, cut.count, length, axis.extent == length * cut.count)

    return cut_of


def agree(kernel: Kernel, cut: Cut, sizes: dict[str, int] | None = None) -> list[Kernel]:
    parts = split(kernel, cut_alike(cut), {kernel.name, *(b.name for b in kernel.buffers)})
    whole, cut_up = graph_of([kernel], kernel), graph_of(parts, kernel)
    verify(cut_up)
    runs = (interpret_graph(graph, list(arrays(kernel, sizes))) for graph in (whole, cut_up))
    for want, got in zip(*runs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        assert got.dtype == want.dtype
    for part in parts:
        assert parse_kernel(print_kernel(part)) == part
    return parts


@pytest.mark.spread(4)
@pytest.mark.parametrize("length", [1, 4, 7, 13, 40, 64])
@pytest.mark.parametrize("name", TEXTS)
def test_every_cut_computes_the_same(name, length):
    kernel = parse_kernel(TEXTS[name])
    axis = next(p.axes for p in kernel.phases if p.axes)[0]
    extent = int(axis.extent)
    count = -(-extent // length)
    for chunks in (count, count + 2):  # the last two chunks are empty
        exact = chunks * length == extent
        agree(kernel, Cut(axis, sympy.Integer(chunks), sympy.Integer(length), exact))


@pytest.mark.parametrize("name", ["sum", "norm", "softmax", "extremes", "centred"])
@pytest.mark.parametrize("size", [1, 2, 3, 40, 41])
def test_symbolic_extents(name, size):
    text = re.sub(r"\b40\b(?!\.)", "s0", TEXTS[name])
    text = text.replace("):\n", "):\n  where s0 in [0, 4096] hint 40\n", 1)
    kernel = parse_kernel(text)
    axis = next(p.axes for p in kernel.phases if p.axes)[0]
    count = sympy.Integer(4)
    agree(kernel, Cut(axis, count, sympy.sympify(CeilDiv(axis.extent, count)), False), {"s0": size})


def test_nan_and_infinities_reach_the_result():
    kernel = parse_kernel(EXTREMES)
    axis = kernel.phases[0].axes[0]
    cut = Cut(axis, sympy.Integer(6), sympy.Integer(7), False)
    parts = split(kernel, cut_alike(cut), set())
    x = np.full((3, 40), np.inf, np.float32)
    x[1, 33] = np.nan
    x[2, 5] = x[2, 39] = -np.inf
    whole = interpret_graph(graph_of([kernel], kernel), [x])
    for want, got in zip(whole, interpret_graph(graph_of(parts, kernel), [x]), strict=True):
        np.testing.assert_array_equal(got, want)
    assert list(interpret_graph(graph_of(parts, kernel), [x])[1]) == [0, 33, 5]


def test_what_follows_the_reduction_ends_the_second_kernel():
    kernel = parse_kernel(SUM)
    parts = agree(kernel, Cut(kernel.phases[0].axes[0], sympy.Integer(4), sympy.Integer(10), True))
    assert [p.name for p in parts] == ["k_partial", "k"]
    lines = [" ".join(line.split()) for line in print_kernel(parts[0]).splitlines()]
    assert lines[3:] == [
        "):",
        "parallel i1 < 4, i0 < 3:",
        "over r0 < 10:",
        "v0 = load x[i0*40 + i1*10 + r0] : f32",
        "v1 = reduce sum(v0) : f32",
        "once:",
        "store k_sum[i1*3 + i0] = v1",
    ]


def test_a_norm_is_statistics_and_what_applies_them():
    kernel = parse_kernel(NORM)
    parts = agree(kernel, Cut(kernel.phases[0].axes[0], sympy.Integer(4), sympy.Integer(10), True))
    assert [p.name for p in parts] == ["k_stage_partial", "k_stage", "k"]
    assert "out m" in print_kernel(parts[1]) and "out y" in print_kernel(parts[2])
    assert not any(p.axes for p in parts[2].phases)


def big(text: str, rows: int, width: int) -> Kernel:
    return parse_kernel(
        re.sub(r"\b40\b(?!\.)", str(width), re.sub(r"\b(3|7)\b(?=[\],:*])", str(rows), text))
    )


@pytest.mark.parametrize(
    ("text", "rows", "width", "splits"),
    [
        (SUM, 1, 1 << 24, True),
        (SUM, 4, 1 << 20, True),
        (SUM, 1, 1000003, True),
        (SUM, 4096, 4096, False),  # rows enough
        (SUM, 1, 4096, False),  # not worth a launch
        (COLUMNS, 2048, 65536, True),
        (COLUMNS, 1 << 17, 4096, False),
        (COLUMNS, 4096, 512, False),  # in the cache
        (COLUMNS, 5000, 16384, True),  # programs enough, of less than a line of a row each
        (COLUMNS, 5000, 256, False),  # not worth a launch
        (NORM, 8, 1 << 22, True),
        (CENTRED, 8, 1 << 22, True),
        (SCALED, 8, 1 << 22, True),
        (NORM, 8, 4096, False),
    ],
)
def test_when_a_reduction_is_shared(text, rows, width, splits):
    cut = choose_cut(big(text, rows, width), {})
    assert (cut is not None) == splits
    if cut is not None:
        assert cut.count * cut.length >= width
        assert cut.exact == (cut.count * cut.length == width)


@pytest.mark.parametrize("text", [BIASED, COLUMNS])
@pytest.mark.parametrize(
    ("rows", "columns", "chunks"),
    [
        (254 * 254, 4096, 127),
        (254 * 254, 8192, 127),  # 4, half of those wanted, are too few
        (4 * 16127, 8192, 4),  # but better than a shorter last one
        (65536, 4096, 16),
    ],
)
def test_columns_are_cut_evenly(text, rows, columns, chunks):
    """Into more chunks than wanted, if need be: 64516 is 4 times 127 times 127."""
    cut = choose_cut(big(text, columns, rows), {})
    assert cut is not None and cut.exact and cut.count == chunks


def test_what_all_rows_share_is_read_without_a_mask():
    kernel = parse_kernel(BIASED)
    axis = kernel.phases[0].axes[0]
    first, *_ = agree(kernel, Cut(axis, sympy.Integer(6), sympy.Integer(7), False))
    lines = [line.strip() for line in print_kernel(first).splitlines()]
    assert any("= load w[i0]" in s and " if " not in s for s in lines)
    assert all(" if " in s for s in lines if "= load x[" in s)


GROUPS = """
kernel k(
    x: f32[SIZE] cuda:0,
    out y: f32[SIZE] cuda:0,
):
  parallel i0 < ROWS, i1 < 16:
    over r0 < LONG, r1 < 4:
      v0 = load x[i0*ROW + r0*64 + i1*4 + r1] : f32
      v1, v2 = reduce welford(v0) : f32
    once:
      v3 = sqrt(v2) : f32
    over r0 < LONG, r1 < 4:
      v4 = sub(v0, v1) : f32
      v5 = div(v4, v3) : f32
      store y[i0*ROW + r0*64 + i1*4 + r1] = v5
"""


def groups(rows: int, long: int) -> Kernel:
    text = GROUPS.replace("ROWS", str(rows)).replace("LONG", str(long))
    return parse_kernel(text.replace("ROW", str(64 * long)).replace("SIZE", str(64 * long * rows)))


def test_short_pieces_of_rows_become_columns():
    """Groups of four channels of channels-last images, of which a row alone reads 16 bytes at a
    time: sums of single channels first."""
    parts = split(groups(256, 16384), lambda k: choose_cut(k, {}), {"k", "x", "y"})
    first, *_, last = parts
    assert reduces_columns(first)
    assert not last.phases[0].axes and len(last.axes) >= 3
    small = groups(3, 5)
    kernels = split(small, cut_alike(Cut(small.phases[0].axes[1], 4, 1, True)), {"k", "x", "y"})
    given = [np.random.default_rng(0).standard_normal(3 * 5 * 64, np.float32)]
    whole = interpret_graph(graph_of([small], small), given)
    np.testing.assert_allclose(
        interpret_graph(graph_of(kernels, small), given)[0], whole[0], rtol=1e-5, atol=1e-6
    )
    assert choose_cut(small, {}) is None


@pytest.mark.parametrize(("images", "points"), [(64, 784), (4, 12544), (2, 65536)])
def test_chunks_keep_lines_along_the_reduction_whole(images, points):
    """A tensor that lies along the reduction, times one that lies along its columns."""
    size = images * points * 768
    cut = choose_cut(
        parse_kernel(f"""
kernel k(
    x: bf16[{size}] cuda:0,
    g: bf16[{size}] cuda:0,
    out y: f32[768] cuda:0,
):
  parallel i0 < 768:
    over r0 < {images}, r1 < {points}:
      v0 = load x[r0*{points * 768} + i0*{points} + r1] : bf16
      v1 = load g[r0*{points * 768} + r1*768 + i0] : bf16
      v2 = mul(v0, v1) : bf16
      v3 = cast(v2) : f32
      v4 = reduce sum(v3) : f32
    once:
      store y[i0] = v4
"""),
        {},
    )
    assert cut is not None and cut.exact and cut.count * max(8, images) >= 64
    assert cut.axis.symbol.name == "r0" if images == 64 else cut.length >= 64


def test_windows_that_lie_side_by_side_stay_whole():
    """8 x 8 of them in a program read whole lines: no partial results."""
    assert choose_cut(groups(65536, 64), {}) is None


TRANSPOSED = """
kernel k(
    x: f32[1048576, 64] cuda:0,
    out y: f32[64, 1048576] cuda:0,
):
  parallel i0 < 16384, i1 < 64:
    over r0 < 640:
      v0 = load x[i0*40960 + r0*64 + i1] : f32
      v1 = reduce max(v0) : f32
    over r0 < 640:
      v2 = sub(v0, v1) : f32
      store y[i0*40960 + i1*640 + r0] = v2
"""


def test_columns_that_are_stored_as_rows_are_applied_apart():
    """Where they are few, and long."""
    text = TRANSPOSED.replace("1048576", "163840").replace("i0 < 16384", "i0 < 256")
    graph = graph_of([parse_kernel(text)], parse_kernel(text))
    stage, last = SplitReductions().run(graph).nodes
    assert reduces_columns(stage) and not any(p.axes for p in last.phases)
    many = TRANSPOSED.replace("1048576", "10485760")
    for whole in (text.replace("i0*40960 + i1*640 + r0", "i0*40960 + r0*64 + i1"), many):
        kernel = parse_kernel(whole)
        assert len(SplitReductions().run(graph_of([kernel], kernel)).nodes) == 1


def test_large_weights_are_read_in_pieces_that_stay_in_the_cache():
    kernel = big(NORM, 4, 1 << 22)
    *_, last = split(kernel, lambda k: choose_cut(k, {}), {"k"})
    assert [str(a.extent) for a in last.axes] == ["512", "4", "8192"]
    small = big(NORM, 4, 1 << 13)
    *_, last = split(small, cut_alike(Cut(small.phases[0].axes[0], 4, 2048, True)), {"k"})
    assert len(last.axes) == 2


@pytest.mark.parametrize(
    ("images", "points", "chunks"),
    [(16, 16900, 52), (64, 15876, 9), (16, 16384, 32), (33, 16900, 20)],
)
def test_all_multiprocessors_have_as_much_to_do(images, points, chunks):
    """Of the divisors near to the wanted number: 26 chunks of 32 programs are six or seven for each
    multiprocessor, 52 are twelve or thirteen."""
    text = SUM.replace("f32[3, 40]", f"f32[{images}, {points}, 128]").replace("f32[3]", "f32[1]")
    text = text.replace("parallel i0 < 3", f"parallel i0 < {images}, i1 < 128")
    text = text.replace("over r0 < 40", f"over r0 < {points}")
    text = text.replace("x[i0*40 + r0]", f"x[i0*{128 * points} + r0*128 + i1]")
    text = text.replace("f32[1] cuda:0", f"f32[{images}, 128] cuda:0").replace(
        "y[i0]", "y[i0*128 + i1]"
    )
    cut = choose_cut(parse_kernel(text), {})
    assert (cut.count, cut.exact) == (chunks, True)


@pytest.mark.parametrize(
    ("images", "channels", "points", "whole"),
    [(64, 16, 250047, True), (200, 16, 250047, True), (20, 16, 250047, False)],
)
def test_an_image_a_chunk(images, channels, points, whole):
    """Chunks that are one run of memory, rather than runs far from each other, also where they are
    half of what is wanted."""
    text = re.sub("f32.8, 3, 5.", f"f32[{images}, {channels}, {points}]", PLANES)
    text = text.replace("i0 < 3", f"i0 < {channels}").replace("[3]", f"[{channels}]")
    text = text.replace("r0 < 8, r1 < 5", f"r0 < {images}, r1 < {points}")
    text = text.replace("r0*15 + i0*5", f"r0*{channels * points} + i0*{points}")
    text = "".join(s for s in text.splitlines(True) if " v3" not in s and "z" not in s)
    cut = choose_cut(parse_kernel(text), {})
    assert (cut.length == 1 and cut.count == images) == whole


@pytest.mark.parametrize(("group", "run", "parts"), [(4, 64516, 4), (4, 1024, 0), (1, 64516, 0)])
def test_channels_have_programs_of_their_own(group: int, run: int, parts: int):
    """Where groups would be read from memory twice anyway, and each channel has a bias."""
    row = group * run
    text = f"""
kernel k(
    x: f32[{1024 * row}] cuda:0,
    b: f32[{8 * group}] cuda:0,
    out y: f32[{1024 * row}] cuda:0,
):
  parallel i0 < 128, i1 < 8:
    over r0 < {group}, r1 < {run}:
      v0 = load x[i0*{8 * row} + i1*{row} + r0*{run} + r1] : f32
      v1 = load b[i1*{group} + r0] : f32
      v2 = add(v0, v1) : f32
      v3 = reduce sum(v2) : f32
    over r0 < {group}, r1 < {run}:
      v4 = sub(v2, v3) : f32
      store y[i0*{8 * row} + i1*{row} + r0*{run} + r1] = v4
"""
    cut = choose_cut(parse_kernel(text.strip()), {})
    assert (int(cut.count) if cut else 0) == parts


def test_chunks_begin_at_aligned_elements():
    cut = choose_cut(big(SUM, 1, 1 << 24), {})
    assert cut is not None and cut.exact and int(cut.length) % 4096 == 0
    odd = choose_cut(big(SUM, 1, 1000003), {})
    assert odd is not None and not odd.exact and int(odd.length) % 128 == 0
    rows = choose_cut(big(COLUMNS, 3001, 10007), {})
    assert rows is not None and not rows.exact and int(rows.length) % 32 == 0


def test_the_pass_leaves_what_it_need_not_change():
    kernel = big(SUM, 4096, 4096)
    graph = graph_of([kernel], kernel)
    assert SplitReductions().run(graph) is graph
