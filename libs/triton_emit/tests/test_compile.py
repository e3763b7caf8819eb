"""The same text compiles for a GPU (no GPU needed)."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import sympy
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from loop_ir import (
    Axis,
    Buffer,
    Compute,
    Const,
    Device,
    DType,
    Kernel,
    Load,
    Phase,
    Store,
    TensorType,
    parse_kernel,
)
from symexpr import symbol
from triton_emit import Schedule, default_schedule, emit
from triton_rt import Target, load_jit
from triton_rt import compile as compile_kernel


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("gelu_bias_dynamic", None),
        ("add_norm", None),
        ("embed_norm", Schedule("looped", 4, 128, index_bits=64)),
        ("softmax", Schedule("persistent", 4, 1024)),
        ("softmax_wide", None),
        ("attention_mask", None),
    ],
)
def test_compiles_for_sm_90(name: str, schedule: Schedule | None, tools: SimpleNamespace) -> None:
    kernel = tools.kernels[name]
    emitted = emit(kernel, schedule or default_schedule(kernel, {"s0": 64}))
    binary = compile_kernel(tools.kernel_source(emitted), Target(90))
    assert binary.name == name


@pytest.mark.parametrize("number", [4.5917748078995606e-40, 1.2345e-7, 1.2345e-5, 3e38, 0.1, -0.3])
def test_numbers_of_16_bits_are_what_they_say(number: float, tools: SimpleNamespace) -> None:
    """Triton writes a constant of bf16 with six decimals."""
    i0, n = symbol("i0"), sympy.Integer(64)
    bits = int(torch.tensor(number, dtype=torch.bfloat16).view(torch.int16))
    body = (
        Load("x", "x", i0, DType.bf16), Const("s", number, DType.bf16),
        Compute("le", "le", ("x", "s"), DType.bool_),
        Compute("w", "where", ("le", "x", "s"), DType.bf16), Store("y", i0, "w"),
    )  # fmt: skip
    type_ = TensorType(DType.bf16, (n,), (sympy.S.One,), Device("cuda", 0))
    buffers = (Buffer("x", type_, False), Buffer("y", type_, True))
    kernel = Kernel("chosen", buffers, (Axis(i0, n),), (Phase((), body),))
    source = tools.kernel_source(emit(kernel, Schedule("flat", 64)))
    types = {p.name: p.kind for p in source.params} | {"XBLOCK": "constexpr"}
    traced = ASTSource(load_jit(source, interpret=False), types, {"XBLOCK": 64})
    ptx = triton.compile(traced, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    constants = re.findall(r"(?:mov|selp)\.b16 .* (-?\w+)[,;]", ptx)
    assert {int(c, 0) & 0xFFFF for c in constants} == {bits & 0xFFFF}


def test_one_integer_to_many_powers(tools: SimpleNamespace) -> None:
    i0, n = symbol("i0"), sympy.Integer(64)
    body = (
        Load("x", "x", sympy.S.Zero, DType.i64), Load("y", "y", i0, DType.i64),
        Compute("p", "pow", ("x", "y"), DType.i64), Store("out", i0, "p"),
    )  # fmt: skip
    cuda = Device("cuda", 0)
    kernel = Kernel(
        "powers",
        (Buffer("x", TensorType(DType.i64, (), (), cuda)),
         Buffer("y", TensorType(DType.i64, (n,), (sympy.S.One,), cuda)),
         Buffer("out", TensorType(DType.i64, (n,), (sympy.S.One,), cuda), written=True)),
        (Axis(i0, n),), (Phase((), body),),
    )  # fmt: skip
    emitted = emit(kernel, default_schedule(kernel, {}))
    assert compile_kernel(tools.kernel_source(emitted), Target(90)).name == "powers"


# Elements two apart along the last axis, with factors of rows.
STEPS = """
kernel steps(
    x: f32[512, 128] cuda:0,
    w: f32[512, 3] cuda:0,
    out y: f32[512, 32] cuda:0,
):
  parallel i0 < 512, i1 < 32:
    once:
      a = load x[i0*128 + i1*2] : f32
      b = load x[i0*128 + i1*2 + 1] : f32
      c = load x[i0*128 + i1*2 + 64] : f32
      u = load w[i0*3] : f32
      v = load w[i0*3 + 1] : f32
      w = load w[i0*3 + 2] : f32
      d = mul(a, u) : f32
      e = mul(b, v) : f32
      f = mul(c, w) : f32
      g = add(d, e) : f32
      h = add(f, g) : f32
      store y[i0*32 + i1] = h
"""

# Rows of odd length with biases of a table, at places that are data.
BIASED = """
kernel biased(
    x: f32[4096, 49] cuda:0,
    at: i64[49] cuda:0,
    bias: f32[512, 8] cuda:0,
    out y: f32[4096, 49] cuda:0,
):
  parallel i0 < 4096:
    over r0 < 49:
      a = load x[i0*49 + r0] : f32
      n = load at[r0] : i64
      t0 = indirect n < 512
      b = load bias[t0*8 + i0//512] : f32
      c = add(a, b) : f32
      top = reduce max(c) : f32
    over r0 < 49:
      d = sub(c, top) : f32
      store y[i0*49 + r0] = d
"""


def laid_out(tools: SimpleNamespace, kernel: Kernel, schedule: Schedule) -> str:
    """The kernel, which is right, as Triton lays out its tiles."""
    source = tools.kernel_source(tools.check(kernel, schedule))
    kinds = {"f32": "fp32"}
    types = {p.name: "*" + kinds.get(p.kind[1:], p.kind[1:]) for p in source.params}
    types |= dict.fromkeys(dict(source.constants), "constexpr")
    traced = ASTSource(load_jit(source, interpret=False), types, dict(source.constants))
    options = {"num_warps": schedule.num_warps}
    made = triton.compile(traced, target=GPUTarget("cuda", 90, 32), options=options)
    return str(made.asm["ttgir"])


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        (STEPS, Schedule("tiled", 32, num_warps=4, yblock=32, vector=1)),
        (BIASED, Schedule("persistent", 16, 64, num_warps=4)),
    ],
)
def test_lanes_lie_along_what_is_stored(
    text: str, schedule: Schedule, tools: SimpleNamespace
) -> None:
    """Where no neighbours are known Triton lays lanes along the first dimension of a tile: tiles of
    elements go through no shared memory on their way from loads to the store."""
    made = laid_out(tools, parse_kernel(text.strip()), schedule)
    rows, columns = schedule.xblock, schedule.yblock * schedule.rblock
    assert f"tensor<{rows}x{columns}xf32" in made
    assert not re.search(rf"convert_layout .*tensor<{rows}x{columns}x", made), made


# Channels that come last and first, of planes of 7 x 9 places.
PLANES = """
kernel planes(
    x: f32[4, 7, 9, 64] cuda:0,
    out y: f32[4, 64, 7, 9] cuda:0,
):
  parallel i0 < 4, i1 < 7, i2 < 9, i3 < 64:
    once:
      a = load x[i0*4032 + i1*576 + i2*64 + i3] : f32
      store y[i0*4032 + i3*63 + i1*9 + i2] = a
"""
TO_LAST = """
kernel to_last(
    x: f32[4, 64, 7, 9] cuda:0,
    out y: f32[4, 7, 9, 64] cuda:0,
):
  parallel i0 < 4, i1 < 7, i2 < 9, i3 < 64:
    once:
      a = load x[i0*4032 + i3*63 + i1*9 + i2] : f32
      store y[i0*4032 + i1*576 + i2*64 + i3] = a
"""


@pytest.mark.parametrize(("text", "access"), [(PLANES, "store"), (TO_LAST, "load")])
def test_lanes_lie_along_rows_of_an_odd_length(
    text: str, access: str, tools: SimpleNamespace
) -> None:
    """Triton knows of no neighbours where places are counted in planes of 63."""
    schedule = Schedule("tiled", 64, num_warps=4, yblock=32)
    made = laid_out(tools, parse_kernel(text.strip()), schedule)
    tile = rf"tt.{access} .*tensor<32x64x!tt.ptr<f32>, (#blocked\d*)>"
    found = re.search(tile, made)
    assert found is not None, made
    layout = re.search(rf"^{found[1]} = .*threadsPerWarp = \[(\d+), 1\]", made, re.MULTILINE)
    assert layout is not None and layout[1] == "32"


def test_gathered_rows_are_one_warp() -> None:
    assert default_schedule(parse_kernel(BIASED.strip()), {}) == Schedule("persistent", 4, 64, 1)


# One of three numbers for each of 64 components of a mixture.
MIXTURE = """
kernel mixture(
    x: f32[131072, 64, 3] cuda:0,
    out y: f32[131072] cuda:0,
):
  parallel i0 < 131072:
    over r0 < 64:
      a = load x[i0*192 + r0*3 + 1] : f32
      b = load x[i0*192 + r0*3] : f32
      c = mul(a, b) : f32
      top = reduce max(c) : f32
    once:
      store y[i0] = top
"""

# Distances of all pairs.
PAIRS = """
kernel pairs(
    x: f32[3, 3000, 2] cuda:0,
    z: f32[3, 300, 2] cuda:0,
    out y: f32[3, 3000] cuda:0,
):
  parallel i0 < 3, i1 < 3000:
    once:
      a = load x[i0*6000 + i1*2] : f32
      b = load x[i0*6000 + i1*2 + 1] : f32
    over r0 < 300:
      c = load z[i0*600 + r0*2] : f32
      d = load z[i0*600 + r0*2 + 1] : f32
      e = sub(a, c) : f32
      f = sub(b, d) : f32
      g = mul(e, f) : f32
      low = reduce min(g) : f32
    once:
      store y[i0*3000 + i1] = low
"""


def test_rows_of_elements_that_lie_apart_are_one_warp() -> None:
    kernel = parse_kernel(MIXTURE.strip())
    assert default_schedule(kernel, {}) == Schedule("persistent", 4, 64, 1)
    beside = parse_kernel(MIXTURE.strip().replace("i0*192 + r0*3 + 1", "i0*64 + r0"))
    assert default_schedule(beside, {}).num_warps == 4


def test_neighbours_read_at_once_what_all_are_compared_with(tools: SimpleNamespace) -> None:
    """A tile has rows of one place of the outer axes, and what they share is one row of it."""
    kernel = parse_kernel(PAIRS.strip())
    schedule = Schedule("looped", 16, 64, 4)
    assert default_schedule(kernel, {}) == schedule
    source = tools.check(kernel, schedule).source
    assert "tl.load(in1 + row*600 + rindex*2, rmask)" in source, source
    own = parse_kernel(
        PAIRS.strip().replace("z[i0*600 + r0*2]", "z[i0*600 + r0*2 + i1*0 + i1//3000]")
    )
    assert default_schedule(own, {}).kind == "persistent"
