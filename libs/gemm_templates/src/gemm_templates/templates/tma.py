# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""A persistent kernel over tensor descriptors (TMA, from Hopper on).

Each program takes every num_programs-th tile, so that the loads of its next tile run beside the
epilogue of the last one. Operands are contiguous along one dimension, 16-byte aligned, and their
other stride is a multiple of 16 bytes; what lies outside of a matrix reads as zero. Descriptors
come from the host (MAPS: in place of the pointers), or are made here, which takes 2 us.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.templates.tiled import epilogue_of, prepare, tile_of


@triton.jit
def tma_mm(
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
    a_operands=None,
    b_operands=None,
    scale_operands=None,
    PROLOGUE_A: tl.constexpr = None,
    PROLOGUE_B: tl.constexpr = None,
    SCALE: tl.constexpr = None,
    IMPRECISE: tl.constexpr = None,
    EVEN_K: tl.constexpr = True,
    MAPS: tl.constexpr = False,
):
    """Like `tiled_mm`, over all tiles of `tl.num_programs(0)` programs.

    MAPS: `a` and `b`, and with STORE_TMA `out`, are descriptors as `matrix` makes them.
    A_ROWS: `a` is contiguous along K (else along M); B_ROWS: `b` along N (else along K).
    STORE_TMA: `out` may be written through a descriptor. PARTS: 1, 2 or 4; the epilogue runs on
    that many parts of the tile's columns, one after the other, which divides the memory it needs.
    """
    a_desc = matrix(a_ptr, M, K, stride_am, stride_ak, BLOCK_M, BLOCK_K, A_ROWS, MAPS)
    b_desc = matrix(b_ptr, K, N, stride_bk, stride_bn, BLOCK_K, BLOCK_N, B_ROWS, MAPS)
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
        if PROLOGUE_A is not None or PROLOGUE_B is not None or SCALE is not None:
            rm = (first_m + tl.arange(0, BLOCK_M))[:, None]
            rn = (first_n + tl.arange(0, BLOCK_N))[None, :]
            if WIDE:
                rm = rm.to(tl.int64)
                rn = rn.to(tl.int64)
            inner_m = tl.where(rm < M, rm, 0)
            inner_n = tl.where(rn < N, rn, 0)
        for step in tl.range(0, tl.cdiv(K, BLOCK_K)):
            k = step * BLOCK_K
            if SCALE is not None:
                factor = SCALE(inner_m, inner_n, first_n, k, scale_operands)
            a = load_tile(a_desc, first_m, k, A_ROWS)
            b = load_tile(b_desc, k, first_n, B_ROWS)
            if PROLOGUE_A is not None:
                rk = (k + tl.arange(0, BLOCK_K))[None, :]
                a = prepare(a, rm, rk, (rm < M) & (rk < K), a_operands, PROLOGUE_A, EVEN_K)
            if PROLOGUE_B is not None:
                rk = (k + tl.arange(0, BLOCK_K))[:, None]
                b = prepare(b, rn, rk, (rn < N) & (rk < K), b_operands, PROLOGUE_B, EVEN_K)
            if SCALE is not None:
                acc += tl.dot(a, b, input_precision=INPUT_PRECISION) * factor
            else:
                acc = tl.dot(
                    a, b, acc, input_precision=INPUT_PRECISION, max_num_imprecise_acc=IMPRECISE
                )
        parts = split_columns(acc, BLOCK_M, BLOCK_N, PARTS)
        for i in tl.static_range(PARTS):
            finish_part(
                parts[i], first_m, first_n + i * PART, out_desc, bias_ptr, out_ptr, M, N,
                stride_om, stride_on, stride_bias, operands, EPILOGUE, BLOCK_M, PART, STORE_TMA,
                EDGE_M, EDGE_N, HAS_BIAS, WIDE, STORE,
            )  # fmt: skip


@triton.jit
def matrix(
    pointer,
    rows,
    columns,
    stride_row,
    stride_column,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BY_ROWS: tl.constexpr,
    MAPS: tl.constexpr,
):
    """A descriptor of a matrix; it reads blocks transposed if not BY_ROWS. MAPS: it is given."""
    if MAPS:
        found = pointer
    elif BY_ROWS:
        found = tl.make_tensor_descriptor(
            pointer, [rows, columns], [stride_row, 1], [BLOCK_ROWS, BLOCK_COLUMNS]
        )
    else:
        found = tl.make_tensor_descriptor(
            pointer, [columns, rows], [stride_column, 1], [BLOCK_COLUMNS, BLOCK_ROWS]
        )
    return found


@triton.jit
def load_tile(descriptor, row, column, BY_ROWS: tl.constexpr):
    """The block of `matrix` that starts at (row, column)."""
    if BY_ROWS:
        block = descriptor.load([row, column])
    else:
        block = descriptor.load([column, row]).T
    return block


@triton.jit
def split_columns(acc, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr):
    """A tuple of PARTS parts of a tile's columns (1, 2 or 4), in order."""
    if PARTS == 1:
        parts = (acc,)
    elif PARTS == 2:
        parts = halves(acc, ROWS, COLUMNS)
    else:
        left, right = halves(acc, ROWS, COLUMNS)
        parts = halves(left, ROWS, COLUMNS // 2) + halves(right, ROWS, COLUMNS // 2)
    return parts


@triton.jit
def halves(acc, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The left and the right half of a tile; they lie in different registers already."""
    return tl.split(tl.permute(tl.reshape(acc, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))


@triton.jit
def finish_part(
    acc,
    first_m,
    first_n,
    out_desc,
    bias_ptr,
    out_ptr,
    M,
    N,
    stride_om,
    stride_on,
    stride_bias,
    operands,
    EPILOGUE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STORE_TMA: tl.constexpr,
    EDGE_M: tl.constexpr,
    EDGE_N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    STORE: tl.constexpr,
):
    """Bias, epilogue and store of `acc`, which starts at (first_m, first_n)."""
    rm = (first_m + tl.arange(0, BLOCK_M))[:, None]
    rn = (first_n + tl.arange(0, BLOCK_N))[None, :]
    if WIDE:
        rm = rm.to(tl.int64)
        rn = rn.to(tl.int64)
    value, mask = epilogue_of(
        acc, rm, rn, bias_ptr, M, N, stride_bias, operands, EPILOGUE, BLOCK_M, BLOCK_N, EDGE_M,
        EDGE_N, HAS_BIAS,
    )  # fmt: skip
    if STORE:
        result = value.to(out_desc.dtype if STORE_TMA else out_ptr.dtype.element_ty)
        if STORE_TMA:
            out_desc.store([first_m, first_n], result)
        else:
            tl.store(out_ptr + (rm * stride_om + rn * stride_on), result, mask=mask)
