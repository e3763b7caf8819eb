"""A prologue is a device function that makes what its kernel stores, element by element."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import sympy
import torch

from loop_ir import (
    Axis,
    Buffer,
    Compute,
    Device,
    DType,
    Kernel,
    Load,
    Origin,
    Phase,
    Store,
    Symbol,
    TensorRef,
    TensorType,
    contiguous_strides,
    interpret_kernel,
)
from symexpr import FloorDiv, symbol
from triton_emit import BadPrologue, emit_prologue
from triton_rt import KernelParam, KernelSource, load_jit

I0, I1, S0 = symbol("i0"), symbol("i1"), symbol("s0")
I8, F32, BF16 = DType.i8, DType.f32, DType.bf16

# The first place along K.
FIRST = {"a": "tl.program_id(1) * BC", "b": "tl.program_id(0) * BR"}
CALLER = """
@triton.jit
def made(tile_ptr, out_ptr, {params}, rows, columns, BR: tl.constexpr, BC: tl.constexpr):
    r = tl.program_id(0) * BR + tl.arange(0, BR)[:, None]
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    mask = (r < rows) & (c < columns)
    tile = tl.load(tile_ptr + r * columns + c, mask, other=0)
    out = widen(tile, {outer}, {inner}, {first}, mask, ({params},))
    tl.store(out_ptr + r * columns + c, out, mask)
"""


def tensor(dtype: DType, *size: object) -> TensorType:
    return TensorType(dtype, size, contiguous_strides(size), Device("cuda", 0))  # type: ignore[arg-type]


def widen(rows: sympy.Expr) -> tuple[Kernel, TensorRef]:
    """`w[r, c] = bf16(f32(q[r, c]) * s[c] + z[r]) * g[c, r]`, of 40 columns."""
    here = 40 * I0 + I1
    body = (
        Load("q", "q", here, I8), Compute("qf", "cast", ("q",), F32),
        Load("s", "s", I1, F32), Compute("a", "mul", ("qf", "s"), F32),
        Load("z", "z", I0, F32), Compute("b", "add", ("a", "z"), F32),
        Compute("c", "cast", ("b",), BF16), Compute("cf", "cast", ("c",), F32),
        Load("g", "g", rows * I1 + I0, BF16), Compute("gf", "cast", ("g",), F32),
        Compute("d", "mul", ("cf", "gf"), F32), Compute("e", "cast", ("d",), BF16),
        Store("w", here, "e"),
    )  # fmt: skip
    buffers = (
        Buffer("q", tensor(I8, rows, 40)), Buffer("s", tensor(F32, 40)),
        Buffer("z", tensor(F32, rows)), Buffer("g", tensor(BF16, 40, rows)),
        Buffer("w", tensor(BF16, rows, 40), True),
    )  # fmt: skip
    symbols = (Symbol("s0", 1, 512, 64),) if rows.free_symbols else ()
    kernel = Kernel("widen", buffers, (Axis(I0, rows), Axis(I1, sympy.Integer(40))),
                    (Phase((), body),), symbols,
                    (Origin("aten.mul.Tensor", "m.py:3"),))  # fmt: skip
    return kernel, TensorRef("q", tensor(I8, rows, 40))


@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize("rows", [sympy.Integer(37), S0], ids=["static", "dynamic"])
def test_against_the_reference(rows: sympy.Expr, operand: str, tools: SimpleNamespace) -> None:
    kernel, source = widen(rows)
    prologue = emit_prologue(kernel, source, operand, "widen")
    assert prologue.dtype == "bf16"
    names = [name for name, _ in prologue.operands]
    assert names[:3] == [f"{operand}_in{i}" for i in range(3)]
    rng = np.random.default_rng(0)
    given = {
        "q": rng.integers(-99, 99, (37, 40), np.int8),
        "s": rng.standard_normal(40).astype(np.float32),
        "z": rng.standard_normal(37).astype(np.float32),
        "g": torch.from_numpy(rng.standard_normal((40, 37))).bfloat16().float().numpy(),
    }
    expected = interpret_kernel(kernel, given, {"s0": 37})["w"]
    dtypes = {b.name: b.type.dtype for b in kernel.buffers}
    params = ", ".join(names)
    outer, inner = ("r", "c") if operand == "a" else ("c", "r")
    text = prologue.text + CALLER.format(
        params=params, outer=outer, inner=inner, first=FIRST[operand]
    )
    kernel_source = KernelSource(
        "made", text,
        (KernelParam("tile_ptr", "*i8"), KernelParam("out_ptr", "*bf16", True),
         *(KernelParam(*o) for o in prologue.operands),
         KernelParam("rows", "i32"), KernelParam("columns", "i32")),
        (("BR", 16), ("BC", 32)),
    )  # fmt: skip
    out = torch.zeros(37, 40, dtype=torch.bfloat16)
    operands = [
        tools.to_torch(given[a], dtypes[a]) if isinstance(a, str) else 37 for a in prologue.args
    ]
    tile = torch.from_numpy(given["q"])
    load_jit(kernel_source, interpret=True)[(3, 2)](tile, out, *operands, 37, 40, BR=16, BC=32)
    np.testing.assert_array_equal(out.float().numpy(), expected)


def test_the_text_of_one() -> None:
    kernel, source = widen(sympy.Integer(37))
    text = emit_prologue(kernel, source, "a", "widen").text
    assert text.endswith("""\
# aten.mul.Tensor   m.py:3
@triton.jit
def widen(tile, r_outer, rk, first_k, mask, operands):
    a_in0 = operands[0]
    a_in1 = operands[1]
    a_in2 = operands[2]
    a_x0 = tl.load(a_in0 + rk, rk < 40)
    a_x1 = tl.load(a_in1 + r_outer, r_outer < 37)
    value = (tile.to(tl.float32) * a_x0 + a_x1).to(tl.bfloat16)
    a_x2 = tl.load(a_in2 + rk*37 + r_outer, mask).to(tl.float32)
    return (value.to(tl.float32) * a_x2).to(tl.bfloat16)
""")


def test_far_places_are_counted_in_64_bits() -> None:
    kernel, source = widen(S0)
    kernel = replace(kernel, symbols=(Symbol("s0", 1, 2**30, 64),))
    prologue = emit_prologue(kernel, source, "b", "widen")
    assert prologue.bits == 64
    assert "rk = rk.to(tl.int64)" in prologue.text


def test_another_tensor_at_the_same_place_is_loaded() -> None:
    kernel, source = widen(sympy.Integer(37))
    (phase,) = kernel.phases
    body = tuple(replace(s, index=40 * I0 + I1) if isinstance(s, Load) and s.buffer == "g" else s
                 for s in phase.body)  # fmt: skip
    text = emit_prologue(replace(kernel, phases=(Phase((), body),)), source, "a", "widen").text
    assert "tl.load(a_in2 + r_outer*40 + rk, mask)" in text


def test_what_is_no_prologue_is_refused(tools: SimpleNamespace) -> None:
    kernel, source = widen(sympy.Integer(37))
    with pytest.raises(BadPrologue, match="1 parallel axes, or inner ones"):
        emit_prologue(tools.kernels["softmax"], source, "a", "softmax")
    (phase,) = kernel.phases
    twice = (*phase.body, Store("z", I0, "b"))
    with pytest.raises(BadPrologue, match="2 stores"):
        emit_prologue(replace(kernel, phases=(Phase((), twice),)), source, "a", "widen")


I2 = symbol("i2")


def widen_batch() -> tuple[Kernel, TensorRef]:
    """`w[p, r, c] = f32(q[r, c]) * s[p, c] + z[p]`: the products share q."""
    at = 40 * I1 + I2
    body = (
        Load("q", "q", at, I8), Compute("qf", "cast", ("q",), F32),
        Load("s", "s", 40 * I0 + I2, F32), Compute("a", "mul", ("qf", "s"), F32),
        Load("z", "z", I0, F32), Compute("b", "add", ("a", "z"), F32),
        Store("w", 37 * 40 * I0 + at, "b"),
    )  # fmt: skip
    buffers = (
        Buffer("q", tensor(I8, 37, 40)), Buffer("s", tensor(F32, 3, 40)),
        Buffer("z", tensor(F32, 3)), Buffer("w", tensor(F32, 3, 37, 40), True),
    )  # fmt: skip
    axes = tuple(Axis(s, sympy.Integer(n)) for s, n in ((I0, 3), (I1, 37), (I2, 40)))
    sizes = tuple(axis.extent for axis in axes)
    source = TensorType(I8, sizes, tuple(map(sympy.Integer, (0, 40, 1))), Device("cuda", 0))
    return Kernel("widen", buffers, axes, (Phase((), body),)), TensorRef("q", source)


@pytest.mark.parametrize("operand", ["a", "b"])
def test_a_batch(operand: str) -> None:
    """The number of the product comes first."""
    kernel, source = widen_batch()
    prologue = emit_prologue(kernel, source, operand, "widen")
    assert prologue.batched
    assert [a for a in prologue.args if isinstance(a, str)] == ["s", "z"]
    rng = np.random.default_rng(0)
    given = {
        "q": rng.integers(-99, 99, (37, 40), np.int8),
        "s": rng.standard_normal((3, 40)).astype(np.float32),
        "z": rng.standard_normal(3).astype(np.float32),
    }
    expected = interpret_kernel(kernel, given, {})["w"]
    outer, inner = ("r", "c") if operand == "a" else ("c", "r")
    names = [name for name, _ in prologue.operands]
    caller = CALLER.replace("({params},)", "(tl.program_id(2), {params},)")
    text = prologue.text + caller.format(
        params=", ".join(names), outer=outer, inner=inner, first=FIRST[operand]
    )
    text = text.replace("out_ptr + r", "out_ptr + tl.program_id(2) * rows * columns + r")
    made = KernelSource(
        "made", text,
        (KernelParam("tile_ptr", "*i8"), KernelParam("out_ptr", "*f32", True),
         *(KernelParam(*o) for o in prologue.operands),
         KernelParam("rows", "i32"), KernelParam("columns", "i32")),
        (("BR", 16), ("BC", 32)),
    )  # fmt: skip
    out = torch.zeros(3, 37, 40)
    operands = [torch.from_numpy(given[str(a)]) for a in prologue.args]
    tile = torch.from_numpy(given["q"])
    load_jit(made, interpret=True)[(3, 2, 3)](tile, out, *operands, 37, 40, BR=16, BC=32)
    np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.parametrize("size", [2, 8, 32, 64])
@pytest.mark.parametrize("operand", ["a", "b"])
def test_what_groups_along_k_share_is_loaded_once(operand: str, size: int) -> None:
    """`w[r, c] = f32(q[r, c]) * s[r, c // size]`: groups of a tile, and one that is longer."""
    k, o = (I1, I0) if operand == "a" else (I0, I1)
    groups = -(-40 // size)
    rows, columns = (37, 40) if operand == "a" else (40, 37)
    at = columns * I0 + I1
    body = (
        Load("q", "q", at, I8), Compute("qf", "cast", ("q",), F32),
        Load("s", "s", groups * o + FloorDiv(k, size), BF16), Compute("sf", "cast", ("s",), F32),
        Compute("a", "mul", ("qf", "sf"), F32), Store("w", at, "a"),
    )  # fmt: skip
    buffers = (
        Buffer("q", tensor(I8, rows, columns)), Buffer("s", tensor(BF16, 37, groups)),
        Buffer("w", tensor(F32, rows, columns), True),
    )  # fmt: skip
    kernel = Kernel("widen", buffers, (Axis(I0, rows), Axis(I1, columns)), (Phase((), body),))
    prologue = emit_prologue(kernel, TensorRef("q", tensor(I8, rows, columns)), operand, "widen")
    assert f"groups_of(first_k, tile.shape[{'1' if operand == 'a' else '0'}], {size})" in (
        prologue.text
    )
    rng = np.random.default_rng(0)
    given = {
        "q": rng.integers(-99, 99, (rows, columns), np.int8),
        "s": torch.from_numpy(rng.standard_normal((37, groups))).bfloat16().float().numpy(),
    }
    expected = interpret_kernel(kernel, given, {})["w"]
    outer, inner = ("r", "c") if operand == "a" else ("c", "r")
    params = ", ".join(name for name, _ in prologue.operands)
    text = prologue.text + CALLER.format(
        params=params, outer=outer, inner=inner, first=FIRST[operand]
    )
    made = KernelSource(
        "made", text,
        (KernelParam("tile_ptr", "*i8"), KernelParam("out_ptr", "*f32", True),
         *(KernelParam(*o) for o in prologue.operands),
         KernelParam("rows", "i32"), KernelParam("columns", "i32")),
        (("BR", 16), ("BC", 32)),
    )  # fmt: skip
    out = torch.zeros(rows, columns)
    scales = torch.from_numpy(given["s"]).bfloat16()
    grid = (-(-rows // 16), -(-columns // 32))
    tile = torch.from_numpy(given["q"])
    load_jit(made, interpret=True)[grid](tile, out, scales, rows, columns, BR=16, BC=32)
    np.testing.assert_array_equal(out.numpy(), expected)
