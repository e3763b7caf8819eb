"""Kernels whose points read the same element as their neighbours."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from loop_ir import Kernel, parse_kernel
from triton_emit import BadSchedule, Schedule, default_schedule, emit
from triton_emit.pairs import paired

NEAREST = """
kernel k(
    x: f32[6, 5, 8] cuda:0,
    out y: f32[6, 10, 16] cuda:0,
):
  parallel i0 < 6, i1 < 10, i2 < 16:
    once:
      v0 = load x[i0*40 + i1//2*8 + i2//2] : f32
      store y[i0*160 + i1*16 + i2] = v0
"""

# two results, one of them the same for both neighbours, and a number that hangs on the place
WEIGHED = """
kernel k(
    x: bf16[6, 9] cuda:0,
    out y: f32[6, 16] cuda:0,
    out z: bf16[6, 16] cuda:0,
    out c: f32[6, 16] cuda:0,
):
  parallel i0 < 6, i1 < 16:
    once:
      v0 = index i1 : f32
      v1 = load x[i0*9 + (i1 + 1)//2] : bf16
      v2 = cast(v1) : f32
      v3 = mul(v2, v0) : f32
      v4 = load x[i0*9 + i1//2] : bf16
      v5 = const 0.5 : f32
      store y[i0*16 + i1] = v3
      store z[i0*16 + i1] = v4
      store c[i0*16 + i1] = v5
"""


def kernel(text: str) -> Kernel:
    return parse_kernel(text)


@pytest.mark.parametrize("text", [NEAREST, WEIGHED])
@pytest.mark.parametrize("block", [16, 64])
def test_neighbours_are_stored_in_turns(tools: SimpleNamespace, text: str, block: int) -> None:
    k = kernel(text)
    schedule = default_schedule(k, {})
    assert schedule.pairs
    for made in (schedule, replace(schedule, xblock=block, num_warps=1)):
        tools.check(k, schedule=made)
    source = emit(k, schedule).source
    assert "tl.interleave" in source
    if text is NEAREST:
        assert source.count("tl.load") == source.count("tl.store") == 1


def test_points_that_read_alone_are_no_pairs() -> None:
    for old, new in (("i2//2]", "i2//3]"), ("i2 < 16", "i2 < 15"), ("+ i2] =", "+ 2*i2] ="),
                     ("i2//2]", "2*i2//2]")):  # fmt: skip
        assert NEAREST.replace(old, new) != NEAREST
        k = kernel(NEAREST.replace(old, new))
        assert paired(k) is None
        with pytest.raises(BadSchedule, match="pairs"):
            emit(k, Schedule("flat", 128, pairs=True))
