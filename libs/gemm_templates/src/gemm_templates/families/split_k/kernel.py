"""Several programs a tile, each with a share of K, in one launch.

Every program leaves its f32 sums in a workspace and counts itself in; the one that comes last adds
them all up, always in the same order, and goes on to the bias and the epilogue. So a result does
not depend on who came last, and no second launch is needed."""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.parts.tiles import finish, product_of, tile_of


@triton.jit
def split_k_mm(a, b, sizes, tile, ending, beginning, scratch, share, SWAP: tl.constexpr):
    """Like `tiled_mm`, for the grid (tiles, batch, SPLIT_K); SWAP: `product_of`.

    scratch: SPLIT_K tiles and one counter for each tile; not used with SPLIT_K = 1."""
    pid = tl.program_id(0)
    part = tl.program_id(2)
    pid_m, pid_n = tile_of(pid, sizes.M, sizes.N, tile)
    acc = product_of(a, b, pid_m, pid_n, part, share, sizes, tile, beginning, SWAP)
    first_m, first_n = pid_m * tile.BLOCK_M, pid_n * tile.BLOCK_N
    finish_last(acc, first_m, first_n, sizes, tile, ending, scratch, share, SWAP)


@triton.jit
def finish_last(acc, first_m, first_n, sizes, tile, ending, scratch, share, SWAP: tl.constexpr):
    """`finish` by the program of a tile that comes last, for the sums of all; they may be
    transposed (SWAP)."""
    if share.SPLIT_K == 1:
        finish(tl.trans(acc) if SWAP else acc, first_m, first_n, sizes, tile, ending)
    else:
        HEIGHT: tl.constexpr = acc.shape[0]
        WIDTH: tl.constexpr = acc.shape[1]
        number = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        places = scratch.partials + number.to(tl.int64) * (share.SPLIT_K * HEIGHT * WIDTH)
        slot = places + tl.program_id(2) * (HEIGHT * WIDTH)
        rows = tl.arange(0, HEIGHT)
        columns = tl.arange(0, WIDTH)
        tl.store(slot + (rows[:, None] * WIDTH + columns[None, :]), acc)
        if comes_last(scratch.counters + number, share.SPLIT_K):
            tl.store(scratch.counters + number, 0)
            total = total_of(places, share, HEIGHT, WIDTH)
            finish(tl.trans(total) if SWAP else total, first_m, first_n, sizes, tile, ending)


@triton.jit
def comes_last(counter, parts):
    """Counts this program in; whether all `parts` programs have been. All that they stored before
    is visible to the last one then: the barrier orders the stores of a program's threads before
    its count, and the count releases and acquires."""
    tl.debug_barrier()
    return tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == parts - 1


@triton.jit
def total_of(partials, share, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Sum of SPLIT_K partial sums [HEIGHT, WIDTH] that follow each other, CHUNK at a time, so that
    many loads are under way at once. They bypass the L1 cache."""
    rows = tl.arange(0, HEIGHT)
    columns = tl.arange(0, WIDTH)
    chunk = tl.arange(0, share.CHUNK)[:, None, None]
    inside = (rows[:, None] * WIDTH + columns[None, :])[None, :, :]
    places = partials + (chunk * (HEIGHT * WIDTH) + inside)
    sums = tl.zeros((share.CHUNK, HEIGHT, WIDTH), dtype=partials.dtype.element_ty)
    for first in tl.range(0, share.SPLIT_K, share.CHUNK, loop_unroll_factor=4):
        at = places + first * (HEIGHT * WIDTH)
        if share.SPLIT_K % share.CHUNK == 0:
            sums += tl.load(at, cache_modifier=".cg")
        else:
            sums += tl.load(at, mask=first + chunk < share.SPLIT_K, other=0, cache_modifier=".cg")
    return tl.sum(sums, axis=0)
