"""Prologues and block scales that are used often, as device functions and as values.

A kernel's parameters have the operands of the epilogue first, then of `a`'s prologue, `b`'s, and of
the block scale."""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.errors import InvalidProblem
from gemm_templates.fused import BlockScale, Prologue
from triton_rt import KernelParam


@triton.jit
def as_bf16(tile, r_outer, rk, first_k, mask, operands):
    """Any type to bf16."""
    return tile.to(tl.float32).to(tl.bfloat16)


@triton.jit
def as_f16(tile, r_outer, rk, first_k, mask, operands):
    """Any type to f16."""
    return tile.to(tl.float16)


@triton.jit
def as_f32(tile, r_outer, rk, first_k, mask, operands):
    """Any type to f32."""
    return tile.to(tl.float32)


@triton.jit
def block_scale(rm, rn, first_n, k, operands, BLOCK_K: tl.constexpr, A, B):
    """A: (rows of a block that shares a factor, strides of the factors along m and along k); B:
    (columns, strides along k and along n); or None."""
    column = k // BLOCK_K
    if A is not None:
        a_scale = tl.load(operands[0] + ((rm // A[0]) * A[1] + column * A[2]))
        factor = a_scale.to(tl.float32)
    else:
        factor = 1.0
    if B is not None:
        b_ptr = operands[0 if A is None else 1]
        if rn.shape[1] <= B[0]:  # tiles start at multiples of their size: it is in one block
            b_scale = tl.load(b_ptr + ((first_n // B[0]) * B[2] + column * B[1]))
        else:
            b_scale = tl.load(b_ptr + ((rn // B[0]) * B[2] + column * B[1]))
        factor = factor * b_scale.to(tl.float32)
    return factor


_CASTS = {"bf16": "as_bf16", "f16": "as_f16", "f32": "as_f32"}


def cast_of(dtype: str) -> Prologue:
    """The operand as "bf16", "f16" or "f32", exactly where that has its values: i8 as any, fp8 as
    any (f16 for e5m2: exactly)."""
    if dtype not in _CASTS:
        raise InvalidProblem(f"a prologue to {dtype!r}: expected one of {list(_CASTS)}")
    name = _CASTS[dtype]
    return Prologue(name, f"from gemm_templates.prologues import {name}", (), dtype)


def block_scale_of(
    *,
    a: tuple[int, int | str, int | str] | None = None,
    b: tuple[int, int | str, int | str] | None = None,
    dtype: str = "f32",
    block_k: int = 128,
) -> BlockScale:
    """The factor `a_scale[m // rows, k // block_k] * b_scale[k // block_k, n // columns]`.

    a: (rows that share a factor, stride of `a_scale` along m, along k); None: there is none.
    b: (columns, stride of `b_scale` along k, along n). 1 x 128 and 128 x 128 blocks: `a=(1, ...)`,
    `b=(128, ...)`; weights in groups of 64 along K: `b=(1, ...)` and `block_k=64`. Operands: the
    pointers `a_scale`, `b_scale`, then strides that are names, which are run-time parameters."""
    if a is None and b is None:
        raise InvalidProblem("a block scale of neither operand")
    for size in (block_k, *(x[0] for x in (a, b) if x)):
        if size < 1 or size & (size - 1):
            raise InvalidProblem(f"blocks of {size} that share a factor: expected a power of two")
    name = "block_scale_at"
    operands = [KernelParam("a_scale", f"*{dtype}")] if a else []
    operands += [KernelParam("b_scale", f"*{dtype}")] if b else []
    names = [s for x in (a, b) if x for s in x[1:] if isinstance(s, str)]
    lines = [f"    {s} = operands[{i}]\n" for i, s in enumerate(names, len(operands))]
    operands += [KernelParam(s, "i64") for s in names]
    blocks = ", ".join(f"({', '.join(map(str, x))})" if x else "None" for x in (a, b))
    text = (
        "from gemm_templates.prologues import block_scale\n\n\n@triton.jit\n"
        f"def {name}(rm, rn, first_n, k, operands):\n{''.join(lines)}"
        f"    return block_scale(rm, rn, first_n, k, operands, {block_k}, {blocks})\n"
    )
    return BlockScale(name, text, tuple(operands), block_k)
