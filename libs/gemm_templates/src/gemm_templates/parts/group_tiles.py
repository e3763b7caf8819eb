"""How the programs of a Gluon kernel walk over the tiles of a batch, or of groups of rows.

    schedule(groups, sizes, tile)         -> tiles, and where the groups lie
    place_of(number, found, sizes, tile)  -> product, row, column, end of its rows

Every role calls both with the same arguments, so that all see the same tiles in the same order."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from gemm_templates.parts.tiles import tile_of


@gluon.jit
def schedule(groups, sizes, tile):
    """How many tiles there are, and what `place_of` needs. SPAN: at least 32."""
    tiles_n = gl.cdiv(sizes.N, tile.BLOCK_N)
    if groups.ends is None:
        tiles = gl.cdiv(sizes.M, tile.BLOCK_M) * tiles_n * sizes.BATCH
        found = ()
    else:
        found = groups_of(groups, sizes, tile, tiles_n)
        tiles = gl.max(found[2], 0)
    return tiles, found


@gluon.jit
def place_of(number, found, sizes, tile):
    """Tile number -> (product, row, column, end of its rows)."""
    if len(found) > 0:
        starts, counts, last = found
        before = last <= number
        product = gl.sum(before.to(gl.int32), 0)
        inside = number - gl.max(gl.where(before, last, 0), 0)
        here = gl.arange(0, last.shape[0], last.type.layout) == product
        start = gl.sum(gl.where(here, starts, 0), 0)
        size = gl.sum(gl.where(here, counts, 0), 0)
        pid_m, pid_n = tile_of(inside, size, sizes.N, tile)
        first_m = start + pid_m * tile.BLOCK_M
        end_m = start + size
    else:
        tiles = gl.cdiv(sizes.M, tile.BLOCK_M) * gl.cdiv(sizes.N, tile.BLOCK_N)
        product = number // tiles
        pid_m, pid_n = tile_of(number % tiles, sizes.M, sizes.N, tile)
        first_m = pid_m * tile.BLOCK_M
        end_m = sizes.M
    return product, first_m, pid_n * tile.BLOCK_N, end_m


@gluon.jit
def groups_of(groups, sizes, tile, tiles_n):
    """Of each group: where it begins, how many rows it has, the tiles up to its end."""
    SPAN: gl.constexpr = groups.SPAN
    layout: gl.constexpr = gl.BlockedLayout([SPAN // 32], [32], [gl.num_warps()], [0])
    numbers = gl.arange(0, SPAN, layout)
    others = (numbers > 0) & (numbers < sizes.BATCH)
    ends = gl.load(groups.ends + numbers, mask=numbers < sizes.BATCH, other=0)
    starts = gl.load(groups.ends + numbers - 1, mask=others, other=0)
    ends = gl.minimum(gl.maximum(ends, 0), sizes.M)
    starts = gl.minimum(gl.maximum(starts, 0), sizes.M)
    counts = gl.maximum(ends - starts, 0)
    last = gl.associative_scan((counts + tile.BLOCK_M - 1) // tile.BLOCK_M * tiles_n, 0, add)
    return starts, counts, last


@gluon.jit
def add(x, y):
    """For `associative_scan`."""
    return x + y
