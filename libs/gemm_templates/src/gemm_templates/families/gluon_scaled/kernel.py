"""The kernel of `gluon` for fp8 whose sums leave the tensor cores: each step of K is added in f32,
by a factor of its own where operands have block scales.

Both groups of warps share a tile, and each has its part of it in registers twice: the sum, and the
products of a step. One group adds while the other's products are made."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from gemm_templates.families.gluon.kernel import load
from gemm_templates.parts.gluon_finish import finish_tile
from gemm_templates.parts.gluon_parts import (
    GROUPS,
    LOADER,
    MULTIPLIER,
    begin,
    bias_of,
    map_of,
)
from gemm_templates.parts.tiles import tile_of


@gluon.jit
def gluon_scaled_mm(a, b, sizes, tile, ending, beginning, pipeline, OVERLAP: gl.constexpr = False):
    """Like `gluon_mm` with tiles that both groups share; `a` and `b` are contiguous along K. SCALE
    gets values that have a layout."""
    # Arguments are written out, since a tuple in a variable would lose what is constant.
    memory, barriers = begin(a, b, ending, tile, pipeline, 1, False, False, OVERLAP)
    gl.warp_specialize(
        [
            (multiply_and_add, (0, memory, barriers, sizes, tile, ending, beginning, pipeline)),
            (multiply_and_add, (1, memory, barriers, sizes, tile, ending, beginning, pipeline)),
            (load, (a, memory[0], barriers, sizes, tile, None, pipeline, True, 0, GROUPS)),
            (load, (b, memory[1], barriers, sizes, tile, None, pipeline, False, 0, 1)),
        ],
        [4, 1, 1],
        [MULTIPLIER, LOADER, LOADER],
    )


@gluon.jit
def multiply_and_add(
    GROUP: gl.constexpr, memory, barriers, sizes, tile, ending, beginning, pipeline
):
    """One group's rows of each of this program's tiles."""
    a_memory, b_memory, out_memory = memory
    full, empty, _ = barriers
    BLOCK_N: gl.constexpr = tile.BLOCK_N
    STAGES: gl.constexpr = pipeline.STAGES
    ROWS: gl.constexpr = tile.BLOCK_M // GROUPS
    PART: gl.constexpr = BLOCK_N // pipeline.PARTS
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    desc = map_of(ending.out, out_memory, (sizes.M, sizes.N, 1), ROWS, PART)
    steps = gl.cdiv(sizes.K, tile.BLOCK_K)
    tiles = gl.cdiv(sizes.M, tile.BLOCK_M) * gl.cdiv(sizes.N, BLOCK_N)
    count = 0
    for number in range(gl.program_id(0), tiles, gl.num_programs(0)):
        pid_m, pid_n = tile_of(number, sizes.M, sizes.N, tile)
        first_m = pid_m * tile.BLOCK_M + GROUP * ROWS
        first_n = pid_n * BLOCK_N
        bias = bias_of(first_n, sizes, tile, ending, layout)
        rm = gl.expand_dims(first_m + gl.arange(0, ROWS, gl.SliceLayout(1, layout)), 1)
        rn = gl.expand_dims(first_n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout)), 0)
        rm = gl.where(rm < sizes.M, rm, 0)
        rn = gl.where(rn < sizes.N, rn, 0)
        if tile.WIDE:
            rm = rm.to(gl.int64)
            rn = rn.to(gl.int64)
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        product = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        for step in range(steps):
            slot = count % STAGES
            if beginning.SCALE is not None:  # read while the operands are on their way
                k = step * tile.BLOCK_K
                factor = beginning.SCALE(rm, rn, first_n, k, beginning.scale_operands)
            mbarrier.wait(full.index(slot), (count // STAGES) & 1)
            x = a_memory.index(slot * GROUPS + GROUP)
            y = b_memory.index(slot).permute([1, 0])
            product = warpgroup_mma(x, y, product, use_acc=False, is_async=True)
            product = warpgroup_mma_wait(0, (product,))
            mbarrier.arrive(empty.index(slot))
            if beginning.SCALE is not None:
                acc = gl.fma(product, factor, acc)
            else:
                acc += product
            count += 1
        finish_tile(
            acc, bias, (first_m, first_n), desc, (out_memory, GROUP, 0), sizes, tile, ending,
            pipeline,
        )  # fmt: skip
    if desc is not None:
        tma.store_wait(0)
