"""Schedules of kernels that read rows and columns: what programs hold, loop over and share."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from loop_ir import (
    parse_kernel,
)  # fmt: skip
from triton_emit import (
    Schedule,
    candidate_schedules,
    default_schedule,
    emit,
)  # fmt: skip

WEIGHTS_OF_COLUMNS = """
kernel k(
    x: f32[1024, 32, WIDTH] cuda:0,
    w: f32[WIDTH] cuda:0,
    out y: f32[1024] cuda:0,
):
  parallel i0 < 1024:
    over r0 < 32, r1 < WIDTH:
      v0 = load x[i0*32*WIDTH + r0*WIDTH + r1] : f32
      v1 = load w[r1] : f32
      v2 = mul(v0, v1) : f32
      v3 = reduce sum(v2) : f32
    once:
      store y[i0] = v3
"""


@pytest.mark.parametrize(
    ("width", "block", "warps"),
    [(1000, 1024, 4), (2048, 2048, 8), (800, 2048, 8)],
)
def test_a_loop_steps_over_pieces_of_rows(width: int, block: int, warps: int) -> None:
    """Which have a thousand elements or two, and fill nearly a power of two."""
    text = WEIGHTS_OF_COLUMNS.replace("32*WIDTH", str(32 * width)).replace("WIDTH", str(width))
    kernel = parse_kernel(text)
    schedule = default_schedule(kernel, {})
    assert schedule == Schedule("looped", 1, block, warps)
    source = emit(kernel, schedule).source
    assert ("rindex % 1024 < 1000" in source) == (width == 1000)


NORM = """
kernel k(
    x: f32[2048, 16384] cuda:0,
    g: f32[2048, 16384] cuda:0,
    out y: f32[2048, 16384] cuda:0,
):
  parallel i0 < 2048:
    over r0 < 16384:
      v0 = load x[i0*16384 + r0] : f32
      v1 = load g[i0*16384 + r0] : f32
      v2 = mul(v0, v1) : f32
      v3 = reduce sum(v2) : f32
    over r0 < 16384:
      v4 = sub(v1, v3) : f32
      store y[i0*16384 + r0] = v4
"""
COSINES = """
kernel k(
    x: bf16[65536, 1024] cuda:0,
    z: bf16[65536, 1024] cuda:0,
    out y: bf16[65536] cuda:0,
):
  parallel i0 < 65536:
    over r0 < 1024:
      v0 = load x[i0*1024 + r0] : bf16
      v1 = load z[i0*1024 + r0] : bf16
      v2 = mul(v0, v1) : bf16
      v3 = reduce max(v2) : bf16
    once:
      store y[i0] = v3
"""
COLUMNS = """
kernel k(
    x: bf16[10000, WIDTH] cuda:0,
    out y: bf16[WIDTH] cuda:0,
):
  parallel i0 < WIDTH:
    over r0 < 10000:
      v0 = load x[i0 + r0*WIDTH] : bf16
      v1 = reduce max(v0) : bf16
    once:
      store y[i0] = v1
"""


@pytest.mark.parametrize(("text", "expected"), [
    (NORM, Schedule("persistent", 1, 16384, 32)),
    (NORM.replace("16384", "16385"), Schedule("looped", 1, 4096, 32)),
    (COSINES, Schedule("persistent", 1, 1024, 1)),
    (COLUMNS.replace("WIDTH", "100000"), Schedule("looped", 64, 32, 4)),
    (COLUMNS.replace("WIDTH", "100001"), Schedule("looped", 32, 32, 8)),
    (COLUMNS.replace("WIDTH", "100001").replace("bf16", "u8"), Schedule("looped", 32, 64, 8)),
    (COLUMNS.replace("WIDTH", "3"), Schedule("looped", 16, 512, 32)),
])  # fmt: skip
def test_defaults_of_rows_that_are_read_together(text: str, expected: Schedule) -> None:
    assert default_schedule(parse_kernel(text), {}) == expected


AGAIN = """
kernel k(
    x: TYPE[ROWS, WIDTH] cuda:0,
    g: TYPE[ROWS, WIDTH] cuda:0,
    out y: TYPE[ROWS, WIDTH] cuda:0,
):
  parallel i0 < ROWS:
    over r0 < WIDTH:
      a = load x[i0*WIDTH + r0] : TYPE
      b = cast(a) : f32
      c = FIRST : f32
      d = reduce FOLD(c) : f32
    over r0 < WIDTH:
      e = SECOND : f32
      f = cast(e) : TYPE
      store y[i0*WIDTH + r0] = f
"""
HELD = Schedule("persistent", 1, 8192, 8)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Schedule("looped", 1, 4096, 16)),
        ({"SECOND": "div(b, d)"}, Schedule("looped", 1, 4096, 16)),
        ({"WIDTH": "5000", "TYPE": "f32"}, Schedule("looped", 1, 2048, 16)),
        ({"WIDTH": "12288"}, Schedule("looped", 1, 4096, 16)),
        ({"WIDTH": "12288", "TYPE": "f32"}, Schedule("looped", 1, 4096, 16)),
        ({"WIDTH": "16384", "TYPE": "f32"}, Schedule("persistent", 1, 16384, 32)),
        ({"WIDTH": "5000"}, Schedule("persistent", 1, 4096, 8)),
        ({"WIDTH": "6144"}, Schedule("looped", 1, 2048, 16)),
        ({"WIDTH": "4096"}, Schedule("persistent", 1, 4096, 8)),
        ({"ROWS": "512"}, HELD),
        ({"FIRST": "exp(b)", "SECOND": "mul(c, d)"}, HELD),
        ({"FIRST": "exp(b)"}, Schedule("looped", 1, 4096, 16)),
        ({"FOLD": "prod"}, HELD),
        ({"FOLD(c) : f32": "max(c) : f32\n      store y[i0*WIDTH + r0] = a"}, HELD),
    ],
    ids=str,
)
def test_rows_that_are_read_twice(changes: dict[str, str], expected: Schedule) -> None:
    text = AGAIN
    usual = {"FIRST": "mul(b, b)", "SECOND": "mul(b, d)", "FOLD(": "sum(", "FOLD": "sum"}
    usual |= {"ROWS": "16384", "WIDTH": "8192", "TYPE": "bf16"}
    for name, value in (changes | {k: v for k, v in usual.items() if k not in changes}).items():
        text = text.replace(name, value)
    assert default_schedule(parse_kernel(text), {}) == expected


def test_either_way_of_reading_is_offered() -> None:
    text = AGAIN.replace("FIRST", "mul(b, b)").replace("SECOND", "mul(b, d)").replace("FOLD", "sum")
    text = text.replace("WIDTH", "8192").replace("TYPE", "bf16")
    held, twice = (parse_kernel(text.replace("ROWS", n)) for n in ("512", "16384"))
    assert Schedule("looped", 1, 2048, 16) in candidate_schedules(held, {})
    assert replace(HELD, num_warps=16) in candidate_schedules(twice, {})


def test_blocks_of_several_rows_are_held() -> None:
    place = "i0*655360 + r0*5120 + i1*128 + r1"
    text = f"""
kernel k(
    x: bf16[64, 128, 40, 128] cuda:0,
    out y: bf16[64, 128, 40, 128] cuda:0,
):
  parallel i0 < 64, i1 < 40:
    over r0 < 128, r1 < 64:
      a = load x[{place}] : bf16
      b = cast(a) : f32
      c = reduce max(b) : f32
    over r0 < 128, r1 < 64:
      d = mul(b, c) : f32
      e = cast(d) : bf16
      store y[{place}] = e
"""
    assert default_schedule(parse_kernel(text), {}) == HELD


EXPONENTIALS = """
kernel k(
    x: TYPE[64, 499500] cuda:0,
    out y: f32[64, 499500] cuda:0,
):
  parallel i0 < 64:
    over r0 < 499500:
      v0 = load x[i0*499500 + r0] : TYPE
      v1 = cast(v0) : f32
      v2 = exp(v1) : f32
      v3 = reduce sum(v2) : f32
    over r0 < 499500:
      v4 = div(v2, v3) : f32
      store y[i0*499500 + r0] = v4
"""


@pytest.mark.parametrize(("dtype", "warps"), [("bf16", 4), ("u8", 8)])
def test_rows_that_programs_share(dtype: str, warps: int) -> None:
    """64 elements a thread, of bytes 32."""
    kernel = parse_kernel(EXPONENTIALS.replace("TYPE", dtype))
    expected = Schedule("persistent", 1, 8192, warps, share=61)
    assert default_schedule(kernel, {}) == expected


ROW = """
kernel k(
    x: TYPE[ROWS, WIDTH] cuda:0,
    out y: f32[ROWS] cuda:0,
):
  parallel i0 < ROWS:
    over r0 < WIDTH:
      v0 = load x[i0*WIDTH + r0] : TYPE
      v1 = cast(v0) : f32
      v2 = reduce sum(v1) : f32
    once:
      store y[i0] = v2
"""


@pytest.mark.parametrize(
    ("dtype", "rows", "width", "expected"),
    [
        ("f32", 600, 100000, Schedule("looped", 1, 4096, 16)),  # many elements of a line
        ("f32", 32, 500000, Schedule("looped", 1, 8192, 32)),
        ("bf16", 10000, 8192, Schedule("persistent", 1, 8192, 8)),
    ],
)
def test_rows_that_are_read_once(dtype: str, rows: int, width: int, expected: Schedule) -> None:
    text = ROW.replace("TYPE", dtype).replace("ROWS", str(rows)).replace("WIDTH", str(width))
    assert default_schedule(parse_kernel(text), {}) == expected


def test_rows_leave_the_cache_when_they_were_read_again(tools: SimpleNamespace) -> None:
    """Weights, which other programs read too, do not; nor does what shares its lines with them."""
    text = """
kernel k(
    x: f32[4, 100] cpu,
    w: f32[100] cpu,
    out y: f32[4, 100] cpu,
):
  parallel i0 < 4:
    over r0 < 100:
      a = load x[i0*100 + r0] : f32
      b = load w[r0] : f32
      c = mul(a, b) : f32
      d = reduce sum(c) : f32
    over r0 < 100:
      e = mul(c, d) : f32
      store y[i0*100 + r0] = e
"""
    kernel = parse_kernel(text)
    loads = [
        line for line in tools.check(kernel, Schedule("looped", 1, 64)).source.split("\n")
        if "tl.load" in line
    ]  # fmt: skip
    assert ["evict_last" in line for line in loads] == [True, True, False, False]
    assert ["evict_first" in line for line in loads] == [False, False, False, True]
    assert "evict_first" not in tools.check(kernel, Schedule("looped", 2, 64)).source


WALK = """
kernel k(
    x: bf16[256, 64, 1024] cuda:0,
    m: bool[256, 64, 1024] cuda:0,
    out y: f32[256, 1024] cuda:0,
):
  parallel p0 < 256, i0 < 64:
    over r0 < 1024:
      a = load x[p0*65536 + i0*1024 + r0] : bf16
      b = load m[p0*65536 + i0*1024 + r0] : bool
      c = cast(a) : f32
      d = cast(b) : f32
      e = mul(c, d) : f32
      store y[p0*1024 + r0] sum= e
"""


def test_rows_with_masks_are_walked_over_one_by_one() -> None:
    kernel = parse_kernel(WALK)
    first = Schedule("persistent", 1, 1024, 4, num_stages=3)
    assert default_schedule(kernel, {}) == first
    alike = parse_kernel(WALK.replace("bool", "bf16"))
    assert default_schedule(alike, {}).xblock == 4


SHORT = """
kernel k(
    x: bf16[64, {short}, 4096] cuda:0,
    out y: bf16[64, 4096] cuda:0,
):
  parallel i0 < 64, i1 < 4096:
    over r0 < {short}:
      v0 = load x[i0*{whole} + r0*4096 + i1] : bf16
      v1 = cast(v0) : f32
      v2 = reduce sum(v1) : f32
    once:
      v3 = cast(v2) : bf16
      store y[i0*4096 + i1] = v3
"""


@pytest.mark.parametrize(("short", "tile"), [(4, (128, 4, 1)), (8, (64, 8, 1)), (40, (32, 64, 2))])
def test_columns_of_a_few_elements_are_16_or_32_elements_a_thread(
    short: int, tile: tuple[int, int, int]
) -> None:
    kernel = parse_kernel(SHORT.format(short=short, whole=4096 * short))
    found = default_schedule(kernel, {})
    assert (found.kind, found.xblock, found.rblock, found.num_warps) == ("persistent", *tile)


QUOTIENT = """
kernel k(
    x: f32[{rows}, {width}] cuda:0,
    s: f32[{width}] cuda:0,
    out y: f32[{rows}] cuda:0,
):
  parallel i0 < {rows}:
    over r0 < {width}:
      v0 = load x[i0*{width} + r0] : f32
      v1 = load s[r0] : f32
      v2 = div(v0, v1) : f32
      v3 = reduce sum(v2) : f32
    once:
      store y[i0] = v3
"""


@pytest.mark.parametrize(("width", "shared"), [(17, True), (4096, False)])
def test_rows_of_a_program_share_the_reciprocals_of_columns(width: int, shared: bool) -> None:
    """65536 rows of 17 quotients on an H200: 25 us, 45 with a division for each."""
    kernel = parse_kernel(QUOTIENT.format(rows=65536, width=width))
    source = emit(kernel, default_schedule(kernel, {})).source
    assert ("quotient_f32(x0, x1)" in source) == shared
    assert ("quotient_each_f32(x0, x1)" in source) != shared


THREE = """
kernel k(
    a: {dtype}[65536, 512] cuda:0,
    b: {dtype}[65536, 512] cuda:0,
    c: {dtype}[65536, 512] cuda:0,
    out y: f32[65536, 512] cuda:0,
):
  parallel i0 < 65536:
    over r0 < 512:
      v0 = load a[i0*512 + r0] : {dtype}
      v1 = load b[i0*512 + r0] : {dtype}
      v2 = load c[i0*512 + r0] : {dtype}
      v3 = add(v0, v1) : {dtype}
      v4 = mul(v3, v2) : {dtype}
      v5 = cast(v4) : f32
      v6 = reduce sum(v5) : f32
    over r0 < 512:
      v7 = sub(v5, v6) : f32
      store y[i0*512 + r0] = v7
"""


@pytest.mark.parametrize(("dtype", "rows"), [("f32", 1), ("bf16", 2)])
def test_three_rows_of_f32_leave_registers(dtype: str, rows: int) -> None:
    found = default_schedule(parse_kernel(THREE.format(dtype=dtype)), {})
    assert (found.xblock, found.rblock, found.num_warps) == (rows, 512, 1)


@pytest.mark.parametrize(("windows", "rows", "warps"), [(4, 16, 1), (216, 8, 4)])
def test_windows_of_rows_fit_instruction_caches(windows: int, rows: int, warps: int) -> None:
    loads = [f"v{n} = load x[i0*{64 * windows} + r0 + {64 * n}] : f32" for n in range(windows)]
    sums = [f"v{windows + n} = add(v{windows + n - 1}, v{n}) : f32" for n in range(1, windows)]
    last = f"v{2 * windows} = reduce sum(v{2 * windows - 1}) : f32"
    kernel = parse_kernel(
        f"kernel k(\n    x: f32[16000, {windows}, 64] cuda:0,\n    out y: f32[16000] cuda:0,\n):\n"
        "  parallel i0 < 16000:\n    over r0 < 64:\n      "
        + "\n      ".join((*loads, *sums, last))
        + f"\n    once:\n      store y[i0] = v{2 * windows}\n"
    )
    found = default_schedule(kernel, {})
    assert (found.xblock, found.rblock, found.num_warps) == (rows, 64, warps)


@pytest.mark.parametrize(("columns", "apart"), [(3, False), (96, True)])
def test_few_columns_share_a_program_with_those_of_other_places(columns: int, apart: bool) -> None:
    """Colours of samples weighted: a program of one place would be three columns of 32."""
    kernel = parse_kernel(
        f"""
kernel k(
    x: f32[4096, 128, {columns}] cuda:0,
    w: f32[4096, 128] cuda:0,
    out y: f32[4096, {columns}] cuda:0,
):
  parallel i0 < 4096, i1 < {columns}:
    over r0 < 128:
      v0 = load x[i0*{128 * columns} + r0*{columns} + i1] : f32
      v1 = load w[i0*128 + r0] : f32
      v2 = mul(v0, v1) : f32
      v3 = reduce sum(v2) : f32
    once:
      store y[i0*{columns} + i1] = v3
"""
    )
    source = emit(kernel, default_schedule(kernel, {})).source
    assert ("row = tl.program_id(0)" in source) == apart


@pytest.mark.parametrize(("dtype", "warps"), [("bf16", 8), ("f32", 4)])
def test_places_of_extremes_along_columns(dtype: str, warps: int) -> None:
    """Narrow tiles: a thread holds two numbers for each element."""
    text = COLUMNS.replace("WIDTH", "200001").replace(
        "reduce max(v0) : bf16", "reduce argmax(v0) : i64"
    )
    text = text.replace("out y: bf16", "out y: i64").replace("bf16", dtype)
    assert default_schedule(parse_kernel(text), {}) == Schedule("looped", 32, 32, warps)


def test_places_of_extremes_along_short_columns() -> None:
    """One warp has what four would have to tell each other."""
    text = COLUMNS.replace("10000", "21").replace("WIDTH", "1000000")
    assert default_schedule(parse_kernel(text), {}) == Schedule("persistent", 64, 32, 4)
    text = text.replace("reduce max(v0) : bf16", "reduce argmax(v0) : i64")
    text = text.replace("out y: bf16", "out y: i64")
    assert default_schedule(parse_kernel(text), {}) == Schedule("persistent", 64, 32, 1)


MIDDLE = """\
kernel softmax(
    x: {dtype}[64, {width}, {beside}] cuda:0,
    out y: {dtype}[64, {width}, {beside}] cuda:0,
):
  parallel i0 < 64, i1 < {beside}:
    over r0 < {width}:
      v0 = load x[i0*{each} + r0*{beside} + i1] : {dtype}
      v1 = cast(v0) : f32
      v2 = reduce max(v1) : f32
    over r0 < {width}:
      v3 = sub(v1, v2) : f32
      v4 = cast(v3) : {dtype}
      store y[i0*{each} + r0*{beside} + i1] = v4
"""


@pytest.mark.parametrize(
    ("dtype", "width", "beside", "tile"),
    [
        ("f32", 512, 777, ("persistent", 32, 512, 8)),
        ("bf16", 768, 784, ("persistent", 16, 1024, 8)),
        ("bf16", 1024, 1001, ("persistent", 32, 1024, 16)),  # no access moves two
        ("bf16", 192, 3192, ("persistent", 64, 256, 8)),  # whole lines
        ("f32", 2000, 777, ("looped", 32, 256, 32)),
        ("bf16", 600, 784, ("looped", 64, 32, 8)),  # two fifths of a tile would be empty
        ("bf16", 2048, 784, ("looped", 64, 32, 8)),
    ],
)
def test_columns_that_are_read_again_are_held(
    dtype: str, width: int, beside: int, tile: tuple[str, int, int, int]
) -> None:
    text = MIDDLE.format(dtype=dtype, width=width, beside=beside, each=width * beside)
    s = default_schedule(parse_kernel(text), {})
    assert (s.kind, s.xblock, s.rblock, s.num_warps) == tile


def test_rows_of_many_operands_have_more_warps() -> None:
    """64 numbers of what is read fit into a thread's registers."""
    loads = "".join(f"      v{n} = load x[i0*8192 + r0 + {n * 4096000}] : f32\n" for n in range(8))
    sums = "".join(f"      w{n} = add({'v0' if n == 1 else f'w{n - 1}'}, v{n}) : f32\n"
                   for n in range(1, 8))  # fmt: skip
    kernel = parse_kernel(
        "kernel k(\n    x: f32[8, 4096000] cuda:0,\n    out y: f32[500] cuda:0,\n):\n"
        f"  parallel i0 < 500:\n    over r0 < 8192:\n{loads}{sums}"
        "      s = reduce sum(w7) : f32\n    once:\n      store y[i0] = s\n"
    )
    assert default_schedule(kernel, {}).num_warps == 32


@pytest.mark.parametrize(("width", "chunk"), [(4100, 1024), (6000, 1024), (8000, 8192)])
def test_scans_of_rows_that_leave_a_tile_empty(width: int, chunk: int) -> None:
    """In chunks; those that fill it in one."""
    kernel = parse_kernel(f"""
kernel running(
    x: f32[9000, {width}] cuda:0,
    out y: f32[9000, {width}] cuda:0,
):
  parallel i0 < 9000:
    over r0 < {width}:
      v0 = load x[i0*{width} + r0] : f32
      v1 = scan sum(v0) : f32
      store y[i0*{width} + r0] = v1
""")
    schedule = default_schedule(kernel, {})
    assert schedule.rblock == chunk
    assert schedule.kind == ("looped" if chunk == 1024 else "persistent")
