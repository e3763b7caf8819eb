"""A persistent kernel over tensor descriptors (TMA, from Hopper on).

Each program takes every num_programs-th tile, so that the loads of its next tile run beside the
epilogue of the last one, also from one product of a batch to the next. Two products of one left
operand and a gate, `GATE(a @ b) * (a @ b2)`, read `a` once, and neither product is ever written.

Operands are contiguous along one dimension, 16-byte aligned, and their other stride is a multiple
of 16 bytes; what lies outside of a matrix reads as zero. Descriptors (of rank 3 for a batch) come
from the host, or are made here, which takes 2 us."""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.parts.operands import Ending
from gemm_templates.parts.tiles import (
    finish,
    multiply_add,
    no_sums,
    numbers_of,
    picked_b,
    prepare_a,
    prepare_b,
    tile_of,
)


@triton.jit
def tma_mm(a, b, sizes, tile, ending, beginning, PARTS: tl.constexpr, b2=None):
    """Like `tiled_mm`, over all tiles of `tl.num_programs(0)` programs; `BATCH` times, if not None.

    PARTS: 1, 2 or 4; the epilogue runs on that many parts of the tile's columns, one after the
    other, which divides the memory it needs. b2: of the sizes and strides of `b`, for a GATE."""
    a_desc = descriptor_of(a, sizes.BATCH, sizes.M, sizes.K, tile.BLOCK_M, tile.BLOCK_K)
    b_desc = descriptor_of(b, sizes.BATCH, sizes.K, sizes.N, tile.BLOCK_K, tile.BLOCK_N)
    b2_desc = descriptor_of(b2, sizes.BATCH, sizes.K, sizes.N, tile.BLOCK_K, tile.BLOCK_N)
    PART: tl.constexpr = tile.BLOCK_N // PARTS
    out_desc = descriptor_of(ending.out, sizes.BATCH, sizes.M, sizes.N, tile.BLOCK_M, PART)
    tiles = tl.cdiv(sizes.M, tile.BLOCK_M) * tl.cdiv(sizes.N, tile.BLOCK_N)
    if sizes.BATCH is None:
        whole = tiles
    else:
        whole = tiles * sizes.BATCH
    # A descriptor of a matrix that hangs on the tile is made for it.
    ALONE: tl.constexpr = beginning.PICK_B is None
    for number in tl.range(tl.program_id(0), whole, tl.num_programs(0), flatten=ALONE):
        if sizes.BATCH is None:
            batch = None
            pid_m, pid_n = tile_of(number, sizes.M, sizes.N, tile)
        else:
            batch = number // tiles
            pid_m, pid_n = tile_of(number % tiles, sizes.M, sizes.N, tile)
        first_m = pid_m * tile.BLOCK_M
        first_n = pid_n * tile.BLOCK_N
        if not ALONE:
            start_b, of_b = picked_b(b, first_n, beginning)
            end_b = first_n - of_b + tile.BLOCK_N
            picked = tl.make_tensor_descriptor(
                start_b, [end_b, sizes.K], [b.stride_column, 1], [tile.BLOCK_N, tile.BLOCK_K]
            )
        acc = no_sums(tile.BLOCK_M, tile.BLOCK_N, tile)
        if b2 is None:
            acc2 = None
        else:
            acc2 = no_sums(tile.BLOCK_M, tile.BLOCK_N, tile)
        rm, rn = numbers_of(first_m, first_n, tile.BLOCK_M, tile.BLOCK_N, tile.WIDE)
        rm = rm[:, None]
        rn = rn[None, :]
        inner_m = tl.where(rm < sizes.M, rm, 0)
        inner_n = tl.where(rn < sizes.N, rn, 0)
        for step in tl.range(0, tl.cdiv(sizes.K, tile.BLOCK_K)):
            k = step * tile.BLOCK_K
            if beginning.SCALE is not None:
                factor = beginning.SCALE(inner_m, inner_n, first_n, k, beginning.scale_operands)
            x = load_tile(a_desc, batch, first_m, k, a, tile.BLOCK_M, tile.BLOCK_K)
            if ALONE:
                y = load_tile(b_desc, batch, k, first_n, b, tile.BLOCK_K, tile.BLOCK_N)
            else:
                y = picked.load([first_n - of_b, k]).T
            if b2 is not None:
                y2 = load_tile(b2_desc, batch, k, first_n, b2, tile.BLOCK_K, tile.BLOCK_N)
            rk = k + tl.arange(0, tile.BLOCK_K)
            if beginning.PROLOGUE_A is not None:
                inside = (rm < sizes.M) & (rk[None, :] < sizes.K)
                x = prepare_a(x, rm, rk[None, :], k, inside, beginning, tile)
            if beginning.PROLOGUE_B is not None:
                inside = (rn < sizes.N) & (rk[:, None] < sizes.K)
                y = prepare_b(y, rn, rk[:, None], k, inside, beginning, tile)
            if beginning.SCALE is not None:
                product = tl.dot(x, y, input_precision=tile.INPUT_PRECISION)
                acc = tl.fma(product, factor, acc)
            else:
                acc = multiply_add(x, y, acc, tile)
            if b2 is not None:
                acc2 = multiply_add(x, y2, acc2, tile)
        finish_parts(
            acc, acc2, batch, batch, first_m, first_n, sizes, tile, ending, out_desc, PARTS
        )


@triton.jit
def descriptor_of(
    matrix, count, rows, columns, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr
):
    """The descriptor of a matrix, or of rank 3 of `count` of them if that is not None; given or
    made. It reads blocks transposed if not BY_ROWS. None for what has none."""
    if matrix is None or not matrix.TMA:
        found = None
    elif matrix.GIVEN:
        found = matrix.ptr
    else:
        HEIGHT: tl.constexpr = BLOCK_ROWS if matrix.BY_ROWS else BLOCK_COLUMNS
        WIDTH: tl.constexpr = BLOCK_COLUMNS if matrix.BY_ROWS else BLOCK_ROWS
        stride = matrix.stride_row if matrix.BY_ROWS else matrix.stride_column
        outer = rows if matrix.BY_ROWS else columns
        inner = columns if matrix.BY_ROWS else rows
        if count is None:
            found = tl.make_tensor_descriptor(
                matrix.ptr, [outer, inner], [stride, 1], [HEIGHT, WIDTH]
            )
        else:
            # Of one matrix any distance will do: only the first is read.
            number = 1 if matrix.SHARED else count
            distance = stride if matrix.SHARED else matrix.stride_batch
            found = tl.make_tensor_descriptor(
                matrix.ptr, [number, outer, inner], [distance, stride, 1], [1, HEIGHT, WIDTH]
            )
    return found


@triton.jit
def load_tile(descriptor, batch, row, column, matrix, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """[ROWS, COLUMNS] from (row, column) on of `descriptor_of(matrix, ...)`, of its matrix number
    `batch` if that is not None."""
    if batch is None:
        if matrix.BY_ROWS:
            block = descriptor.load([row, column])
        else:
            block = descriptor.load([column, row]).T
    else:
        number = 0 if matrix.SHARED else batch
        if matrix.BY_ROWS:
            block = descriptor.load([number, row, column]).reshape(ROWS, COLUMNS)
        else:
            block = descriptor.load([number, column, row]).reshape(COLUMNS, ROWS).T
    return block


@triton.jit
def finish_parts(
    acc, acc2, matrix, batch, first_m, first_n, sizes, tile, ending, out_desc, PARTS: tl.constexpr
):
    """`finish` of the tile at (first_m, first_n), on PARTS parts of its columns, one after the
    other. Of a batch: of product number `batch`; it goes to matrix number `matrix` of `out`.
    acc2: the sums that a GATE of `acc` is multiplied with, or None."""
    PART: tl.constexpr = tile.BLOCK_N // PARTS
    parts = split_columns(acc, PARTS)
    if acc2 is not None:
        values = split_columns(acc2, PARTS)
    if ending.BATCHED:
        given = (tl.cast(batch, tl.int64),) + ending.operands  # noqa: RUF005  (Triton does not unpack)
    else:
        given = ending.operands
    for i in tl.static_range(PARTS):
        part = parts[i]
        if acc2 is not None:
            rm = (first_m + tl.arange(0, tile.BLOCK_M))[:, None]
            rn = (first_n + i * PART + tl.arange(0, PART))[None, :]
            inside = (rm < sizes.M) & (rn < sizes.N)
            part = ending.GATE(part, rm, rn, inside, ()) * values[i]
        finish(
            part, first_m, first_n + i * PART, sizes, tile,
            Ending(ending.bias, ending.stride_bias, ending.EPILOGUE, given, ending.out),
            out_desc, matrix,
        )  # fmt: skip


@triton.jit
def split_columns(acc, PARTS: tl.constexpr):
    """A tuple of PARTS parts of a tile's columns (1, 2 or 4), in order."""
    if PARTS == 1:
        parts = (acc,)
    elif PARTS == 2:
        parts = halves(acc)
    else:
        left, right = halves(acc)
        parts = halves(left) + halves(right)
    return parts


@triton.jit
def halves(acc):
    """The left and the right half of a tile; they lie in different registers already."""
    return tl.split(tl.permute(tl.reshape(acc, (acc.shape[0], 2, acc.shape[1] // 2)), (0, 2, 1)))
