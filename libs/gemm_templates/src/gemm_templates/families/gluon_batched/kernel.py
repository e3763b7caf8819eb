"""A persistent kernel for batches and groups of products whose warps have roles, in Gluon.

The roles are those of `gluon`'s kernel; descriptors have rank 3, and the programs walk over the
tiles of all products. For groups of rows, each role finds the group of its tile in `groups.ends`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma
from triton.language.extra.cuda import gdc_wait

from gemm_templates.families.gluon_batched.schedule import place_of, schedule
from gemm_templates.parts.gluon_finish import finish_tile
from gemm_templates.parts.gluon_parts import (
    GROUPS,
    LOADER,
    MULTIPLIER,
    bias_of,
    copy_tile,
    map_of,
    memory_of,
    products,
    ring_barriers,
    to_fill,
    turn_barriers,
)
from gemm_templates.parts.operands import Sizes


@gluon.jit
def gluon_batched_mm(a, b, sizes, tile, ending, groups, pipeline, OVERLAP: gl.constexpr = False):
    """Like `gluon_mm`, for `BATCH` products as `batched_tma_mm` takes them, or groups of rows as
    `grouped_mm` (JAGGED="M")."""
    ROWS: gl.constexpr = tile.BLOCK_M if pipeline.TURNS else tile.BLOCK_M // GROUPS
    HALVES: gl.constexpr = tile.BLOCK_M // ROWS
    PART: gl.constexpr = tile.BLOCK_N // pipeline.PARTS
    STAGES: gl.constexpr = pipeline.STAGES
    a_memory = memory_of(a, STAGES * HALVES, ROWS, tile.BLOCK_K, True)
    b_memory = memory_of(b, STAGES, tile.BLOCK_K, tile.BLOCK_N, True)
    if ending.out is not None and ending.out.TMA:
        out_memory = memory_of(ending.out, GROUPS * pipeline.BUFFERS, ROWS, PART, True)
    else:
        out_memory = a_memory
    full, empty = ring_barriers(STAGES, 2, HALVES)  # a and b
    turn = turn_barriers()
    fence_async_shared()
    if OVERLAP:
        gdc_wait()

    # Arguments are written out, since a tuple in a variable would lose what is constant.
    memory = (a_memory, b_memory, out_memory)
    barriers = (full, empty, turn)
    gl.warp_specialize(
        [
            (multiply, (0, a, b, memory, barriers, sizes, tile, ending, groups, pipeline)),
            (multiply, (1, a, b, memory, barriers, sizes, tile, ending, groups, pipeline)),
            (load, (a, a_memory, barriers, sizes, tile, groups, pipeline, True)),
            (load, (b, b_memory, barriers, sizes, tile, groups, pipeline, False)),
        ],
        [4, 1, 1],
        [MULTIPLIER, LOADER, LOADER],
    )


@gluon.jit
def load(operand, memory, barriers, sizes, tile, groups, pipeline, LEFT: gl.constexpr):
    """Fills the ring with `a` (LEFT), a group's rows at a time, or with `b`."""
    full, empty = barriers[0], barriers[1]
    COPIES: gl.constexpr = GROUPS if LEFT and not pipeline.TURNS else 1
    OUTER: gl.constexpr = tile.BLOCK_M // COPIES if LEFT else tile.BLOCK_N
    if LEFT:
        desc = map_of(operand, memory, (sizes.M, sizes.K, sizes.BATCH), OUTER, tile.BLOCK_K)
    else:
        desc = map_of(operand, memory, (sizes.K, sizes.N, sizes.BATCH), tile.BLOCK_K, OUTER)
    steps = gl.cdiv(sizes.K, tile.BLOCK_K)
    tiles, found = schedule(groups, sizes, tile)
    count = 0
    for number in range(gl.program_id(0), tiles, gl.num_programs(0)):
        product, first_m, first_n, _ = place_of(number, found, sizes, tile)
        matrix = 0 if operand.SHARED else product
        first = first_m if LEFT else first_n
        for step in range(steps):
            slot, ready = to_fill(
                full, empty, count, pipeline.STAGES, COPIES * desc.block_type.nbytes
            )
            k = step * tile.BLOCK_K
            for i in gl.static_range(COPIES):
                at = first + i * OUTER
                into = memory.index(slot * COPIES + i)
                if LEFT:
                    copy_tile(desc, (at, k, matrix), ready, into, operand.BY_ROWS)
                else:
                    copy_tile(desc, (k, at, matrix), ready, into, operand.BY_ROWS)
            count += 1


@gluon.jit
def multiply(GROUP: gl.constexpr, a, b, memory, barriers, sizes, tile, ending, groups, pipeline):
    """One group of warps: its tiles of this program, or its rows of each of them."""
    out_memory = memory[2]
    TURNS: gl.constexpr = pipeline.TURNS
    HALVES: gl.constexpr = 1 if TURNS else GROUPS
    ROWS: gl.constexpr = tile.BLOCK_M // HALVES
    HALF: gl.constexpr = 0 if TURNS else GROUP
    FIRST: gl.constexpr = GROUP if TURNS else 0
    EVERY: gl.constexpr = GROUPS if TURNS else 1
    PART: gl.constexpr = tile.BLOCK_N // pipeline.PARTS
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, tile.BLOCK_N, 16])
    if ending.out is not None:
        desc = map_of(ending.out, out_memory, (sizes.M, sizes.N, sizes.BATCH), ROWS, PART)
    else:
        desc = None
    steps = gl.cdiv(sizes.K, tile.BLOCK_K)
    tiles, found = schedule(groups, sizes, tile)
    mine = (tiles - gl.program_id(0) + gl.num_programs(0) - 1) // gl.num_programs(0)
    for item in range(FIRST, mine, EVERY):
        number = gl.program_id(0) + item * gl.num_programs(0)
        product, first_m, first_n, end_m = place_of(number, found, sizes, tile)
        acc = gl.zeros([ROWS, tile.BLOCK_N], gl.float32, layout)
        bias = bias_of(first_n, sizes, tile, ending, layout)
        acc = products(GROUP, acc, item, item * steps, steps, memory, barriers, a, b, pipeline)
        finish_tile(
            acc, bias, (first_m + HALF * ROWS, first_n, product), desc,
            (out_memory, GROUP * pipeline.BUFFERS, item // EVERY),
            Sizes(end_m, sizes.N, sizes.K), tile, ending, pipeline,
        )  # fmt: skip
    if desc is not None:
        tma.store_wait(0)
