"""One row times a matrix: each element of `b` is read once, in whole cache lines, and multiplied on
the CUDA cores.

More rows, up to 64, are `split_k_mm` with SWAP: the tensor cores take `b` for the tall operand."""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.families.split_k.kernel import finish_last
from gemm_templates.parts.tiles import (
    inside_of,
    load_block,
    no_sums,
    numbers_of,
    picked_b,
    prepare_a,
    prepare_b,
    share_of,
)


@triton.jit
def gemv_mm(a, b, sizes, tile, ending, beginning, scratch, share, STAGES: tl.constexpr):
    """Like `split_k_mm` with BLOCK_M = 1, which is a row a program: the grid is (M * cdiv(N,
    BLOCK_N), batch, SPLIT_K). STAGES blocks of `b` are under way at a time. Products of f32 are
    exact."""
    pid = tl.program_id(0)
    part = tl.program_id(2)
    row = pid % sizes.M
    first_n = pid // sizes.M * tile.BLOCK_N
    rm, rn = numbers_of(row, first_n, 1, tile.BLOCK_N, tile.WIDE)
    rk = tl.arange(0, tile.BLOCK_K)
    if tile.WIDE:
        rk = rk.to(tl.int64)
    first, count = share_of(part, sizes.K, tile.BLOCK_K, share)
    start = first * tile.BLOCK_K
    along = start + rk
    start_a = a.ptr + (row.to(tl.int64) if tile.WIDE else row) * a.stride_row
    a_ptrs = start_a + along * a.stride_column
    start_b, of_b = picked_b(b, first_n, beginning)
    b_ptrs = start_b + ((rn - of_b)[:, None] * b.stride_column + along[None, :] * b.stride_row)
    # Summed up across threads only once, at the end.
    sums = no_sums(tile.BLOCK_N, tile.BLOCK_K, tile)
    for step in tl.range(0, count, num_stages=STAGES):
        left = sizes.K - start - step * tile.BLOCK_K
        on_k = rk[None, :] < left
        in_n = rn[:, None] < sizes.N
        y = load_block(b_ptrs, in_n, on_k, tile.EDGE_N, tile.EVEN_K)
        x = load_block(a_ptrs, True, rk < left, "none", tile.EVEN_K)[None, :]
        first_k = start + step * tile.BLOCK_K
        at = first_k + rk[None, :]
        if beginning.PROLOGUE_A is not None:
            inside = inside_of(x, True, on_k, "none")
            x = prepare_a(x, rm[:, None], at, first_k, inside, beginning, tile)
        if beginning.PROLOGUE_B is not None:
            # As prologues know `b`: [BLOCK_K, BLOCK_N].
            inside = inside_of(y, in_n, on_k, tile.EDGE_N)
            y = prepare_b(y.T, rn[None, :], at.T, first_k, inside.T, beginning, tile).T
        sums += y.to(sums.dtype) * x.to(sums.dtype)
        a_ptrs += tile.BLOCK_K * a.stride_column
        b_ptrs += tile.BLOCK_K * b.stride_row
    acc = tl.sum(sums, axis=1)[None, :]
    finish_last(acc, row, first_n, sizes, tile, ending, scratch, share, False)
