"""An epilogue is a device function that computes what its kernel says, element by element."""

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
    Const,
    Device,
    DType,
    Kernel,
    Load,
    Origin,
    Phase,
    Store,
    Symbol,
    TensorType,
    contiguous_strides,
    interpret_kernel,
)  # fmt: skip
from symexpr import FloorDiv, symbol
from triton_emit import BadEpilogue, emit_epilogue
from triton_rt import KernelParam, KernelSource, load_jit

M, N = symbol("i0"), symbol("i1")
S0 = symbol("s0")
F32, BF16 = DType.f32, DType.bf16

CALLER = """
@triton.jit
def tile(acc_ptr, out_ptr, {params}, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    rn = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    mask = (rm < rows) & (rn < columns)
    acc = tl.load(acc_ptr + rm * columns + rn, mask, other=0.0)
    tl.store(out_ptr + rm * columns + rn, {name}(acc, rm, rn, mask, ({params},)), mask)
"""


def tensor(dtype: DType, *size: object) -> TensorType:
    return TensorType(dtype, size, contiguous_strides(size), Device("cuda", 0))  # type: ignore[arg-type]


def bias_gelu_residual(rows: sympy.Expr) -> Kernel:
    here = 48 * M + N
    body = (
        Load("a", "mm", here, BF16), Compute("af", "cast", ("a",), F32),
        Load("b", "bias", N, BF16), Compute("bf", "cast", ("b",), F32),
        Compute("t", "add", ("af", "bf"), F32), Compute("g", "tanh", ("t",), F32),
        Load("s", "scale", M, F32), Compute("u", "mul", ("g", "s"), F32),
        Load("r", "res", rows * N + M, BF16), Compute("rf", "cast", ("r",), F32),
        Compute("o", "add", ("u", "rf"), F32), Const("c", 0.5, F32),
        Compute("oh", "mul", ("o", "c"), F32), Compute("ob", "cast", ("oh",), BF16),
        Store("y", here, "ob"),
    )  # fmt: skip
    buffers = (
        Buffer("mm", tensor(BF16, rows, 48)), Buffer("bias", tensor(BF16, 48)),
        Buffer("scale", tensor(F32, rows)), Buffer("res", tensor(BF16, 48, rows)),
        Buffer("y", tensor(BF16, rows, 48), True),
    )  # fmt: skip
    symbols = (Symbol("s0", 1, 512, 64),) if rows.free_symbols else ()
    return Kernel("tail", buffers, (Axis(M, rows), Axis(N, sympy.Integer(48))),
                  (Phase((), body),), symbols,
                  (Origin("aten.tanh.default", "m.py:3"),))  # fmt: skip


@pytest.mark.parametrize("rows", [sympy.Integer(37), S0], ids=["static", "dynamic"])
def test_against_the_reference(rows: sympy.Expr, tools: SimpleNamespace) -> None:
    kernel = bias_gelu_residual(rows)
    epilogue = emit_epilogue(kernel, "mm")
    rng = np.random.default_rng(0)
    acc = torch.from_numpy(rng.standard_normal((37, 48)).astype(np.float32))
    given = {
        "mm": acc.bfloat16().float().numpy(),
        "bias": torch.from_numpy(rng.standard_normal(48)).bfloat16().float().numpy(),
        "scale": rng.standard_normal(37).astype(np.float32),
        "res": torch.from_numpy(rng.standard_normal((48, 37))).bfloat16().float().numpy(),
    }
    expected = interpret_kernel(kernel, given, {"s0": 37})["y"]
    dtypes = {b.name: b.type.dtype for b in kernel.buffers}
    params = ", ".join(name for name, _ in epilogue.operands)
    text = epilogue.text + CALLER.format(params=params, name=epilogue.name)
    source = KernelSource(
        "tile", text,
        (KernelParam("acc_ptr", "*f32"), KernelParam("out_ptr", "*bf16", True),
         *(KernelParam(*o) for o in epilogue.operands),
         KernelParam("rows", "i32"), KernelParam("columns", "i32")),
        (("BM", 16), ("BN", 32)),
    )  # fmt: skip
    out = torch.zeros(37, 48, dtype=torch.bfloat16)
    operands = [
        tools.to_torch(given[a], dtypes[a]) if isinstance(a, str) else 37 for a in epilogue.args
    ]
    load_jit(source, interpret=True)[(3, 2)](acc, out, *operands, 37, 48, BM=16, BN=32)
    tools.close(out.float().numpy(), expected, BF16, 2.0, epilogue.text)
    assert (epilogue.out, epilogue.out_dtype, epilogue.out_stride) == ("y", "bf16", (48, 1))


def test_operand_names_do_not_depend_on_buffer_names() -> None:
    kernel = bias_gelu_residual(sympy.Integer(37))
    epilogue = emit_epilogue(kernel, "mm", name="epilogue")
    assert epilogue.operands == (("in0", "*bf16"), ("in1", "*f32"), ("in2", "*bf16"))
    assert epilogue.args == ("bias", "scale", "res")
    assert "acc.to(tl.bfloat16).to(tl.float32)" in epilogue.text
    assert "def epilogue(acc, rm, rn, mask, operands):" in epilogue.text


def test_what_is_no_epilogue_is_refused(tools: SimpleNamespace) -> None:
    kernel = bias_gelu_residual(sympy.Integer(37))
    with pytest.raises(BadEpilogue, match="1 parallel axes, or inner ones"):
        emit_epilogue(tools.kernels["softmax"], "x")
    with pytest.raises(BadEpilogue, match=r"reads mm\[48\*i0 \+ i1\], not"):
        emit_epilogue(kernel, "mm", out_stride=(sympy.S.One, sympy.Integer(37)))
    body = kernel.phases[0].body
    twice = replace(kernel, phases=(Phase((), (*body, Store("res", 37 * N + M, "ob"))),))
    with pytest.raises(BadEpilogue, match="2 stores"):
        emit_epilogue(twice, "mm")


def test_a_batch_is_the_first_operand(tools: SimpleNamespace) -> None:
    """`y[b, m, n] = acc * mask[b % 3, m, n] + bias[b // 3]`, for products that lie apart."""
    batch, rows, columns = sympy.Integer(6), sympy.Integer(20), sympy.Integer(48)
    index = symbol("b")
    here = index * 1000 + 48 * M + N
    body = (
        Load("a", "mm", here, BF16), Compute("af", "cast", ("a",), F32),
        Load("s", "mask", sympy.Mod(index, 3) * 960 + 48 * M + N, F32),
        Load("c", "bias", FloorDiv(index, 3), F32),
        Compute("o", "mul", ("af", "s"), F32), Compute("p", "add", ("o", "c"), F32),
        Store("y", index * 960 + 48 * M + N, "p"),
    )  # fmt: skip
    buffers = (
        Buffer("mm", replace(tensor(BF16, batch, rows, columns), stride=(1000, 48, 1))),
        Buffer("mask", tensor(F32, 3, rows, columns)), Buffer("bias", tensor(F32, 2)),
        Buffer("y", tensor(F32, batch, rows, columns), True),
    )  # fmt: skip
    axes = (Axis(index, batch), Axis(M, rows), Axis(N, columns))
    kernel = Kernel("tail", buffers, axes, (Phase((), body),))
    epilogue = emit_epilogue(kernel, "mm", "epilogue", (1000, 48, 1))
    assert epilogue.batched
    assert epilogue.out_stride == (960, 48, 1)
    assert "batch = operands[0].to(tl.int32)" in epilogue.text
    rng = np.random.default_rng(0)
    acc = torch.from_numpy(rng.standard_normal((6, 20, 48)).astype(np.float32))
    given = {
        "mm": acc.bfloat16().float().numpy(),
        "mask": rng.standard_normal((3, 20, 48)).astype(np.float32),
        "bias": rng.standard_normal(2).astype(np.float32),
    }
    expected = interpret_kernel(kernel, given, {})["y"]
    caller = CALLER.replace("acc_ptr +", "acc_ptr + tl.program_id(2) * 960 +")
    caller = caller.replace("out_ptr +", "out_ptr + tl.program_id(2) * 960 +")
    caller = caller.replace("mask, (", "mask, (tl.program_id(2), ")
    params = ", ".join(name for name, _ in epilogue.operands)
    source = KernelSource(
        "tile", epilogue.text + caller.format(params=params, name="epilogue"),
        (KernelParam("acc_ptr", "*f32"), KernelParam("out_ptr", "*f32", True),
         *(KernelParam(*o) for o in epilogue.operands),
         KernelParam("rows", "i32"), KernelParam("columns", "i32")),
        (("BM", 16), ("BN", 32)),
    )  # fmt: skip
    out = torch.zeros(6, 20, 48)
    operands = [torch.from_numpy(given[str(a)]) for a in epilogue.args]
    load_jit(source, interpret=True)[(2, 2, 6)](acc, out, *operands, 20, 48, BM=16, BN=32)
    tools.close(out.numpy(), expected, F32, 2.0, epilogue.text)
