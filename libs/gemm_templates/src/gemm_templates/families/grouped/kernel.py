"""A persistent kernel for products of groups whose sizes only the device knows (Hopper and later).

`offs` has the end of each group along one size of the product; what lies past the last end belongs
to none. A program finds the group of a tile from `offs`: the host need not wait for it, and one
program goes on to the next group without a gap."""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.families.tma.kernel import descriptor_of, finish_parts, load_tile
from gemm_templates.parts.operands import Sizes, Tile
from gemm_templates.parts.tiles import multiply_add, tile_of


@triton.jit
def grouped_mm(
    a,
    b,
    sizes,
    tile,
    ending,
    groups,
    JAGGED: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr = None,
    b2=None,
):
    """Like `tma_mm` for `BATCH` groups.

    JAGGED: which size `groups.ends` divide. "M": rows of `a` and of `out`; `b` is [BATCH, K, N].
    "N": columns of `b` and of `out`; `a` is [BATCH, M, K]. "K": columns of `a`, rows of `b`; `out`
    is [BATCH, M, N], zero before the epilogue for an empty group.
    STAGES: 1 where one step is all of K; Triton would pipeline the tiles then, and fails to where
    they branch. b2: of rows, a second matrix a group; the result is `GATE(a @ b) * (a @ b2)`.
    The epilogue's row and column numbers are those of `out`. Ends that decrease or lie outside are
    cut off: nothing outside of `out` is written."""
    M, N, K = sizes.M, sizes.N, sizes.K
    BLOCK_M: tl.constexpr = tile.BLOCK_M
    BLOCK_N: tl.constexpr = tile.BLOCK_N
    BLOCK_K: tl.constexpr = tile.BLOCK_K
    STORE_TMA: tl.constexpr = ending.out is not None and ending.out.TMA
    a_desc = descriptor_of(a, sizes.BATCH, sizes.M, sizes.K, BLOCK_M, BLOCK_K)
    b_desc = descriptor_of(b, sizes.BATCH, sizes.K, sizes.N, BLOCK_K, BLOCK_N)
    b2_desc = descriptor_of(b2, sizes.BATCH, sizes.K, sizes.N, BLOCK_K, BLOCK_N)
    out_desc = descriptor_of(ending.out, sizes.BATCH, sizes.M, sizes.N, BLOCK_M, BLOCK_N // PARTS)
    numbers = tl.arange(0, groups.SPAN)
    whole = M if JAGGED == "M" else N if JAGGED == "N" else K
    ends = tl.load(groups.ends + numbers, mask=numbers < sizes.BATCH, other=0)
    ends = tl.minimum(tl.maximum(ends, 0), whole)
    others = (numbers > 0) & (numbers < sizes.BATCH)
    starts = tl.load(groups.ends + numbers - 1, mask=others, other=0)
    starts = tl.minimum(tl.maximum(starts, 0), whole)
    lengths = tl.maximum(ends - starts, 0)
    if JAGGED == "M":
        counts = tl.cdiv(lengths, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    elif JAGGED == "N":
        counts = tl.cdiv(M, BLOCK_M) * tl.cdiv(lengths, BLOCK_N)
    else:
        each = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        counts = tl.where(numbers < sizes.BATCH, each, 0)
    last = tl.cumsum(counts, 0)  # tiles up to the end of each group
    tiles = tl.sum(counts, 0)
    # Loops with a branch after them cannot be flattened (Triton 3.6 fails to).
    FLAT: tl.constexpr = JAGGED == "N" or (JAGGED == "M" and not STORE_TMA)
    for number in tl.range(
        tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES, flatten=FLAT
    ):
        before = last <= number
        group = tl.sum(before.to(tl.int32), 0)
        inside = number - tl.max(tl.where(before, last, 0), 0)
        start = tl.sum(tl.where(numbers == group, starts, 0), 0)
        size = tl.sum(tl.where(numbers == group, lengths, 0), 0)
        rows, columns, first_m, first_n = M, N, 0, 0
        if JAGGED == "M":
            rows, first_m = size, start
        if JAGGED == "N":
            columns, first_n = size, start
        pid_m, pid_n = tile_of(inside, rows, columns, tile)
        end_m = first_m + rows
        end_n = first_n + columns
        first_m += pid_m * BLOCK_M
        first_n += pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        if JAGGED == "K":
            for step in tl.range(0, size // BLOCK_K):
                k = start + step * BLOCK_K
                x = load_tile(a_desc, 0, first_m, k, a, BLOCK_M, BLOCK_K)
                y = load_tile(b_desc, 0, k, first_n, b, BLOCK_K, BLOCK_N)
                acc = multiply_add(x, y, acc, tile)
            left = size % BLOCK_K
            if left > 0:  # what follows is of the next group; it may be no number
                k = start + size - left
                rk = tl.arange(0, BLOCK_K)
                x = load_tile(a_desc, 0, first_m, k, a, BLOCK_M, BLOCK_K)
                y = load_tile(b_desc, 0, k, first_n, b, BLOCK_K, BLOCK_N)
                x = tl.where(rk[None, :] < left, x, 0.0)
                y = tl.where(rk[:, None] < left, y, 0.0)
                acc = multiply_add(x, y, acc, tile)
        else:
            if b2 is not None:
                acc2 = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for step in tl.range(0, tl.cdiv(K, BLOCK_K)):
                k = step * BLOCK_K
                x = load_tile(a_desc, group, first_m, k, a, BLOCK_M, BLOCK_K)
                y = load_tile(b_desc, group, k, first_n, b, BLOCK_K, BLOCK_N)
                if b2 is not None:
                    y2 = load_tile(b2_desc, group, k, first_n, b2, BLOCK_K, BLOCK_N)
                acc = multiply_add(x, y, acc, tile)
                if b2 is not None:
                    acc2 = multiply_add(x, y2, acc2, tile)
            if b2 is not None:
                rm = (first_m + tl.arange(0, BLOCK_M))[:, None]
                rn = (first_n + tl.arange(0, BLOCK_N))[None, :]
                inside = (rm < end_m) & (rn < end_n)
                acc = ending.GATE(acc, rm, rn, inside, ()) * acc2
        if STORE_TMA and JAGGED == "M":
            # A descriptor knows no end of a group: a tile that it ends in is stored by address.
            if first_m + BLOCK_M <= end_m:
                finish_parts(
                    acc, None, 0, group, first_m, first_n, Sizes(end_m, end_n, K),
                    Tile(BLOCK_M, BLOCK_N, BLOCK_K, tile.GROUP_M, "none", tile.EDGE_N, tile.EVEN_K,
                         tile.WIDE, tile.INPUT_PRECISION), ending, out_desc, PARTS,
                )  # fmt: skip
            else:
                finish_parts(
                    acc, None, 0, group, first_m, first_n, Sizes(end_m, end_n, K), tile, ending,
                    None, PARTS,
                )  # fmt: skip
        else:
            finish_parts(
                acc, None, group if JAGGED == "K" else 0, group, first_m, first_n,
                Sizes(end_m, end_n, K), tile, ending, out_desc, PARTS,
            )  # fmt: skip
