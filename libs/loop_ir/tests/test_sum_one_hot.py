"""Sums of rows in which one element differs are computed once a row."""

from __future__ import annotations

import numpy as np
import pytest

from loop_ir import Reduce, interpret_kernel, parse_kernel, print_kernel
from loop_ir.ir.analysis import statements
from loop_ir.ir.verify_kernel import KernelVerifier
from loop_ir.passes.sum_one_hot import rewrite

TEXT = """
kernel k(
    x: f32[5, 8] cuda:0,
    t: i64[5] cuda:0,
    w: f32[5] cuda:0,
    out y: f32[5, 8] cuda:0,
    out z: f32[5] cuda:0,
):
  parallel i0 < 5:
    once:
      v0 = load t[i0] : i64
      v1 = load w[i0] : f32
    over r0 < 8:
      v2 = index r0 : i64
      v3 = eq(v0, v2) : bool
      v4 = const -1.0 : f32
      v5 = const 0.25 : f32
      v6 = where(v3, v4, v5) : f32
      v7 = mul(v6, v1) : f32
      v8 = reduce sum(v7) : f32
    once:
      store z[i0] = v8
    over r0 < 8:
      v9 = load x[i0*8 + r0] : f32
      v10 = mul(v9, v8) : f32
      v11 = add(v7, v10) : f32
      store y[i0*8 + r0] = v11
"""


def reduces(text: str) -> bool:
    return any(isinstance(s, Reduce) for s in statements(rewrite(parse_kernel(text))))


def test_the_same_numbers() -> None:
    kernel = parse_kernel(TEXT)
    slim = rewrite(kernel)
    assert not any(isinstance(s, Reduce) for s in statements(slim))
    KernelVerifier(slim).run()
    assert parse_kernel(print_kernel(slim)) == slim
    rng = np.random.default_rng(0)
    given = {
        "x": rng.standard_normal((5, 8)).astype(np.float32),
        "t": np.array([0, 7, 3, -100, 8]),  # the last two are no places of the row
        "w": np.array([1.0, -2.0, 0.5, 3.0, np.inf], np.float32),
    }
    want, got = interpret_kernel(kernel, given), interpret_kernel(slim, given)
    for name in ("y", "z"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mul(v6, v1)", "mul(v6, v6)"),
        ("const 0.25", "const 0.0"),
        ("load t[i0]", "load t[0]"),
    ],
)
def test_what_is_such_a_sum(old: str, new: str) -> None:
    assert old in TEXT and not reduces(TEXT.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("      v5 = const 0.25 : f32\n", "      v5 = load x[r0] : f32\n"),  # they all differ
        ("index r0", "index 2*r0"),
        ("eq(v0, v2)", "ge(v0, v2)"),
        ("reduce sum(v7)", "reduce max(v7)"),
        ("mul(v6, v1) : f32", "cast(v2) : f32"),
    ],
)
def test_what_is_none(old: str, new: str) -> None:
    assert old in TEXT and reduces(TEXT.replace(old, new))
