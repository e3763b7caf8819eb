# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""A persistent kernel for a batch of products, over tensor descriptors of rank 3 (from Hopper on).

The programs walk over the tiles of all products, so a batch fills the device to its last round,
and the loads of a tile run beside the epilogue of the one before, also across products.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.templates.tiled import epilogue_of, tile_of
from gemm_templates.templates.tma import split_columns


@triton.jit
def batched_tma_mm(
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
    BATCH,
    stride_ab,
    stride_bb,
    stride_ob,
    EPILOGUE_BATCHED: tl.constexpr,
    A_SHARED: tl.constexpr,
    B_SHARED: tl.constexpr,
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
    MAPS: tl.constexpr = False,
):
    """Like `tma_mm`, `BATCH` times; the strides between products are `stride_ab`, `stride_bb` and
    `stride_ob`. MAPS: descriptors are as `matrices` makes them.

    A_SHARED, B_SHARED: all products read the same operand (a batch stride of 0, which is no
    stride that a descriptor takes).
    EPILOGUE_BATCHED: the tuple `operands` that the epilogue gets starts with the batch number.
    """
    a_desc = matrices(a_ptr, BATCH, M, K, stride_ab, stride_am, stride_ak, BLOCK_M, BLOCK_K,
                      A_ROWS, A_SHARED, MAPS)  # fmt: skip
    b_desc = matrices(b_ptr, BATCH, K, N, stride_bb, stride_bk, stride_bn, BLOCK_K, BLOCK_N,
                      B_ROWS, B_SHARED, MAPS)  # fmt: skip
    PART: tl.constexpr = BLOCK_N // PARTS
    if STORE_TMA:
        out_desc = matrices(out_ptr, BATCH, M, N, stride_ob, stride_om, stride_on, BLOCK_M, PART,
                            True, False, MAPS)  # fmt: skip
    else:
        out_desc = None
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles * BATCH, tl.num_programs(0), flatten=True):
        batch = tile // tiles
        pid_m, pid_n = tile_of(tile % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        first_m = pid_m * BLOCK_M
        first_n = pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in tl.range(0, tl.cdiv(K, BLOCK_K)):
            k = step * BLOCK_K
            a = load_block(a_desc, batch, first_m, k, BLOCK_M, BLOCK_K, A_ROWS, A_SHARED)
            b = load_block(b_desc, batch, k, first_n, BLOCK_K, BLOCK_N, B_ROWS, B_SHARED)
            acc = tl.dot(a, b, acc, input_precision=INPUT_PRECISION)
        finish_parts(
            acc, batch, batch, first_m, first_n, out_desc, bias_ptr, out_ptr, M, N, stride_ob,
            stride_om, stride_on, stride_bias, operands, EPILOGUE, EPILOGUE_BATCHED, BLOCK_M,
            BLOCK_N, PARTS, STORE_TMA, EDGE_M, EDGE_N, HAS_BIAS, WIDE, STORE,
        )  # fmt: skip


@triton.jit
def matrices(
    pointer,
    count,
    rows,
    columns,
    stride_batch,
    stride_row,
    stride_column,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BY_ROWS: tl.constexpr,
    SHARED: tl.constexpr,
    MAPS: tl.constexpr = False,
):
    """A descriptor of `count` matrices; it reads blocks transposed if not BY_ROWS. MAPS: it is
    given."""
    if SHARED:
        number = 1
        distance = stride_row if BY_ROWS else stride_column  # any: only matrix 0 is read
    else:
        number = count
        distance = stride_batch
    if MAPS:
        found = pointer
    elif BY_ROWS:
        found = tl.make_tensor_descriptor(
            pointer, [number, rows, columns], [distance, stride_row, 1],
            [1, BLOCK_ROWS, BLOCK_COLUMNS],
        )  # fmt: skip
    else:
        found = tl.make_tensor_descriptor(
            pointer, [number, columns, rows], [distance, stride_column, 1],
            [1, BLOCK_COLUMNS, BLOCK_ROWS],
        )  # fmt: skip
    return found


@triton.jit
def load_block(
    descriptor,
    batch,
    row,
    column,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BY_ROWS: tl.constexpr,
    SHARED: tl.constexpr,
):
    """[ROWS, COLUMNS] of matrix number `batch` of `matrices`."""
    if SHARED:
        number = 0
    else:
        number = batch
    if BY_ROWS:
        block = descriptor.load([number, row, column]).reshape(ROWS, COLUMNS)
    else:
        block = descriptor.load([number, column, row]).reshape(COLUMNS, ROWS).T
    return block


@triton.jit
def finish_parts(
    acc,
    matrix,
    batch,
    first_m,
    first_n,
    out_desc,
    bias_ptr,
    out_ptr,
    M,
    N,
    stride_ob,
    stride_om,
    stride_on,
    stride_bias,
    operands,
    EPILOGUE: tl.constexpr,
    EPILOGUE_BATCHED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PARTS: tl.constexpr,
    STORE_TMA: tl.constexpr,
    EDGE_M: tl.constexpr,
    EDGE_N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    STORE: tl.constexpr,
):
    """Bias, epilogue and store of the tile at (first_m, first_n) of product number `batch`, on
    PARTS parts of its columns, one after the other; it goes to matrix number `matrix` of `out`."""
    PART: tl.constexpr = BLOCK_N // PARTS
    parts = split_columns(acc, BLOCK_M, BLOCK_N, PARTS)
    rm = (first_m + tl.arange(0, BLOCK_M))[:, None]
    if WIDE:
        rm = rm.to(tl.int64)
    if EPILOGUE_BATCHED:
        given = (tl.cast(batch, tl.int64),) + operands  # noqa: RUF005
    else:
        given = operands
    for i in tl.static_range(PARTS):
        start_n = first_n + i * PART
        rn = (start_n + tl.arange(0, PART))[None, :]
        if WIDE:
            rn = rn.to(tl.int64)
        value, mask = epilogue_of(
            parts[i], rm, rn, bias_ptr, M, N, stride_bias, given, EPILOGUE, BLOCK_M, PART, EDGE_M,
            EDGE_N, HAS_BIAS,
        )  # fmt: skip
        if STORE:
            result = value.to(out_desc.dtype if STORE_TMA else out_ptr.dtype.element_ty)
            if STORE_TMA:
                out_desc.store([matrix, first_m, start_n], result.reshape(1, BLOCK_M, PART))
            else:
                start = out_ptr + tl.cast(matrix, tl.int64) * stride_ob
                tl.store(start + (rm * stride_om + rn * stride_on), result, mask=mask)
