"""A persistent kernel over tensor descriptors (TMA, from Hopper on).

Each program takes every num_programs-th tile, so that the loads of its next tile run beside the
epilogue of the last one. Operands are contiguous along one dimension, 16-byte aligned, and their
other stride is a multiple of 16 bytes; what lies outside of a matrix reads as zero. Descriptors
come from the host, or are made here, which takes 2 us."""

from __future__ import annotations

import triton
import triton.language as tl

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
def tma_mm(a, b, sizes, tile, ending, beginning, PARTS: tl.constexpr):
    """Like `tiled_mm`, over all tiles of `tl.num_programs(0)` programs.

    PARTS: 1, 2 or 4; the epilogue runs on that many parts of the tile's columns, one after the
    other, which divides the memory it needs."""
    a_desc = descriptor_of(a, sizes.M, sizes.K, tile.BLOCK_M, tile.BLOCK_K)
    b_desc = descriptor_of(b, sizes.K, sizes.N, tile.BLOCK_K, tile.BLOCK_N)
    PART: tl.constexpr = tile.BLOCK_N // PARTS
    out_desc = descriptor_of(ending.out, sizes.M, sizes.N, tile.BLOCK_M, PART)
    tiles = tl.cdiv(sizes.M, tile.BLOCK_M) * tl.cdiv(sizes.N, tile.BLOCK_N)
    # A descriptor of a matrix that hangs on the tile is made for it.
    ALONE: tl.constexpr = beginning.PICK_B is None
    for number in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=ALONE):
        pid_m, pid_n = tile_of(number, sizes.M, sizes.N, tile)
        first_m = pid_m * tile.BLOCK_M
        first_n = pid_n * tile.BLOCK_N
        if ALONE:
            tile_desc = b_desc
            of_b = 0
        else:
            start_b, of_b = picked_b(b, first_n, beginning)
            end_b = first_n - of_b + tile.BLOCK_N
            tile_desc = tl.make_tensor_descriptor(
                start_b, [end_b, sizes.K], [b.stride_column, 1], [tile.BLOCK_N, tile.BLOCK_K]
            )
        acc = no_sums(tile.BLOCK_M, tile.BLOCK_N, tile)
        rm, rn = numbers_of(first_m, first_n, tile.BLOCK_M, tile.BLOCK_N, tile.WIDE)
        rm = rm[:, None]
        rn = rn[None, :]
        inner_m = tl.where(rm < sizes.M, rm, 0)
        inner_n = tl.where(rn < sizes.N, rn, 0)
        for step in tl.range(0, tl.cdiv(sizes.K, tile.BLOCK_K)):
            k = step * tile.BLOCK_K
            if beginning.SCALE is not None:
                factor = beginning.SCALE(inner_m, inner_n, first_n, k, beginning.scale_operands)
            x = load_tile(a_desc, first_m, k, a.BY_ROWS)
            y = load_tile(tile_desc, k, first_n - of_b, ALONE and b.BY_ROWS)
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
        parts = split_columns(acc, PARTS)
        for i in tl.static_range(PARTS):
            finish(parts[i], first_m, first_n + i * PART, sizes, tile, ending, out_desc)


@triton.jit
def descriptor_of(matrix, rows, columns, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """The descriptor of a matrix, given or made; it reads blocks transposed if not BY_ROWS. None
    for what has none."""
    if matrix is None or not matrix.TMA:
        found = None
    elif matrix.GIVEN:
        found = matrix.ptr
    elif matrix.BY_ROWS:
        found = tl.make_tensor_descriptor(
            matrix.ptr, [rows, columns], [matrix.stride_row, 1], [BLOCK_ROWS, BLOCK_COLUMNS]
        )
    else:
        found = tl.make_tensor_descriptor(
            matrix.ptr, [columns, rows], [matrix.stride_column, 1], [BLOCK_COLUMNS, BLOCK_ROWS]
        )
    return found


@triton.jit
def load_tile(descriptor, row, column, BY_ROWS: tl.constexpr):
    """The block of `descriptor_of` that starts at (row, column)."""
    if BY_ROWS:
        block = descriptor.load([row, column])
    else:
        block = descriptor.load([column, row]).T
    return block


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
