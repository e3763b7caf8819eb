"""Rows in pieces, each nearly as long as a power of two."""

from __future__ import annotations

import numpy as np
import pytest

from loop_ir import in_pieces, interpret_kernel, parse_kernel, row_of_pieces
from loop_ir.ir.verify_kernel import KernelVerifier

NORM = """
kernel norm(
    x: f32[3, 29] cuda:0,
    t: i64[29] cuda:0,
    w: f32[7] cuda:0,
    out y: f32[3, 29] cuda:0,
    out m: f32[3] cuda:0,
    out a: bool[3] cuda:0,
):
  parallel i0 < 3:
    over r0 < 29:
      v0 = load x[i0*29 + r0] : f32
      v1, v2 = reduce welford(v0) : f32
      v3 = reduce max(v0) : f32
      v4 = const 0.0 : f32
      v5 = lt(v0, v4) : bool
      v6 = reduce any(v5) : bool
    once:
      v7 = add(v3, v2) : f32
      store m[i0] = v7
      store a[i0] = v6
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
    ("width", "pieces"),
    [(16, [16, 13]), (8, [8, 8, 8, 5]), (4, [4] * 7 + [1]), (2, [2] * 14 + [1])],
)
def test_the_same_numbers(width: int, pieces: list[int]) -> None:
    kernel = parse_kernel(NORM)
    assert row_of_pieces(kernel) == 29
    cut = in_pieces(kernel, width)
    KernelVerifier(cut).run()
    spaces = dict.fromkeys(p.axes for p in cut.phases if p.axes)
    assert [int(a.extent) for (a,) in spaces] == pieces
    rng = np.random.default_rng(0)
    values = {
        "x": rng.standard_normal((3, 29)).astype(np.float32),
        "t": rng.integers(0, 7, 29),
        "w": rng.standard_normal(7).astype(np.float32),
    }
    values["x"][1] = abs(values["x"][1])
    values["x"][2, 20] = np.nan
    for name, want in interpret_kernel(kernel, values).items():
        np.testing.assert_allclose(interpret_kernel(cut, values)[name], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("reduce max(v0)", "reduce argmax(v0)"),
        ("v8 = sub(v0, v1)", "v15 = scan sum(v0) : f32\n      v8 = sub(v15, v1)"),
        (
            "over r0 < 29:\n      v8",
            "over r0 < 29, r1 < 1:\n      v0b = load x[i0*29 + r0] : f32\n      v8",
        ),
    ],
)
def test_rows_that_stay_whole(old: str, new: str) -> None:
    text = NORM.replace(old, new)
    if "argmax" in new:
        text = text.replace("argmax(v0) : f32", "argmax(v0) : i64").replace(
            "add(v3, v2)", "add(v2, v2)"
        )
    if "r1" in new:
        text = text.replace("sub(v0, v1)", "sub(v0b, v1)")
    assert row_of_pieces(parse_kernel(text)) == 0


def test_rows_of_no_one_length_stay_whole() -> None:
    text = NORM.replace("29", "s0").replace(
        "  parallel", "  where s0 in [1, 64] hint 29\n  parallel"
    )
    assert row_of_pieces(parse_kernel(text)) == 0
