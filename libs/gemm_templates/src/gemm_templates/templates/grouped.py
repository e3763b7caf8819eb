# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""A persistent kernel for products of groups whose sizes only the device knows (Hopper and later).

`offs` has the end of each group along one size of the product; what lies past the last end belongs
to none. A program finds the group of a tile from `offs`: the host need not wait for it, and one
program goes on to the next group without a gap.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.templates.batched_tma import finish_parts, load_block, matrices
from gemm_templates.templates.tiled import tile_of


@triton.jit
def grouped_mm(
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
    JAGGED: tl.constexpr,
    offs_ptr,
    BATCH: tl.constexpr,
    stride_ab,
    stride_bb,
    stride_ob,
    EPILOGUE_BATCHED: tl.constexpr,
    SPAN: tl.constexpr,
    A_ROWS: tl.constexpr,
    B_ROWS: tl.constexpr,
    STORE_TMA: tl.constexpr,
    PARTS: tl.constexpr,
    EDGE_M: tl.constexpr,
    EDGE_N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
    STORE: tl.constexpr,
):
    """Like `batched_tma_mm` for `BATCH` groups.

    JAGGED: which size `offs` divides. "M": rows of `a` and of `out`; `b` is [BATCH, K, N].
    "N": columns of `b` and of `out`; `a` is [BATCH, M, K]. "K": columns of `a`, rows of `b`; `out`
    is [BATCH, M, N], zero before the epilogue for an empty group.
    The epilogue's row and column numbers are those of `out`. SPAN: the power of two from BATCH on.
    Ends that decrease or lie outside are cut off: nothing outside of `out` is written.
    """
    a_desc = matrices(a_ptr, BATCH, M, K, stride_ab, stride_am, stride_ak, BLOCK_M, BLOCK_K,
                      A_ROWS, JAGGED != "N")  # fmt: skip
    b_desc = matrices(b_ptr, BATCH, K, N, stride_bb, stride_bk, stride_bn, BLOCK_K, BLOCK_N,
                      B_ROWS, JAGGED != "M")  # fmt: skip
    PART: tl.constexpr = BLOCK_N // PARTS
    if STORE_TMA:
        out_desc = matrices(out_ptr, BATCH, M, N, stride_ob, stride_om, stride_on, BLOCK_M, PART,
                            True, JAGGED != "K")  # fmt: skip
    else:
        out_desc = None
    numbers = tl.arange(0, SPAN)
    if JAGGED == "M":
        whole = M
    elif JAGGED == "N":
        whole = N
    else:
        whole = K
    ends = tl.load(offs_ptr + numbers, mask=numbers < BATCH, other=0)
    ends = tl.minimum(tl.maximum(ends, 0), whole)
    starts = tl.load(offs_ptr + numbers - 1, mask=(numbers > 0) & (numbers < BATCH), other=0)
    starts = tl.minimum(tl.maximum(starts, 0), whole)
    sizes = tl.maximum(ends - starts, 0)
    if JAGGED == "M":
        counts = tl.cdiv(sizes, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    elif JAGGED == "N":
        counts = tl.cdiv(M, BLOCK_M) * tl.cdiv(sizes, BLOCK_N)
    else:
        counts = tl.where(numbers < BATCH, tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N), 0)
    last = tl.cumsum(counts, 0)  # tiles up to the end of each group
    tiles = tl.sum(counts, 0)
    # Loops with a branch after them cannot be flattened (Triton 3.6 fails to).
    FLAT: tl.constexpr = JAGGED == "N" or (JAGGED == "M" and not STORE_TMA)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLAT):
        before = last <= tile
        group = tl.sum(before.to(tl.int32), 0)
        inside = tile - tl.max(tl.where(before, last, 0), 0)
        start = tl.sum(tl.where(numbers == group, starts, 0), 0)
        size = tl.sum(tl.where(numbers == group, sizes, 0), 0)
        rows, columns, first_m, first_n = M, N, 0, 0
        if JAGGED == "M":
            rows, first_m = size, start
        if JAGGED == "N":
            columns, first_n = size, start
        pid_m, pid_n = tile_of(inside, rows, columns, BLOCK_M, BLOCK_N, GROUP_M)
        end_m = first_m + rows
        end_n = first_n + columns
        first_m += pid_m * BLOCK_M
        first_n += pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        if JAGGED == "K":
            for step in tl.range(0, size // BLOCK_K):
                k = start + step * BLOCK_K
                a = load_block(a_desc, 0, first_m, k, BLOCK_M, BLOCK_K, A_ROWS, True)
                b = load_block(b_desc, 0, k, first_n, BLOCK_K, BLOCK_N, B_ROWS, True)
                acc = tl.dot(a, b, acc, input_precision=INPUT_PRECISION)
            left = size % BLOCK_K
            if left > 0:  # what follows is of the next group; it may be no number
                k = start + size - left
                rk = tl.arange(0, BLOCK_K)
                a = load_block(a_desc, 0, first_m, k, BLOCK_M, BLOCK_K, A_ROWS, True)
                b = load_block(b_desc, 0, k, first_n, BLOCK_K, BLOCK_N, B_ROWS, True)
                a = tl.where(rk[None, :] < left, a, 0.0)
                b = tl.where(rk[:, None] < left, b, 0.0)
                acc = tl.dot(a, b, acc, input_precision=INPUT_PRECISION)
        else:
            for step in tl.range(0, tl.cdiv(K, BLOCK_K)):
                k = step * BLOCK_K
                a = load_block(a_desc, group, first_m, k, BLOCK_M, BLOCK_K, A_ROWS, JAGGED != "N")
                b = load_block(b_desc, group, k, first_n, BLOCK_K, BLOCK_N, B_ROWS, JAGGED != "M")
                acc = tl.dot(a, b, acc, input_precision=INPUT_PRECISION)
        if STORE_TMA and JAGGED == "M":
            # A descriptor knows no end of a group: a tile that it ends in is stored by address.
            if first_m + BLOCK_M <= end_m:
                finish_parts(
                    acc, 0, group, first_m, first_n, out_desc, bias_ptr, out_ptr, end_m, end_n,
                    0, stride_om, stride_on, stride_bias, operands, EPILOGUE, EPILOGUE_BATCHED,
                    BLOCK_M, BLOCK_N, PARTS, True, "none", EDGE_N, HAS_BIAS, WIDE, STORE,
                )  # fmt: skip
            else:
                finish_parts(
                    acc, 0, group, first_m, first_n, None, bias_ptr, out_ptr, end_m, end_n,
                    0, stride_om, stride_on, stride_bias, operands, EPILOGUE, EPILOGUE_BATCHED,
                    BLOCK_M, BLOCK_N, PARTS, False, EDGE_M, EDGE_N, HAS_BIAS, WIDE, STORE,
                )  # fmt: skip
        else:
            finish_parts(
                acc, group if JAGGED == "K" else 0, group, first_m, first_n, out_desc, bias_ptr,
                out_ptr, end_m, end_n, stride_ob, stride_om, stride_on, stride_bias, operands,
                EPILOGUE, EPILOGUE_BATCHED, BLOCK_M, BLOCK_N, PARTS, STORE_TMA, EDGE_M, EDGE_N,
                HAS_BIAS, WIDE, STORE,
            )  # fmt: skip
