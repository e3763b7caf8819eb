"""Philox in kernels: the reference's bits, 64-bit counters, and that it compiles."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from loop_ir import parse_kernel
from triton_emit import Schedule, default_schedule, emit
from triton_rt import Target
from triton_rt import compile as compile_kernel

BITS = """
kernel k(
    seeds: i64[2] cuda:0,
    x: f32[{n}] cuda:0,
    out y: f32[{n}] cuda:0,
    out z: i64[{n}] cuda:0,
):
  parallel i0 < {n}:
    once:
      v0 = load seeds[1] : i64
      v1 = index i0 + {start} : i64
      v2 = philox(v0, v1) : u32
      v3 = const 8 : u32
      v4 = shr(v2, v3) : u32
      v5 = cast(v4) : f32
      v6 = load x[i0] : f32
      v7 = mul(v5, v6) : f32
      store y[i0] = v7
      v8 = cast(v2) : i64
      store z[i0] = v8
"""


@pytest.mark.parametrize("start", [0, 3 << 32])
@pytest.mark.parametrize("bits", [32, 64])
def test_bits(start: int, bits: int, tools: SimpleNamespace) -> None:
    if start and bits == 32:
        return  # such an index is a 64-bit one
    seeds = np.array([0, 0x123456789ABCDEF], np.int64)
    kernel = parse_kernel(BITS.format(n=100, start=start))
    tools.check(kernel, Schedule("flat", 64, index_bits=bits), {"seeds": seeds}, ulp=0)


def test_compiles(tools: SimpleNamespace) -> None:
    kernel = parse_kernel(BITS.format(n=1 << 20, start=0))
    emitted = emit(kernel, default_schedule(kernel, {}))
    binary = compile_kernel(tools.kernel_source(emitted), Target(90))
    # a round is one wide product and one exclusive or of three
    assert binary.ptx.count("mul.wide.u32") >= 10 or not binary.ptx
