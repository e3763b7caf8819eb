# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""One row times a matrix: each element of `b` is read once, in whole cache lines, and multiplied on
the CUDA cores.

More rows, up to 64, are `split_k_mm` with SWAP: the tensor cores take `b` for the tall operand.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.templates.split_k import comes_last, conclude, leave, share_of, total_of
from gemm_templates.templates.tiled import prepare


@triton.jit
def gemv_mm(
    a_ptr,
    b_ptr,
    bias_ptr,
    out_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_om,
    stride_on,
    stride_bias,
    operands,
    EPILOGUE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    partials,
    counters,
    SPLIT_K: tl.constexpr,
    CHUNK: tl.constexpr,
    EVEN_SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    EDGE_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
    STORE: tl.constexpr,
    a_operands=None,
    b_operands=None,
    PROLOGUE_A: tl.constexpr = None,
    PROLOGUE_B: tl.constexpr = None,
):
    """Like `split_k_mm` with BLOCK_M = 1, which is a row a program: the grid is (M * cdiv(N,
    BLOCK_N), batch, SPLIT_K). STAGES blocks of `b` are under way at a time. Products of f32 are
    exact. Prologues are as in `tiled_mm`."""
    pid = tl.program_id(0)
    part = tl.program_id(2)
    row = pid % M
    rm = row + tl.arange(0, 1)
    rn = pid // M * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    if WIDE:
        row = row.to(tl.int64)
        rk = rk.to(tl.int64)
    rbn = rn.to(tl.int64) if WIDE else rn
    first, count = share_of(part, K, BLOCK_K, SPLIT_K, EVEN_SPLIT)
    start = first * BLOCK_K
    a_ptrs = a_ptr + row * stride_am + (start + rk) * stride_ak
    b_ptrs = b_ptr + (rbn[:, None] * stride_bn + (start + rk)[None, :] * stride_bk)
    # Summed up across threads only once, at the end.
    sums = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for step in tl.range(0, count, num_stages=STAGES):
        left = K - start - step * BLOCK_K
        if EDGE_N == "mask":
            if EVEN_K:
                b = tl.load(b_ptrs, mask=rn[:, None] < N, other=0.0)
            else:
                b = tl.load(b_ptrs, mask=(rk[None, :] < left) & (rn[:, None] < N), other=0.0)
        else:
            if EVEN_K:
                b = tl.load(b_ptrs)
            else:
                b = tl.load(b_ptrs, mask=rk[None, :] < left, other=0.0)
        if EVEN_K:
            a = tl.load(a_ptrs)
        else:
            a = tl.load(a_ptrs, mask=rk < left, other=0.0)
        a = a[None, :]
        at = start + step * BLOCK_K + rk[None, :]
        if PROLOGUE_A is not None:
            inside = tl.broadcast_to(rk[None, :] < left, a.shape)
            outer = (row + tl.arange(0, 1))[:, None]
            a = prepare(a, outer, at, inside, a_operands, PROLOGUE_A, EVEN_K)
        if PROLOGUE_B is not None:
            inside = tl.broadcast_to(rk[None, :] < left, b.shape)
            if EDGE_N == "mask":
                inside = inside & (rn[:, None] < N)
            # As prologues know `b`: [BLOCK_K, BLOCK_N].
            b = prepare(b.T, rbn[None, :], at.T, inside.T, b_operands, PROLOGUE_B, EVEN_K).T
        sums += b.to(tl.float32) * a.to(tl.float32)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    acc = tl.sum(sums, axis=1)[None, :]
    if SPLIT_K == 1:
        conclude(
            acc, rm, rn, bias_ptr, out_ptr, M, N, stride_om, stride_on, stride_bias, operands,
            EPILOGUE, 1, BLOCK_N, "none", EDGE_N, HAS_BIAS, WIDE, STORE, False,
        )  # fmt: skip
    else:
        tile = tl.program_id(1) * tl.num_programs(0) + pid
        places = partials + tile.to(tl.int64) * (SPLIT_K * BLOCK_N)
        leave(acc, places + part * BLOCK_N, 1, BLOCK_N)
        if comes_last(counters + tile, SPLIT_K):
            tl.store(counters + tile, 0)
            total = total_of(places, SPLIT_K, CHUNK, 1, BLOCK_N)
            conclude(
                total, rm, rn, bias_ptr, out_ptr, M, N, stride_om, stride_on, stride_bias,
                operands, EPILOGUE, 1, BLOCK_N, "none", EDGE_N, HAS_BIAS, WIDE, STORE, False,
            )  # fmt: skip
