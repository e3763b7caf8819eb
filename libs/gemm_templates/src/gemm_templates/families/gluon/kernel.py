"""A persistent kernel for Hopper whose warps have roles, in Gluon.

One warp loads tiles of `a`, one of `b`, through TMA into a ring of stages; two groups of four warps
multiply (`wgmma`) and finish. A tile that one group's registers hold belongs to one group, and the
groups take turns: one multiplies while the other runs its epilogue and stores. A larger tile is
shared, each group has half of its rows.

With a second right operand, the columns of both tiles lie side by side: one `wgmma` multiplies both
with `a`, and the epilogue gets `GATE(a @ b) * (a @ b2)`.

For a batch descriptors have rank 3, and the programs walk over the tiles of all products; for
groups of rows, each role finds the group of its tile in `groups.ends`.

Tensor descriptors come from the host, or each role makes those that it needs, all at the
same time, which takes 2 us. Operands are as in `tma.py`: contiguous along one dimension, 16-byte
aligned, and the other stride a multiple of 16 bytes; elements of 16 bits, or of 8 along K."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from gemm_templates.parts.gluon_finish import finish_tile
from gemm_templates.parts.gluon_parts import (
    GROUPS,
    LOADER,
    MULTIPLIER,
    begin,
    bias_of,
    combined,
    load_steps,
    map_of,
    operand_map,
    products,
)
from gemm_templates.parts.group_tiles import place_of, schedule
from gemm_templates.parts.operands import Sizes
from gemm_templates.parts.tail_tiles import item_of, shares_of
from gemm_templates.parts.tiles import tile_of


@gluon.jit
def gluon_mm(a, b, sizes, tile, ending, pipeline, b2=None, scratch=None, groups=None,
             OVERLAP: gl.constexpr = False):  # fmt: skip
    """Like `tma_mm`; a kernel calls it with four warps and 168 registers a thread.

    EPILOGUE: elementwise, since values have a layout here. b2: None, or like `b`; there is a GATE
    then. With SHARES, each group leaves its f32 sums of a piece in `scratch.partials`, a tile for
    each program, and is counted in `counters`, one for each group that has rows of a tile; who
    comes last adds up all, always in the same order, and finishes. groups: of `BATCH` products, if
    that is not None, as `tma_mm` takes them, or of rows as `grouped_mm` does (JAGGED="M")."""
    PRODUCTS: gl.constexpr = 1 if ending.GATE is None else 2
    HALVES: gl.constexpr = 1 if pipeline.TURNS else GROUPS
    BATCHED: gl.constexpr = sizes.BATCH is not None
    gl.static_assert(
        BATCHED or pipeline.PARTS % pipeline.BUFFERS == 0, "parts take turns with the buffers"
    )
    made, barriers = begin(a, b, ending, tile, pipeline, PRODUCTS, True, BATCHED, OVERLAP)
    a_memory, b_memory, out_memory = made
    if ending.GATE is None:
        pair_memory = b_memory
    else:
        # A tile is rows of 128 bytes, or columns of such; that of `b2` goes on where `b`'s ends.
        HEIGHT: gl.constexpr = tile.BLOCK_K if b.BY_ROWS else 2 * tile.BLOCK_N
        WIDTH: gl.constexpr = 2 * tile.BLOCK_N if b.BY_ROWS else tile.BLOCK_K
        pair_memory = b_memory._reinterpret(
            b_memory.dtype, [pipeline.STAGES, HEIGHT, WIDTH], b_memory.layout
        )

    # Arguments are written out, since a tuple in a variable would lose what is constant.
    memory = (a_memory, pair_memory, out_memory)
    gl.warp_specialize(
        [
            (multiply, (0, a, b, memory, barriers, sizes, tile, ending, scratch, groups, pipeline)),
            (multiply, (1, a, b, memory, barriers, sizes, tile, ending, scratch, groups, pipeline)),
            (load, (a, a_memory, barriers, sizes, tile, groups, pipeline, True, 0, HALVES)),
            (load, (b, b_memory, barriers, sizes, tile, groups, pipeline, False, 0, PRODUCTS)),
            (load, (b2, b_memory, barriers, sizes, tile, groups, pipeline, False, 1, PRODUCTS)),
        ][: 3 + PRODUCTS],  # the last role is for `b2`
        [4, 1, 1, 1][: 2 + PRODUCTS],
        [MULTIPLIER, LOADER, LOADER, LOADER][: 2 + PRODUCTS],
    )


@gluon.jit
def load(
    operand, memory, barriers, sizes, tile, groups, pipeline, LEFT: gl.constexpr,
    PLACE: gl.constexpr, PLACES: gl.constexpr,
):  # fmt: skip
    """Fills the ring with `a` (LEFT), a group's rows at a time, or with a right operand, from place
    number PLACE of the PLACES of each stage on."""
    desc = operand_map(operand, memory, sizes, tile, LEFT, PLACES)
    steps = gl.cdiv(sizes.K, tile.BLOCK_K)
    pid, programs = gl.program_id(0), gl.num_programs(0)
    if sizes.BATCH is None:
        tiles = gl.cdiv(sizes.M, tile.BLOCK_M) * gl.cdiv(sizes.N, tile.BLOCK_N)
        items, pieces, shared = shares_of(pid, programs, tiles, pipeline.SHARES)
        for item in range(items):
            number, start, length, count = item_of(
                item, pid, programs, tiles, pieces, shared, steps, pipeline.SHARES
            )
            pid_m, pid_n = tile_of(number, sizes.M, sizes.N, tile)
            first = pid_m * tile.BLOCK_M if LEFT else pid_n * tile.BLOCK_N
            load_steps(
                operand, desc, memory, barriers, first, (), start, start + length, count, tile,
                pipeline, LEFT, PLACE, PLACES,
            )  # fmt: skip
    else:
        tiles, found = schedule(groups, sizes, tile)
        count = 0
        for number in range(pid, tiles, programs):
            product, first_m, first_n, _ = place_of(number, found, sizes, tile)
            matrix = 0 if operand.SHARED else product
            first = first_m if LEFT else first_n
            count = load_steps(
                operand, desc, memory, barriers, first, (matrix,), 0, steps, count, tile, pipeline,
                LEFT, PLACE, PLACES,
            )  # fmt: skip


@gluon.jit
def multiply(GROUP: gl.constexpr, a, b, memory, barriers, sizes, tile, ending, scratch, groups,
             pipeline):  # fmt: skip
    """One group: its tiles of this program, or its rows of each of them."""
    a_memory, out_memory = memory[0], memory[2]
    TURNS: gl.constexpr = pipeline.TURNS
    SHARES: gl.constexpr = pipeline.SHARES
    HALVES: gl.constexpr = 1 if TURNS else GROUPS
    ROWS: gl.constexpr = tile.BLOCK_M // HALVES
    HALF: gl.constexpr = 0 if TURNS else GROUP
    FIRST: gl.constexpr = GROUP if TURNS else 0
    EVERY: gl.constexpr = GROUPS if TURNS else 1
    PART: gl.constexpr = tile.BLOCK_N // pipeline.PARTS
    PRODUCTS: gl.constexpr = 1 if ending.GATE is None else 2
    COLUMNS: gl.constexpr = PRODUCTS * tile.BLOCK_N
    DEPTH: gl.constexpr = 256 // a_memory.dtype.primitive_bitwidth  # of an instruction, along K
    SUMS: gl.constexpr = gl.int32 if tile.INTEGER else gl.float32
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, DEPTH])
    desc = map_of(ending.out, out_memory, (sizes.M, sizes.N, sizes.BATCH), ROWS, PART)
    steps = gl.cdiv(sizes.K, tile.BLOCK_K)
    if sizes.BATCH is None:
        tiles = gl.cdiv(sizes.M, tile.BLOCK_M) * gl.cdiv(sizes.N, tile.BLOCK_N)
    else:
        tiles, found = schedule(groups, sizes, tile)
    pid, programs = gl.program_id(0), gl.num_programs(0)
    items, pieces, shared = shares_of(pid, programs, tiles, SHARES)
    for item in range(FIRST, items, EVERY):
        number, _, length, before = item_of(
            item, pid, programs, tiles, pieces, shared, steps, SHARES
        )
        if sizes.BATCH is None:
            pid_m, pid_n = tile_of(number, sizes.M, sizes.N, tile)
            bias = bias_of(pid_n * tile.BLOCK_N, sizes, tile, ending, layout)
        else:
            product, first_m, first_n, end_m = place_of(number, found, sizes, tile)
            bias = bias_of(first_n, sizes, tile, ending, layout)
        acc = gl.zeros([ROWS, COLUMNS], SUMS, layout)
        acc = products(GROUP, acc, item, before, length, memory, barriers, a, b, pipeline)
        if sizes.BATCH is not None:
            finish_tile(
                acc, bias, (first_m + HALF * ROWS, first_n, product), desc,
                (out_memory, GROUP * pipeline.BUFFERS, item // EVERY),
                Sizes(end_m, sizes.N, sizes.K), tile, ending, pipeline,
            )  # fmt: skip
        else:
            place = (pid_m * tile.BLOCK_M + HALF * ROWS, pid_n * tile.BLOCK_N)
            buffers = (out_memory, GROUP * pipeline.BUFFERS, 0)
            if SHARES == 0:
                finish_tile(acc, bias, place, desc, buffers, sizes, tile, ending, pipeline)
            else:
                acc, finishes = combined(
                    acc, item < pieces, number, number - tiles + shared, shared, scratch, HALF,
                    HALVES, SHARES,
                )  # fmt: skip
                if finishes:
                    finish_tile(acc, bias, place, desc, buffers, sizes, tile, ending, pipeline)
    if desc is not None:
        tma.store_wait(0)
