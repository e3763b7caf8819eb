"""Tests of places that always come out alike."""

from __future__ import annotations

import numpy as np
import pytest

from loop_ir import Compute, Const, Kernel, Load, interpret_kernel, parse_kernel
from loop_ir.ir import statements
from loop_ir.passes import fold
from loop_ir.passes.fold_choices import fold_choices

TESTS = """
kernel k(
    x: f32[16] cpu,
    out y: f32[8] cpu,
):
  parallel i0 < 8:
    once:
      v0 = index {place} : i64
      v1 = const {number} : i64
      v2 = {op}(v0, v1) : bool
      v3 = load x[i0*2] if v2 else 7 : f32
      v4 = load x[i0*2 + 1] : f32
      v5 = where(v2, v4, v3) : f32
      store y[i0] = v5
"""


def kernel(place: str, op: str, number: int) -> Kernel:
    return parse_kernel(TESTS.format(place=place, op=op, number=number))


def same(before: Kernel, after: Kernel) -> None:
    x = np.arange(16, dtype=np.float32)
    for k in (before, after):
        assert {b.name for b in k.buffers if b.written} == {"y"}
    found = [interpret_kernel(k, {"x": x})["y"] for k in (before, after)]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("place", "op", "number"),
    [("i0*2 + 1", "ge", 0), ("i0*2 + 1", "gt", 0), ("i0", "lt", 8), ("i0", "le", 7),
     ("i0", "ne", 8), ("(i0*2 + 1)//2 - i0", "eq", 0), ("-i0", "le", 0)],
)  # fmt: skip
def test_what_holds_everywhere(place: str, op: str, number: int) -> None:
    before = kernel(place, op, number)
    after = fold(before)
    same(before, after)
    assert [s.mask for s in statements(after) if isinstance(s, Load)] == [None]
    assert not any(isinstance(s, Compute) for s in statements(after))


@pytest.mark.parametrize(
    ("place", "op", "number"),
    [("i0*2 + 1", "lt", 0), ("i0", "ge", 8), ("i0", "gt", 7), ("i0*2", "eq", -1),
     ("i0 - 8", "ge", 0), ("(i0*2 + 1)//2 - i0", "ne", 0)],
)  # fmt: skip
def test_what_holds_nowhere(place: str, op: str, number: int) -> None:
    before = kernel(place, op, number)
    after = fold(before)
    same(before, after)
    assert isinstance(next(statements(after)), Const)
    assert not any(isinstance(s, Load) for s in statements(after))


@pytest.mark.parametrize(
    ("place", "op", "number"),
    [("i0", "lt", 7), ("i0", "ge", 1), ("i0", "eq", 0), ("i0 % 2", "ne", 1), ("i0 - 1", "ge", 0)],
)
def test_what_hangs_on_the_point_stays(place: str, op: str, number: int) -> None:
    before = kernel(place, op, number)
    assert fold(before) is before


def test_zeros_are_added_once_and_signs_stay() -> None:
    before = parse_kernel("""
kernel k(
    x: f32[4] cpu,
    out y: f32[4] cpu,
    out z: f32[4] cpu,
):
  parallel i0 < 4:
    once:
      v0 = const 0.0 : f32
      v1 = const -0.0 : f32
      v2 = load x[i0] : f32
      v3 = add(v2, v0) : f32
      v4 = add(v0, v3) : f32
      v5 = add(v4, v0) : f32
      v6 = add(v2, v1) : f32
      store y[i0] = v5
      store z[i0] = v6
""")
    after = fold(before)
    assert sum(isinstance(s, Compute) for s in statements(after)) == 2
    x = np.array([-0.0, 0.0, 1.0, np.nan], dtype=np.float32)
    for name in "yz":
        a, b = (interpret_kernel(k, {"x": x})[name] for k in (before, after))
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a[:3]), np.signbit(b[:3]))


def test_logic_of_decided_tests() -> None:
    before = parse_kernel("""
kernel k(
    x: f32[8] cpu,
    out y: f32[8] cpu,
):
  parallel i0 < 8:
    once:
      v0 = index i0 : i64
      v1 = const 0 : i64
      v2 = const 3 : i64
      v3 = ge(v0, v1) : bool
      v4 = lt(v0, v2) : bool
      v5 = and(v3, v4) : bool
      v6 = lt(v0, v1) : bool
      v7 = or(v6, v5) : bool
      v8 = and(v6, v4) : bool
      v9 = or(v3, v4) : bool
      v10 = load x[i0] if v7 else 2 : f32
      v11 = where(v8, v10, v10) : f32
      v12 = where(v9, v11, v10) : f32
      store y[i0] = v12
""")
    after = fold(before)
    (load,) = (s for s in statements(after) if isinstance(s, Load))
    (test,) = (s for s in statements(after) if isinstance(s, Compute))
    assert test.op == "lt" and load.mask == test.out
    x = np.arange(8, dtype=np.float32)
    a, b = (interpret_kernel(k, {"x": x})["y"] for k in (before, after))
    np.testing.assert_array_equal(a, b)


WINDOWS = """
kernel k(
    x: f32[s0] cpu,
    out y: f32[s0//4] cpu,
):
  where s0 in [4, *]
  parallel i0 < s0//4:
    once:
      v0 = index i0*4 : i64
      v1 = index i0*4 + {last} : i64
      v2 = index s0 : i64
      v3 = lt(v1, v2) : bool
      v4 = load x[Min(i0*4 + {last}, s0 - 1)] if v3 else 7 : f32
      v5 = index i0*4 + {last} + 1 : i64
      v6 = minimum(v5, v2) : i64
      v7 = sub(v6, v0) : i64
      v8 = cast(v7) : f32
      v9 = div(v4, v8) : f32
      store y[i0] = v9
"""


@pytest.mark.parametrize(("last", "inside"), [(3, True), (4, False)])
def test_windows_of_a_size_that_is_not_known(last: int, inside: bool) -> None:
    """Those of `s0//4` whole windows end inside: nothing is tested, and each has four elements."""
    before = parse_kernel(WINDOWS.format(last=last))
    after = fold(before)
    assert [s.mask is None for s in statements(after) if isinstance(s, Load)] == [inside]
    numbers = [s.value for s in statements(after) if isinstance(s, Const)]
    assert numbers == ([4.0] if inside else [])
    for size in (4, 7, 8, 18):
        x = np.arange(size, dtype=np.float32)
        found = [interpret_kernel(k, {"x": x})["y"] for k in (before, after)]
        np.testing.assert_array_equal(*found)


WRAPPING = """
kernel k(
    x: f32[64] cpu,
    out y: f32[64] cpu,
):
  parallel i0 < 64:
    once:
      v0 = load x[i0] : f32
      v1 = index i0 : {dtype}
      v2 = const {number} : {dtype}
      {counted}
      v4 = const 0 : {wrapped}
      v5 = lt(v3, v4) : bool
      v6 = const 0 : f32
      v7 = where(v5, v0, v6) : f32
      store y[i0] = v7
"""


@pytest.mark.parametrize(
    ("dtype", "number", "counted", "known"),
    [
        ("i32", 100_000_000, "v3 = mul(v1, v2) : i32", False),
        ("i32", 10_000_000, "v3 = mul(v1, v2) : i32", True),
        ("i64", 6364136223846793005, "v3 = mul(v1, v2) : i64", False),
        ("i32", 2**31 - 32, "v3 = add(v1, v2) : i32", False),
        ("i64", 2**31 + 5, "v3 = cast(v2) : i32", False),
    ],
)
def test_integers_that_wrap_are_no_places(
    dtype: str, number: int, counted: str, known: bool
) -> None:
    """Random numbers are made so, and hashes: what is below zero there is not known."""
    wrapped = counted[-3:]
    text = WRAPPING.format(dtype=dtype, number=number, counted=counted, wrapped=wrapped)
    before = parse_kernel(text)
    after = fold(before)
    assert ("lt" not in str(after)) is known
    x = np.ones(64, np.float32)
    found = [interpret_kernel(k, {"x": x})["y"] for k in (before, after)]
    np.testing.assert_array_equal(*found)


CHOSEN = """
kernel k(
    x: bf16[16] cpu,
    out y: f32[16] cpu,
):
  parallel i0 < 16:
    once:
      v0 = index i0 : i64
      v1 = const 9 : i64
      v2 = lt(v0, v1) : bool
      v3 = load x[i0] if v2 else {other} : bf16
      v4 = cast(v3) : f32
      v5 = const {number} : f32
      v6 = where(v2, v4, v5) : f32
      store y[i0] = v6
"""


@pytest.mark.parametrize(
    ("other", "number", "left"),
    [("0", "0.0", 0), ("0.0", "0.0", 0), ("0", "-0.0", 1), ("-0.0", "0.0", 1), ("1.0", "0.0", 1)],
)
def test_what_a_masked_load_is_elsewhere(other: str, number: str, left: int) -> None:
    before = parse_kernel(CHOSEN.format(other=other, number=number))
    after = fold(before)
    x = np.arange(16, dtype=np.float32)
    found = [interpret_kernel(k, {"x": x})["y"] for k in (before, after)]
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(*map(np.signbit, found))
    assert sum(isinstance(s, Compute) and s.op == "where" for s in statements(after)) == left


PARTS = """
kernel k(
    x: f32[16] cpu,
    out y: f32[8] cpu,
):
  parallel i0 < 8:
    once:
      v0 = index i0 : i64
      v1 = const 2 : i64
      v2 = const 5 : i64
      v3 = const 0.0 : f32
      v4 = {first}(v0, v1) : bool
      v5 = lt(v0, v2) : bool
      v6 = and(v4, v5) : bool
      v7 = load x[i0] if v6 else 0 : f32
      v8 = load x[i0 + 8] if v5 else 0 : f32
      v9 = where(v6, v7, v8) : f32
      v10 = where(v5, v9, v3) : f32
      v11 = load x[2*i0] : f32
      v12 = ge(v0, v2) : bool
      v13 = where(v12, v11, v10) : f32
      store y[i0] = v13{more}
"""


@pytest.mark.parametrize("first", ["lt", "ge"])
def test_parts_of_parts_are_one_tower_of_choices(first: str) -> None:
    before = parse_kernel(PARTS.format(first=first, more=""))
    after = fold_choices(before)
    same(before, after)
    ops = [s.op for s in statements(after) if isinstance(s, Compute)]
    assert ops.count("where") == 2 and ops.count("and") == (first == "ge")


def test_a_part_that_something_else_needs_stays() -> None:
    more = "\n      v14 = add(v13, v10) : f32\n      store y[i0] = v14"
    before = parse_kernel(PARTS.format(first="ge", more=more))
    after = fold_choices(before)
    same(before, after)
    assert sum(isinstance(s, Compute) and s.op == "where" for s in statements(after)) == 3
