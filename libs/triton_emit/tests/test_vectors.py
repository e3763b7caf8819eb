"""Kernels that read or write rows at odd places: a thread takes neighbours only where all can."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from math import gcd
from types import SimpleNamespace

import numpy as np
import pytest
import sympy
import triton
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from loop_ir import Axis, Kernel, parse_kernel
from symexpr import symbol
from triton_emit import BadSchedule, Schedule, candidate_schedules, default_schedule, emit
from triton_emit.vectors import neighbours
from triton_rt import load_jit

PAD = """
kernel pad(
    x: {t}[{rows}, 4097] cuda:0,
    out y: {t}[{rows}, 4104] cuda:0,
):
  parallel i0 < {rows}, i1 < 4104:
    once:
      v0 = index i1 : i64
      v1 = const 4097 : i64
      v2 = lt(v0, v1) : bool
      v3 = load x[i0*4097 + i1] if v2 else 0 : {t}
      store y[i0*4104 + i1] = v3
"""
SLICE = """
kernel clone(
    x: {t}[{rows}, 4097] cuda:0,
    out y: {t}[{rows}, 4096] cuda:0,
):
  parallel i0 < {rows}, i1 < 4096:
    once:
      v0 = load x[i0*4097 + i1 + 1] : {t}
      store y[i0*4096 + i1] = v0
"""
WIDER_SLICE = """
kernel clone(
    x: {t}[{rows}, 4104] cuda:0,
    out y: {t}[{rows}, 4096] cuda:0,
):
  parallel i0 < {rows}, i1 < 4096:
    once:
      v0 = load x[i0*4104 + i1 + {offset}] : {t}
      store y[i0*4096 + i1] = v0
"""
CAT = """
kernel cat(
    a: {t}[{rows}, 4097] cuda:0,
    b: {t}[{rows}, 4097] cuda:0,
    out y: {t}[{rows}, 8194] cuda:0,
):
  parallel i0 < {rows}, i1 < 8194:
    once:
      v0 = index i1 : i64
      v1 = const 4097 : i64
      v2 = lt(v0, v1) : bool
      v3 = ge(v0, v1) : bool
      v4 = load a[i0*4097 + i1] if v2 else 0 : {t}
      v5 = load b[i0*4097 + i1 - 4097] if v3 else 0 : {t}
      v6 = where(v2, v4, v5) : {t}
      store y[i0*8194 + i1] = v6
"""
INTO_ODD_ROWS = """
kernel copy(
    x: {t}[{rows}, 4096] cuda:0,
    out y: {t}[{rows}, 4097] cuda:0,
):
  parallel i0 < {rows}, i1 < 4096:
    once:
      v0 = load x[i0*4096 + i1] : {t}
      store y[i0*4097 + i1] = v0
"""
ADD = """
kernel add(
    a: {t}[{rows}, 4097] cuda:0,
    b: {t}[{rows}, 4096] cuda:0,
    c: {t}[{rows}, 4096] cuda:0,
    out y: {t}[{rows}, 4096] cuda:0,
):
  parallel i0 < {rows}, i1 < 4096:
    once:
      v0 = load a[i0*4097 + i1] : {t}
      v1 = load b[i0*4096 + i1] : {t}
      v2 = load c[i0*4096 + i1] : {t}
      v3 = cast(v0) : f32
      v4 = cast(v1) : f32
      v5 = cast(v2) : f32
      v6 = add(v3, v4) : f32
      v7 = add(v6, v5) : f32
      v8 = cast(v7) : {t}
      store y[i0*4096 + i1] = v8
"""
MAXIMUM = """
kernel maximum(
    a: {t}[{rows}, 4097] cuda:0,
    b: {t}[{rows}, 4096] cuda:0,
    out y: {t}[{rows}, 4096] cuda:0,
):
  parallel i0 < {rows}, i1 < 4096:
    once:
      v0 = load a[i0*4097 + i1] : {t}
      v1 = load b[i0*4096 + i1] : {t}
      v2 = maximum(v0, v1) : {t}
      store y[i0*4096 + i1] = v2
"""
BIAS = """
kernel bias(
    x: {t}[{rows}, {columns}] cuda:0,
    w: {t}[4104] cuda:0,
    out y: {t}[{rows}, {columns}] cuda:0,
):
  parallel i0 < {rows}, i1 < {columns}:
    once:
      v0 = load x[i0*{columns} + i1] : {t}
      v1 = load w[i1 + 1] : {t}
      v2 = cast(v0) : f32
      v3 = cast(v1) : f32
      v4 = add(v2, v3) : f32
      v5 = cast(v4) : {t}
      store y[i0*{columns} + i1] = v5
"""
COPY = """
kernel copy(
    x: {t}[{points}] cuda:0,
    out y: {t}[{points}] cuda:0,
):
  parallel i0 < {points}:
    once:
      v0 = load x[{index}] : {t}
      store y[i0] = v0
"""

PICKED = """
kernel picked(
    p: i64[64, {columns}] cuda:0,
    g: f32[64, {columns}] cuda:0,
    out y: f32[64, 512, {columns}] cuda:0,
):
  parallel i0 < 64, i1 < 512, i2 < {columns}:
    once:
      v0 = load p[{place}] : i64
      v1 = load g[{place}] : f32
      v2 = index i1 : i64
      v3 = eq(v0, v2) : bool
      v4 = const 0.0 : f32
      v5 = where(v3, v1, v4) : f32
      store y[i0*512*{columns} + i1*{columns} + i2] = v5
"""

DYNAMIC = """
kernel clone(
    x: {t}[{rows}, s0 + 8] cuda:0,
    out y: {t}[{rows}, s0] cuda:0,
):
  where s0 in [1, 4096] hint 97
  parallel i0 < {rows}, i1 < s0:
    once:
      v0 = load x[i0*(s0 + 8) + i1] : {t}
      store y[i0*s0 + i1] = v0
"""


def made(text: str, rows: int = 4096, t: str = "bf16", **parts: object) -> Kernel:
    return parse_kernel(text.format(rows=rows, t=t, **parts).strip())


def width(kernel: Kernel) -> int:
    return default_schedule(kernel, {}).vector


def compiled(
    kernel: Kernel, tools: SimpleNamespace, **changes: int
) -> tuple[set[str], Counter[str]]:
    """The elements side by side in the layouts, and the accesses of a thread, for sm_90."""
    schedule = replace(default_schedule(kernel, {}), **changes)
    source = tools.kernel_source(emit(kernel, schedule))
    pointers = {(i,): [["tt.divisibility", 16]] for i, p in enumerate(source.params)
                if p.is_pointer}  # fmt: skip
    ast = ASTSource(load_jit(source), source.signature(), dict(source.constants), pointers)
    binary = triton.compile(
        ast, target=GPUTarget("cuda", 90, 32), options={"num_warps": source.num_warps}
    )
    layouts = set(re.findall(r"sizePerThread = \[(.*?)\]", binary.asm["ttgir"]))
    return layouts, Counter(re.findall(r"(?:ld|st)\.global[.\w]*\.[bv]\S+", binary.asm["ptx"]))


@pytest.mark.parametrize(
    ("text", "accesses"),
    [
        (PAD, {"ld.global.b16": 8, "st.global.v4.b32": 1}),
        (SLICE, {"ld.global.b16": 8, "st.global.v4.b32": 1}),
        (CAT, {"ld.global.b16": 16, "st.global.v4.b32": 1}),
        (INTO_ODD_ROWS, {"ld.global.v4.b32": 1, "st.global.b16": 8}),
    ],
    ids=["pad", "slice", "cat", "into odd rows"],
)  # fmt: skip
def test_odd_rows_are_loaded_one_by_one_and_stored_whole(
    text: str, accesses: dict[str, int], tools: SimpleNamespace
) -> None:
    kernel = made(text)
    assert default_schedule(kernel, {}) == Schedule("flat", 1024, num_warps=4)
    layouts, found = compiled(kernel, tools)
    assert "8" in layouts and found == accesses
    assert compiled(kernel, tools, vector=1)[0] == {"1"}


@pytest.mark.parametrize(("t", "whole"), [("bf16", 8), ("f32", 4), ("u8", 16)])
def test_an_odd_number_of_points_takes_one_element_a_thread(
    t: str, whole: int, tools: SimpleNamespace
) -> None:
    kernel = made(COPY, points=4097 * 4097, index="i0", t=t)
    bits = 128 // whole
    split = {f"ld.global.b{bits}": 8, f"st.global.b{bits}": 8}
    assert width(kernel) == 1
    before = compiled(kernel, tools, vector=0)
    assert before[0] == {str(min(whole, 8))} and before[1] == split  # 8 points a thread
    assert compiled(kernel, tools) == ({"1"}, split)


@pytest.mark.parametrize(
    ("columns", "place", "given"),
    [
        (777, "i0*777 + i2", 1),
        (776, "i0*776 + i2", 0),
        (776, "i0*776 + FloorDiv(i1, 2)*2 + i2", 0),
        (776, "i0*776 + FloorDiv(i2, 3)", 0),
    ],
)
def test_several_loads_that_move_no_vectors(columns: int, place: str, given: int) -> None:
    assert width(made(PICKED, columns=columns, place=place)) == given


@pytest.mark.parametrize(("times", "given"), [(1, 1), (2, 2), (4, 4), (6, 2), (8, 0)])
def test_a_thread_takes_as_many_as_the_points_allow(
    times: int, given: int, tools: SimpleNamespace
) -> None:
    kernel = made(COPY, points=times * 4097 * 4097, index="i0")
    assert width(kernel) == given
    layouts, accesses = compiled(kernel, tools)
    per = given or 8
    assert layouts == {str(per)} and sum(accesses.values()) == 2 * 8 // per
    points = made(COPY, points=times * 97, index="i0")
    tools.check(points, Schedule("flat", 256, vector=given))


@pytest.mark.parametrize(
    "text", [PAD, SLICE, CAT, INTO_ODD_ROWS, ADD], ids=["pad", "slice", "cat", "into", "add"]
)
def test_digits_do_not_depend_on_it(text: str, tools: SimpleNamespace) -> None:
    kernel = made(text, rows=3)
    rng = np.random.default_rng(0)
    arrays = {
        b.name: rng.standard_normal(tuple(int(n) for n in b.type.size)) for b in kernel.buffers
    }
    results = []
    for schedule in (Schedule("flat", 512, vector=1), Schedule("flat", 512)):
        emitted = tools.check(kernel, schedule, arrays)
        tensors = {b.name: tools.to_torch(arrays[b.name], b.type.dtype) for b in kernel.buffers}
        tools.launch(emitted, tensors, {})
        results.append(tensors["y"])
    assert results[0].equal(results[1])


@pytest.mark.parametrize(
    "kernel",
    [
        made(COPY, points=1 << 24, index="i0"),
        made(COPY, points=1 << 24, index="i0 + 8"),
        made(COPY, points=1 << 20, index="i0 + 1"),
        made(COPY, points=1 << 20, index="1048575 - i0"),
        made(BIAS, columns=4096),
        made(COPY, points=1 << 20, index="i0*64"),
        made(MAXIMUM),
        made(ADD),
    ],
    ids=["aligned", "aligned offset", "odd offset", "backwards", "bias", "strided",
         "maximum", "add"],
)  # fmt: skip
def test_others_stay_as_they_are(kernel: Kernel) -> None:
    schedule = default_schedule(kernel, {})
    assert schedule.kind == "flat" and schedule.vector == 0
    assert "multiple_of" not in emit(kernel, schedule).source


def test_rows_of_sizes_that_are_not_known() -> None:
    assert default_schedule(made(DYNAMIC), {"s0": 997}).kind == "tiled"
    assert default_schedule(made(DYNAMIC), {"s0": 9}).kind == "flat"


@pytest.mark.parametrize(("t", "each"), [("bf16", 8), ("f32", 4)])
def test_whole_blocks_of_unknown_size_have_no_mask(
    t: str, each: int, tools: SimpleNamespace
) -> None:
    text = """
kernel clone(
    x: {t}[s0] cuda:0,
    out y: {t}[s0] cuda:0,
):
  where s0 in [0, 100000000] hint 9000001
  parallel i0 < s0:
    once:
      v0 = load x[i0] : {t}
      store y[i0] = v0
"""
    kernel = made(text, t=t)
    assert default_schedule(kernel, {}) == Schedule("flat", 1024, num_warps=4)
    bits = 128 // each
    found = Counter({f"ld.global.b{bits}": 8, f"st.global.b{bits}": 8})
    found.update({"ld.global.v4.b32": 8 // each, "st.global.v4.b32": 8 // each})
    assert compiled(kernel, tools)[1] == found
    for points in (1, 255, 256, 257, 600):
        tools.check(kernel, Schedule("flat", 256), symbols={"s0": points})


def test_no_vectors_over_windows() -> None:
    window = """
kernel w(
    x: f32[1048584] cuda:0,
    out y: f32[1048576] cuda:0,
):
  parallel i0 < 1048576:
    once:
      v0 = load x[i0 + {a}] : f32
      v1 = load x[i0 + {b}] : f32
      v2 = load x[i0 + {c}] : f32
      v3 = add(v0, v1) : f32
      v4 = add(v3, v2) : f32
      store y[i0] = v4
"""
    schedule = default_schedule(parse_kernel(window.format(a=0, b=1, c=2)), {})
    assert (schedule.vector, schedule.num_warps, schedule.xblock) == (1, 8, 1024)
    loads = ""
    for n in range(24):
        loads += f"      w{n} = load x[i0 + {n % 8}] : f32\n"
        loads += f"      u{n} = add({f'u{n - 1}' if n else 'v0'}, w{n}) : f32\n"
    large = window.format(a=0, b=1, c=2).replace("      v3", f"{loads}      v3", 1)
    large = large.replace("add(v3, v2)", "add(v3, u23)")
    assert default_schedule(parse_kernel(large), {}).num_warps == 16  # two points a thread
    records = window.replace("i0 + ", "3*i0 + ").replace("1048584", "3145728")
    own = default_schedule(parse_kernel(records.format(a=0, b=1, c=2)), {})
    assert (own.vector, own.num_warps, own.xblock) == (1, 8, 512)  # two points a thread
    for apart in (4, 30):
        others = default_schedule(parse_kernel(window.format(a=0, b=apart, c=2 * apart)), {})
        assert (others.vector, others.num_warps) == (0, 4)


@pytest.mark.parametrize(
    "index",
    [
        "i0*512 + Max(i1 - {k}, {k} - i1)",
        "i0*512 + Min(i1 + {k}, 1022 - {k} - i1)",
        "i0*512 + Mod(i1 + {k}, 512)",
    ],
)
def test_no_vectors_over_windows_that_turn_at_an_edge(index: str) -> None:
    loads = "".join(f"      a{k} = load x[{index.format(k=k)}] : f32\n" for k in range(3))
    kernel = parse_kernel(f"""
kernel w(
    x: f32[4096, 512] cuda:0,
    out y: f32[4096, 512] cuda:0,
):
  parallel i0 < 4096, i1 < 512:
    once:
{loads}      b = add(a0, a1) : f32
      c = add(b, a2) : f32
      store y[i0*512 + i1] = c
""")
    assert default_schedule(kernel, {}).vector == 1


@pytest.mark.parametrize(("rows", "vector"), [(3, 0), (5, 1)])
def test_vectors_over_rows_that_are_shorter(rows: int, vector: int) -> None:
    """Products of small matrices: what a thread reads is in several rows in any case."""
    loads = "".join(
        f"      a{k} = load x[i0*{rows**2} + i1 + {rows * k}] : f32\n" for k in range(3)
    )
    kernel = parse_kernel(f"""
kernel w(
    x: f32[65536, {rows}, {rows}] cuda:0,
    out y: f32[65536, {rows}] cuda:0,
):
  parallel i0 < 65536, i1 < {rows}:
    once:
{loads}      b = add(a0, a1) : f32
      c = add(b, a2) : f32
      store y[i0*{rows} + i1] = c
""")
    assert default_schedule(kernel, {}).vector == vector


@pytest.mark.parametrize(("type", "vector"), [("u8", 0), ("bf16", 1), ("f32", 1)])
def test_vectors_over_bytes_that_are_stepped_over(type: str, vector: int) -> None:
    kernel = parse_kernel(f"""
kernel channel(
    x: {type}[65536, 3] cuda:0,
    out y: f32[65536] cuda:0,
):
  parallel i0 < 65536:
    once:
      a = load x[i0*3] : {type}
      b = cast(a) : f32
      store y[i0] = {"a" if type == "f32" else "b"}
""")
    assert default_schedule(kernel, {}).vector == vector


def test_factors_of_all_points_are_no_reason_for_tiles() -> None:
    """Three channels, each with a scale of its own: all points share the scales."""
    body = "".join(
        f"      a{k} = load x[i0*6144 + i1*3 + {k}] : f32\n      s{k} = load s[{k}] : f32\n"
        f"      b{k} = div(a{k}, s{k}) : f32\n      store y[i0*6144 + i1 + {2048 * k}] = b{k}\n"
        for k in range(3)
    )
    kernel = parse_kernel(f"""
kernel channels(
    x: f32[4096, 2048, 3] cuda:0,
    s: f32[3] cuda:0,
    out y: f32[4096, 3, 2048] cuda:0,
):
  parallel i0 < 4096, i1 < 2048:
    once:
{body}""")
    assert default_schedule(kernel, {}).kind == "flat"


def test_vectors_over_what_neighbours_share() -> None:
    """Three coordinates for each row of 32: loads that do not move along the row are no window."""
    text = """
kernel bases(
    x: f32[65536, 3] cuda:0,
    c: f32[32] cuda:0,
    out y: f32[65536, 32] cuda:0,
):
  parallel i0 < 65536, i1 < 32:
    once:
      v0 = load x[i0*3] : f32
      v1 = load x[i0*3 + 1] : f32
      v2 = load x[i0*3 + 2] : f32
      v3 = load c[i1] : f32
      v4 = add(v0, v1) : f32
      v5 = add(v4, v2) : f32
      v6 = mul(v5, v3) : f32
      store y[i0*32 + i1] = v6
"""
    kernel = parse_kernel(text)
    schedule = default_schedule(kernel, {})
    assert (schedule.kind, schedule.vector) == ("flat", 0)
    assert "multiple_of" not in emit(kernel, schedule).source


@pytest.mark.parametrize("index", ["i0*2", "i0*3 + 1", "40 - i0*2"])
def test_no_vectors_over_elements_that_are_stepped_over(index: str) -> None:
    assert default_schedule(made(COPY, points=1 << 20, index=index), {}).vector == 1


def test_an_odd_end_with_what_is_loaded_once() -> None:
    assert width(made(BIAS, columns=4097, rows=4097)) == 1


def test_candidates_have_both(tools: SimpleNamespace) -> None:
    kernel = made(COPY, points=3001, index="i0")
    schedules = candidate_schedules(kernel, {})
    assert {s.vector for s in schedules} == {0, 1} and schedules[0].vector == 1
    for schedule in schedules:
        tools.check(kernel, schedule)


@pytest.mark.parametrize("schedule", [Schedule("flat", 128, vector=3),
                                      Schedule("flat", 128, vector=-1)], ids=str)  # fmt: skip
def test_vectors_are_powers_of_two(schedule: Schedule) -> None:
    with pytest.raises(BadSchedule, match="vector"):
        emit(made(SLICE), schedule)


@settings(max_examples=80, deadline=None)
@given(
    extents=st.lists(st.sampled_from((1, 2, 3, 4, 6, 8, 16, 24)), min_size=1, max_size=3),
    gaps=st.lists(st.sampled_from((0, 1, 2, 4, 8, 24)), min_size=3, max_size=3),
    offset=st.sampled_from((0, 1, 2, 4, 12, 16, -3)),
)
def test_neighbours_lie_side_by_side(extents: list[int], gaps: list[int], offset: int) -> None:
    """Against all points, one by one."""
    axes = tuple(Axis(symbol(f"i{k}"), sympy.Integer(n)) for k, n in enumerate(extents))
    strides = [1]
    for extent, gap in zip(extents[:0:-1], gaps, strict=False):
        strides.insert(0, strides[0] * extent + gap)
    index = sympy.Add(*(c * a.symbol for c, a in zip(strides, axes, strict=True)), offset)
    got = neighbours(index, axes)
    places = offset + sum(
        c * p for c, p in zip(strides, np.indices(extents).reshape(len(extents), -1), strict=True)
    )

    def holds(run: int) -> bool:
        whole = places[: len(places) // run * run].reshape(-1, run)
        return bool((whole[:, :1] % run == 0).all() and (np.diff(whole) == 1).all())

    assert holds(got)
    if len(places) >= 32 and gcd(len(places), 16) == 16 and got < 16:
        assert not holds(2 * got)


BENT = """
kernel bent(
    x: f32[{rows}, 64] cuda:0,
    out y: f32[{rows}, 128] cuda:0,
):
  parallel i0 < {rows}, i1 < 128:
    once:
      v0 = load x[i0*64 + i1 // 3] : f32
      v1 = load x[i0*64 + Min(63, i1 // 3 + 1)] : f32
      v2 = index i1 : i32
      v3 = cast(v2) : f32
      v4 = sub(v1, v0) : f32
      v5 = mul(v3, v4) : f32
      v6 = add(v0, v5) : f32
      store y[i0*128 + i1] = v6
"""


def test_rows_share_what_their_columns_cost(tools: SimpleNamespace) -> None:
    """Places that are not linear in the last axis: tiles of rows and columns, pairs a thread."""
    large = parse_kernel(BENT.format(rows=1 << 16).strip())
    assert default_schedule(large, {}) == Schedule("tiled", 128, 1, 2, yblock=8, vector=2)
    few = parse_kernel(BENT.format(rows=6).strip())
    assert default_schedule(few, {}).kind == "flat"
    for schedule in (Schedule("tiled", 64, num_warps=1, yblock=4, vector=2),
                     Schedule("tiled", 128, num_warps=1, vector=2)):  # fmt: skip
        tools.check(few, schedule)
    source = emit(few, Schedule("tiled", 64, num_warps=1, yblock=4, vector=2)).source
    assert "tl.multiple_of(" in source and "[2, 1])" in source


EXTREMES = """
kernel k(
    x: {t}[500, 512] cuda:0,
    i: i64[500] cuda:0,
    out y: {t}[300, 512] cuda:0,
):
  parallel i0 < 500, i1 < 512:
    once:
      v0 = load x[i0*512 + i1] : {t}
      v1 = load i[i0] : i64
      t0 = indirect v1 < 300
      store y[t0*512 + i1] {op} v0
"""


@pytest.mark.parametrize(
    ("t", "op", "most"), [("f32", "max=", 1), ("i32", "+=", 1), ("i64", "+=", 1), ("f32", "+=", 0)]
)
def test_rows_are_combined_line_by_line(t: str, op: str, most: int) -> None:
    """Sums of f32 are, sixteen bytes at once."""
    assert default_schedule(parse_kernel(EXTREMES.format(t=t, op=op)), {}).vector == most


@pytest.mark.parametrize(
    ("t", "columns", "kind"),
    [("f32", 2052, "tiled"), ("f32", 2048, "flat"), ("f32", 2051, "flat"), ("bf16", 2052, "tiled"),
     ("bf16", 2050, "flat"),
     ("f32", 500, "flat")],
)  # fmt: skip
def test_programs_of_a_row_read_its_numbers(
    tools: SimpleNamespace, t: str, columns: int, kind: str
) -> None:
    """Of long rows that blocks of points would cut, and that begin where vectors do."""
    text = f"""
kernel k(
    x: {t}[6, {columns}] cuda:0,
    m: f32[6] cuda:0,
    s: f32[6] cuda:0,
    w: f32[3] cuda:0,
    out y: {t}[6, {columns}] cuda:0,
):
  parallel i0 < 2, i1 < 3, i2 < {columns}:
    once:
      a = load x[i0*{3 * columns} + i1*{columns} + i2] : {t}
      b = load m[i0*3 + i1] : f32
      c = load s[i0*3 + i1] : f32
      d = load w[i1] : f32
      e = cast(a) : f32
      f = sub(e, b) : f32
      g = rsqrt(c) : f32
      h = mul(f, g) : f32
      j = add(h, d) : f32
      l = cast(j) : {t}
      store y[i0*{3 * columns} + i1*{columns} + i2] = l
"""
    kernel = parse_kernel(text.strip())
    schedule = default_schedule(kernel, {})
    assert schedule.kind == kind
    positive = np.random.default_rng(0).random(6).astype(np.float32) + 1
    tools.check(kernel, schedule, {"s": positive})
