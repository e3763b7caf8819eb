"""Scans: whole rows, chunks with a carry, columns, both ways; and that they compile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from loop_ir import parse_kernel
from triton_emit import Schedule, default_schedule, emit
from triton_emit.errors import UnsupportedKernel
from triton_rt import Target
from triton_rt import compile as compile_kernel

SCHEDULES = {
    "rows": Schedule("persistent", 2, 64),
    "row": Schedule("persistent", 1, 64),
    "chunks": Schedule("looped", 1, 16),
    "chunks of rows": Schedule("looped", 2, 16, index_bits=64),
}


def scan(op: str, dtype: str, rows: int, width: int, columns: bool = False, tail: str = "") -> str:
    """`z = scan(2 * x) + y` over rows, or columns, of `width`."""
    at = f"r0*{rows} + i0" if columns else f"i0*{width} + r0"
    size = f"{width}, {rows}" if columns else f"{rows}, {width}"
    return f"""
kernel k(
    x: {dtype}[{size}] cuda:0,
    y: {dtype}[{rows}] cuda:0,
    out z: {dtype}[{size}] cuda:0,
):
  parallel i0 < {rows}:
    over r0 < {width}:
      v0 = load x[{at}] : {dtype}
      v1 = add(v0, v0) : {dtype}
      v2 = scan {op}(v1){tail} : {dtype}
      v3 = load y[i0] : {dtype}
      v4 = add(v2, v3) : {dtype}
      store z[{at}] = v4
"""


STEPS = Schedule("looped", 4, 16, num_warps=4, steps=4)

PLACES = """
kernel k(
    x: {0}[3, 37] cuda:0,
    out m: {0}[3, 37] cuda:0,
    out a: i64[3, 37] cuda:0,
    out b: i64[3, 37] cuda:0,
):
  parallel i0 < 3:
    over r0 < 37:
      v0 = load x[i0*37 + r0] : {0}
      v1 = scan max(v0) : {0}
      v2 = scan argmax(v0) : i64
      v3 = scan argmin(v0) : i64
      store m[i0*37 + r0] = v1
      store a[i0*37 + r0] = v2
      store b[i0*37 + r0] = v3
"""


OPS = [
    ("sum", "f32"), ("min", "i8"), ("logsumexp", "f32"),
    *(pytest.param(*c, marks=pytest.mark.slow)
      for c in (("sum", "i64"), ("prod", "f64"), ("max", "f32"))),
]  # fmt: skip


@pytest.mark.spread(3)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("tail", ["", " reverse"])
@pytest.mark.parametrize(("op", "dtype"), OPS)
def test_scans(op: str, dtype: str, tail: str, schedule: str, tools: SimpleNamespace) -> None:
    kernel = parse_kernel(scan(op, dtype, 3, 37, tail=tail))
    tools.check(kernel, SCHEDULES[schedule], ulp=32)


@pytest.mark.parametrize("tail", ["", " reverse"])
@pytest.mark.parametrize(("op", "dtype"), OPS)
@pytest.mark.parametrize("rows", [32, 3])
def test_columns_in_steps(
    op: str, dtype: str, rows: int, tail: str, tools: SimpleNamespace
) -> None:
    kernel = parse_kernel(scan(op, dtype, rows, 37, columns=True, tail=tail))
    bits = 64 if dtype == "f64" else 32
    schedule = Schedule("looped", 16, 16, num_warps=4, steps=4, index_bits=bits)
    tools.check(kernel, schedule, ulp=32)


MIDDLE = """
kernel k(
    x: f32[3, {width}, {columns}] cuda:0,
    y: f32[3] cuda:0,
    w: f32[3, {columns}] cuda:0,
    out z: f32[3, {width}, {columns}] cuda:0,
):{where}
  parallel i0 < 3, i1 < {columns}:
    over r0 < {width}:
      v0 = load x[i0*{width}*{columns} + r0*{columns} + i1] : f32
      v1 = load y[i0] : f32
      v2 = load w[i0*{columns} + i1] : f32
      v3 = mul(v0, v1) : f32
      v4 = scan {op}(v3){tail} : f32
      v5 = add(v4, v2) : f32
      store z[i0*{width}*{columns} + r0*{columns} + i1] = v5
"""


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("columns", "where"), [("21", ""), ("s0", "\n  where s0 in [1, 99] hint 21")]
)
@pytest.mark.parametrize("tail", ["", " reverse"])
@pytest.mark.parametrize("op", ["sum", "logsumexp"])
def test_columns_of_a_middle_dimension(
    op: str, tail: str, columns: str, where: str, tools: SimpleNamespace
) -> None:
    """A program has neighbours of one place of the first axis."""
    text = MIDDLE.format(width=37, columns=columns, where=where, op=op, tail=tail)
    schedule = Schedule("looped", 16, 16, num_warps=4, steps=4)
    tools.check(parse_kernel(text), schedule, symbols={"s0": 21}, ulp=64)


@pytest.mark.parametrize(
    ("columns", "xblock"),
    [(777, 32), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((512, 32), (64, 64)))],
)
def test_columns_of_a_middle_dimension_are_read_as_others(
    columns: int, xblock: int, tools: SimpleNamespace
) -> None:
    """Neighbouring lanes read neighbours: else each element has an address and a register more, or
    a thread has several columns and fewer rows."""
    texts = (
        MIDDLE.format(width=1000, columns=columns, where="", op="sum", tail=""),
        scan("sum", "f32", 3 * columns, 1000, columns=True),
    )
    middle, first = (parse_kernel(text) for text in texts)
    sizes = []
    for kernel in (middle, first):
        emitted = emit(kernel, Schedule("looped", xblock, 256, num_warps=8, steps=32))
        binary = compile_kernel(tools.kernel_source(emitted), Target(90), alignment=0b1111)
        sizes.append(len(binary.cubin))
    assert sizes[0] < 1.5 * sizes[1]


def test_rows_of_a_thread_lie_at_fixed_distances_both_ways(tools: SimpleNamespace) -> None:
    """One address a thread: else each of 64 rows has its own, in registers."""
    schedule = Schedule("looped", 64, 256, num_warps=8, steps=32)
    sizes = []
    for tail in ("", " reverse"):
        text = MIDDLE.format(width=1024, columns=777, where="", op="sum", tail=tail)
        source = tools.kernel_source(emit(parse_kernel(text), schedule))
        sizes.append(len(compile_kernel(source, Target(90), alignment=0b1111).cubin))
    assert sizes[1] < 1.1 * sizes[0]


# a group has 32 chunks
LOOKBACK = Schedule("looped", 1, 4, num_warps=1, lookback=32)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("tail", "bits"),
    [
        ("", 32),
        (" reverse", 64),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("", 64), (" reverse", 32))),
    ],
)
@pytest.mark.parametrize(("op", "dtype"), OPS)
def test_lookback(op: str, dtype: str, tail: str, bits: int, tools: SimpleNamespace) -> None:
    """The interpreter runs programs one after the other, so that none has to wait."""
    schedule = replace(LOOKBACK, index_bits=64 if bits == 64 else 32)
    for rows, width in ((2, 137), (1, 4)):
        tools.check(parse_kernel(scan(op, dtype, rows, width, tail=tail)), schedule, ulp=64)


def test_lookback_of_places(tools: SimpleNamespace) -> None:
    """What is read where the scan says, and stored there."""
    kernel = parse_kernel("""
kernel k(
    x: i64[259] cuda:0,
    given: f32[300] cuda:0,
    out y: f32[259] cuda:0,
    out z: f32[300] cuda:0,
):
  single:
    over r0 < 259:
      v0 = load x[r0] : i64
      v1 = scan sum(v0) : i64
      t0 = indirect v1 < 300
      v2 = load given[t0] : f32
      store y[r0] = v2
      store z[t0] += v2
""")
    rng = np.random.default_rng(0)
    given = {"x": rng.integers(0, 2, 259), "given": np.arange(300, dtype=np.float32)}
    tools.check(kernel, LOOKBACK, {**given, "z": np.zeros(300, np.float32)})


def test_infinities_reach_no_row_before_theirs(tools: SimpleNamespace) -> None:
    kernel = parse_kernel(scan("sum", "f32", 4, 37, columns=True))
    x = np.ones((37, 4), np.float32)
    x[20, 0], x[9, 1], x[5, 2], x[30, 2] = np.inf, np.nan, np.inf, -np.inf
    given = {"x": x, "y": np.zeros(4, np.float32)}
    tools.check(kernel, STEPS, given, ulp=2)


@pytest.mark.spread(2)
@pytest.mark.parametrize("schedule", [*SCHEDULES, "steps", "lookback"])
@pytest.mark.parametrize("dtype", ["f32", "i8"])
def test_places(dtype: str, schedule: str, tools: SimpleNamespace) -> None:
    """The last of equal extremes; a NaN is one, and stays one."""
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 3, (3, 37)).astype(np.float32 if dtype == "f32" else np.int8)
    if dtype == "f32":
        x[1, :5] = -np.inf
        x[2, 20] = x[2, 30] = np.nan
    text = PLACES.format(dtype)
    if schedule == "steps":
        x, text = (
            np.ascontiguousarray(x.T),
            text.replace("3, 37", "37, 3").replace("i0*37 + r0", "r0*3 + i0"),
        )
        tools.check(parse_kernel(text), STEPS, {"x": x})
        return
    tools.check(parse_kernel(text), SCHEDULES.get(schedule, LOOKBACK), {"x": x})


@pytest.mark.parametrize("tail", ["", " reverse"])
def test_columns(tail: str, tools: SimpleNamespace) -> None:
    kernel = parse_kernel(scan("sum", "f32", 5, 37, columns=True, tail=tail))
    tools.check(kernel, Schedule("looped", 4, 16), ulp=16)
    tools.check(kernel, ulp=16)


INFINITE = [
    [-np.inf, -np.inf, 1.0, 2.0, np.inf, np.inf, 3.0, -np.inf],
    [0.0, 300.0, -300.0, 1.0, np.nan, 1.0, np.inf, 0.0],
]


@pytest.mark.parametrize("schedule", [Schedule("persistent", 1, 8), Schedule("looped", 1, 2)])
def test_sums_of_exponents_at_infinities(schedule: Schedule, tools: SimpleNamespace) -> None:
    x = np.array(INFINITE, np.float32) / 2
    kernel = parse_kernel(scan("logsumexp", "f32", 2, 8))
    tools.check(kernel, schedule, {"x": x, "y": np.zeros(2, np.float32)})


def test_sums_of_exponents_of_columns_at_infinities(tools: SimpleNamespace) -> None:
    x = np.tile(np.array(INFINITE, np.float32).T / 2, (3, 1))
    kernel = parse_kernel(scan("logsumexp", "f32", 2, 24, columns=True))
    tools.check(kernel, STEPS, {"x": x, "y": np.zeros(2, np.float32)})


@pytest.mark.parametrize(
    "schedule", [Schedule("persistent", 1, 8), Schedule("looped", 1, 2), STEPS]
)
def test_the_first_number_keeps_the_sign_of_a_zero(
    schedule: Schedule, tools: SimpleNamespace
) -> None:
    kernel = parse_kernel(scan("logsumexp", "f32", 2, 5, columns=schedule is STEPS))
    x = np.array([[-0.0] * 5, [-0.0, -np.inf, -np.inf, 0.0, -1.0]], np.float32)
    x = np.ascontiguousarray(x.T) if schedule is STEPS else x
    z = torch.empty(x.shape)
    given = {"x": torch.from_numpy(x), "y": torch.full((2,), -0.0), "z": z}
    tools.launch(emit(kernel, schedule), given, {})
    first = torch.signbit(z if schedule is STEPS else z.T)
    assert first[0].all() and not first[1:].any(), z


FORWARD = """
kernel k(
    x: f32[3, 37] cuda:0,
    out z: f32[3, 37] cuda:0,
):
  parallel i0 < 3:
    over r0 < 37:
      v0 = load x[i0*37 + r0] : f32
      v1 = scan sum(v0) : f32
      v2 = reduce max(v1) : f32
      v9 = const 1.0 : f32
      v10 = scan sum(v9) : f32
    over r0 < 37:
      v3 = sub(v1, v2) : f32
      v4 = div(v3, v10) : f32
      v5 = scan sum(v4) : f32
      store z[i0*37 + r0] = v5
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_a_later_loop_needs_is_scanned_again(schedule: str, tools: SimpleNamespace) -> None:
    tools.check(parse_kernel(FORWARD), SCHEDULES[schedule], ulp=64)


BACK = FORWARD.replace("sum(v0)", "sum(v0) reverse")


@pytest.mark.parametrize("schedule", ["rows", "row"])
@pytest.mark.parametrize("text", [BACK, BACK.replace("sum(v4)", "sum(v4) reverse")])
def test_rows_held_whole_are_scanned_both_ways(
    text: str, schedule: str, tools: SimpleNamespace
) -> None:
    """With reductions between the scans."""
    tools.check(parse_kernel(text), SCHEDULES[schedule], ulp=64)
    with pytest.raises(UnsupportedKernel, match="in both directions"):
        emit(parse_kernel(text), SCHEDULES["chunks"])


def test_long_rows_that_are_scanned_both_ways_at_once() -> None:
    """They are held, though a tile is half empty, where rows scanned one way go in chunks."""
    one = FORWARD[: FORWARD.index("    over r0 < 37:\n      v3")].replace("37", "4097")
    one += "      store z[i0*4097 + r0] = v1\n"
    one = one.replace("      v2 = reduce max(v1) : f32\n", "")
    both = (
        one.replace("scan sum(v9)", "scan sum(v9) reverse") + "      store z[i0*4097 + r0] = v10\n"
    )
    assert default_schedule(parse_kernel(one), {}).kind == "looped"
    kernel = parse_kernel(both)
    schedule = default_schedule(kernel, {})
    assert schedule.kind == "persistent" and emit(kernel, schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_reduced_then_scanned_from_the_end(schedule: str, tools: SimpleNamespace) -> None:
    """Each loop goes one way."""
    text = FORWARD.replace("      v1 = scan sum(v0) : f32\n", "").replace("max(v1)", "max(v0)")
    text = text.replace("sub(v1, v2)", "sub(v0, v2)").replace(
        "      v10 = scan sum(v9) : f32\n", ""
    )
    text = text.replace("div(v3, v10)", "div(v3, v9)").replace("sum(v4)", "sum(v4) reverse")
    tools.check(parse_kernel(text), SCHEDULES[schedule], ulp=64)


def test_text(golden: Callable[[str, str], None]) -> None:
    texts = []
    for op, rows, width, columns, tail in (
        ("sum", 4096, 1000, False, ""), ("sum", 4096, 100000, False, ""),
        ("sum", 4096, 100000, False, " reverse"), ("sum", 4096, 1000, True, ""),
        ("logsumexp", 4096, 1000, True, ""),
    ):  # fmt: skip
        kernel = parse_kernel(scan(op, "f32", rows, width, columns, tail))
        emitted = emit(kernel, default_schedule(kernel, {}))
        texts.append(f"# {emitted.schedule}\n{emitted.source}")
    golden("scans.py.txt", "\n\n".join(texts))


@pytest.mark.parametrize(
    ("op", "width", "columns", "tail"),
    [
        ("sum", 4096, False, " reverse"),
        ("prod", 100000, False, ""),
        pytest.param("logsumexp", 4096, True, "", marks=pytest.mark.slow),
    ],
)
def test_compiles(op: str, width: int, columns: bool, tail: str, tools: SimpleNamespace) -> None:
    kernel = parse_kernel(scan(op, "f32", 16384, width, columns, tail))
    emitted = emit(kernel, default_schedule(kernel, {}))
    assert compile_kernel(tools.kernel_source(emitted), Target(90)).cubin


@pytest.mark.parametrize("op", ["sum", "logsumexp"])
def test_scans_of_what_all_rows_share_compile(op: str, tools: SimpleNamespace) -> None:
    """Triton has no scan of a tile that is less than what its threads hold."""
    kernel = parse_kernel(f"""
kernel k(
    out z: f32[2, 2] cuda:0,
):
  parallel i0 < 2:
    over r0 < 2:
      v0 = index r0 : f32
      v1 = scan {op}(v0) : f32
      store z[r0*2 + i0] = v1
""")
    schedule = Schedule("persistent", 128, 2, num_warps=1)
    source = tools.kernel_source(emit(kernel, schedule))
    assert compile_kernel(source, Target(90), alignment=1).cubin
    tools.check(kernel, schedule, ulp=32)


def test_lookback_compiles(tools: SimpleNamespace) -> None:
    """A thread keeps its own part of the chunk: all of it would be thousands of lines."""
    text = PLACES.format("f32").replace("3, 37", f"1, {1 << 24}").replace("37", str(1 << 24))
    kernel = parse_kernel(text.replace("i0 < 3", "i0 < 1"))
    emitted = emit(kernel, default_schedule(kernel, {}))
    assert emitted.schedule.lookback
    assert len(compile_kernel(tools.kernel_source(emitted), Target(90)).cubin) < 500_000


def test_places_compile(tools: SimpleNamespace) -> None:
    """In short blocks: LLVM takes seconds for each thousand places of a block."""
    for width in (64, 100000):
        kernel = parse_kernel(PLACES.format("f32").replace("37", str(width)))
        schedule = default_schedule(kernel, {})
        schedule = replace(schedule, rblock=min(schedule.rblock, 256), num_warps=1)
        emitted = emit(kernel, schedule)
        assert emitted.schedule.kind == ("persistent" if width == 64 else "looped")
        assert compile_kernel(tools.kernel_source(emitted), Target(90)).cubin
