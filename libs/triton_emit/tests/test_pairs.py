"""Kernels whose points read the same element as their neighbours."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from loop_ir import Kernel, parse_kernel
from triton_emit import BadSchedule, Schedule, default_schedule, emit
from triton_emit.pairs import paired

NEAREST = """
kernel k(
    x: f32[6, 5, 8] cuda:0,
    out y: f32[6, 10, 16] cuda:0,
):
  parallel i0 < 6, i1 < 10, i2 < 16:
    once:
      v0 = load x[i0*40 + i1//2*8 + i2//2] : f32
      store y[i0*160 + i1*16 + i2] = v0
"""

# two results, one of them the same for both neighbours, and a number that hangs on the place
WEIGHED = """
kernel k(
    x: bf16[6, 9] cuda:0,
    out y: f32[6, 16] cuda:0,
    out z: bf16[6, 16] cuda:0,
    out c: f32[6, 16] cuda:0,
):
  parallel i0 < 6, i1 < 16:
    once:
      v0 = index i1 : f32
      v1 = load x[i0*9 + (i1 + 1)//2] : bf16
      v2 = cast(v1) : f32
      v3 = mul(v2, v0) : f32
      v4 = load x[i0*9 + i1//2] : bf16
      v5 = const 0.5 : f32
      store y[i0*16 + i1] = v3
      store z[i0*16 + i1] = v4
      store c[i0*16 + i1] = v5
"""

# two parts in turns, of neighbours that each part reads both of
TURNS = """
kernel k(
    x: bf16[6, 20] cuda:0,
    w: f32[10] cuda:0,
    out y: bf16[6, 10, 2] cuda:0,
):
  parallel i0 < 6, i1 < 10, i2 < 2:
    once:
      v0 = index i2 : i64
      v1 = const 1 : i64
      v2 = lt(v0, v1) : bool
      v3 = load x[i0*20 + i1*2 + i2] if v2 else 0 : bf16
      v4 = load x[i0*20 + i1*2 + i2 + 1] if v2 else 0 : bf16
      v5 = mul(v3, v4) : bf16
      v6 = load w[i1] : f32
      v7 = cast(v6) : bf16
      v8 = ge(v0, v1) : bool
      v9 = load x[i0*20 + i1*2 + i2 - 1] if v8 else 0 : bf16
      v10 = load x[i0*20 + i1*2 + i2] if v8 else 0 : bf16
      v11 = sub(v9, v10) : bf16
      v12 = where(v8, v11, v5) : bf16
      v13 = mul(v12, v7) : bf16
      store y[i0*20 + i1*2 + i2] = v13
"""

# the gradient of maxima of 3 x 3 windows, two apart: places are their numbers in the windows
WINDOWS = """
kernel k(
    o: i8[3, 4, 5] cuda:0,
    g: f32[3, 4, 5] cuda:0,
    out y: f32[3, 8, 10] cuda:0,
):
  parallel i0 < 3, i1 < 8, i2 < 10:
    once:
      zero = const 0.0 : f32
      four = const 4 : i32
      five = const 5 : i32
{windows}
      store y[i0*80 + i1*10 + i2] = s11
"""
ONE = """
      a{n} = index (i1 + 1)//2 - 1 + {r} : i32
      ae{n} = index ((i1 + 1)//2 - 1 + {r})*2 + 2 : i32
      ai{n} = index i1 : i32
      b{n} = index (i2 + 1)//2 - 1 + {c} : i32
      be{n} = index ((i2 + 1)//2 - 1 + {c})*2 + 2 : i32
      bi{n} = index i2 : i32
      null{n} = const 0 : i32
      m0{n} = ge(a{n}, null{n}) : bool
      m1{n} = lt(a{n}, four) : bool
      m2{n} = gt(ae{n}, ai{n}) : bool
      m3{n} = ge(b{n}, null{n}) : bool
      m4{n} = lt(b{n}, five) : bool
      m5{n} = gt(be{n}, bi{n}) : bool
      n0{n} = and(m0{n}, m1{n}) : bool
      n1{n} = and(m2{n}, m3{n}) : bool
      n2{n} = and(m4{n}, m5{n}) : bool
      n3{n} = and(n0{n}, n1{n}) : bool
      m{n} = and(n3{n}, n2{n}) : bool
      p{n} = load o[i0*20 + ((i1 + 1)//2 - 1 + {r})*5 + (i2 + 1)//2 - 1 + {c}] if m{n} else -1 : i8
      q{n} = cast(p{n}) : i32
      own{n} = index (i1 + 3 - 2*((i1 + 1)//2 + {r}))*3 + i2 + 3 - 2*((i2 + 1)//2 + {c}) : i32
      h{n} = eq(q{n}, own{n}) : bool
      v{n} = load g[i0*20 + ((i1 + 1)//2 - 1 + {r})*5 + (i2 + 1)//2 - 1 + {c}] if m{n} else 0 : f32
      w{n} = where(h{n}, v{n}, zero) : f32
      s{n} = add({before}, w{n}) : f32
"""
POINTS = [("00", 0, 0, "zero"), ("01", 0, 1, "s00"), ("10", 1, 0, "s01"), ("11", 1, 1, "s10")]
WINDOWS = WINDOWS.format(
    windows="".join(ONE.format(n=n, r=r, c=c, before=b) for n, r, c, b in POINTS)
)


def kernel(text: str) -> Kernel:
    return parse_kernel(text)


@pytest.mark.parametrize("text", [NEAREST, WEIGHED])
@pytest.mark.parametrize("block", [16, 64])
def test_neighbours_are_stored_in_turns(tools: SimpleNamespace, text: str, block: int) -> None:
    k = kernel(text)
    schedule = default_schedule(k, {})
    assert schedule.pairs
    for made in (schedule, replace(schedule, xblock=block, num_warps=1)):
        tools.check(k, schedule=made)
    source = emit(k, schedule).source
    assert "tl.interleave" in source
    if text is NEAREST:
        assert source.count("tl.load") == source.count("tl.store") == 1


def test_points_that_read_alone_are_no_pairs() -> None:
    for old, new in (("i2//2]", "i2//3]"), ("i2 < 16", "i2 < 15"), ("+ i2] =", "+ 2*i2] ="),
                     ("i2//2]", "2*i2//2]")):  # fmt: skip
        assert NEAREST.replace(old, new) != NEAREST
        k = kernel(NEAREST.replace(old, new))
        assert paired(k) is None
        with pytest.raises(BadSchedule, match="pairs"):
            emit(k, Schedule("flat", 128, pairs=True))


def stores_and_loads(k: Kernel, schedule: Schedule) -> tuple[int, int]:
    source = emit(k, schedule).source
    return source.count("tl.store("), source.count("tl.load(")


def test_parts_in_turns_are_read_and_stored_side_by_side(tools: SimpleNamespace) -> None:
    k = kernel(TURNS)
    schedule = default_schedule(k, {})
    assert schedule.pairs
    for block in (16, 64):  # of 60 pairs, the second with a mask
        tools.check(k, schedule=replace(schedule, xblock=block, num_warps=1))
    assert stores_and_loads(k, schedule) == (1, 2)
    assert "tl.split(tl.reshape(tl.load(in0 + windex" in emit(k, schedule).source


def test_neighbours_are_read_under_a_mask_and_without(tools: SimpleNamespace) -> None:
    """The middle of rows of pairs with its parts exchanged; the ends stay as they are."""
    body = """
      v0 = index i1 : i64
      v1 = const 3 : i64
      v2 = lt(v0, v1) : bool
      v3 = load x[i0*20 + i1*2] if v2 else 0 : bf16
      v4 = load x[i0*20 + i1*2 + 1] if v2 else 0 : bf16
      v5 = index i2 : i64
      v6 = const 1 : i64
      v7 = lt(v5, v6) : bool
      v8 = where(v7, v4, v3) : bf16
      v9 = load x[i0*20 + i1*2 + i2] : bf16
      v13 = where(v2, v8, v9) : bf16
"""
    start, end = TURNS.index("      v0"), TURNS.index("      store")
    tools.check(
        kernel(TURNS[:start] + body + TURNS[end:]), schedule=Schedule("flat", 64, pairs=True)
    )


def test_parts_in_turns_that_lie_apart_are_no_pairs() -> None:
    for old, new in (("store y[i0*20 + i1*2 + i2]", "store y[i0*20 + i1 + i2*10]"),
                     ("i2 < 2", "i2 < 1")):  # fmt: skip
        assert paired(kernel(TURNS.replace(old, new))) is None
    start, end = TURNS.index("      v0"), TURNS.index("      store")
    copied = TURNS[:start] + "      v13 = load x[i0*20 + i1*2 + i2] : bf16\n" + TURNS[end:]
    assert paired(kernel(copied)) is None  # neither reads what the other does


def test_windows_that_overlap_are_read_once_for_rows_of_pairs(tools: SimpleNamespace) -> None:
    k = kernel(WINDOWS)
    schedule = default_schedule(k, {})
    assert schedule.pairs
    for block in (16, 64):
        tools.check(k, schedule=replace(schedule, xblock=block, num_warps=1))
    # four windows, of which each element is read once for four points
    assert stores_and_loads(k, schedule) == (2, 8)


def test_rows_that_share_nothing_are_no_rows_of_pairs() -> None:
    """Places that end at the edges of an image are others for each row."""
    row, column = "Max(0, (i1 + 1)//2 - 1)", "Max(0, (i2 + 1)//2 - 1)"
    rows, columns = (row, f"Min(3, {row} + 1)"), (column, f"Min(4, {column} + 1)")
    loads = "".join(
        f"      v{n} = load x[i0*20 + {rows[n // 2]}*5 + {columns[n % 2]}] : f32\n"
        for n in range(4)
    )
    both = paired(
        kernel(f"""
kernel k(
    x: f32[3, 4, 5] cuda:0,
    out y: f32[3, 8, 10] cuda:0,
):
  parallel i0 < 3, i1 < 8, i2 < 10:
    once:
{loads}      v4 = add(v0, v1) : f32
      v5 = mul(v2, v3) : f32
      v6 = add(v4, v5) : f32
      store y[i0*80 + i1*10 + i2] = v6
""")
    )
    assert both is not None
    assert [a.extent for a in both.axes] == [3, 8, 5]
