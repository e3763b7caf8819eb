"""Rows that several programs hold together: right whatever runs first, with zeros left behind."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from loop_ir import parse_kernel
from triton_emit import BadSchedule, Schedule, emit
from triton_emit.schedule.held import together
from triton_rt import Target
from triton_rt import compile as compile_kernel

SOFTMAX = """\
kernel softmax(
    x: {dtype}[s0, 45] cuda:0,
    out y: {dtype}[s0, 45] cuda:0,
):
  where s0 in [0, 64] hint 5
  parallel i0 < s0:
    over r0 < 45:
      v0 = load x[i0*45 + r0] : {dtype}
      v1 = reduce max(v0) : {dtype}
    over r0 < 45:
      v2 = sub(v0, v1) : {dtype}
      v3 = exp(v2) : {dtype}
      v4 = reduce sum(v3) : {dtype}
    over r0 < 45:
      v5 = div(v3, v4) : {dtype}
      store y[i0*45 + r0] = v5
"""
# statistics of channels, one of them kept in place, and what they are applied to
NORM = """\
kernel norm(
    x: bf16[4, 3, 11] cuda:0,
    w: f32[3] cuda:0,
    out running: f32[3] cuda:0,
    out y: bf16[4, 3, 11] cuda:0,
):
  parallel i0 < 3:
    over r0 < 4, r1 < 11:
      v0 = load x[33*r0 + 11*i0 + r1] : bf16
      v1 = cast(v0) : f32
      v2, v3 = reduce welford(v1) : f32
    once:
      v4 = const 44.0 : f32
      v5 = div(v3, v4) : f32
      v6 = rsqrt(v5) : f32
      v7 = load w[i0] : f32
      v8 = load running[i0] : f32
      v9 = add(v8, v2) : f32
      store running[i0] = v9
    over r0 < 4, r1 < 11:
      v10 = sub(v1, v2) : f32
      v11 = mul(v10, v6) : f32
      v12 = mul(v11, v7) : f32
      v13 = cast(v12) : bf16
      store y[33*r0 + 11*i0 + r1] = v13
"""
# all rows are one, folded twice
WHOLE = """\
kernel whole(
    x: i32[70] cuda:0,
    out y: i32[70] cuda:0,
    out z: i32[1] cuda:0,
):
  single:
    over r0 < 70:
      v0 = load x[r0] : i32
      v1 = reduce min(v0) : i32
      v2 = reduce sum(v0) : i32
    over r0 < 70:
      v3 = sub(v0, v1) : i32
      v4 = reduce max(v3) : i32
    once:
      v5 = add(v4, v2) : i32
      store z[0] = v5
    over r0 < 70:
      v6 = mul(v3, v5) : i32
      store y[r0] = v6
"""


# a run of two inner axes, and each of them
RUNS = NORM.replace("[4, 3, 11]", "[4, 3, 5, 4]").replace("r1 < 11", "r1 < 5, r2 < 4")
RUNS = RUNS.replace("33*r0 + 11*i0 + r1", "60*r0 + 20*i0 + 4*r1 + r2")
RUNS = RUNS.replace("    w: f32", "    u: bf16[5] cuda:0,\n    t: bf16[4] cuda:0,\n    w: f32")
RUNS = RUNS.replace(
    "      v1 = cast(v0) : f32\n",
    """\
      a0 = load u[r1] : bf16
      a1 = load t[r2] : bf16
      a2 = cast(v0) : f32
      a3 = cast(a0) : f32
      a4 = cast(a1) : f32
      v1 = fma(a2, a3, a4) : f32
""",
)


@pytest.mark.spread(2)
@pytest.mark.parametrize(("share", "rblock"), [(2, 32), (3, 16), (5, 16)])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_softmax(dtype: str, share: int, rblock: int, tools: SimpleNamespace) -> None:
    """The last program of a row finds what all others told; those before fold it alone."""
    kernel = parse_kernel(SOFTMAX.format(dtype=dtype))
    schedule = Schedule("persistent", 1, rblock, share=share)
    for rows in (5, 1, 0):
        tools.check(kernel, schedule, symbols={"s0": rows}, ulp=16)


def test_infinities_and_nan(tools: SimpleNamespace) -> None:
    """Of a piece, of a whole row, and beside others."""
    x = np.random.default_rng(1).standard_normal((6, 45)).astype(np.float32) * 3
    x[1, 3:] = x[2] = -np.inf
    x[3, 17] = np.inf
    x[4, 44] = np.nan
    kernel = parse_kernel(SOFTMAX.format(dtype="f32"))
    schedule = Schedule("persistent", 1, 16, share=3)
    tools.check(kernel, schedule, {"x": x}, symbols={"s0": 6}, ulp=16)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("text", [NORM, WHOLE, RUNS])
def test_statistics_and_what_is_kept(text: str, bits: int, tools: SimpleNamespace) -> None:
    """What is stored of a row once, one program stores."""
    schedule = Schedule("persistent", 1, 32, share=3, index_bits=64 if bits == 64 else 32)
    tools.check(parse_kernel(text), schedule, ulp=16)


def test_one_reading(tools: SimpleNamespace) -> None:
    """One load but for what others keep waiting, in vectors."""
    kernel = parse_kernel(SOFTMAX.format(dtype="f32").replace("45", "100000"))
    emitted = emit(kernel, Schedule("persistent", 1, 16384, num_warps=16, share=7))
    assert emitted.source.count("= tl.load(in0 + ") == 2
    binary = compile_kernel(tools.kernel_source(emitted), Target(90), alignment=0b1111)
    assert binary.shared_bytes < 1024


def test_runs_of_axes_and_axes_of_later_loops(tools: SimpleNamespace) -> None:
    """Are not called the same: Triton holds a name to one shape."""
    emitted = emit(parse_kernel(RUNS), Schedule("persistent", 1, 32, share=3))
    compile_kernel(tools.kernel_source(emitted), Target(90))


def test_threads_of_a_row_of_three_numbers() -> None:
    """Of which each is held for the last phase."""
    loads = "".join(
        f"      a{n} = load x[3*r0 + {n}] : f32\n      m{n} = reduce max(a{n}) : f32\n"
        for n in range(3)
    )
    text = f"""\
kernel three(
    x: f32[98304] cuda:0,
    out y: f32[32768] cuda:0,
):
  single:
    over r0 < 32768:
{loads}    over r0 < 32768:
      b0 = sub(a0, m0) : f32
      b1 = sub(a1, m1) : f32
      b2 = sub(a2, m2) : f32
      c = add(b0, b1) : f32
      d = add(c, b2) : f32
      store y[r0] = d
"""
    schedule = together(parse_kernel(text), 8)
    assert (schedule.rblock, schedule.num_warps) == (4096, 16)


@pytest.mark.parametrize(("share", "rblock"), [(2, 16), (10, 16), (44, 16)])
def test_pieces_are_held_and_not_empty(share: int, rblock: int) -> None:
    with pytest.raises(BadSchedule, match="share"):
        emit(
            parse_kernel(SOFTMAX.format(dtype="f32")),
            Schedule("persistent", 1, rblock, share=share),
        )
