"""A persistent kernel for a batch of products, over tensor descriptors of rank 3 (from Hopper on).

The programs walk over the tiles of all products, so a batch fills the device to its last round,
and the loads of a tile run beside the epilogue of the one before, also across products."""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.families.tma.kernel import split_columns
from gemm_templates.parts.operands import Ending
from gemm_templates.parts.tiles import finish, multiply_add, tile_of


@triton.jit
def batched_tma_mm(a, b, sizes, tile, ending, PARTS: tl.constexpr):
    """Like `tma_mm`, `BATCH` times."""
    a_desc = descriptors_of(a, sizes.BATCH, sizes.M, sizes.K, tile.BLOCK_M, tile.BLOCK_K)
    b_desc = descriptors_of(b, sizes.BATCH, sizes.K, sizes.N, tile.BLOCK_K, tile.BLOCK_N)
    PART: tl.constexpr = tile.BLOCK_N // PARTS
    out_desc = descriptors_of(ending.out, sizes.BATCH, sizes.M, sizes.N, tile.BLOCK_M, PART)
    tiles = tl.cdiv(sizes.M, tile.BLOCK_M) * tl.cdiv(sizes.N, tile.BLOCK_N)
    programs = tl.num_programs(0)
    for number in tl.range(tl.program_id(0), tiles * sizes.BATCH, programs, flatten=True):
        batch = number // tiles
        pid_m, pid_n = tile_of(number % tiles, sizes.M, sizes.N, tile)
        first_m = pid_m * tile.BLOCK_M
        first_n = pid_n * tile.BLOCK_N
        acc = tl.zeros((tile.BLOCK_M, tile.BLOCK_N), dtype=tl.float32)
        for step in tl.range(0, tl.cdiv(sizes.K, tile.BLOCK_K)):
            k = step * tile.BLOCK_K
            x = load_block(a_desc, batch, first_m, k, a, tile.BLOCK_M, tile.BLOCK_K)
            y = load_block(b_desc, batch, k, first_n, b, tile.BLOCK_K, tile.BLOCK_N)
            acc = multiply_add(x, y, acc, tile)
        finish_parts(acc, batch, batch, first_m, first_n, sizes, tile, ending, out_desc, PARTS)


@triton.jit
def descriptors_of(
    matrix, count, rows, columns, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr
):
    """The descriptor of `count` matrices, given or made; it reads blocks transposed if not BY_ROWS.
    None for what has none."""
    if matrix is None or not matrix.TMA:
        found = None
    elif matrix.GIVEN:
        found = matrix.ptr
    else:
        stride = matrix.stride_row if matrix.BY_ROWS else matrix.stride_column
        number = 1 if matrix.SHARED else count
        # Of one matrix any distance will do: only the first is read.
        distance = stride if matrix.SHARED else matrix.stride_batch
        if matrix.BY_ROWS:
            found = tl.make_tensor_descriptor(
                matrix.ptr,
                [number, rows, columns],
                [distance, stride, 1],
                [1, BLOCK_ROWS, BLOCK_COLUMNS],
            )
        else:
            found = tl.make_tensor_descriptor(
                matrix.ptr,
                [number, columns, rows],
                [distance, stride, 1],
                [1, BLOCK_COLUMNS, BLOCK_ROWS],
            )
    return found


@triton.jit
def load_block(descriptor, batch, row, column, matrix, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """[ROWS, COLUMNS] of matrix number `batch` of `descriptors_of(matrix, ...)`."""
    number = 0 if matrix.SHARED else batch
    if matrix.BY_ROWS:
        block = descriptor.load([number, row, column]).reshape(ROWS, COLUMNS)
    else:
        block = descriptor.load([number, column, row]).reshape(COLUMNS, ROWS).T
    return block


@triton.jit
def finish_parts(
    acc, matrix, batch, first_m, first_n, sizes, tile, ending, out_desc, PARTS: tl.constexpr
):
    """`finish` of the tile at (first_m, first_n) of product number `batch`, on PARTS parts of its
    columns, one after the other; it goes to matrix number `matrix` of `out`."""
    PART: tl.constexpr = tile.BLOCK_N // PARTS
    parts = split_columns(acc, PARTS)
    if ending.BATCHED:
        given = (tl.cast(batch, tl.int64),) + ending.operands  # noqa: RUF005  (Triton does not unpack)
    else:
        given = ending.operands
    for i in tl.static_range(PARTS):
        finish(
            parts[i], first_m, first_n + i * PART, sizes, tile,
            Ending(ending.bias, ending.stride_bias, ending.EPILOGUE, given, ending.out),
            out_desc, matrix,
        )  # fmt: skip
