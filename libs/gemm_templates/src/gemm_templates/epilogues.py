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
GELU = _builtin("gelu", work=30)
SILU = _builtin("silu", work=12)
ACTIVATIONS = {"relu": RELU, "gelu": GELU, "silu": SILU}


def residual_of(dtype: str, itemsize: int, wide: bool = False) -> Epilogue:
    """`out + residual[m, n]`; run-time operands: the pointer, its row and column stride."""
    strides = "i64" if wide else "i32"
    operands = (
        KernelParam("residual_ptr", f"*{dtype}"),
        KernelParam("residual_stride_m", strides),
        KernelParam("residual_stride_n", strides),
    )
    return _builtin("residual", operands, itemsize)
