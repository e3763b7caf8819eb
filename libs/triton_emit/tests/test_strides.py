"""Kernels whose accesses lie contiguous along different axes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from loop_ir import (
    Axis,
    Buffer,
    Compute,
    Device,
    DType,
    Kernel,
    Load,
    Phase,
    Reduce,
    Store,
    Symbol,
    TensorType,
    across,
    contiguous_strides,
    parse_kernel,
    reduces_columns,
)
from symexpr import symbol
from triton_emit import BadSchedule, Schedule, candidate_schedules, default_schedule, emit

I = tuple(symbol(f"i{k}") for k in range(4))  # noqa: E741  # as in loop IR
R0, S0 = symbol("r0"), symbol("s0")
N = sympy.Integer


def tensor(dtype: DType, *size: object) -> TensorType:
    sizes = tuple(map(sympy.sympify, size))
    return TensorType(dtype, sizes, contiguous_strides(sizes), Device("cuda", 0))


def permuted(
    sizes: tuple[object, ...], order: tuple[int, ...], dtype: DType, *symbols: Symbol
) -> Kernel:
    """`y = x.permute(order).contiguous() + x`-like: x is read as it lies, y written in `order`."""
    axes = tuple(Axis(I[k], sympy.sympify(n)) for k, n in enumerate(sizes))
    x = tensor(dtype, *(sizes[k] for k in order))
    y = tensor(dtype, *sizes)
    at_x = sum((x.stride[j] * I[k] for j, k in enumerate(order)), N(0))
    at_y = sum((y.stride[k] * I[k] for k in range(len(sizes))), N(0))
    bias = tensor(DType.f32, sizes[-1])
    body = (
        Load("a", "x", at_x, dtype),
        Load("w", "bias", I[len(sizes) - 1], DType.f32),
        Compute("b", "cast", ("a",), DType.f32),
        Compute("c", "add", ("b", "w"), DType.f32),
        Compute("d", "cast", ("c",), dtype),
        Store("y", at_y, "d"),
    )
    buffers = (Buffer("x", x), Buffer("bias", bias), Buffer("y", y, True))
    return Kernel("permuted", buffers, axes, (Phase((), body),), symbols)


def column_sum(rows: object, columns: object, *symbols: Symbol) -> Kernel:
    load = Load("a", "x", sympy.sympify(columns) * R0 + I[0], DType.f32)
    over = Phase((Axis(R0, sympy.sympify(rows)),), (load, Reduce(("s",), "sum", ("a",), DType.f32)))
    buffers = (
        Buffer("x", tensor(DType.f32, rows, columns)),
        Buffer("y", tensor(DType.f32, columns), True),
    )
    store = Phase((), (Store("y", I[0], "s"),))
    return Kernel(
        "column_sum", buffers, (Axis(I[0], sympy.sympify(columns)),), (over, store), symbols
    )


def test_a_transpose_is_cut_into_squares(tools: SimpleNamespace) -> None:
    kernel = permuted((96, 80), (1, 0), DType.bf16)
    assert across(kernel) == kernel.axes[0]
    large = permuted((4096, 4096), (1, 0), DType.bf16)
    assert default_schedule(large, {}) == Schedule("tiled", 64, num_warps=8, yblock=64)
    emitted = tools.check(kernel, Schedule("tiled", 32, num_warps=2, yblock=64))
    assert "xindex = pid % (3) * XBLOCK + tl.arange(0, XBLOCK)[:, None]" in emitted.source
    assert "ymask = yindex < 96" in emitted.source
    assert [str(g) for g in emitted.grid] == ["6", "1", "1"]


@pytest.mark.parametrize(
    ("dtype", "side", "tile"),
    [
        (DType.bf16, 126, (256, 32)),
        (DType.bf16, 55, (64, 64)),
        (DType.f32, 55, (256, 32)),
        (DType.f32, 126, (64, 64)),
        (DType.i8, 55, (64, 64)),
    ],
)
def test_long_columns_that_end_inside_of_a_line(
    dtype: DType, side: int, tile: tuple[int, int]
) -> None:
    """Pieces of 256, but of 16 bits where no two elements are stored at once, and of 32 where
    several are."""
    found = default_schedule(permuted((128, 128, side * side), (0, 2, 1), dtype), {})
    assert (found.kind, found.xblock, found.yblock) == ("tiled", *tile)


def test_columns_of_which_no_one_knows_that_they_are_even() -> None:
    s0 = Symbol("s0", 0, 100_000, 15876)
    for length, x in ((S0, 64), (2 * S0, 256)):
        kernel = permuted((128, 64, length), (0, 2, 1), DType.bf16, s0)
        assert default_schedule(kernel, {"s0": 15878}).xblock == x


def test_channels_first_to_last_with_a_batch(tools: SimpleNamespace) -> None:
    """[b, hw, c] written, [b, c, hw] read; hw next to the batch in the rows."""
    kernel = permuted((3, 49, 40), (0, 2, 1), DType.f32)
    assert across(kernel) == kernel.axes[1]
    for schedule in candidate_schedules(kernel, {}):
        tools.check(kernel, schedule)


def test_dynamic_sizes(tools: SimpleNamespace) -> None:
    kernel = permuted((S0, 40), (1, 0), DType.f32, Symbol("s0", 0, 100_000, 64))
    schedule = default_schedule(kernel, {"s0": 4096})
    assert schedule.kind == "tiled"
    for size in (1, 33, 64):
        tools.check(kernel, schedule, symbols={"s0": size})
    wide = permuted((S0, 40), (1, 0), DType.f32, Symbol("s0", 0, None, 64))
    tools.check(wide, default_schedule(wide, {"s0": 64}), symbols={"s0": 70})


def test_one_tile_where_nothing_is_transposed() -> None:
    same = permuted((64, 64), (0, 1), DType.f32)
    assert across(same) is None and default_schedule(same, {}).kind == "flat"
    narrow = permuted((4, 4096), (1, 0), DType.f32)
    assert default_schedule(narrow, {}).kind == "flat"
    one = permuted((4096,), (0,), DType.f32)
    with pytest.raises(BadSchedule, match="one axis"):
        emit(one, Schedule("tiled", 32, yblock=32))
    with pytest.raises(BadSchedule, match="yblock"):
        emit(narrow, Schedule("tiled", 32, yblock=3))


def test_short_lines_go_on_with_the_axis_before(tools: SimpleNamespace) -> None:
    kernel = permuted((2, 20, 6, 5), (0, 2, 3, 1), DType.f32)
    emitted = tools.check(kernel, Schedule("tiled", 16, num_warps=1, yblock=16))
    assert "xindex % 5" in emitted.source and "xindex < 30" in emitted.source
    apart = permuted((2, 6, 20, 5), (0, 1, 3, 2), DType.f32)
    assert "xindex %" not in tools.check(apart, Schedule("tiled", 8, yblock=16)).source
    large = permuted((40, 60, 40, 50), (0, 2, 3, 1), DType.f32)
    assert default_schedule(large, {}) == Schedule("tiled", 64, num_warps=8, yblock=64)


COPIED = """
kernel im2col(
    x: bf16[2, {h}, {w}] cuda:0,
    out y: bf16[2, 3, 3, {h}, {w}] cuda:0,
):
  {where}
  parallel i0 < 2, i1 < 3, i2 < 3, i3 < {h}, i4 < {w}:
    once:
      v0 = index i1 + i3 - 1 : i64
      v1 = const 0 : i64
      v2 = ge(v0, v1) : bool
      v3 = index {h} : i64
      v4 = lt(v0, v3) : bool
      v5 = index i2 + i4 - 1 : i64
      v6 = ge(v5, v1) : bool
      v7 = index {w} : i64
      v8 = lt(v5, v7) : bool
      v9 = and(v2, v4) : bool
      v10 = and(v6, v8) : bool
      v11 = and(v9, v10) : bool
      v12 = load x[i0*{h}*{w} + i1*{w} + i3*{w} + i2 + i4 - {w} - 1] if v11 else 0 : bf16
      store y[i0*9*{h}*{w} + i1*3*{h}*{w} + i2*{h}*{w} + i3*{w} + i4] = v12
"""
UNKNOWN = "where s0 in [0, 4096] hint 90\n  where s1 in [0, 4096] hint 100"


def copied(h: object, w: object, where: str = "") -> Kernel:
    return parse_kernel(COPIED.format(h=h, w=w, where=where))


@pytest.mark.spread(3)
@pytest.mark.parametrize(("x", "y"), [(8, 4), (16, 8), (32, 2)])
@pytest.mark.parametrize(("h", "w"), [(7, 13), (12, 8), (3, 33), (1, 20)])
def test_windows_that_are_copied_in_rows(
    h: int, w: int, x: int, y: int, tools: SimpleNamespace
) -> None:
    schedule = Schedule("tiled", x, num_warps=1, yblock=y, vector=1)
    known = tools.check(copied(h, w), schedule)
    assert ("oindex" in known.source) == (h >= 0.9 * -(-h // y) * y)
    unknown = copied("s0", "s1", UNKNOWN)
    assert "oindex" in tools.check(unknown, schedule, symbols={"s0": h, "s1": w}).source


def test_coordinates_are_worth_rows() -> None:
    assert default_schedule(copied(200, 240), {}) == Schedule(
        "tiled", 256, 1, 2, 1, 32, 4, vector=1
    )
    assert default_schedule(copied(6, 12), {}).kind == "flat"  # few points, of short rows
    assert default_schedule(copied("s0", "s1", UNKNOWN), {"s0": 300, "s1": 300}).kind == "tiled"


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 21), min_size=2, max_size=4),
    data=st.data(),
    x=st.sampled_from((8, 16)),
    y=st.sampled_from((8, 16)),
)
def test_any_permutation(
    tools: SimpleNamespace, sizes: list[int], data: st.DataObject, x: int, y: int
) -> None:
    order = tuple(data.draw(st.permutations(range(len(sizes)))))
    kernel = permuted(tuple(sizes), order, DType.f32)
    if across(kernel) is not None:
        tools.check(kernel, Schedule("tiled", x, num_warps=1, yblock=y))


@pytest.mark.parametrize(("rows", "columns"), [(20, 70), (300, 33), (1500, 40)])
def test_sums_of_columns_take_neighbours_together(
    tools: SimpleNamespace, rows: int, columns: int
) -> None:
    kernel = column_sum(rows, columns)
    assert reduces_columns(kernel)
    schedule = default_schedule(kernel, {})
    assert schedule.xblock >= 8
    assert schedule.kind == ("persistent" if rows <= 32 else "looped")
    tools.check(kernel, schedule, ulp=64)
    dynamic = column_sum(S0, columns, Symbol("s0", 1, None, rows))
    tools.check(dynamic, default_schedule(dynamic, {"s0": rows}), symbols={"s0": rows}, ulp=64)


SCALED = """
kernel scaled(
    x: u8[2, COLUMNS, 3] cuda:0,
    s: f32[3] cuda:0,
    out y: f32[2, 3, COLUMNS] cuda:0,
):
  parallel i0 < 2, i1 < 3, i2 < COLUMNS:
    once:
      v0 = load x[i0*3*COLUMNS + i2*3 + i1] : u8
      v1 = cast(v0) : f32
      v2 = load s[i1] : f32
      v3 = div(v1, v2) : f32
      store y[i0*3*COLUMNS + i1*COLUMNS + i2] = v3
"""


@pytest.mark.parametrize(
    ("old", "new", "rows"),
    [
        ("COLUMNS", "1300", True),
        ("COLUMNS", "100", False),  # rows too short for a program
        ("load s[i1]", "load s[i1*0 + Mod(i2, 3)]", False),
        ("div(v1, v2)", "mul(v1, v2)", False),
    ],
)
def test_a_divisor_of_a_row_is_turned_over_once(
    old: str, new: str, rows: bool, tools: SimpleNamespace
) -> None:
    kernel = parse_kernel(SCALED.replace(old, new).replace("COLUMNS", "1300"))
    schedule = default_schedule(kernel, {})
    assert (schedule.kind == "tiled" and schedule.yblock == 1) == rows
    assert ("quotient_f32" in tools.check(kernel, schedule).source) == rows


GATED = """
kernel gated(
    x: f32[3, 5, 100] cuda:0,
    w: f32[3, 5] cuda:0,
    out y: f32[3, 5, 100] cuda:0,
    out z: f32[3, 100] cuda:0,
):
  parallel i0 < 3, i1 < 100:
    over r0 < 5:
      a = load x[i0*500 + r0*100 + i1] : f32
      b = load w[i0*5 + r0] : f32
      c = sigmoid(b) : f32
      d = mul(a, c) : f32
      top = reduce max(d) : f32
      s = reduce sum(d) : f32
    once:
      e = add(top, s) : f32
      store z[i0*100 + i1] = e
    over r0 < 5:
      f = mul(d, e) : f32
      store y[i0*500 + r0*100 + i1] = f
"""


@pytest.mark.parametrize("kind", ["looped", "persistent"])
@pytest.mark.parametrize("columns", [pytest.param(1, marks=pytest.mark.slow), 32, 128])
def test_columns_of_a_program_share_factors(
    kind: str, columns: int, tools: SimpleNamespace
) -> None:
    """Each factor of a row is read, and its sigmoid computed, once for the columns of a program,
    which belong to one place of the outer axis."""
    kernel = parse_kernel(GATED.strip())
    schedule = Schedule("looped", columns, 2)
    if kind == "persistent":
        schedule = Schedule("persistent", columns, 8)
    emitted = tools.check(kernel, schedule, ulp=32)
    assert "in1 + row*5 + rindex" in emitted.source or columns == 1
    assert emitted.grid[0] == 3 * -(-100 // columns)


CHANNELS = """
kernel channels(
    x: {t}[64, 192, 3136] cuda:0,
    out y: {t}[64, 192, 3136] cuda:0,
):
  parallel i0 < 64, i1 < 3136:
    over r0 < 192:
      a = load x[i0*602112 + r0*3136 + i1] : {t}
      b = cast(a) : f32
      s = reduce sum(b) : f32
    over r0 < 192:
      c = sub(b, s) : f32
      d = cast(c) : {t}
      store y[{to}] = d
"""


def test_columns_that_are_stored_are_a_line_wide() -> None:
    """Whole columns, or squares of lines where what is stored lies along the reduction."""
    along, to_rows = "i0*602112 + r0*3136 + i1", "i0*602112 + i1*192 + r0"
    for t, to, blocks in (
        ("bf16", along, ("persistent", 64, 256, 8)),
        ("f32", along, ("persistent", 32, 256, 4)),
        ("bf16", to_rows, ("looped", 64, 64, 8)),
    ):
        kernel = parse_kernel(CHANNELS.format(t=t, to=to).strip())
        assert default_schedule(kernel, {}) == Schedule(*blocks)
    fewer = CHANNELS.format(t="bf16", to=along).replace("3136", "784").replace("602112", "150528")
    kernel = parse_kernel(fewer.strip())
    assert default_schedule(kernel, {}) == Schedule("persistent", 64, 256, 8)


def test_two_divisions_of_64_bits_a_thread() -> None:
    text = """
kernel k(
    x: {t}[1048576] cuda:0,
    y: {t}[1048576] cuda:0,
    out z: {t}[1048576] cuda:0,
):
  parallel i0 < 1048576:
    once:
      a = load x[i0] : {t}
      b = load y[i0] : {t}
      c = mod(a, {b}) : {t}
      store z[i0] = c
"""
    long = parse_kernel(text.format(t="i64", b="b").strip())
    assert default_schedule(long, {}) == Schedule("flat", 512, num_warps=8)
    half = parse_kernel(text.format(t="i32", b="b").strip())
    assert default_schedule(half, {}) == Schedule("flat", 1024, num_warps=4)


def test_more_rows_to_a_program_where_they_overlap() -> None:
    text = """
kernel slide(
    x: f32[4096, 4096] cuda:0,
    out y: f32[4096, 1021] cuda:0,
):
  parallel i0 < 4096, i1 < 1021:
    over r0 < 16:
      a = load x[i0*4096 + i1*{step} + r0] : f32
      b = reduce max(a) : f32
    once:
      store y[i0*1021 + i1] = b
"""
    for step, blocks in ((4, (128, 16, 2)), (16, (64, 16, 1))):
        kernel = parse_kernel(text.format(step=step).replace("4096]", "16384]").strip())
        assert default_schedule(kernel, {}) == Schedule("persistent", *blocks)


@pytest.mark.parametrize(
    ("length", "blocks"),
    [(49, (16, 8, 4)), (50, (32, 8, 4)), (64, (64, 64, 8)), (100, (16, 16, 4)),
     (127, (8, 16, 4)), (27, (32, 8, 4))],
)  # fmt: skip
def test_no_warps_share_short_rows(length: int, blocks: tuple[int, int, int]) -> None:
    text = f"""
kernel softmax(
    x: bf16[65536, {length}] cuda:0,
    out y: bf16[65536, {length}] cuda:0,
):
  parallel i0 < 65536:
    over r0 < {length}:
      a = load x[i0*{length} + r0] : bf16
      b = cast(a) : f32
      c = exp(b) : f32
      s = reduce sum(c) : f32
    over r0 < {length}:
      d = div(c, s) : f32
      e = cast(d) : bf16
      store y[i0*{length} + r0] = e
"""
    schedule = default_schedule(parse_kernel(text.strip()), {})
    assert schedule == Schedule("persistent", *blocks)


def test_axes_are_named_as_parts_of_others(tools: SimpleNamespace) -> None:
    """Stages of reductions bring axes of any name along: `i1` is the second part of the flattened
    rows, and an axis of the row here, `r0` a part of the row and an axis of rows."""
    text = """
kernel stage(
    x: f32[5, 8, 3, 10] cuda:0,
    w: f32[24] cuda:0,
    out y: f32[8, 5] cuda:0,
):
  parallel r0 < 5, i0 < 8:
    over i1 < 3, i2 < 10:
      a = load x[r0*240 + i0*30 + i1*10 + i2] : f32
      b = load w[i0*3 + i1] : f32
      c = mul(a, b) : f32
      s = reduce sum(c) : f32
    once:
      store y[i0*5 + r0] = s
"""
    kernel = parse_kernel(text.strip())
    for schedule in (Schedule("persistent", 4, 32), Schedule("looped", 1, 16)):
        tools.check(kernel, schedule, ulp=32)


def test_neighbours_go_on_along_outer_axes(tools: SimpleNamespace) -> None:
    """Groups of four channels that come last in memory: eight of them are a line."""
    text = """
kernel apply(
    x: f32[2, 70, 32] cuda:0,
    m: f32[2, 8] cuda:0,
    out y: f32[2, 32, 70] cuda:0,
):
  parallel i0 < 2, i1 < 8, r0 < 4, r1 < 70:
    once:
      a = load x[i0*2240 + r1*32 + i1*4 + r0] : f32
      b = load m[i0*8 + i1] : f32
      c = sub(a, b) : f32
      store y[i0*2240 + i1*280 + r0*70 + r1] = c
"""
    kernel = parse_kernel(text.strip())
    schedule = default_schedule(kernel, {})
    assert schedule.kind == "tiled" and schedule.yblock == 32
    tools.check(kernel, schedule)
    apart = parse_kernel(
        text.strip().replace("r1*32 + i1*4", "r1*64 + i1*8").replace("70, 32", "70, 64")
    )
    assert default_schedule(apart, {}).kind == "flat"


@pytest.mark.parametrize(("columns", "blocks"), [(4095, (64, 64, 32)), (4096, (64, 16, 2))])
def test_columns_that_begin_at_odd_places(columns: int, blocks: tuple[int, int, int]) -> None:
    text = f"""
kernel total(
    x: f32[32, 4096, {columns}] cuda:0,
    out y: f32[32, {columns}] cuda:0,
):
  parallel i0 < 32, i1 < {columns}:
    over r0 < 4096:
      a = load x[i0*{4096 * columns} + r0*{columns} + i1] : f32
      s = reduce sum(a) : f32
    once:
      store y[i0*{columns} + i1] = s
"""
    assert default_schedule(parse_kernel(text.strip()), {}) == Schedule("looped", *blocks)


BAGS = """
kernel bags(
    ids: i64[700, s0] cuda:0,
    w: f32[30, 96] cuda:0,
    m: bf16[700, s0] cuda:0,
    out y: f32[700, 96] cuda:0,
):
  where s0 in [0, 4096] hint 40
  parallel i0 < 700, i1 < 96:
    over r0 < s0:
      v0 = load ids[i0*s0 + r0] : i64
      t0 = indirect v0 < 30
      v1 = load w[t0*96 + i1] : f32
      v2 = load m[i0*s0 + r0] : bf16
      v3 = cast(v2) : f32
      v4 = mul(v1, v3) : f32
      v5 = reduce sum(v4) : f32
    once:
      store y[i0*96 + i1] = v5
"""


def test_rows_that_data_picks_are_walked_over(tools: SimpleNamespace) -> None:
    """Lanes have neighbouring columns, of which no other lane reads the rows again."""
    kernel = parse_kernel(BAGS.strip())
    schedule = default_schedule(kernel, {"s0": 40})
    assert schedule == Schedule("looped", 128, 1, num_warps=1)
    for size in (0, 9):
        emitted = tools.check(kernel, schedule, symbols={"s0": size}, ulp=16)
    assert "loop_unroll_factor=8" in emitted.source and "trans" not in emitted.source
    own = parse_kernel(BAGS.replace("ids[i0*s0 + r0]", "ids[i1*s0 + r0]").strip())
    assert default_schedule(own, {"s0": 40}).rblock > 1  # of each column its own
