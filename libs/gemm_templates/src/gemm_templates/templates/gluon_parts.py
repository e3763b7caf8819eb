# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""What the Gluon kernels share: the ring of stages, the loop over it, and the parts of a tile.

Tiles lie in the ring as [rows, columns], or [1, rows, columns] where descriptors have rank 3.
"""

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

from gemm_templates.templates.split_k import comes_last

GROUPS = gl.constexpr(2)
# Registers of a thread: that multiplies, that loads. (240 + 240 + 24) * 128 of the 65536 of a
# multiprocessor; the loading warps are counted as four.
MULTIPLIER = gl.constexpr(240)
LOADER = gl.constexpr(24)


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
def products(
    GROUP: gl.constexpr,
    acc,
    number,
    before,
    steps,
    a_memory,
    b_memory,
    barriers,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    A_ROWS: gl.constexpr,
    B_ROWS: gl.constexpr,
):
    """The sums over `steps` along K of this group's tile (HALVES=1) or its rows of it; `number`
    counts the program's tiles, `before` their steps."""
    full, empty, turn = barriers
    TURNS: gl.constexpr = HALVES == 1
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
        a = a_memory.index(slot * HALVES + HALF)
        b = b_memory.index(slot)
        if len(a.shape) == 3:
            a = a.reshape([a.shape[1], a.shape[2]])
            b = b.reshape([b.shape[1], b.shape[2]])
        if not A_ROWS:
            a = a.permute([1, 0])
        if not B_ROWS:
            b = b.permute([1, 0])
        acc = warpgroup_mma(a, b, acc, use_acc=step != 0, is_async=True)
        acc = warpgroup_mma_wait(1, (acc,))  # the product of the step before is done
        mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), pred=step != 0)
        count += 1
    if TURNS:
        mbarrier.arrive(turn.index((GROUP + 1) % GROUPS))
    acc = warpgroup_mma_wait(0, (acc,))
    mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), pred=steps != 0)
    return acc


@gluon.jit
def bias_of(
    bias_ptr,
    first_n,
    N,
    stride_bias,
    BLOCK_N: gl.constexpr,
    EDGE_N: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    layout: gl.constexpr,
):
    """The bias of a tile, read before its products so that none waits for it."""
    rn = first_n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
    if HAS_BIAS:
        if EDGE_N == "none":
            bias = gl.load(bias_ptr + rn * stride_bias)
        else:
            bias = gl.load(bias_ptr + rn * stride_bias, mask=rn < N, other=0.0)
    else:
        bias = None
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
def combined(acc, piece, tile, place, pid, shared, spare, HALF: gl.constexpr,
             HALVES: gl.constexpr, SHARES: gl.constexpr):  # fmt: skip
    """The sums of all pieces of a tile, and whether this group is to finish it: the one that comes
    last of those that share it. `tile` is shared tile number `place`."""
    partials, counters = spare
    ROWS: gl.constexpr = acc.shape[0]
    COLUMNS: gl.constexpr = acc.shape[1]
    AREA: gl.constexpr = ROWS * COLUMNS
    # A thread has 2 columns side by side, and the same two of the next 8: 16 bytes of memory.
    sums = gl.permute(gl.reshape(acc, (ROWS, COLUMNS // 16, 2, 4, 2)), (1, 0, 3, 2, 4))
    layout: gl.constexpr = side_by_side(ROWS, COLUMNS)
    sums = gl.convert_layout(gl.reshape(sums, (AREA,)), layout)
    places = partials + HALF * AREA + gl.arange(0, AREA, layout)
    finishes = True
    parts = 0
    if piece:
        gl.store(places + pid * (HALVES * AREA), sums)
        finishes = comes_last(counters + tile * HALVES + HALF, SHARES)
        if finishes:
            gl.store(counters + tile * HALVES + HALF, 0)
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
    first_m,
    first_n,
    M,
    N,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    layout: gl.constexpr,
    EDGE_M: gl.constexpr,
    EDGE_N: gl.constexpr,
    WIDE: gl.constexpr,
):
    """The row and column numbers of a part that starts at (first_m, first_n), and where it lies
    inside of the matrix."""
    rm = gl.expand_dims(first_m + gl.arange(0, ROWS, gl.SliceLayout(1, layout)), 1)
    rn = gl.expand_dims(first_n + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout)), 0)
    if WIDE:
        rm = rm.to(gl.int64)
        rn = rn.to(gl.int64)
    mask = gl.full([ROWS, COLUMNS], True, gl.int1, layout)
    if EDGE_M != "none":
        mask = mask & (rm < M)
    if EDGE_N != "none":
        mask = mask & (rn < N)
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
def store_lines(
    result,
    first_m,
    first_n,
    M,
    N,
    out_ptr,
    stride_om,
    EDGE_M: gl.constexpr,
    EDGE_N: gl.constexpr,
    WIDE: gl.constexpr,
):
    """Stores a part that no descriptor may write, by rows contiguous in memory: a warp writes 32
    columns of a row at once. In the layout of `wgmma` it would write two in each of 8 rows."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [gl.num_warps(), 1], [1, 0])
    result = gl.convert_layout(result, layout)
    rm, rn, mask = places_of(
        first_m, first_n, M, N, result.shape[0], result.shape[1], layout, EDGE_M, EDGE_N, WIDE
    )
    gl.store(out_ptr + (rm * stride_om + rn), result, mask=mask)
