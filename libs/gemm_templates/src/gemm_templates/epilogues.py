"""Epilogues that are used often, as device functions and as `Epilogue` values.

The bias is added by the template, before these. Code generators bring their own functions.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.problem import Epilogue
from triton_rt import KernelParam


@triton.jit
def relu(acc, rm, rn, mask, operands):
    return tl.where(acc < 0, 0.0, acc)  # a NaN stays a NaN, as in torch


@triton.jit
def gelu(acc, rm, rn, mask, operands):
    """The exact one: x * (1 + erf(x / sqrt(2))) / 2."""
    return 0.5 * acc * (1.0 + tl.math.erf(acc * 0.7071067811865476))


@triton.jit
def gelu_narrow(acc, rm, rn, mask, operands):
    """The exact GELU to 3e-5 of its value (1.5e-4 below x = -4.2), for 16-bit results:
    max(x, 0) - |x| * 2**g(|x|), a third of the instructions of `gelu`. g is a weighted minimax
    fit of log2(P(X <= -t)) on [0, 6]; at t = 14 what is left is far below the smallest f16."""
    t = tl.minimum(tl.abs(acc), 14.0)
    g = tl.fma(t, 2.60960289e-05, -0.000661173549)
    g = tl.fma(g, t, 0.00749453363)
    g = tl.fma(g, t, -0.0519975449)
    g = tl.fma(g, t, -0.460287581)
    g = tl.fma(g, t, -1.15060518)
    g = tl.fma(g, t, -1.00003441)
    positive = tl.maximum(acc, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.fma(-t, tl.exp2(g), positive)


@triton.jit
def silu(acc, rm, rn, mask, operands):
    return acc / (1.0 + tl.exp(-acc))


@triton.jit
def residual(acc, rm, rn, mask, operands):
    """operands: pointer, row stride, column stride."""
    pointer, stride_m, stride_n = operands
    value = tl.load(pointer + (rm * stride_m + rn * stride_n), mask=mask, other=0.0)
    return acc + value.to(tl.float32)


def _builtin(
    name: str, operands: tuple[KernelParam, ...] = (), bytes_per_element: float = 0, work: float = 4
) -> Epilogue:
    text = f"from gemm_templates.epilogues import {name}"
    return Epilogue(name, text, operands, False, bytes_per_element, work)


RELU = _builtin("relu")
GELU = _builtin("gelu", work=33)
GELU_NARROW = _builtin("gelu_narrow", work=12)
SILU = _builtin("silu", work=12)
ACTIVATIONS = {"relu": RELU, "gelu": GELU, "silu": SILU}


def residual_of(
    dtype: str, itemsize: int, wide: bool = False, stride: tuple[int, int] | None = None
) -> Epilogue:
    """`out + residual[m, n]`; run-time operands: the pointer, its row and column stride. With
    `stride` the strides are literals and the pointer, 16-byte aligned, the only operand: reads
    are wide then."""
    if stride is not None:
        text = (
            "from gemm_templates.epilogues import residual\n\n\n@triton.jit\n"
            "def residual_at(acc, rm, rn, mask, operands):\n"
            f"    return residual(acc, rm, rn, mask, (operands[0], {stride[0]}, {stride[1]}))\n"
        )
        pointer = KernelParam("residual_ptr", f"*{dtype}", aligned=True)
        return Epilogue("residual_at", text, (pointer,), False, itemsize)
    strides = "i64" if wide else "i32"
    operands = (
        KernelParam("residual_ptr", f"*{dtype}"),
        KernelParam("residual_stride_m", strides),
        KernelParam("residual_stride_n", strides),
    )
    return _builtin("residual", operands, itemsize)
