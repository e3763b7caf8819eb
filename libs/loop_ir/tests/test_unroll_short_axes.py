"""Short axes whose neighbours share lines, or what is computed, are done at once."""

from __future__ import annotations

import numpy as np
import pytest

from loop_ir import Load, Reduce, interpret_kernel, parse_kernel, print_kernel
from loop_ir.ir import statements
from loop_ir.ir.verify_kernel import KernelVerifier
from loop_ir.passes.unroll_short_axes import rewrite

# Bytes of images whose channels come last, a table that differs by channel, a mask of one of them.
TEXT = """
kernel k(
    x: f32[2, 35, 3] cuda:0,
    m: f32[9] cuda:0,
    c: i64[3] cuda:0,
    w: f32[35] cuda:0,
    out y: f32[2, 3, 35] cuda:0,
):
  parallel i0 < 2, i1 < 3, i2 < 35:
    once:
      a = load x[i0*105 + i2*3 + i1] : f32
      w = load w[i2] : f32
      n = load c[i1] : i64
      t0 = indirect n < 9
      m = load m[t0] : f32
      place = index i1 : i64
      two = const 2 : i64
      last = ge(place, two) : bool
      far = load w[i2 + i1*17 - 34] if last else 0 : f32
      b = mul(a, w) : f32
      d = sub(b, m) : f32
      e = mul(d, far) : f32
      store y[i0*105 + i1*35 + i2] = e
"""


def test_the_same_numbers() -> None:
    kernel = parse_kernel(TEXT.strip())
    whole = rewrite(kernel)
    KernelVerifier(whole).run()
    assert parse_kernel(print_kernel(whole)) == whole
    assert [str(a.symbol) for a in whole.axes] == ["i0", "i1"]
    loads = [s for s in statements(whole) if isinstance(s, Load)]
    # what the points share is read once, and only the last of them reads w at another place
    assert [s.buffer for s in loads].count("w") == 1 and all(s.mask is None for s in loads)
    assert [s.buffer for s in loads].count("x") == 3
    rng = np.random.default_rng(0)
    given = {"x": rng.random((2, 35, 3)), "m": rng.random(9), "w": rng.random(35)}
    given = {n: a.astype(np.float32) for n, a in given.items()} | {"c": np.array([8, 0, -3])}
    want, got = interpret_kernel(kernel, given), interpret_kernel(whole, given)
    np.testing.assert_array_equal(got["y"], want["y"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x[i0*105 + i2*3 + i1]", "x[i0*105 + i1*35 + i2]"),  # nothing is between neighbours
        ("y[i0*105 + i1*35 + i2]", "y[i0*105 + i2*3 + i1]"),  # stored in another order
        ("y[i0*105 + i1*35 + i2] =", "y[i0*105 + i1*35 + i2] +="),
        ("i0*105 + i2*3 + i1] : f32", "i0*105 + i2*3 + i1] : f32\n      u = load y[i2] : f32"),
    ],
)
def test_what_is_left_alone(old: str, new: str) -> None:
    assert old in TEXT
    kernel = parse_kernel(TEXT.replace(old, new).strip())
    assert rewrite(kernel) == kernel


def test_rows_of_a_dynamic_size() -> None:
    """Left alone where they may meet: rows of `s0` that are `s1` apart."""
    text = """
kernel k(
    x: i64[s0, 2] cuda:0,
    out y: i64[2*s0] cuda:0,
):
  where s0 in [2, *] hint 9
  parallel i0 < 2, i1 < s0:
    once:
      a = load x[i1*2 + i0] : i64
      store y[i0*s0 + i1] = a
"""
    whole = rewrite(parse_kernel(text.strip()))
    KernelVerifier(whole).run()
    assert [str(a.extent) for a in whole.axes] == ["s0"]
    text = text.replace("2*s0]", "s0 + s1]").replace("i0*s0", "i0*s1")
    kernel = parse_kernel(text.replace("hint 9", "hint 9\n  where s1 in [2, *] hint 9").strip())
    assert rewrite(kernel) == kernel


def test_not_past_many_statements_nor_points() -> None:
    kernel = parse_kernel(TEXT.strip())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loop_ir.passes.unroll_short_axes._MOST", 2)
        assert rewrite(kernel) == kernel
    many = "".join(f"      x{n} = sin({f'x{n - 1}' if n else 'a'}) : f32\n" for n in range(30))
    text = TEXT.replace("      b = mul(a, w)", f"{many}      b = mul(x29, w)")
    assert rewrite(parse_kernel(text.strip())) == parse_kernel(text.strip())


# Coordinates by weights of all pairs, and how many of these count.
PAIRS = """
kernel k(
    x: f32[600, 3] cuda:0,
    z: f32[7, 3] cuda:0,
    c: i64[7] cuda:0,
    w: f32[9] cuda:0,
    out y: f32[600, 3] cuda:0,
):
  parallel i0 < 600, i1 < 3:
    once:
      here = load x[i0*3 + i1] : f32
      first = load x[i0*3] : f32
      second = load x[i0*3 + 1] : f32
    over r0 < 7:
      a = load z[r0*3] : f32
      b = load z[r0*3 + 1] : f32
      d = sub(first, a) : f32
      e = sub(second, b) : f32
      f = mul(d, d) : f32
      g = mul(e, e) : f32
      h = add(f, g) : f32
      k = load c[r0] : i64
      t0 = indirect k < 9
      u = load w[t0] : f32
      v = mul(h, u) : f32
      there = load z[r0*3 + i1] : f32
      n = sub(here, there) : f32
      p = mul(n, v) : f32
      sum = reduce sum(p) : f32
      most = reduce max(v) : f32
    once:
      q = div(sum, most) : f32
      store y[i0*3 + i1] = q
"""


def test_what_is_reduced_of_pairs_is_computed_once() -> None:
    kernel = parse_kernel(PAIRS.strip())
    whole = rewrite(kernel)
    KernelVerifier(whole).run()
    assert parse_kernel(print_kernel(whole)) == whole
    assert [str(a.symbol) for a in whole.axes] == ["i0"]
    reduces = [s.op for s in statements(whole) if isinstance(s, Reduce)]
    assert sorted(reduces) == ["max", "sum", "sum", "sum"]
    loads = [s for s in statements(whole) if isinstance(s, Load)]
    assert len(loads) == len(set(loads)) == 8  # those of a coordinate are those of all
    rng = np.random.default_rng(0)
    given = {"x": rng.random((600, 3)), "z": rng.random((7, 3)), "w": rng.random(9)}
    given = {n: a.astype(np.float32) for n, a in given.items()}
    given |= {"c": np.array([8, 0, -3, 1, 2, 4, -9])}
    want, got = interpret_kernel(kernel, given), interpret_kernel(whole, given)
    np.testing.assert_array_equal(got["y"], want["y"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("600", "500"),  # programs would be too few
        ("i1 < 3", "i1 < 5"),
        ("load z[r0*3 + 1]", "load z[r0*3 + i1]"),  # half of what is computed differs
        ("y[i0*3 + i1] =", "y[i0*3 + i1] +="),
    ],
)
def test_pairs_that_are_left_alone(old: str, new: str) -> None:
    assert old in PAIRS
    kernel = parse_kernel(PAIRS.replace(old, new).strip())
    assert rewrite(kernel) == kernel


# Of two coordinates the same elements are read, at a place that is data.
PICKED = """
kernel k(
    at: i64[600] cuda:0,
    w: f32[600, 2] cuda:0,
    x: f32[7, 9] cuda:0,
    out y: f32[600, 2] cuda:0,
):
  parallel i0 < 600, i1 < 2:
    once:
      k = load at[i0] : i64
      t0 = indirect k < 9
      f = load w[i0*2 + i1] : f32
    over r0 < 7:
      a = load x[r0*9 + t0] : f32
      b = mul(a, f) : f32
      s = reduce sum(b) : f32
    once:
      store y[i0*2 + i1] = s
"""


def test_what_data_picks_is_read_once() -> None:
    whole = rewrite(parse_kernel(PICKED.strip()))
    assert [s.buffer for s in statements(whole) if isinstance(s, Load)].count("x") == 1
    known = parse_kernel(PICKED.replace("[r0*9 + t0]", "[r0*9 + i0//100]").strip())
    assert rewrite(known) == known


def test_several_short_axes() -> None:
    """Two lines of three, of which one after the other goes; what is behind them is renamed."""
    text = PICKED.replace("w: f32[600, 2]", "w: f32[2, 3, 600]")
    text = text.replace("y: f32[600, 2]", "y: f32[2, 3, 600]").replace("at[i0]", "at[i2]")
    text = text.replace("i0*2 + i1", "i0*1800 + i1*600 + i2")
    text = text.replace("i0 < 600, i1 < 2", "i0 < 2, i1 < 3, i2 < 600")
    kernel = parse_kernel(text.strip())
    whole = rewrite(kernel)
    KernelVerifier(whole).run()
    assert [int(a.extent) for a in whole.axes] == [600]
    rng = np.random.default_rng(0)
    given = {"w": rng.random((2, 3, 600)), "x": rng.random((7, 9))}
    given = {n: a.astype(np.float32) for n, a in given.items()} | {"at": rng.integers(0, 9, 600)}
    want, got = interpret_kernel(kernel, given), interpret_kernel(whole, given)
    np.testing.assert_array_equal(got["y"], want["y"])
