"""Default and candidate schedules, index width, masks, and schedules that do not fit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import sympy

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
    contiguous_strides,
    parse_kernel,
)  # fmt: skip
from symexpr import evaluate, symbol
from triton_emit import (
    BadSchedule,
    Schedule,
    UnsupportedKernel,
    candidate_schedules,
    default_schedule,
    emit,
)  # fmt: skip

I0, R0, S0, S1 = symbol("i0"), symbol("r0"), symbol("s0"), symbol("s1")


def tensor(dtype: DType, *size: object) -> TensorType:
    return TensorType(dtype, size, contiguous_strides(size), Device("cuda", 0))  # type: ignore[arg-type]


def copy(size: sympy.Expr, *symbols: Symbol) -> Kernel:
    buffers = (Buffer("x", tensor(DType.f32, size)), Buffer("y", tensor(DType.f32, size), True))
    body = (Load("a", "x", I0, DType.f32), Store("y", I0, "a"))
    return Kernel("copy", buffers, (Axis(I0, size),), (Phase((), body),), symbols)


def row_sum(rows: sympy.Expr, columns: sympy.Expr, *symbols: Symbol) -> Kernel:
    load = Load("a", "x", columns * I0 + R0, DType.bf16)
    wide = Compute("b", "cast", ("a",), DType.f32)
    first = Phase((Axis(R0, columns),), (load, wide, Reduce(("s",), "sum", ("b",), DType.f32)))
    buffers = (Buffer("x", tensor(DType.bf16, rows, columns)),
               Buffer("y", tensor(DType.f32, rows), True))  # fmt: skip
    return Kernel("row_sum", buffers, (Axis(I0, rows),),
                  (first, Phase((), (Store("y", I0, "s"),))), symbols)  # fmt: skip


N = sympy.Integer


@pytest.mark.parametrize(
    ("kernel", "hints", "expected"),
    [
        (copy(N(1 << 24)), {}, Schedule("flat", 1024, 1, 4)),
        (copy(N(4096)), {}, Schedule("flat", 128, 1, 1)),
        (row_sum(N(16384), N(768)), {}, Schedule("persistent", 2, 1024, 2)),
        (row_sum(N(16384), N(4096)), {}, Schedule("persistent", 1, 4096, 8)),
        (row_sum(N(16384), N(64)), {}, Schedule("persistent", 16, 64, 1)),
        (row_sum(N(64), N(64)), {}, Schedule("persistent", 1, 64, 1)),
        (row_sum(N(16384), N(32768)), {}, Schedule("looped", 1, 4096, 16)),
        (row_sum(N(256), N(32768)), {}, Schedule("looped", 1, 8192, 32)),
        (row_sum(N(512), S1, Symbol("s1", 1, 1024, 700)), {"s1": 700},
         Schedule("persistent", 1, 1024, 2)),
        (row_sum(N(512), S1, Symbol("s1", 1, 8192, 100)), {"s1": 100},
         Schedule("looped", 1, 128, 4)),
    ],
    ids=lambda p: str(p) if isinstance(p, Schedule) else None,
)  # fmt: skip
def test_defaults(kernel: Kernel, hints: dict[str, int], expected: Schedule) -> None:
    assert default_schedule(kernel, hints) == expected


def test_a_number_alone_has_a_schedule() -> None:
    buffers = (Buffer("x", tensor(DType.f32)), Buffer("y", tensor(DType.f32), True))
    body = (Load("a", "x", sympy.S.Zero, DType.f32), Store("y", sympy.S.Zero, "a"))
    assert default_schedule(Kernel("count", buffers, (), (Phase((), body),)), {}).kind == "flat"


def test_candidates_start_with_the_default_and_all_compute_the_same(
    tools: SimpleNamespace,
) -> None:
    kernel = row_sum(N(5), N(700))
    candidates = candidate_schedules(kernel, {})
    assert candidates[0] == default_schedule(kernel, {}) and len(set(candidates)) > 4
    for schedule in candidates:
        tools.check(kernel, schedule)


def test_index_width_follows_the_ranges() -> None:
    narrow = copy(S0, Symbol("s0", 1, 1 << 30))
    wide = copy(S0, Symbol("s0", 1, 1 << 31))
    unbounded = copy(S0, Symbol("s0", 1, None))
    assert [default_schedule(k, {}).index_bits for k in (narrow, wide, unbounded)] == [32, 64, 64]
    emitted = emit(wide, default_schedule(wide, {}))
    assert "tl.program_id(0).to(tl.int64)" in emitted.source
    assert emitted.params[-1] == ("s0", "i64", False)


def test_masks_only_where_bounds_are_not_proven() -> None:
    assert "mask" not in emit(copy(N(4096)), Schedule("flat", 128)).source
    assert "mask" not in emit(copy(256 * S0, Symbol("s0", 1, 99)), Schedule("flat", 128)).source
    assert "xmask = xindex < 4097" in emit(copy(N(4097)), Schedule("flat", 128)).source
    exact = emit(row_sum(N(8), N(1024)), Schedule("persistent", 1, 1024))
    assert "mask" not in exact.source
    assert "mask" not in emit(row_sum(N(8), N(1024)), Schedule("looped", 4, 256)).source


def test_grid_is_an_expression_of_sizes() -> None:
    emitted = emit(copy(3 * S0, Symbol("s0", 1, 99)), Schedule("flat", 128))
    assert [int(evaluate(g, {"s0": 43})) for g in emitted.grid] == [2, 1, 1]
    assert emitted.args == ("x", "y", S0)


def test_text_does_not_depend_on_the_names_of_buffers_or_sizes() -> None:
    a = row_sum(S0, N(700), Symbol("s0", 1, 99))
    other = {"x": "arg7", "y": "buf12"}
    renamed = replace(
        a, name="other", axes=(Axis(I0, S1),), symbols=(Symbol("s1", 1, 99),),
        buffers=tuple(replace(b, name=other[b.name], type=TensorType(
            b.type.dtype, tuple(e.xreplace({S0: S1}) for e in b.type.size), b.type.stride,
            b.type.device)) for b in a.buffers),
        phases=tuple(Phase(p.axes, tuple(
            replace(s, buffer=other[s.buffer]) if isinstance(s, Load | Store) else s
            for s in p.body)) for p in a.phases),
    )  # fmt: skip
    first, second = (emit(k, Schedule("persistent", 2, 1024)) for k in (a, renamed))
    assert first.source.replace("row_sum(", "other(") == second.source
    assert first.source.count("row_sum(") == 1
    assert second.args == ("arg7", "buf12", S1)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Schedule("flat", 128), "schedule.kind is 'flat', expected persistent or looped"),
        (Schedule("persistent", 3, 1024), "schedule.xblock is 3, expected a power of two"),
    ],
)
def test_schedules_that_do_not_fit(schedule: Schedule, message: str) -> None:
    with pytest.raises(BadSchedule, match=message):
        emit(row_sum(N(8), N(700)), schedule)


def overwriting() -> Kernel:
    """Doubles a row in place, then adds the row's old sum of differences from its first pass."""
    over = (Axis(R0, N(700)),)
    at = 700 * I0 + R0
    return Kernel(
        "twice", (Buffer("x", tensor(DType.f32, 4, 700), True),
                  Buffer("y", tensor(DType.f32, 4, 700), True)), (Axis(I0, N(4)),),
        (Phase(over, (Load("a", "x", at, DType.f32), Reduce(("s",), "sum", ("a",), DType.f32))),
         Phase(over, (Compute("b", "add", ("a", "s"), DType.f32), Store("x", at, "b"),
                      Reduce(("m",), "max", ("b",), DType.f32))),
         Phase(over, (Compute("c", "sub", ("a", "m"), DType.f32), Store("y", at, "c")))),
    )  # fmt: skip


def test_a_loop_never_reads_again_what_it_overwrote(tools: SimpleNamespace) -> None:
    kernel = overwriting()
    with pytest.raises(UnsupportedKernel, match="loaded from x before that buffer was overwritten"):
        emit(kernel, Schedule("looped", 1, 256))
    assert default_schedule(kernel, {}).kind == "persistent"
    emitted = tools.check(kernel, ulp=8)
    assert [p for p in emitted.params if p[2]] == [("inout0", "*f32", True), ("out0", "*f32", True)]


@pytest.mark.parametrize("width", [1024, 700, 257])
def test_a_row_looks_its_place_up_once(tools: SimpleNamespace, width: int) -> None:
    kernel = parse_kernel(f"""\
kernel k(
    x: f32[5, {width}] cuda:0,
    at: i64[7] cuda:0,
    out y: f32[7, {width}] cuda:0,
    out z: f32[5, {width}] cuda:0,
):
  parallel i0 < 7, i1 < {width}:
    once:
      v0 = load at[i0] : i64
      t0 = indirect v0 < 5
      v1 = load x[t0*{width} + i1] : f32
      store y[i0*{width} + i1] = v1
      store z[t0*{width} + i1] += v1
""")
    at = np.array([4, 0, 2, -1, 2, 2, 1])
    emitted = tools.check(kernel, tensors={"at": at})
    assert emitted.schedule.kind == "tiled" and "tl.load(in1 + yindex)" in emitted.source


@pytest.mark.parametrize(("inside", "warps"), [(True, 4), (False, 2)])
def test_scattered_elements_have_many_warps(inside: bool, warps: int) -> None:
    """Rows that lie at one place each have not."""
    place = "load p[i0*8 + r0]" if inside else "load p[i0*8]"
    places = f"        v0 = {place} : i64\n        t0 = indirect v0 < 64\n"
    once = "" if inside else f"      once:\n{places}"
    over = places if inside else ""
    kernel = parse_kernel(f"""
kernel k(
    p: i64[131072, 8] cuda:0,
    x: f32[131072, 8] cuda:0,
    out y: f32[131072, 64] cuda:0,
):
  parallel i0 < 131072:
      over r0 < 8:
        v1 = load x[i0*8 + r0] : f32
        v2 = reduce sum(v1) : f32
{once}      over r0 < 8:
{over}        v3 = div(v1, v2) : f32
        store y[i0*64 + t0{" " if inside else " + r0"}] = v3
""")
    schedule = default_schedule(kernel, {})
    assert (schedule.kind, schedule.num_warps) == ("persistent", warps)


def test_a_rare_branch_is_waited_for_by_one_warp() -> None:
    plain = copy(sympy.Integer(1 << 25))
    test = Compute("t", "gt", ("a", "a"), DType.bool_)
    rare = Compute("b", "rarely", ("t", "e", "a"), DType.f32)
    body = (plain.phases[0].body[0], test, Compute("e", "exp", ("a",), DType.f32), rare)
    branching = replace(plain, phases=(Phase((), (*body, Store("y", I0, "b"))),))
    of_all, of_few = (default_schedule(k, {}) for k in (plain, branching))
    assert (of_all.xblock, of_all.num_warps) == (1024, 4)
    assert (of_few.xblock, of_few.num_warps) == (512, 1)


@pytest.mark.parametrize(("length", "warps"), [(10, 4), (110, 8)])
def test_long_texts_of_single_elements_have_many_warps(length: int, warps: int) -> None:
    """Each of which leaves few registers."""
    steps = "\n".join(f"      v{n + 1} = mul(v{n}, v0) : f32" for n in range(length))
    kernel = parse_kernel(f"""
kernel k(
    x: f32[4097, 4097] cuda:0,
    out y: f32[4097, 4097] cuda:0,
):
  parallel i0 < 16785409:
    once:
      v0 = load x[i0] : f32
{steps}
      store y[i0] = v{length}
""")
    assert default_schedule(kernel, {}) == Schedule("flat", 1024, num_warps=warps, vector=1)


@pytest.mark.parametrize(("dtype", "warps"), [("f64", 8), ("f32", 4)])
def test_formulas_of_f64_have_many_warps(dtype: str, warps: int) -> None:
    kernel = parse_kernel(f"""
kernel k(
    x: {dtype}[16777216] cuda:0,
    out y: {dtype}[16777216] cuda:0,
):
  parallel i0 < 16777216:
    once:
      v0 = load x[i0] : {dtype}
      v1 = tanh(v0) : {dtype}
      store y[i0] = v1
""")
    assert default_schedule(kernel, {}) == Schedule("flat", 1024, num_warps=warps)


@pytest.mark.parametrize(
    ("dtype", "size", "warps"), [("bf16", "n", 2), ("f32", "n", 8), ("f32", "1024", 0)]
)
def test_padded_images_have_as_many_bytes_a_thread(dtype: str, size: str, warps: int) -> None:
    """Those of known sizes are flat."""
    kernel = parse_kernel(f"""
kernel k(
    x: {dtype}[{size}, 250, 250] cuda:0,
    out y: {dtype}[{size}, 256, 255] cuda:0,
):
  where n in [1, *] hint 1024
  parallel i0 < {size}, i1 < 256, i2 < 255:
    once:
      v0 = load x[i0*62500 + 250*Max(i1 - 3, 3 - i1) + Max(i2 - 3, 3 - i2)] : {dtype}
      store y[i0*65280 + i1*255 + i2] = v0
""")
    found = default_schedule(kernel, {})
    expected = Schedule("tiled", 256, 1, warps, index_bits=found.index_bits, yblock=4, vector=1)
    assert found == expected if warps else found.kind == "flat"


def test_short_rows_of_a_size_that_is_not_known_share_programs() -> None:
    """In one step of a loop where they are as long as the typical ones."""
    kernel = row_sum(N(1 << 20), S0, Symbol("s0", 1, None, 12))
    schedule = default_schedule(kernel, {})
    assert (schedule.kind, schedule.rblock) == ("looped", 16) and schedule.xblock >= 32
    long = default_schedule(kernel, {"s0": 12000})
    assert (long.kind, long.xblock) == ("looped", 1)


@pytest.mark.parametrize(("row", "kind"), [("i0 % 3000", "tiled"), ("i0", "flat")])
def test_rows_that_are_repeated_both_ways(row: str, kind: str) -> None:
    """Remainders for a row and a column, not for a point."""
    kernel = parse_kernel(f"""
kernel k(
    x: bf16[6000, 2001] cuda:0,
    out y: bf16[6000, 6003] cuda:0,
):
  parallel i0 < 6000, i1 < 6003:
    once:
      v0 = load x[2001*({row}) + i1 % 2001] : bf16
      store y[i0*6003 + i1] = v0
""")
    assert default_schedule(kernel, {}).kind == kind
