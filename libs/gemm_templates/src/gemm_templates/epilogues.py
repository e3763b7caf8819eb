"""Epilogues that are used often, as device functions and as `Epilogue` values.

The bias is added by the template, before these. Code generators bring their own functions."""

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl

from gemm_templates.errors import InvalidProblem
from gemm_templates.fused import Epilogue
from gemm_templates.problem import ITEMSIZE
from triton_rt import KernelParam


@triton.jit
def relu(acc, rm, rn, mask, operands):
    """max(x, 0)."""
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
    value = tl.fma(-t, tl.exp2(g), positive)
    return tl.where(acc == float("-inf"), float("nan"), value)  # as torch: -inf times zero


@triton.jit
def silu(acc, rm, rn, mask, operands):
    """x * sigmoid(x)."""
    return acc / (1.0 + tl.exp(-acc))


@triton.jit
def scaled(acc, rm, rn, mask, operands, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
           A: tl.constexpr, B: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
    """`acc * a * b + bias`, where A and B are "none", "one" (a single factor) or "each" (one a row,
    one a column). operands: the pointers there are, in this order."""
    if A != "none":
        if A == "each":
            a = tl.load(operands[0] + rm, mask=rm < ROWS, other=0.0)
        else:
            a = tl.load(operands[0])
        acc = acc * a.to(tl.float32)
    b_at: tl.constexpr = 0 if A == "none" else 1
    bias_at: tl.constexpr = b_at if B == "none" else b_at + 1
    if B != "none":
        if B == "each":
            b = tl.load(operands[b_at] + rn, mask=rn < COLUMNS, other=0.0)
        else:
            b = tl.load(operands[b_at])
        acc = acc * b.to(tl.float32)
    if BIAS:
        bias = tl.load(operands[bias_at] + rn, mask=rn < COLUMNS, other=0.0)
        acc = acc + bias.to(tl.float32)
    return acc


@triton.jit
def group_bias(acc, rm, rn, mask, operands, COLUMNS: tl.constexpr, STRIDE_GROUP: tl.constexpr,
               STRIDE: tl.constexpr):  # fmt: skip
    """operands: the number of the product, the pointer."""
    group, bias = operands
    row = tl.load(bias + group * STRIDE_GROUP + rn * STRIDE, mask=rn < COLUMNS, other=0.0)
    return acc + row.to(tl.float32)


@triton.jit
def residual(acc, rm, rn, mask, operands):
    """operands: pointer, row stride, column stride."""
    pointer, stride_m, stride_n = operands
    value = tl.load(pointer + (rm * stride_m + rn * stride_n), mask=mask, other=0.0)
    return acc + value.to(tl.float32)


@triton.jit
def times_alpha(acc, rm, rn, mask, operands):
    """operands: the factor, after the number of the product if there is one."""
    return acc * operands[-1]


@triton.jit
def alpha_beta(acc, rm, rn, mask, operands, BATCH: tl.constexpr, ROW: tl.constexpr,
               COLUMN: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """operands: the number of the product if there is a BATCH, alpha, beta, the pointer to what is
    added."""
    if BATCH is None:
        alpha, beta, added = operands
    else:
        number, alpha, beta, added = operands
        added += number * BATCH
    if WIDE:
        rm = rm.to(tl.int64)
        rn = rn.to(tl.int64)
    value = tl.load(added + (rm * ROW + rn * COLUMN), mask=mask, other=0.0)
    return alpha * acc + beta * value.to(tl.float32)


@triton.jit
def kept(acc, rm, rn, mask, operands, COLUMNS: tl.constexpr):
    """Stores the tile at the pointer, [M, COLUMNS] contiguous, and goes on with what it stored."""
    narrow = acc.to(operands[0].dtype.element_ty)
    at = rm.to(tl.int64) * COLUMNS + rn
    tl.store(operands[0] + at, narrow, mask=mask)
    return narrow.to(tl.float32)


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


def chain(*epilogues: Epilogue) -> Epilogue:
    """One after the other on the same tile; their operands follow each other. Names of operands
    must differ. Raises InvalidProblem for those that store by themselves, or have a batch."""
    if any(e.stores or e.batched for e in epilogues):
        raise InvalidProblem("a chain of epilogues that store by themselves or take the batch")
    texts = list(dict.fromkeys(e.text.strip("\n") for e in epilogues))
    name = "_then_".join(e.name for e in epilogues)
    lines = ["@triton.jit", f"def {name}(acc, rm, rn, mask, operands):"]
    at = 0
    for e in epilogues:
        own = "".join(f"operands[{at + i}], " for i in range(len(e.operands)))
        lines.append(f"    acc = {e.name}(acc, rm, rn, mask, ({own.strip()}))")
        at += len(e.operands)
    lines.append("    return acc")
    return Epilogue(
        name,
        "\n\n\n".join([*texts, "\n".join(lines)]),
        tuple(p for e in epilogues for p in e.operands),
        bytes_per_element=sum(e.bytes_per_element for e in epilogues),
        work=sum(e.instructions for e in epilogues),
        free=all(e.free for e in epilogues),
    )


def _with_constants(
    name: str,
    constants: tuple[object, ...],
    operands: tuple[KernelParam, ...],
    *,
    work: float,
    bytes_per_element: float = 0.0,
    free: bool = False,
) -> Epilogue:
    values = "".join(f", {c!r}" for c in constants)
    text = (
        f"from gemm_templates.epilogues import {name}\n\n\n@triton.jit\n"
        f"def {name}_at(acc, rm, rn, mask, operands):\n"
        f"    return {name}(acc, rm, rn, mask, operands{values})\n"
    )
    return Epilogue(f"{name}_at", text, operands, False, bytes_per_element, work, free=free)


def scaled_of(
    m: int, n: int, a: str = "each", b: str = "each", bias: str | None = None, dtype: str = "f32"
) -> Epilogue:
    """`acc * a_scale[m] * b_scale[n] + bias[n]`, of contiguous vectors.

    m, n: the lengths of the vectors, which become literals: rows past `m` are scaled by 0, so that
    a problem whose M is dynamic needs a vector of the largest M.
    a, b: "each" (a factor for each row, for each column), "one" (a vector of one) or "none".
    bias: its element type. Operands: the pointers `a_scale`, `b_scale`, `scaled_bias` that are."""
    kinds = {"a_scale": a, "b_scale": b}
    if wrong := {k for k in kinds.values() if k not in ("each", "one", "none")}:
        raise InvalidProblem(f"scales {sorted(wrong)}: expected 'each', 'one' or 'none'")
    operands = [KernelParam(k, f"*{dtype}") for k, kind in kinds.items() if kind != "none"]
    operands += [KernelParam("scaled_bias", f"*{bias}")] if bias else []
    constants = (m, n, a, b, bias is not None)
    return _with_constants("scaled", constants, tuple(operands), work=3, free=True)


def group_bias_of(n: int, stride: tuple[int, ...]) -> Epilogue:
    """`acc + bias[group, n]` of a grouped or batched product; `stride`: of groups, of columns.
    Operand: the bf16 pointer `group_bias`."""
    operand = KernelParam("group_bias", "*bf16")
    bias = _with_constants("group_bias", (n, *stride), (operand,), work=1)
    return replace(bias, batched=True)


def scaled_by_of(batched: bool) -> Epilogue:
    """`alpha * acc`. Operand: the run-time number `alpha`."""
    made = _builtin("times_alpha", (KernelParam("alpha", "f32"),), work=1)
    return replace(made, batched=batched, free=not batched)


def alpha_beta_of(dtype: str, stride: tuple[int, ...], wide: bool) -> Epilogue:
    """`alpha * acc + beta * added`, which has the strides of the whole result (0: broadcast), with
    that of a batch first if it is one; wide: 64-bit offsets. Operands: the numbers `alpha`, `beta`,
    the pointer `bias_ptr`."""
    operands = (
        KernelParam("alpha", "f32"),
        KernelParam("beta", "f32"),
        KernelParam("bias_ptr", f"*{dtype}"),
    )
    *batch, row, column = stride
    constants = (batch[0] if batch else None, row, column, wide)
    size = ITEMSIZE[dtype] if all(stride) or not batch else 0
    made = _with_constants("alpha_beta", constants, operands, work=6, bytes_per_element=size)
    return replace(made, batched=bool(batch), free=not batch)


def kept_then(act: Epilogue, dtype: str, columns: int) -> Epilogue:
    """Stores the sums with the bias at the operand `before`, [M, columns] contiguous, and applies
    `act` to what it stored: the gradient is that of the values that are kept."""
    before = KernelParam("before", f"*{dtype}", mutated=True)
    size = ITEMSIZE[dtype]
    kept = _with_constants("kept", (columns,), (before,), work=4, bytes_per_element=size)
    return chain(kept, act)
