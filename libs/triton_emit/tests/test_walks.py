"""Kernels whose programs walk over rows, and keep sums of columns in registers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from loop_ir import Kernel, parse_kernel
from triton_emit import BadSchedule, Schedule, default_schedule, emit
from triton_rt import Target
from triton_rt import compile as compile_kernel

STATIC = """\
kernel walk(
    x: bf16[40, 24] cuda:0,
    w: bf16[24] cuda:0,
    m: f32[40] cuda:0,
    out y: bf16[40, 24] cuda:0,
    out a: f32[5, 24] cuda:0,
    out b: f32[5, 24] cuda:0,
):
  # from aten.native_layer_norm_backward.default
  parallel i1 < 5, i0 < 8:
    once:
      v0 = load m[i1*8 + i0] : f32
    over r0 < 24:
      v1 = load x[i1*192 + i0*24 + r0] : bf16
      v2 = cast(v1) : f32
      v3 = load w[r0] : bf16
      v4 = cast(v3) : f32
      v5 = mul(v2, v4) : f32
      v6 = reduce sum(v5) : f32
      v7 = mul(v2, v0) : f32
      store a[i1*24 + r0] sum= v7
      store b[i1*24 + r0] sum= v2
    over r0 < 24:
      v8 = sub(v5, v6) : f32
      v9 = cast(v8) : bf16
      store y[i1*192 + i0*24 + r0] = v9
"""
DYNAMIC = """\
kernel walk(
    x: f32[s0, 16] cuda:0,
    out y: f32[s0, 16] cuda:0,
    out a: f32[3, 16] cuda:0,
):
  where s0 in [0, 4096] hint 40
  parallel i1 < 3, i0 < CeilDiv(s0, 3):
    once:
      v0 = index i1*CeilDiv(s0, 3) + i0 : i64
      v1 = index s0 : i64
      v2 = lt(v0, v1) : bool
    over r0 < 16:
      v3 = load x[i1*16*CeilDiv(s0, 3) + i0*16 + r0] if v2 : f32
      v4 = reduce max(v3) : f32
      v5 = const 0.0 : f32
      v6 = where(v2, v3, v5) : f32
      store a[i1*16 + r0] sum= v6
    over r0 < 16:
      v7 = sub(v3, v4) : f32
      store y[i1*16*CeilDiv(s0, 3) + i0*16 + r0] = v7 if v2
"""


@pytest.fixture
def static() -> Kernel:
    return parse_kernel(STATIC)


def test_text(static: Kernel, golden: Callable[[str, str], None]) -> None:
    texts = [emit(static, Schedule("persistent", x, 32, num_stages=2)).source for x in (1, 16)]
    golden("walk.py.txt", "\n\n".join(texts))


@pytest.mark.spread(2)
@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("bits", [32, 64])
def test_computes_what_the_loop_nest_says(
    static: Kernel, rows: int, bits: int, tools: SimpleNamespace
) -> None:
    emitted = tools.check(static, Schedule("persistent", rows, 32, index_bits=bits), ulp=32.0)
    assert emitted.grid[0] == 5
    compile_kernel(tools.kernel_source(emitted), Target(90))


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("size", [0, 1, 2, 40])
def test_dynamic_rows(size: int, rows: int, tools: SimpleNamespace) -> None:
    kernel = parse_kernel(DYNAMIC)
    tools.check(kernel, Schedule("persistent", rows, 16), symbols={"s0": size}, ulp=32.0)


def test_what_is_read_ahead_of_short_rows_is_more(static: Kernel) -> None:
    """24 KiB, or two tiles, which of 4096 elements are 8 KiB of bf16, 16 of f32. Of what comes in
    pieces many warps wait instead."""
    assert default_schedule(static, {}).num_stages == 1
    text = STATIC.replace("24", "32").replace("192", "256")
    assert default_schedule(parse_kernel(text), {}).num_stages == 4
    text = text.replace("x: bf16", "x: f32").replace(
        "v1 = load x[i1*256 + i0*32 + r0] : bf16", "v1 = load x[i1*256 + i0*32 + r0] : f32"
    )
    assert default_schedule(parse_kernel(text), {}).num_stages == 3


def test_schedule(static: Kernel) -> None:
    assert default_schedule(static, {}).kind == "persistent"
    with pytest.raises(BadSchedule, match="sums over rows"):
        emit(static, Schedule("looped", 1, 16))
