"""A persistent kernel for batches and groups of products whose warps have roles, in Gluon.

The roles are those of `gluon`'s kernel; descriptors have rank 3, and the programs walk over the
tiles of all products. For groups of rows, each role finds the group of its tile in `groups.ends`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from gemm_templates.families.gluon_batched.schedule import place_of, schedule
from gemm_templates.parts.gluon_finish import finish_tile
from gemm_templates.parts.gluon_parts import (
    GROUPS,
    LOADER,
    MULTIPLIER,
    begin,
    bias_of,
    load_steps,
    map_of,
    operand_map,
    products,
)
from gemm_templates.parts.operands import Sizes


@gluon.jit
def gluon_batched_mm(a, b, sizes, tile, ending, groups, pipeline, OVERLAP: gl.constexpr = False):
    """Like `gluon_mm`, for `BATCH` products as `tma_mm` takes them, or groups of rows as
    `grouped_mm` (JAGGED="M")."""
    # Arguments are written out, since a tuple in a variable would lose what is constant.
    memory, barriers = begin(a, b, ending, tile, pipeline, 1, True, True, OVERLAP)
    gl.warp_specialize(
        [
            (multiply, (0, a, b, memory, barriers, sizes, tile, ending, groups, pipeline)),
            (multiply, (1, a, b, memory, barriers, sizes, tile, ending, groups, pipeline)),
            (load, (a, memory[0], barriers, sizes, tile, groups, pipeline, True)),
            (load, (b, memory[1], barriers, sizes, tile, groups, pipeline, False)),
        ],
        [4, 1, 1],
        [MULTIPLIER, LOADER, LOADER],
    )


@gluon.jit
def load(operand, memory, barriers, sizes, tile, groups, pipeline, LEFT: gl.constexpr):
    """Fills the ring with `a` (LEFT), a group's rows at a time, or with `b`."""
    COPIES: gl.constexpr = GROUPS if LEFT and not pipeline.TURNS else 1
    desc = operand_map(operand, memory, sizes, tile, LEFT, COPIES)
    steps = gl.cdiv(sizes.K, tile.BLOCK_K)
    tiles, found = schedule(groups, sizes, tile)
    count = 0
    for number in range(gl.program_id(0), tiles, gl.num_programs(0)):
        product, first_m, first_n, _ = place_of(number, found, sizes, tile)
        matrix = 0 if operand.SHARED else product
        first = first_m if LEFT else first_n
        count = load_steps(
            operand, desc, memory, barriers, first, (matrix,), 0, steps, count, tile, pipeline,
            LEFT, 0, COPIES,
        )  # fmt: skip


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
    desc = map_of(ending.out, out_memory, (sizes.M, sizes.N, sizes.BATCH), ROWS, PART)
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
