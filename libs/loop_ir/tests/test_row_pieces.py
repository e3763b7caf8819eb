"""Rows in pieces, each nearly as long as a power of two."""

from __future__ import annotations

import numpy as np
import pytest

from loop_ir import Kernel, Reduce, in_pieces, interpret_kernel, parse_kernel, row_of_pieces
from loop_ir.ir import statements
from loop_ir.ir.verify_kernel import KernelVerifier
from loop_ir.splitting.row_pieces import NARROW_PIECE

NORM = """
kernel norm(
    x: f32[3, 29] cuda:0,
    t: i64[29] cuda:0,
    w: f32[7] cuda:0,
    out y: f32[3, 29] cuda:0,
    out m: f32[3] cuda:0,
    out a: bool[3] cuda:0,
    out p: i64[3] cuda:0,
    out q: i64[3] cuda:0,
):
  parallel i0 < 3:
    over r0 < 29:
      v0 = load x[i0*29 + r0] : f32
      v1, v2 = reduce welford(v0) : f32
      v3 = reduce max(v0) : f32
      v4 = const 0.0 : f32
      v5 = lt(v0, v4) : bool
      v6 = reduce any(v5) : bool
      v15 = reduce argmax(v0) : i64
      v16 = cast(v0) : i32
      v17 = reduce argmin(v16) : i64
    once:
      v7 = add(v3, v2) : f32
      store m[i0] = v7
      store a[i0] = v6
      store p[i0] = v15
      store q[i0] = v17
    over r0 < 29:
      v8 = sub(v0, v1) : f32
      v9 = load t[r0] : i64
      t0 = indirect v9 < 7
      v10 = load w[t0] : f32
      v11 = mul(v8, v10) : f32
      v12 = index r0 : i64
      v13 = cast(v12) : f32
      v14 = add(v11, v13) : f32
      store y[i0*29 + r0] = v14
"""


@pytest.mark.parametrize(
    ("row", "width", "spaces"),
    [
        (29, 16, [16]),  # two pieces, of the second a mask says what there is
        (29, 8, [8]),
        (29, 2, [2]),
        (300, 256, [256, 32, 12]),
        (300, 128, [128, 32, 12]),  # twice 128
        (999, 512, [512, 487]),
    ],
)
def test_the_same_numbers(row: int, width: int, spaces: list[int]) -> None:
    kernel = parse_kernel(NORM.replace("29", str(row)))
    assert row_of_pieces(kernel) == row
    cut = in_pieces(kernel, width)
    if width > NARROW_PIECE:  # nothing is stored under a mask, whose rows only it tells apart
        KernelVerifier(cut).run()
    found = dict.fromkeys(p.axes for p in cut.phases if p.axes)
    assert [int(a.extent) for (a,) in found] == spaces
    folds = [s for s in statements(cut) if isinstance(s, Reduce)]
    assert len(folds) == 8 * len(spaces)  # pieces of one length are joined first
    rng = np.random.default_rng(0)
    values = {
        "x": rng.standard_normal((3, row)).astype(np.float32),
        "t": rng.integers(0, 7, row),
        "w": rng.standard_normal(7).astype(np.float32),
    }
    values["x"][1] = abs(values["x"][1])
    values["x"][2, 20] = np.nan
    for name, want in interpret_kernel(kernel, values).items():
        np.testing.assert_allclose(interpret_kernel(cut, values)[name], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("v8 = sub(v0, v1)", "v18 = scan sum(v0) : f32\n      v8 = sub(v18, v1)"),
        (
            "over r0 < 29:\n      v8",
            "over r0 < 29, r1 < 1:\n      v0b = load x[i0*29 + r0] : f32\n      v8",
        ),
    ],
)
def test_rows_that_stay_whole(old: str, new: str) -> None:
    text = NORM.replace(old, new)
    if "r1" in new:
        text = text.replace("sub(v0, v1)", "sub(v0b, v1)")
    assert row_of_pieces(parse_kernel(text)) == 0


def _dynamic(high: str) -> Kernel:
    where = f"  where s0 in [0, {high}] hint 29\n  parallel"
    return parse_kernel(NORM.replace("29", "s0").replace("  parallel", where))


@pytest.mark.parametrize("row", [1, 7, 16, 29, 31])
def test_rows_of_several_lengths(row: int) -> None:
    kernel = _dynamic("32")
    assert row_of_pieces(kernel) == 32
    cut = in_pieces(kernel, 8)
    rng = np.random.default_rng(0)
    values = {
        "x": rng.standard_normal((3, row)).astype(np.float32),
        "t": rng.integers(0, 7, row),
        "w": rng.standard_normal(7).astype(np.float32),
    }
    sizes = {"s0": row}
    for name, want in interpret_kernel(kernel, values, sizes).items():
        got = interpret_kernel(cut, values, sizes)[name]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_rows_of_any_length_stay_whole() -> None:
    assert row_of_pieces(_dynamic("*")) == 0


EXTREMES = """
kernel extremes(
    x: {dtype}[4, {row}] cuda:0,
    out m: {dtype}[4] cuda:0,
    out n: {dtype}[4] cuda:0,
    out p: i64[4] cuda:0,
    out q: i64[4] cuda:0,
):
  parallel i0 < 4:
    over r0 < {row}:
      v0 = load x[i0*{row} + r0] : {dtype}
      v1 = reduce max(v0) : {dtype}
      v2 = reduce min(v0) : {dtype}
      v3 = reduce argmax(v0) : i64
      v4 = reduce argmin(v0) : i64
    once:
      store m[i0] = v1
      store n[i0] = v2
      store p[i0] = v3
      store q[i0] = v4
"""


TYPES = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "i64": np.int64, "i8": np.int8,
    "u8": np.uint8, "bool": np.bool_,
}  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_extremes_and_their_places(dtype: str) -> None:
    """Of rows of any width, of which all are alike, the least or the largest numbers, or none."""
    rng = np.random.default_rng(0)
    of = TYPES[dtype]
    if dtype == "bool":
        values = np.array([False, True])
    elif dtype[0] == "f":
        values = np.array([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan], of)
    else:
        values = np.array([np.iinfo(of).min, np.iinfo(of).max, 0, 1], of)
    for row in rng.integers(2, 131, 12).tolist():
        kernel = parse_kernel(EXTREMES.format(dtype=dtype, row=row))
        x = rng.choice(values, (4, row))
        x[0], x[1], x[2, : row // 2] = values[0], values[-1], values[1]
        want = interpret_kernel(kernel, {"x": x})
        np.testing.assert_array_equal(want["p"], x.argmax(1))
        for width in (1, 8, 16, 64):
            found = interpret_kernel(in_pieces(kernel, width), {"x": x}) if width < row else want
            for name in want:
                np.testing.assert_array_equal(found[name], want[name])
