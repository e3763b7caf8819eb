"""Stores that combine a value with what memory holds."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from loop_ir import parse_kernel, print_kernel
from triton_emit import Schedule, default_schedule, emit
from triton_rt import Target
from triton_rt import compile as compile_kernel

KERNEL = """\
kernel combine(
    x: DTYPE[300] cuda:0,
    at: i64[300] cuda:0,
    out y: DTYPE[5] cuda:0,
):
  parallel i0 < 300:
    once:
      v0 = load at[i0] : i64
      v1 = const 290 : i64
      v2 = index i0 : i64
      v3 = lt(v2, v1) : bool
      t0 = indirect v0 < 5
      v4 = load x[i0] : DTYPE
      store y[t0] SIGN v4 if v3
"""
SIGNS = {"mul": "*=", "max": "max=", "min": "min=", "add": "+="}
NANS = np.array([0x7FC00000, 0xFFC00000], np.uint32).view(np.float32)


@pytest.mark.parametrize("mode", SIGNS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
def test_combined_with_memory(mode: str, dtype: str, tools: SimpleNamespace) -> None:
    """NaN of either sign is kept, be it there before or not; the last elements are masked, and a
    negative place counts from the end. Place 0 alone is given many values."""
    kernel = parse_kernel(KERNEL.replace("DTYPE", dtype).replace("SIGN", SIGNS[mode]))
    assert parse_kernel(print_kernel(kernel)) == kernel
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, 300).astype({"f": "float", "i": "int"}[dtype[0]] + dtype[1:])
    at = np.zeros(300, np.int64)
    at[[1, 2, 3, 4, 5]] = 1, 2, 3, 4, -1
    x[0::2], y = 1, np.ones(5, x.dtype)
    if dtype[0] == "f":
        x[7::2] = np.exp2(rng.integers(-1, 2, 147)) * rng.choice([-1, 1], 147)  # exact in any order
        y[1:4] = *NANS, 2
        x[[1, 2, 3]] = 1, -1, NANS[1]
        x[299] = NANS[0]
    tools.check(kernel, Schedule("flat", 128), {"x": x, "at": at, "y": y})


@pytest.mark.parametrize("mode", ["mul", "min"])
def test_compiled(mode: str, tools: SimpleNamespace) -> None:
    kernel = parse_kernel(KERNEL.replace("DTYPE", "f32").replace("SIGN", SIGNS[mode]))
    elements = {"mul": 128, "min": 1024}[mode]  # of a large kernel's program
    large = parse_kernel(str(print_kernel(kernel)).replace("300", "9000000"))
    assert default_schedule(large, {}).xblock == elements
    binary = compile_kernel(tools.kernel_source(emit(kernel, Schedule("flat", 32))), Target(90))
    assert binary
