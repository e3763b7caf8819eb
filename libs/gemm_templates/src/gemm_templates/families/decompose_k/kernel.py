"""Products over parts of K, then their sum: two launches, no counters.

The first kernel leaves SPLIT_K matrices of f32 in a workspace; the second adds them up in a fixed
order, with bias and epilogue. The workspace may hold anything before, so any host program can run
them, for any M.

With OVERLAP (Hopper and later) the second kernel may be launched while the first runs, and waits
for its results (programmatic dependent launch). Launched in the plain way it waits for nothing."""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.parts.tiles import finish, numbers_of, product_of, tile_of


@triton.jit
def decompose_k_mm(
    a, b, sizes, tile, beginning, scratch, share, OVERLAP: tl.constexpr, EARLY: tl.constexpr
):
    """The products, for the grid (tiles, batch, SPLIT_K), at `partials` f32 [SPLIT_K, batch, M, N].

    EARLY: the next kernel may be launched once all programs have begun, else once their loops end.
    """
    if OVERLAP and EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    part = tl.program_id(2)
    pid_m, pid_n = tile_of(tl.program_id(0), sizes.M, sizes.N, tile)
    acc = product_of(a, b, pid_m, pid_n, part, share, sizes, tile, beginning)
    if OVERLAP and not EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    matrix = (part * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * sizes.M * sizes.N
    inside, mask = places_of(pid_m, pid_n, sizes, tile)
    tl.store(scratch.partials + matrix + inside, acc, mask=mask)


@triton.jit
def reduce_k_mm(sizes, tile, ending, scratch, share, OVERLAP: tl.constexpr):
    """Their sum with bias and epilogue, for the grid (tiles, batch), with tiles of its own; CHUNK
    matrices at a time."""
    pid_m, pid_n = tile_of(tl.program_id(0), sizes.M, sizes.N, tile)
    inside, within = places_of(pid_m, pid_n, sizes, tile)
    inside, within = inside[None, :, :], within[None, :, :]
    chunk = tl.arange(0, share.CHUNK)[:, None, None]
    batches = tl.num_programs(1)
    kind = scratch.partials.dtype.element_ty
    sums = tl.zeros((share.CHUNK, tile.BLOCK_M, tile.BLOCK_N), dtype=kind)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    for first in tl.range(0, share.SPLIT_K, share.CHUNK, loop_unroll_factor=4):
        number = (first + chunk) * batches + tl.program_id(1)
        matrix = number.to(tl.int64) * sizes.M * sizes.N
        mask = within
        if share.SPLIT_K % share.CHUNK != 0:
            mask = mask & (first + chunk < share.SPLIT_K)
        sums += tl.load(scratch.partials + (matrix + inside), mask=mask, other=0)
    acc = tl.sum(sums, axis=0)
    finish(acc, pid_m * tile.BLOCK_M, pid_n * tile.BLOCK_N, sizes, tile, ending)


@triton.jit
def places_of(pid_m, pid_n, sizes, tile):
    """Where the elements of a tile lie in a contiguous matrix, and whether they do."""
    first_m, first_n = pid_m * tile.BLOCK_M, pid_n * tile.BLOCK_N
    rm, rn = numbers_of(first_m, first_n, tile.BLOCK_M, tile.BLOCK_N, tile.WIDE)
    inside = rm[:, None] * sizes.N + rn[None, :]
    return inside, (rm[:, None] < sizes.M) & (rn[None, :] < sizes.N)
