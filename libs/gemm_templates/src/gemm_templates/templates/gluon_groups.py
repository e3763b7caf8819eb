# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""How the programs of a Gluon kernel walk over the tiles of a batch, or of groups of rows.

    schedule(offs, M, N, ...)        -> tiles, and where the groups lie
    place_of(tile, ..., M, N, ...)   -> product, row, column, end of its rows

Every role calls both with the same arguments, so that all see the same tiles in the same order.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from gemm_templates.templates.tiled import tile_of


@gluon.jit
def schedule(offs_ptr, M, N, BATCH: gl.constexpr, BY_GROUPS: gl.constexpr, SPAN: gl.constexpr,
             BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):  # fmt: skip
    """How many tiles there are, and what `place_of` needs."""
    tiles_n = gl.cdiv(N, BLOCK_N)
    if BY_GROUPS:
        starts, sizes, last = groups_of(offs_ptr, M, BATCH, SPAN, tiles_n, BLOCK_M)
        tiles = gl.max(last, 0)
    else:
        starts, sizes, last = 0, 0, 0
        tiles = gl.cdiv(M, BLOCK_M) * tiles_n * BATCH
    return tiles, starts, sizes, last


@gluon.jit
def place_of(
    tile,
    starts,
    sizes,
    last,
    M,
    N,
    BY_GROUPS: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    GROUP_M: gl.constexpr,
):
    """Tile number -> (product, row, column, end of its rows)."""
    if BY_GROUPS:
        before = last <= tile
        number = gl.sum(before.to(gl.int32), 0)
        inside = tile - gl.max(gl.where(before, last, 0), 0)
        here = gl.arange(0, last.shape[0], last.type.layout) == number
        start = gl.sum(gl.where(here, starts, 0), 0)
        size = gl.sum(gl.where(here, sizes, 0), 0)
        pid_m, pid_n = tile_of(inside, size, N, BLOCK_M, BLOCK_N, GROUP_M)
        first_m = start + pid_m * BLOCK_M
        end_m = start + size
    else:
        tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
        number = tile // tiles
        pid_m, pid_n = tile_of(tile % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        first_m = pid_m * BLOCK_M
        end_m = M
    return number, first_m, pid_n * BLOCK_N, end_m


@gluon.jit
def groups_of(offs_ptr, M, BATCH: gl.constexpr, SPAN: gl.constexpr, tiles_n,
              BLOCK_M: gl.constexpr):  # fmt: skip
    """Of each group: where it begins, how many rows it has, the tiles up to its end."""
    layout: gl.constexpr = gl.BlockedLayout([SPAN // 32], [32], [gl.num_warps()], [0])
    numbers = gl.arange(0, SPAN, layout)
    ends = gl.load(offs_ptr + numbers, mask=numbers < BATCH, other=0)
    starts = gl.load(offs_ptr + numbers - 1, mask=(numbers > 0) & (numbers < BATCH), other=0)
    ends = gl.minimum(gl.maximum(ends, 0), M)
    starts = gl.minimum(gl.maximum(starts, 0), M)
    sizes = gl.maximum(ends - starts, 0)
    last = gl.associative_scan((sizes + BLOCK_M - 1) // BLOCK_M * tiles_n, 0, add)
    return starts, sizes, last


@gluon.jit
def add(x, y):
    return x + y
