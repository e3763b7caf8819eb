"""What the Gluon kernels share: the ring of stages, the loop over it, and the parts of a tile.

Tiles lie in the ring as [rows, columns], or [1, rows, columns] where descriptors have rank 3."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from gemm_templates.families.split_k.kernel import comes_last

GROUPS = gl.constexpr(2)
# Registers of a thread: that multiplies, that loads. (240 + 240 + 24) * 128 of the 65536 of a
# multiprocessor; the loading warps are counted as four.
MULTIPLIER = gl.constexpr(240)
LOADER = gl.constexpr(24)


@gluon.jit
def begin(a, b, ending, tile, pipeline, PRODUCTS: gl.constexpr, MAY_TURN: gl.constexpr,
          BATCHED: gl.constexpr, OVERLAP: gl.constexpr):  # fmt: skip
    """The shared memory of a kernel: for tiles of `a`, of PRODUCTS right operands, and of the
    result; and its barriers: full, empty, and whose turn it is, where groups may take turns."""
    ROWS: gl.constexpr = tile.BLOCK_M if pipeline.TURNS else tile.BLOCK_M // GROUPS
    HALVES: gl.constexpr = tile.BLOCK_M // ROWS
    PART: gl.constexpr = tile.BLOCK_N // pipeline.PARTS
    STAGES: gl.constexpr = pipeline.STAGES
    a_memory = memory_of(a, STAGES * HALVES, ROWS, tile.BLOCK_K, BATCHED)
    b_memory = memory_of(b, STAGES * PRODUCTS, tile.BLOCK_K, tile.BLOCK_N, BATCHED)
    if ending.out is not None and ending.out.TMA:
        out_memory = memory_of(ending.out, GROUPS * pipeline.BUFFERS, ROWS, PART, BATCHED)
    else:
        out_memory = a_memory
    full, empty = ring_barriers(STAGES, 1 + PRODUCTS, HALVES)  # a, and each right operand
    turn = turn_barriers() if MAY_TURN else full
    fence_async_shared()
    if OVERLAP:
        gdc_wait()
    return (a_memory, b_memory, out_memory), (full, empty, turn)


@gluon.jit
def ring_barriers(STAGES: gl.constexpr, LOADS: gl.constexpr, READERS: gl.constexpr):
    """Of each stage, a barrier that LOADS tiles fill, and one that READERS groups empty."""
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=LOADS)
        mbarrier.init(empty.index(i), count=READERS)
    return full, empty


@gluon.jit
def turn_barriers():
    """For each group, a barrier that says that it is its turn."""
    turn = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(GROUPS):
        mbarrier.init(turn.index(i), count=1)
    return turn


@gluon.jit
def to_fill(full, empty, count, STAGES: gl.constexpr, BYTES: gl.constexpr):
    """Waits until the stage of step `count` is free: its number, and the barrier that counts the
    BYTES that are to come."""
    slot = count % STAGES
    ready = full.index(slot)
    # The other parity than a reader's: the first wait of each slot does not block.
    mbarrier.wait(empty.index(slot), ((count // STAGES) & 1) ^ 1)
    mbarrier.expect(ready, BYTES)
    return slot, ready


@gluon.jit
def memory_of(matrix, COUNT: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr,
              BATCHED: gl.constexpr):  # fmt: skip
    """Shared memory for COUNT tiles of [ROWS, COLUMNS], as they lie in the matrix."""
    dtype: gl.constexpr = matrix.ptr.dtype if matrix.GIVEN else matrix.ptr.dtype.element_ty
    HEIGHT: gl.constexpr = ROWS if matrix.BY_ROWS else COLUMNS
    WIDTH: gl.constexpr = COLUMNS if matrix.BY_ROWS else ROWS
    if BATCHED:
        batch: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, HEIGHT, WIDTH], dtype)
        memory = gl.allocate_shared_memory(dtype, [COUNT, 1, HEIGHT, WIDTH], batch)
    else:
        layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HEIGHT, WIDTH], dtype)
        memory = gl.allocate_shared_memory(dtype, [COUNT, HEIGHT, WIDTH], layout)
    return memory


@gluon.jit
def map_of(matrix, memory, sizes, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """The descriptor of a matrix of `sizes`, or of a batch: (rows, columns, number), given or made,
    by which tiles of [ROWS, COLUMNS] go to or come from `memory`; None for what has none."""
    rows, columns, number = sizes
    if matrix is None:
        desc = None
    elif matrix.GIVEN:
        desc = matrix.ptr
    elif not matrix.TMA:
        desc = None
    else:
        HEIGHT: gl.constexpr = ROWS if matrix.BY_ROWS else COLUMNS
        WIDTH: gl.constexpr = COLUMNS if matrix.BY_ROWS else ROWS
        stride = matrix.stride_row if matrix.BY_ROWS else matrix.stride_column
        outer = rows if matrix.BY_ROWS else columns
        inner = columns if matrix.BY_ROWS else rows
        if len(memory.shape) == 3:
            desc = tma.make_tensor_descriptor(
                matrix.ptr, [outer, inner], [stride, 1], [HEIGHT, WIDTH], memory.layout
            )
        else:
            # Of one matrix any distance will do: only the first is read.
            distance = stride if matrix.SHARED else matrix.stride_batch
            count = 1 if matrix.SHARED else number
            desc = tma.make_tensor_descriptor(
                matrix.ptr, [count, outer, inner], [distance, stride, 1], [1, HEIGHT, WIDTH],
                memory.layout,
            )  # fmt: skip
    return desc


@gluon.jit
def copy_tile(desc, place, matrix, ready, into, BY_ROWS: gl.constexpr):
    """Loads the tile at `place`: (row, column), of matrix () or (number,) of a batch."""
    row, column = place
    outer = row if BY_ROWS else column
    inner = column if BY_ROWS else row
    if len(matrix) == 0:
        tma.async_copy_global_to_shared(desc, [outer, inner], ready, into)
    else:
        tma.async_copy_global_to_shared(desc, [matrix[0], outer, inner], ready, into)


@gluon.jit
def operand_map(operand, memory, sizes, tile, LEFT: gl.constexpr, COPIES: gl.constexpr):
    """The descriptor of `a` (LEFT), of which COPIES copies make a tile, or of a right operand."""
    if LEFT:
        shape = (sizes.M, sizes.K, sizes.BATCH)
        desc = map_of(operand, memory, shape, tile.BLOCK_M // COPIES, tile.BLOCK_K)
    else:
        desc = map_of(operand, memory, (sizes.K, sizes.N, sizes.BATCH), tile.BLOCK_K, tile.BLOCK_N)
    return desc


@gluon.jit
def load_steps(
    operand, desc, memory, barriers, first, matrix, start, end, count, tile, pipeline,
    LEFT: gl.constexpr, PLACE: gl.constexpr, PLACES: gl.constexpr,
):  # fmt: skip
    """Fills the ring with the steps `start` to `end` along K of the rows of `a` (LEFT) from `first`
    on, a group's at a time, or of such columns, from place number PLACE of the PLACES of each stage
    on. `matrix`: () or (its number,) of a batch. Gives the number of steps so far, after `count`.
    """
    COPIES: gl.constexpr = PLACES if LEFT else 1
    OUTER: gl.constexpr = tile.BLOCK_M // COPIES
    for step in range(start, end):
        slot, ready = to_fill(
            barriers[0], barriers[1], count, pipeline.STAGES, COPIES * desc.block_type.nbytes
        )
        for i in gl.static_range(COPIES):
            at = first + i * OUTER
            into = memory.index(slot * PLACES + PLACE + i)
            k = step * tile.BLOCK_K
            if LEFT:
                copy_tile(desc, (at, k), matrix, ready, into, operand.BY_ROWS)
            else:
                copy_tile(desc, (k, at), matrix, ready, into, operand.BY_ROWS)
        count += 1
    return count


@gluon.jit
def products(GROUP: gl.constexpr, acc, number, before, steps, memory, barriers, a, b, pipeline):
    """The sums over `steps` along K of this group's tile (TURNS) or its rows of it; `number` counts
    the program's tiles, `before` their steps."""
    a_memory, b_memory, _ = memory
    full, empty, turn = barriers
    STAGES: gl.constexpr = pipeline.STAGES
    TURNS: gl.constexpr = pipeline.TURNS
    HALVES: gl.constexpr = 1 if TURNS else GROUPS
    EVERY: gl.constexpr = GROUPS if TURNS else 1
    HALF: gl.constexpr = 0 if TURNS else GROUP
    if TURNS:
        # The parity of a slot tells one round of the ring from the next, not from the one
        # after: a group looks at the ring only when the one before it has seen its last slot.
        mbarrier.wait(turn.index(GROUP), ((number // EVERY) & 1) ^ (GROUP == 0))
    count = before
    for step in range(steps):
        slot = count % STAGES
        mbarrier.wait(full.index(slot), (count // STAGES) & 1)
        x = a_memory.index(slot * HALVES + HALF)
        y = b_memory.index(slot)
        if len(x.shape) == 3:
            x = x.reshape([x.shape[1], x.shape[2]])
            y = y.reshape([y.shape[1], y.shape[2]])
        if not a.BY_ROWS:
            x = x.permute([1, 0])
        if not b.BY_ROWS:
            y = y.permute([1, 0])
        acc = warpgroup_mma(x, y, acc, use_acc=step != 0, is_async=True)
        acc = warpgroup_mma_wait(1, (acc,))  # the product of the step before is done
        mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), pred=step != 0)
        count += 1
    if TURNS:
        mbarrier.arrive(turn.index((GROUP + 1) % GROUPS))
    acc = warpgroup_mma_wait(0, (acc,))
    mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), pred=steps != 0)
    return acc


@gluon.jit
def bias_of(first_n, sizes, tile, ending, layout: gl.constexpr):
    """The bias of a tile, read before its products so that none waits for it."""
    rn = first_n + gl.arange(0, tile.BLOCK_N, gl.SliceLayout(0, layout))
    if ending.bias is None:
        bias = None
    elif tile.EDGE_N == "none":
        bias = gl.load(ending.bias + rn * ending.stride_bias)
    else:
        bias = gl.load(ending.bias + rn * ending.stride_bias, mask=rn < sizes.N, other=0.0)
    return bias


@gluon.jit
def split_columns(acc, PARTS: gl.constexpr):
    """A tuple of PARTS parts of the columns (1, 2, 4 or 8), in order: other registers each."""
    ROWS: gl.constexpr = acc.shape[0]
    HALF: gl.constexpr = acc.shape[1] // 2
    if PARTS == 1:
        parts = (acc,)
    else:
        left, right = gl.split(gl.permute(gl.reshape(acc, (ROWS, 2, HALF)), (0, 2, 1)))
        parts = split_columns(left, PARTS // 2) + split_columns(right, PARTS // 2)
    return parts


@gluon.constexpr_function
def lines(ROWS, COLUMNS, LAST):
    """The layout of `wgmma` in four warps, but for which columns the low two bits of a thread's
    number tell: 8 and 16 (LAST=16), so that a thread has eight side by side; 8 and 4 (LAST=4)."""
    registers = [[0, 1], [0, 2], [0, 20 - LAST], [8, 0]]
    registers += [[0, 32 << i] for i in range((COLUMNS // 32).bit_length() - 1)]
    registers += [[64 << i, 0] for i in range((ROWS // 64).bit_length() - 1)]
    threads = [[0, 8], [0, LAST], [1, 0], [2, 0], [4, 0]]
    warps = [[16, 0], [32, 0]]
    return gl.DistributedLinearLayout(registers, threads, warps, [], [ROWS, COLUMNS])


@gluon.constexpr_function
def side_by_side(ROWS, COLUMNS):
    """The layout of `wgmma`, flat: [COLUMNS // 16, ROWS, 4, 2, 2], where a thread has the last two
    and so 16 bytes of f32; a warp has 512 side by side."""
    wide = 16 * ROWS
    registers = [[1], [2], [16 * 8]]
    registers += [[wide << i] for i in range((COLUMNS // 16).bit_length() - 1)]
    registers += [[16 * 64 << i] for i in range((ROWS // 64).bit_length() - 1)]
    threads = [[4], [8], [16], [32], [64]]
    return gl.DistributedLinearLayout(registers, threads, [[256], [512]], [], [ROWS * COLUMNS])


@gluon.jit
def combined(acc, piece, number, place, shared, scratch, HALF: gl.constexpr, HALVES: gl.constexpr,
             SHARES: gl.constexpr):  # fmt: skip
    """The sums of all pieces of a tile, and whether this group is to finish it: the one that comes
    last of those that share it. Tile `number` is shared tile number `place`."""
    ROWS: gl.constexpr = acc.shape[0]
    COLUMNS: gl.constexpr = acc.shape[1]
    AREA: gl.constexpr = ROWS * COLUMNS
    counter = scratch.counters + number * HALVES + HALF
    # A thread has 2 columns side by side, and the same two of the next 8: 16 bytes of memory.
    sums = gl.permute(gl.reshape(acc, (ROWS, COLUMNS // 16, 2, 4, 2)), (1, 0, 3, 2, 4))
    layout: gl.constexpr = side_by_side(ROWS, COLUMNS)
    sums = gl.convert_layout(gl.reshape(sums, (AREA,)), layout)
    places = scratch.partials + HALF * AREA + gl.arange(0, AREA, layout)
    finishes = True
    parts = 0
    if piece:
        gl.store(places + gl.program_id(0) * (HALVES * AREA), sums)
        finishes = comes_last(counter, SHARES)
        if finishes:
            gl.store(counter, 0)
            parts = SHARES
    # No sums leave a branch: LLVM took 0.8 s for these.
    sums = gl.where(piece, 0.0, sums)
    for part in range(parts):
        at = places + (part * shared + place) * (HALVES * AREA)
        sums += gl.load(at, cache_modifier=".cg")
    total = gl.permute(gl.reshape(sums, (COLUMNS // 16, ROWS, 4, 2, 2)), (1, 0, 3, 2, 4))
    total = gl.reshape(total, (ROWS, COLUMNS))
    whole: gl.constexpr = acc.type.layout
    acc = gl.convert_layout(total, whole)
    return acc, finishes


@gluon.jit
def in_layout(part, layout: gl.constexpr, BY_LINES: gl.constexpr):
    """A part of the accumulators in its layout, or by lines: to exchange one bit of the threads for
    one of the registers is a shuffle, both at once would go through shared memory."""
    if BY_LINES:
        part = gl.convert_layout(part, lines(part.shape[0], part.shape[1], 4))
        part = gl.convert_layout(part, layout)
    else:
        part = gl.convert_layout(part, layout, assert_trivial=True)
    return part


@gluon.jit
def places_of(
    first_m, first_n, sizes, tile, ROWS: gl.constexpr, COLUMNS: gl.constexpr, layout: gl.constexpr
):
    """The row and column numbers of a part that starts at (first_m, first_n), and where it lies
    inside of the matrix."""
    rm = gl.expand_dims(first_m + gl.arange(0, ROWS, gl.SliceLayout(1, layout)), 1)
    rn = gl.expand_dims(first_n + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout)), 0)
    if tile.WIDE:
        rm = rm.to(gl.int64)
        rn = rn.to(gl.int64)
    mask = gl.full([ROWS, COLUMNS], True, gl.int1, layout)
    if tile.EDGE_M != "none":
        mask = mask & (rm < sizes.M)
    if tile.EDGE_N != "none":
        mask = mask & (rn < sizes.N)
    return rm, rn, mask


@gluon.jit
def store_part(result, place, staged, out_desc, BUFFERS: gl.constexpr):
    """Stores a part at `place` of the descriptor, by way of `staged`, one of BUFFERS."""
    tma.store_wait(BUFFERS - 1)  # the part before the last BUFFERS - 1 has left
    if len(staged.shape) == 3:
        staged.reshape([result.shape[0], result.shape[1]]).store(result)
    else:
        staged.store(result)
    fence_async_shared()
    tma.async_copy_shared_to_global(out_desc, place, staged)


@gluon.jit
def store_lines(result, first_m, first_n, sizes, tile, out):
    """Stores a part that no descriptor may write, by rows contiguous in memory: a warp writes 32
    columns of a row at once. In the layout of `wgmma` it would write two in each of 8 rows."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [gl.num_warps(), 1], [1, 0])
    result = gl.convert_layout(result, layout)
    rm, rn, mask = places_of(
        first_m, first_n, sizes, tile, result.shape[0], result.shape[1], layout
    )
    gl.store(out.ptr + (rm * out.stride_row + rn), result, mask=mask)
