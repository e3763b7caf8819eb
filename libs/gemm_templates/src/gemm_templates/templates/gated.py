# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""Two products of one left operand, `GATE(a @ b) * (a @ b2)`, in one persistent kernel (TMA).

`a` is read once for both, and neither product is ever written.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.templates.tiled import tile_of
from gemm_templates.templates.tma import finish_part, load_tile, matrix, split_columns


@triton.jit
def gated_mm(
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
    b2_ptr,
    GATE: tl.constexpr,
    MAPS: tl.constexpr = False,
):
    """Like `tma_mm`; `b2` has the sizes and strides of `b`, and there is no bias. GATE: a function
    like an epilogue's. PARTS: 1 or 2."""
    a_desc = matrix(a_ptr, M, K, stride_am, stride_ak, BLOCK_M, BLOCK_K, A_ROWS, MAPS)
    b_desc = matrix(b_ptr, K, N, stride_bk, stride_bn, BLOCK_K, BLOCK_N, B_ROWS, MAPS)
    b2_desc = matrix(b2_ptr, K, N, stride_bk, stride_bn, BLOCK_K, BLOCK_N, B_ROWS, MAPS)
    PART: tl.constexpr = BLOCK_N // PARTS
    if STORE_TMA:
        out_desc = matrix(out_ptr, M, N, stride_om, stride_on, BLOCK_M, PART, True, MAPS)
    else:
        out_desc = None
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        pid_m, pid_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        first_m = pid_m * BLOCK_M
        first_n = pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        acc2 = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in tl.range(0, tl.cdiv(K, BLOCK_K)):
            k = step * BLOCK_K
            a = load_tile(a_desc, first_m, k, A_ROWS)
            b = load_tile(b_desc, k, first_n, B_ROWS)
            b2 = load_tile(b2_desc, k, first_n, B_ROWS)
            acc = tl.dot(a, b, acc, input_precision=INPUT_PRECISION)
            acc2 = tl.dot(a, b2, acc2, input_precision=INPUT_PRECISION)
        gates = split_columns(acc, BLOCK_M, BLOCK_N, PARTS)
        values = split_columns(acc2, BLOCK_M, BLOCK_N, PARTS)
        for i in tl.static_range(PARTS):
            rm = (first_m + tl.arange(0, BLOCK_M))[:, None]
            rn = (first_n + i * PART + tl.arange(0, PART))[None, :]
            gated = GATE(gates[i], rm, rn, (rm < M) & (rn < N), ()) * values[i]
            finish_part(
                gated, first_m, first_n + i * PART, out_desc, bias_ptr, out_ptr, M, N,
                stride_om, stride_on, stride_bias, operands, EPILOGUE, BLOCK_M, PART, STORE_TMA,
                EDGE_M, EDGE_N, False, WIDE, STORE,
            )  # fmt: skip
