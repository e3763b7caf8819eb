"""Rows that are scalars: loads, stores and folds that do not vary inside of a program."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from loop_ir import parse_kernel
from triton_emit import Schedule, default_schedule, emit
from triton_emit.schedule import Kind
from triton_rt import Target
from triton_rt import compile as compile_kernel

# a load at one address under a mask of the row: labels that were shifted and padded
SHIFTED = """\
kernel shifted(
    x: f32[4, 8] cuda:0,
    label: i64[1] cuda:0,
    out y: f32[4] cuda:0,
    out m: bool[4] cuda:0,
):
  parallel i0 < 4:
    over r0 < 8:
      v0 = load x[i0*8 + r0] : f32
      v1 = reduce sum(v0) : f32
    once:
      store y[i0] = v1
      v2 = index i0 : i64
      v3 = const 1 : i64
      v4 = lt(v2, v3) : bool
      v5 = load label[0] if v4 else -100 : i64
      v6 = const -100 : i64
      v7 = ne(v5, v6) : bool
      store m[i0] = v7
"""
# atomic adds of what does not vary over the row
ADDED = """\
kernel added(
    x: f32[4, 8] cuda:0,
    out y: f32[4] cuda:0,
    out m: f32[1] cuda:0,
    out k: f32[4] cuda:0,
):
  parallel i0 < 4:
    over r0 < 8:
      v0 = load x[i0*8 + r0] : f32
      v1 = reduce sum(v0) : f32
    once:
      store y[i0] = v1
      v2 = const 2.0 : f32
      store m[0] += v2
      store k[i0] += v2
      store k[i0] += v1
"""
# folds that are the same in all rows
LITERAL = """\
kernel literal(
    x: f32[4, 8] cuda:0,
    w: f32[8] cuda:0,
    b: f32[1] cuda:0,
    out y: f32[4] cuda:0,
    out z: f32[4] cuda:0,
):
  parallel i0 < 4:
    over r0 < 8:
      v0 = load x[i0*8 + r0] : f32
      v1 = reduce sum(v0) : f32
      v2 = load w[r0] : f32
      v3 = reduce max(v2) : f32
      v8 = const 1.0 : f32
      v9 = reduce sum(v8) : f32
    once:
      v4 = gt(v3, v9) : bool
      v5 = load b[0] if v4 else 0.0 : f32
      v6 = add(v5, v1) : f32
      store y[i0] = v6
      store z[i0] = v5
"""


# one element of each row, under a mask that is the same in all rows
FLAGGED = """\
kernel flagged(
    x: f32[4, 8] cuda:0,
    w: f32[4] cuda:0,
    flag: bool[1] cuda:0,
    out y: f32[4] cuda:0,
):
  parallel i0 < 4:
    over r0 < 8:
      v0 = load flag[0] : bool
      v1 = load w[i0] if v0 else 2.0 : f32
      v2 = load x[i0*8 + r0] : f32
      v3 = mul(v1, v2) : f32
      v4 = reduce sum(v3) : f32
    once:
      store y[i0] = v4
"""


@pytest.mark.spread(3)
@pytest.mark.parametrize("kind", ["persistent", "looped"])
@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize(
    "text", [SHIFTED, ADDED, LITERAL, FLAGGED], ids=["shifted", "added", "literal", "flagged"]
)
def test_scalars_of_a_row(text: str, rows: int, kind: Kind, tools: SimpleNamespace) -> None:
    kernel = parse_kernel(text)
    schedule = Schedule(kind, rows, 16 if rows == 8 else 8)
    tools.check(kernel, schedule)
    if kind == "persistent":
        compile_kernel(tools.kernel_source(emit(kernel, schedule)), Target(90))


STREAM = """
kernel k(
    x: f32[ROWS, 1024] cuda:0,
    w: f32[1024] cuda:0,
    out y: f32[ROWS] cuda:0,
):
  parallel i0 < ROWS:
    over r0 < 1024:
      v0 = load x[i0*1024 + r0] : f32
      v1 = load w[r0] : f32
      v2 = mul(v0, v1) : f32
      v3 = reduce sum(v2) : f32
    once:
      store y[i0] = v3
"""


@pytest.mark.parametrize(("old", "new", "streams"), [
    ("ROWS", "65536", True), ("ROWS", "8192", False), ("ROWS", "90000", False),
    ("i0*1024 + r0]", "i0*1025 + r0]", False),
    ("i0*1024 + r0]", "r0*ROWS + i0]", True), ("i0*1024 + r0]", "r0*59992 + i0]", False),
    ("i0*1024 + r0]", "i0//2*1024 + r0]", False),
])  # fmt: skip
def test_what_is_read_once_takes_no_place_of_others(old: str, new: str, streams: bool) -> None:
    """Large tensors, each line of which one program reads whole."""
    k = parse_kernel(STREAM.replace(old, new).replace("ROWS", "60000"))
    source = emit(k, default_schedule(k, {})).source
    assert source.count("evict_first") == int(streams)


# means over the second and the last of four dimensions, and differences of neighbours
PIECES = """
kernel k(
    x: bf16[64, 128, 56, WIDTH] cuda:0,
    out y: f32[64, 56] cuda:0,
):
  parallel i0 < 64, i1 < 56:
    over r0 < 128, r1 < WIDTH:
      v0 = load x[i0*56*128*WIDTH + r0*56*WIDTH + i1*WIDTH + r1] : bf16
      v1 = cast(v0) : f32
      v2 = reduce sum(v1) : f32
    once:
      store y[i0*56 + i1] = v2
"""
WINDOW = """
kernel k(
    x: f32[32, 3, 512, 512] cuda:0,
    out y: f32[1024] cuda:0,
):
  parallel i0 < 1024:
    over r0 < 48, r1 < 511:
      v0 = load x[i0*24576 + r0*512 + r1 + 1] : f32
      v1 = load x[i0*24576 + r0*512 + r1] : f32
      v2 = sub(v0, v1) : f32
      v3 = reduce sum(v2) : f32
    once:
      store y[i0] = v3
"""


@pytest.mark.parametrize(("width", "streams"), [(113, True), (61, False)])
def test_pieces_of_rows_are_read_once_where_they_have_lines(width: int, streams: bool) -> None:
    text = PIECES.replace("56*128*WIDTH", str(7168 * width)).replace("56*WIDTH", str(56 * width))
    kernel = parse_kernel(text.replace("WIDTH", str(width)).replace("64", "130"))
    source = emit(kernel, default_schedule(kernel, {})).source
    assert source.count("evict_first") == int(streams)


def test_what_one_loop_reads_at_two_places_is_not_read_again_later() -> None:
    """Its lines are no other loop's: none stay in L2 for one, nor leave it first."""
    kernel = parse_kernel(WINDOW)
    source = emit(kernel, default_schedule(kernel, {})).source
    assert source.count("tl.load") == 2 and "evict" not in source


WEIGHTED = """
kernel norm(
    x: f32[ROWS, 1024] cuda:0,
    w: f32[1024] cuda:0,
    out y: f32[ROWS, 1024] cuda:0,
):
  parallel i0 < ROWS:
    over r0 < 1024:
      v0 = load x[i0*1024 + r0] : f32
      v1 = reduce sum(v0) : f32
    over r0 < 1024:
      v2 = load w[r0] : f32
      v3 = mul(v0, v2) : f32
      v4 = add(v3, v1) : f32
      store y[i0*1024 + r0] = v4
"""


@pytest.mark.parametrize(
    ("old", "new", "first"),
    [
        ("ROWS", "4", True),
        ("ROWS", "5000", False),  # other programs fill the time
        ("load w[r0]", "load y[i0*1024 + r0]", False),  # which is written
    ],
)
def test_few_rows_read_all_before_they_reduce(
    old: str, new: str, first: bool, tools: SimpleNamespace
) -> None:
    kernel = parse_kernel(WEIGHTED.replace(old, new).replace("ROWS", "4"))
    schedule = Schedule("persistent", 1, 1024)
    source = emit(kernel, schedule).source
    *_, load = (n for n, line in enumerate(source.splitlines()) if "tl.load" in line)
    (fold,) = (n for n, line in enumerate(source.splitlines()) if "tl.sum" in line)
    assert (load < fold) == first
    if new == "4":
        tools.check(kernel, schedule)


BIASED = """
kernel k(
    x: f32[4096, 128] cuda:0,
    b: f32[128] cuda:0,
    out y: f32[4096] cuda:0,
):
  parallel i0 < 4096:
    over r0 < 128:
      v0 = load x[i0*128 + r0] : f32
      v1 = load b[r0] : f32
      v2 = add(v0, v1) : f32
      v3 = reduce min(v2) : f32
    once:
      store y[i0] = v3
"""


def test_rows_stay_in_their_warps_when_a_vector_is_added(tools: SimpleNamespace) -> None:
    """Five exchanges between lanes for each of the eight rows of a warp, and none through shared
    memory but for the results."""
    emitted = emit(parse_kernel(BIASED), Schedule("persistent", 32, 128, 4))
    ptx = compile_kernel(tools.kernel_source(emitted), Target(90)).ptx
    assert ptx.count("shfl.sync") <= 40 and ptx.count("st.shared") <= 2


TILES = """\
kernel tiles(
    x: f32[48, 64] cuda:0,
    out m: f32[3, 2] cuda:0,
    out y: f32[48, 64] cuda:0,
    out z: f32[64, 48] cuda:0,
):
  parallel i0 < 2, i1 < 3:
    over r0 < 16, r1 < 32:
      v0 = load x[i1*1024 + r0*64 + i0*32 + r1] : f32
      v1 = reduce max(v0) : f32
    once:
      store m[i1*2 + i0] = v1
    over r0 < 16, r1 < 32:
      v2 = sub(v0, v1) : f32
      store y[i1*1024 + r0*64 + i0*32 + r1] = v2
      store z[i0*1536 + r1*48 + i1*16 + r0] = v2
"""


def test_tiles_that_are_turned_around(tools: SimpleNamespace) -> None:
    """One tile of two dimensions, which turns in shared memory: both ways move in vectors."""
    kernel = parse_kernel(TILES)
    schedule = default_schedule(kernel, {})
    assert schedule.kind == "persistent" and schedule.rblock == 512
    source = tools.check(kernel, schedule).source
    assert source.count("tl.load(in0") == 1 and "// 32" not in source
    plain = TILES.replace("i0*1536 + r1*48 + i1*16 + r0", "i1*1024 + r0*64 + i0*32 + r1")
    assert "broadcast_to" not in emit(parse_kernel(plain), schedule).source
