"""One output tile per program: `out = EPILOGUE(a @ b + bias)`."""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.parts.tiles import finish, product_of, tile_of


@triton.jit
def tiled_mm(a, b, sizes, tile, ending, beginning):
    """The tile of `tl.program_id(0)`; the grid is cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)."""
    pid_m, pid_n = tile_of(tl.program_id(0), sizes.M, sizes.N, tile)
    acc = product_of(a, b, pid_m, pid_n, 0, None, sizes, tile, beginning)
    finish(acc, pid_m * tile.BLOCK_M, pid_n * tile.BLOCK_N, sizes, tile, ending)
