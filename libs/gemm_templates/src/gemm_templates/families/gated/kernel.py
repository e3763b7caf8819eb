"""Two products of one left operand, `GATE(a @ b) * (a @ b2)`, in one persistent kernel (TMA).

`a` is read once for both, and neither product is ever written."""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.families.tma.kernel import descriptor_of, load_tile, split_columns
from gemm_templates.parts.tiles import finish, multiply_add, tile_of


@triton.jit
def gated_mm(a, b, b2, sizes, tile, ending, PARTS: tl.constexpr):
    """Like `tma_mm`; `b2` has the sizes and strides of `b`, and there is no bias. PARTS: 1 or 2."""
    a_desc = descriptor_of(a, sizes.M, sizes.K, tile.BLOCK_M, tile.BLOCK_K)
    b_desc = descriptor_of(b, sizes.K, sizes.N, tile.BLOCK_K, tile.BLOCK_N)
    b2_desc = descriptor_of(b2, sizes.K, sizes.N, tile.BLOCK_K, tile.BLOCK_N)
    PART: tl.constexpr = tile.BLOCK_N // PARTS
    out_desc = descriptor_of(ending.out, sizes.M, sizes.N, tile.BLOCK_M, PART)
    tiles = tl.cdiv(sizes.M, tile.BLOCK_M) * tl.cdiv(sizes.N, tile.BLOCK_N)
    for number in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        pid_m, pid_n = tile_of(number, sizes.M, sizes.N, tile)
        first_m = pid_m * tile.BLOCK_M
        first_n = pid_n * tile.BLOCK_N
        acc = tl.zeros((tile.BLOCK_M, tile.BLOCK_N), dtype=tl.float32)
        acc2 = tl.zeros((tile.BLOCK_M, tile.BLOCK_N), dtype=tl.float32)
        for step in tl.range(0, tl.cdiv(sizes.K, tile.BLOCK_K)):
            k = step * tile.BLOCK_K
            x = load_tile(a_desc, first_m, k, a.BY_ROWS)
            y = load_tile(b_desc, k, first_n, b.BY_ROWS)
            y2 = load_tile(b2_desc, k, first_n, b.BY_ROWS)
            acc = multiply_add(x, y, acc, tile)
            acc2 = multiply_add(x, y2, acc2, tile)
        gates = split_columns(acc, PARTS)
        values = split_columns(acc2, PARTS)
        for i in tl.static_range(PARTS):
            rm = (first_m + tl.arange(0, tile.BLOCK_M))[:, None]
            rn = (first_n + i * PART + tl.arange(0, PART))[None, :]
            inside = (rm < sizes.M) & (rn < sizes.N)
            gated = ending.GATE(gates[i], rm, rn, inside, ()) * values[i]
            finish(gated, first_m, first_n + i * PART, sizes, tile, ending, out_desc)
