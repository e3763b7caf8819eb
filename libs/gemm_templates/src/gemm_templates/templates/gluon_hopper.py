# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""A persistent kernel for Hopper whose warps have roles, in Gluon.

One warp loads tiles of `a`, one of `b`, through TMA into a ring of stages; two groups of four warps
multiply (`wgmma`) and finish. A tile that one group's registers hold belongs to one group, and the
groups take turns: one multiplies while the other runs its epilogue and stores. A larger tile is
shared, each group has half of its rows.

With a second right operand, the columns of both tiles lie side by side: one `wgmma` multiplies both
with `a`, and the epilogue gets `GATE(a @ b) * (a @ b2)`.

Tensor descriptors come from the host (MAPS), or each role makes those that it needs, all at the
same time, which takes 2 us. Operands are as in `tma.py`: contiguous along one dimension, 16-byte
aligned, and the other stride a multiple of 16 bytes; elements of 16 bits, or fp8 along K.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
)
from triton.language.extra.cuda import gdc_wait

from gemm_templates.templates.gluon_finish import finish_tile
from gemm_templates.templates.gluon_parts import (
    GROUPS,
    LOADER,
    MULTIPLIER,
    bias_of,
    combined,
    products,
    ring_barriers,
    to_fill,
    turn_barriers,
)
from gemm_templates.templates.shares import item_of, shares_of
from gemm_templates.templates.tiled import tile_of


@gluon.jit
def gluon_mm(
    a_ptr,
    b_ptr,
    bias_ptr,
    out_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_om,
    stride_on,
    stride_bias,
    operands,
    EPILOGUE: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    STAGES: gl.constexpr,
    TURNS: gl.constexpr,
    A_ROWS: gl.constexpr,
    B_ROWS: gl.constexpr,
    STORE_TMA: gl.constexpr,
    PARTS: gl.constexpr,
    BUFFERS: gl.constexpr,
    EDGE_M: gl.constexpr,
    EDGE_N: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    WIDE: gl.constexpr,
    INPUT_PRECISION: gl.constexpr,
    STORE: gl.constexpr,
    BY_LINES: gl.constexpr = False,
    b2_ptr=None,
    GATE: gl.constexpr = None,
    MAPS: gl.constexpr = False,
    OVERLAP: gl.constexpr = False,
    LINES: gl.constexpr = False,
    SHARES: gl.constexpr = 0,
    partials=None,
    counters=None,
):
    """Like `tma_mm`; a kernel calls it with four warps and 168 registers a thread.

    STAGES: of the ring. TURNS: a tile belongs to one group, else both share it. PARTS: the epilogue
    runs on that many parts of a group's columns. BUFFERS: parts that wait to be stored, for each
    group. EPILOGUE: elementwise, since values have a layout here: that of `wgmma`, or (BY_LINES)
    one of eight columns side by side, for what reads or writes matrices.
    GATE: None, or a function like an epilogue's; `b2` has the sizes and strides of `b`.
    MAPS: `a`, `b`, `b2`, and with STORE_TMA `out`, are descriptors as `load` and `multiply` make
    them. LINES: without STORE_TMA, `out` is written as `store_lines` does it.
    SHARES: of tiles that fill no round (`shares.py`). Each group leaves its f32 sums of a piece in
    `partials`, a tile for each program, and is counted in `counters`, one for each group that has
    rows of a tile; who comes last adds up all, always in the same order, and finishes.
    """
    ROWS: gl.constexpr = BLOCK_M if TURNS else BLOCK_M // GROUPS
    HALVES: gl.constexpr = BLOCK_M // ROWS
    PART: gl.constexpr = BLOCK_N // PARTS
    PRODUCTS: gl.constexpr = 1 if GATE is None else 2
    gl.static_assert(PARTS % BUFFERS == 0, "the parts of a tile take turns with the buffers")
    dtype: gl.constexpr = a_ptr.dtype if MAPS else a_ptr.dtype.element_ty
    a_shape: gl.constexpr = [ROWS, BLOCK_K] if A_ROWS else [BLOCK_K, ROWS]
    b_shape: gl.constexpr = [BLOCK_K, BLOCK_N] if B_ROWS else [BLOCK_N, BLOCK_K]
    a_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(a_shape, dtype)
    b_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(b_shape, dtype)
    a_memory = gl.allocate_shared_memory(dtype, [STAGES * HALVES, a_shape[0], a_shape[1]], a_layout)
    b_memory = gl.allocate_shared_memory(
        dtype, [STAGES * PRODUCTS, b_shape[0], b_shape[1]], b_layout
    )
    if GATE is None:
        pair_memory = b_memory
    else:
        # A tile is rows of 128 bytes, or columns of such; that of `b2` goes on where `b`'s ends.
        pair: gl.constexpr = [b_shape[0], 2 * BLOCK_N] if B_ROWS else [2 * BLOCK_N, b_shape[1]]
        pair_memory = b_memory._reinterpret(dtype, [STAGES, pair[0], pair[1]], b_layout)
    if STORE_TMA:
        out_dtype: gl.constexpr = out_ptr.dtype if MAPS else out_ptr.dtype.element_ty
        out_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, PART], out_dtype)
        out_memory = gl.allocate_shared_memory(
            out_dtype, [GROUPS * BUFFERS, ROWS, PART], out_layout
        )
    else:
        out_memory = a_memory
    full, empty = ring_barriers(STAGES, 1 + PRODUCTS, HALVES)  # a, b and b2
    turn = turn_barriers()
    fence_async_shared()
    if OVERLAP:
        gdc_wait()

    # Roles take values, not None: what is not there is something else that nobody touches.
    # Constants are written out, since a tuple in a variable would lose what is constant.
    bias_or_a = bias_ptr if HAS_BIAS else a_ptr
    out_or_a = out_ptr if STORE else a_ptr
    memory = (a_memory, pair_memory, out_memory)
    barriers = (full, empty, turn)
    spare = (partials if SHARES else a_ptr, counters if SHARES else a_ptr)
    gl.warp_specialize(
        [
            (
                multiply,
                (
                    0, bias_or_a, out_or_a, memory, barriers, spare, (M, N, K),
                    (stride_om, stride_on, stride_bias), operands, EPILOGUE, GATE, BLOCK_M,
                    BLOCK_N, BLOCK_K, GROUP_M, ROWS, STAGES, A_ROWS, B_ROWS, STORE_TMA, PARTS,
                    BUFFERS, EDGE_M, EDGE_N, HAS_BIAS, WIDE, STORE, BY_LINES, MAPS, LINES, SHARES,
                ),
            ),
            (
                multiply,
                (
                    1, bias_or_a, out_or_a, memory, barriers, spare, (M, N, K),
                    (stride_om, stride_on, stride_bias), operands, EPILOGUE, GATE, BLOCK_M,
                    BLOCK_N, BLOCK_K, GROUP_M, ROWS, STAGES, A_ROWS, B_ROWS, STORE_TMA, PARTS,
                    BUFFERS, EDGE_M, EDGE_N, HAS_BIAS, WIDE, STORE, BY_LINES, MAPS, LINES, SHARES,
                ),
            ),
            (
                load,
                (
                    a_ptr, stride_am if A_ROWS else stride_ak, a_memory, full, empty,
                    (M, N, K), True, 0, HALVES, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, ROWS, STAGES,
                    A_ROWS, MAPS, SHARES,
                ),
            ),
            (
                load,
                (
                    b_ptr, stride_bk if B_ROWS else stride_bn, b_memory, full, empty,
                    (M, N, K), False, 0, PRODUCTS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, ROWS,
                    STAGES, not B_ROWS, MAPS, SHARES,
                ),
            ),
            (
                load,
                (
                    b2_ptr, stride_bk if B_ROWS else stride_bn, b_memory, full, empty,
                    (M, N, K), False, 1, PRODUCTS, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, ROWS,
                    STAGES, not B_ROWS, MAPS, SHARES,
                ),
            ),
        ][: 3 + PRODUCTS],  # the last role is for `b2`
        [4, 1, 1, 1][: 2 + PRODUCTS],
        [MULTIPLIER, LOADER, LOADER, LOADER][: 2 + PRODUCTS],
    )  # fmt: skip


@gluon.jit
def load(
    pointer,
    stride,
    memory,
    full,
    empty,
    sizes,
    LEFT: gl.constexpr,
    PLACE: gl.constexpr,
    PLACES: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    ROWS: gl.constexpr,
    STAGES: gl.constexpr,
    ALONG_K: gl.constexpr,
    MAPS: gl.constexpr,
    SHARES: gl.constexpr = 0,
):
    """Fills the ring with `a` (LEFT), ROWS rows at a time, or with a right operand, from place
    number PLACE of the PLACES of each stage on; `stride` is the one that is not 1."""
    M, N, K = sizes
    OUTER: gl.constexpr = ROWS if LEFT else BLOCK_N
    COPIES: gl.constexpr = BLOCK_M // ROWS if LEFT else 1
    outer = M if LEFT else N
    if MAPS:
        desc = pointer
    elif ALONG_K:
        desc = tma.make_tensor_descriptor(
            pointer, [outer, K], [stride, 1], [OUTER, BLOCK_K], memory.layout
        )
    else:
        desc = tma.make_tensor_descriptor(
            pointer, [K, outer], [stride, 1], [BLOCK_K, OUTER], memory.layout
        )
    steps = gl.cdiv(K, BLOCK_K)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    pid, programs = gl.program_id(0), gl.num_programs(0)
    items, pieces, shared = shares_of(pid, programs, tiles, SHARES)
    for number in range(items):
        tile, start, length, count = item_of(
            number, pid, programs, tiles, pieces, shared, steps, SHARES
        )
        pid_m, pid_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        first = pid_m * BLOCK_M if LEFT else pid_n * BLOCK_N
        for step in range(start, start + length):
            slot, ready = to_fill(full, empty, count, STAGES, COPIES * desc.block_type.nbytes)
            for i in gl.static_range(COPIES):
                at = first + i * OUTER
                into = memory.index(slot * PLACES + PLACE + i)
                if ALONG_K:
                    tma.async_copy_global_to_shared(desc, [at, step * BLOCK_K], ready, into)
                else:
                    tma.async_copy_global_to_shared(desc, [step * BLOCK_K, at], ready, into)
            count += 1


@gluon.jit
def multiply(
    GROUP: gl.constexpr,
    bias_ptr,
    out_ptr,
    memory,
    barriers,
    spare,
    sizes,
    strides,
    operands,
    EPILOGUE: gl.constexpr,
    GATE: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    ROWS: gl.constexpr,
    STAGES: gl.constexpr,
    A_ROWS: gl.constexpr,
    B_ROWS: gl.constexpr,
    STORE_TMA: gl.constexpr,
    PARTS: gl.constexpr,
    BUFFERS: gl.constexpr,
    EDGE_M: gl.constexpr,
    EDGE_N: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    WIDE: gl.constexpr,
    STORE: gl.constexpr,
    BY_LINES: gl.constexpr,
    MAPS: gl.constexpr,
    LINES: gl.constexpr,
    SHARES: gl.constexpr,
):
    """One group: its tiles of this program, or its rows of each of them."""
    a_memory, b_memory, out_memory = memory
    M, N, K = sizes
    stride_om, stride_on, stride_bias = strides
    TURNS: gl.constexpr = ROWS == BLOCK_M
    HALVES: gl.constexpr = BLOCK_M // ROWS
    HALF: gl.constexpr = 0 if TURNS else GROUP
    FIRST: gl.constexpr = GROUP if TURNS else 0
    EVERY: gl.constexpr = GROUPS if TURNS else 1
    PART: gl.constexpr = BLOCK_N // PARTS
    PRODUCTS: gl.constexpr = 1 if GATE is None else 2
    COLUMNS: gl.constexpr = PRODUCTS * BLOCK_N
    DEPTH: gl.constexpr = 256 // a_memory.dtype.primitive_bitwidth  # of an instruction, along K
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, DEPTH])
    if STORE_TMA and MAPS:
        out_desc = out_ptr
    elif STORE_TMA:
        out_desc = tma.make_tensor_descriptor(
            out_ptr, [M, N], [stride_om, 1], [ROWS, PART], out_memory.layout
        )
    else:
        out_desc = None
    steps = gl.cdiv(K, BLOCK_K)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    pid, programs = gl.program_id(0), gl.num_programs(0)
    items, pieces, shared = shares_of(pid, programs, tiles, SHARES)
    for number in range(FIRST, items, EVERY):
        tile, _, length, before = item_of(
            number, pid, programs, tiles, pieces, shared, steps, SHARES
        )
        pid_m, pid_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        acc = gl.zeros([ROWS, COLUMNS], gl.float32, layout)
        bias = bias_of(bias_ptr, pid_n * BLOCK_N, N, stride_bias, BLOCK_N, EDGE_N, HAS_BIAS, layout)
        acc = products(
            GROUP, acc, number, before, length, a_memory, b_memory, barriers, HALVES, STAGES,
            A_ROWS, B_ROWS,
        )  # fmt: skip
        if SHARES == 0:
            finish_tile(
                acc, bias, pid_m * BLOCK_M + HALF * ROWS, pid_n * BLOCK_N, GROUP * BUFFERS,
                out_ptr, out_desc, out_memory, M, N, stride_om, stride_on, operands, EPILOGUE, GATE,
                PARTS, BUFFERS, EDGE_M, EDGE_N, HAS_BIAS, WIDE, STORE, STORE_TMA, BY_LINES, LINES,
            )  # fmt: skip
        else:
            acc, finishes = combined(
                acc,
                number < pieces,
                tile,
                tile - tiles + shared,
                pid,
                shared,
                spare,
                HALF,
                HALVES,
                SHARES,
            )
            if finishes:
                finish_tile(
                    acc, bias, pid_m * BLOCK_M + HALF * ROWS, pid_n * BLOCK_N, GROUP * BUFFERS,
                    out_ptr, out_desc, out_memory, M, N, stride_om, stride_on, operands, EPILOGUE,
                    GATE, PARTS, BUFFERS, EDGE_M, EDGE_N, HAS_BIAS, WIDE, STORE, STORE_TMA,
                    BY_LINES, LINES,
                )  # fmt: skip
    if STORE_TMA:
        tma.store_wait(0)
