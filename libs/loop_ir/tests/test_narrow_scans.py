"""Scans of small integers count in 32 bits."""

from __future__ import annotations

import numpy as np
import pytest

from loop_ir import interpret_kernel, parse_kernel, print_kernel
from loop_ir.passes.narrow_scans import narrow

TEXT = """
kernel k(
    x: {dtype}[3, {length}] cuda:0,
    out y: i64[3, {length}] cuda:0,
):
  parallel i0 < 3:
    over r0 < {length}:
      v0 = load x[i0*{length} + r0] : {dtype}
      v1 = cast(v0) : i64
      v2 = const -{number} : i64
      v3 = lt(v1, v2) : bool
      v4 = where(v3, v2, v1) : i64
      v5 = scan sum(v4) : i64
      store y[i0*{length} + r0] = v5
"""


@pytest.mark.parametrize(
    ("dtype", "length", "number", "fits"),
    [
        ("bool", 40, 1, True),
        ("i8", 40, 7, True),
        ("u8", 40, 1 << 26, False),
        ("u8", 1 << 23, 1, True),
        ("u8", (1 << 23) + (1 << 16), 1, False),
        ("i16", 1 << 16, 1, False),
        ("i32", 40, 1, False),
    ],
)
def test_sums_that_fit(dtype: str, length: int, number: int, fits: bool) -> None:
    kernel = parse_kernel(TEXT.format(dtype=dtype, length=length, number=number))
    made = narrow(kernel)
    assert ("scan sum(v6) : i32" in " ".join(print_kernel(made).split())) == fits
    assert fits or made is kernel
    if length == 40:
        kind = {"bool": np.bool_, "i8": np.int8, "u8": np.uint8, "i32": np.int32}[dtype]
        x = np.random.default_rng(0).integers(-99, 99, (3, 40)).astype(kind)
        want, got = (interpret_kernel(k, {"x": x})["y"] for k in (kernel, made))
        np.testing.assert_array_equal(got, want)
