"""Windows in several dimensions are reduced one dimension after the other, where that pays."""

from __future__ import annotations

import re

import numpy as np
import pytest

from loop_ir import Kernel, Load, interpret_kernel, parse_kernel, print_kernel
from loop_ir.ir import statements
from loop_ir.ir.verify_kernel import KernelVerifier
from loop_ir.splitting.separable_windows import separate

# Maxima and sums of 7 x 5 windows, two lines and one column apart, of places two lines apart.
TEXT = """
kernel k(
    x: bf16[3, 40, 31] cuda:0,
    out y: f32[3, 17, 31] cuda:0,
    out z: f32[3, 17, 31] cuda:0,
):
  parallel i0 < 3, i1 < 17, i2 < 31:
    once:
      end = const 40 : i32
      zero = const 0 : i32
    over r0 < 7, r1 < 5:
      row = index 2*i1 + 2*r0 - 3 : i32
      low = ge(row, zero) : bool
      high = lt(row, end) : bool
      rows = and(low, high) : bool
      column = index i2 + r1 - 2 : i32
      left = ge(column, zero) : bool
      most = const 31 : i32
      right = lt(column, most) : bool
      columns = and(left, right) : bool
      inside = and(rows, columns) : bool
      v = load x[i0*1240 + 62*i1 + 62*r0 + i2 + r1 - 95] if inside else 0 : bf16
      w = cast(v) : f32
      a = reduce max(w) : f32
      e = exp(w) : f32
      b = reduce sum(e) : f32
    once:
      place = index i1 : i64
      p = cast(place) : f32
      c = mul(a, p) : f32
      store y[i0*527 + i1*31 + i2] = c
      store z[i0*527 + i1*31 + i2] = b
"""


def parts(text: str) -> list[Kernel]:
    """What a kernel becomes, as if there were so many images of it that launches cost nothing."""
    many = text.strip().replace("parallel i0 < 3", "parallel i0 < 300000")
    assert len(separate(parse_kernel(text.strip()), {}, set())) == 1
    return separate(parse_kernel(many.replace("[3, ", "[300000, ")), {}, {"k", "x", "y", "z"})


def few(kernel: Kernel) -> Kernel:
    """The kernel of as many images as there are."""
    return parse_kernel(re.sub(r"(\d+)00000\b", r"\1", print_kernel(kernel)))


@pytest.mark.parametrize("end", ["const 40", "index 40 - i1"])
def test_the_same_numbers(end: str) -> None:
    """Where a mask is not the line's, the other dimension is left for the end."""
    text = TEXT.replace("const 40", end)
    whole = parse_kernel(text.strip())
    lines, last = map(few, parts(text))
    for kernel in (lines, last):
        KernelVerifier(kernel).run()
        assert all(not p.axes for p in kernel.phases)  # windows of a line are named
    types = {b.name: b.type.dtype.value for b in lines.buffers if b.written}
    assert sorted(types.values()) == ["bf16", "f32"]  # a maximum is one of the numbers read
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (3, 40, 31)).astype(np.float32)
    x[0, 5:7, 3] = np.nan
    x[1, 9] = -np.inf
    want = interpret_kernel(whole, {"x": x})
    got = interpret_kernel(last, interpret_kernel(lines, {"x": x}))
    np.testing.assert_array_equal(got["y"], want["y"])
    np.testing.assert_allclose(got["z"], want["z"], rtol=1e-5)


def test_windows_in_three_dimensions() -> None:
    text = """
kernel k(
    x: f32[3, 9, 9, 9] cuda:0,
    out y: f32[3, 5, 5, 5] cuda:0,
):
  parallel i0 < 3, i1 < 5, i2 < 5, i3 < 5:
    over r0 < 5, r1 < 5, r2 < 5:
      v = load x[i0*729 + i1*81 + r0*81 + i2*9 + r1*9 + i3 + r2] : f32
      a = reduce min(v) : f32
    once:
      store y[i0*125 + i1*25 + i2*5 + i3] = a
"""
    kernels = list(map(few, parts(text)))
    x = np.random.default_rng(0).standard_normal((3, 9, 9, 9)).astype(np.float32)
    want = interpret_kernel(parse_kernel(text.strip()), {"x": x})["y"]
    given: dict[str, np.ndarray] = {"x": x}
    for kernel in kernels:
        KernelVerifier(kernel).run()
        given |= interpret_kernel(kernel, given)
    # 125 places of a window are 25 and 5; the 25 are too few to be parted
    assert [sum(isinstance(s, Load) for s in statements(k)) for k in kernels] == [25, 5]
    np.testing.assert_array_equal(given["y"], want)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("r1 < 5", "r1 < 3"),  # few places
        ("reduce max(w) : f32", "reduce argmax(w) : i64"),
        ("+ r1 - 95]", "+ r1 + r0*r1 - 95]"),
        ("const 0 :", "index i1 + i2 :"),  # neither mask is its line's
        ("reduce sum(e)", "reduce welford(e)"),
    ],
)  # fmt: skip
def test_what_stays_whole(old: str, new: str) -> None:
    assert old in TEXT
    text = TEXT.replace(old, new)
    text = text.replace("b = reduce welford", "b, b1 = reduce welford")
    if "argmax" in new:
        text = text.replace("c = mul(a, p)", "a1 = cast(a) : f32\n      c = mul(a1, p)")
    assert len(parts(text)) == 1
