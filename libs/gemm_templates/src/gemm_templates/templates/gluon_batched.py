# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""A persistent kernel for batches and groups of products whose warps have roles, in Gluon.

The roles are those of `gluon_hopper.py`; descriptors have rank 3, and the programs walk over the
tiles of all products. For groups of rows, each role finds the group of its tile in `offs`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
)
from triton.language.extra.cuda import gdc_wait

from gemm_templates.templates.gluon_groups import place_of, schedule
from gemm_templates.templates.gluon_parts import (
    GROUPS,
    LOADER,
    MULTIPLIER,
    bias_of,
    in_layout,
    lines,
    places_of,
    products,
    ring_barriers,
    split_columns,
    store_part,
    to_fill,
    turn_barriers,
)


@gluon.jit
def gluon_batched_mm(
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
    BATCH: gl.constexpr,
    stride_ab,
    stride_bb,
    stride_ob,
    EPILOGUE_BATCHED: gl.constexpr,
    SPAN: gl.constexpr,
    A_SHARED: gl.constexpr,
    B_SHARED: gl.constexpr,
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
    BY_LINES: gl.constexpr,
    JAGGED: gl.constexpr = None,
    offs_ptr=None,
    MAPS: gl.constexpr = False,
    OVERLAP: gl.constexpr = False,
):
    """Like `gluon_mm`, for `BATCH` products as `batched_tma_mm` takes them, or groups of rows as
    `grouped_mm` (JAGGED="M"; SPAN is a power of two, at least BATCH and 32). MAPS: descriptors of
    a batch, as `load` and `multiply` make them."""
    BY_GROUPS: gl.constexpr = JAGGED == "M"
    ROWS: gl.constexpr = BLOCK_M if TURNS else BLOCK_M // GROUPS
    HALVES: gl.constexpr = BLOCK_M // ROWS
    PART: gl.constexpr = BLOCK_N // PARTS
    dtype: gl.constexpr = a_ptr.dtype if MAPS else a_ptr.dtype.element_ty
    a_shape: gl.constexpr = [1, ROWS, BLOCK_K] if A_ROWS else [1, BLOCK_K, ROWS]
    b_shape: gl.constexpr = [1, BLOCK_K, BLOCK_N] if B_ROWS else [1, BLOCK_N, BLOCK_K]
    a_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(a_shape, dtype)
    b_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(b_shape, dtype)
    a_memory = gl.allocate_shared_memory(
        dtype, [STAGES * HALVES, 1, a_shape[1], a_shape[2]], a_layout
    )
    b_memory = gl.allocate_shared_memory(dtype, [STAGES, 1, b_shape[1], b_shape[2]], b_layout)
    if STORE_TMA:
        out_dtype: gl.constexpr = out_ptr.dtype if MAPS else out_ptr.dtype.element_ty
        out_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, ROWS, PART], out_dtype)
        out_memory = gl.allocate_shared_memory(
            out_dtype, [GROUPS * BUFFERS, 1, ROWS, PART], out_layout
        )
    else:
        out_memory = a_memory
    full, empty = ring_barriers(STAGES, 2, HALVES)  # a and b
    turn = turn_barriers()
    fence_async_shared()
    if OVERLAP:
        gdc_wait()

    # Roles take values, not None: what is not there is something else that nobody touches. The
    # arguments are written out, since a tuple in a variable would lose what is constant.
    bias_or_a = bias_ptr if HAS_BIAS else a_ptr
    out_or_a = out_ptr if STORE else a_ptr
    offs_or_a = offs_ptr if BY_GROUPS else a_ptr
    gl.warp_specialize(
        [
            (
                multiply,
                (
                    0, bias_or_a, out_or_a, offs_or_a, a_memory, b_memory, out_memory, full, empty,
                    turn, (M, N, K), (stride_om, stride_on, stride_bias, stride_ob), operands,
                    EPILOGUE, EPILOGUE_BATCHED, BATCH, BY_GROUPS, SPAN, BLOCK_M, BLOCK_N, BLOCK_K,
                    GROUP_M, ROWS, STAGES, A_ROWS, B_ROWS, STORE_TMA, PARTS, BUFFERS, EDGE_M,
                    EDGE_N, HAS_BIAS, WIDE, STORE, BY_LINES, MAPS,
                ),
            ),
            (
                multiply,
                (
                    1, bias_or_a, out_or_a, offs_or_a, a_memory, b_memory, out_memory, full, empty,
                    turn, (M, N, K), (stride_om, stride_on, stride_bias, stride_ob), operands,
                    EPILOGUE, EPILOGUE_BATCHED, BATCH, BY_GROUPS, SPAN, BLOCK_M, BLOCK_N, BLOCK_K,
                    GROUP_M, ROWS, STAGES, A_ROWS, B_ROWS, STORE_TMA, PARTS, BUFFERS, EDGE_M,
                    EDGE_N, HAS_BIAS, WIDE, STORE, BY_LINES, MAPS,
                ),
            ),
            (
                load,
                (
                    a_ptr, offs_or_a, stride_ab, stride_am if A_ROWS else stride_ak, a_memory,
                    full, empty, (M, N, K), True, BATCH, BY_GROUPS, SPAN, BLOCK_M, BLOCK_N,
                    BLOCK_K, GROUP_M, ROWS, STAGES, A_ROWS, A_SHARED, MAPS,
                ),
            ),
            (
                load,
                (
                    b_ptr, offs_or_a, stride_bb, stride_bk if B_ROWS else stride_bn, b_memory,
                    full, empty, (M, N, K), False, BATCH, BY_GROUPS, SPAN, BLOCK_M, BLOCK_N,
                    BLOCK_K, GROUP_M, ROWS, STAGES, not B_ROWS, B_SHARED, MAPS,
                ),
            ),
        ],
        [4, 1, 1],
        [MULTIPLIER, LOADER, LOADER],
    )  # fmt: skip


@gluon.jit
def load(
    pointer,
    offs_ptr,
    stride_batch,
    stride,
    memory,
    full,
    empty,
    sizes,
    LEFT: gl.constexpr,
    BATCH: gl.constexpr,
    BY_GROUPS: gl.constexpr,
    SPAN: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    ROWS: gl.constexpr,
    STAGES: gl.constexpr,
    ALONG_K: gl.constexpr,
    SHARED: gl.constexpr,
    MAPS: gl.constexpr,
):
    """Fills the ring with `a` (LEFT), ROWS rows at a time, or with `b`; `stride` is the one within
    a matrix that is not 1."""
    M, N, K = sizes
    OUTER: gl.constexpr = ROWS if LEFT else BLOCK_N
    COPIES: gl.constexpr = BLOCK_M // ROWS if LEFT else 1
    COUNT: gl.constexpr = 1 if SHARED else BATCH
    outer = M if LEFT else N
    distance = stride if SHARED else stride_batch
    if MAPS:
        desc = pointer
    elif ALONG_K:
        desc = tma.make_tensor_descriptor(
            pointer, [COUNT, outer, K], [distance, stride, 1], [1, OUTER, BLOCK_K], memory.layout
        )
    else:
        desc = tma.make_tensor_descriptor(
            pointer, [COUNT, K, outer], [distance, stride, 1], [1, BLOCK_K, OUTER], memory.layout
        )
    steps = gl.cdiv(K, BLOCK_K)
    tiles, starts, counts, last = schedule(offs_ptr, M, N, BATCH, BY_GROUPS, SPAN, BLOCK_M, BLOCK_N)
    count = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        batch, first_m, first_n, _ = place_of(
            tile, starts, counts, last, M, N, BY_GROUPS, BLOCK_M, BLOCK_N, GROUP_M
        )
        number = 0 if SHARED else batch
        first = first_m if LEFT else first_n
        for step in range(steps):
            slot, ready = to_fill(full, empty, count, STAGES, COPIES * desc.block_type.nbytes)
            k = step * BLOCK_K
            for i in gl.static_range(COPIES):
                at = first + i * OUTER
                into = memory.index(slot * COPIES + i)
                if ALONG_K:
                    tma.async_copy_global_to_shared(desc, [number, at, k], ready, into)
                else:
                    tma.async_copy_global_to_shared(desc, [number, k, at], ready, into)
            count += 1


@gluon.jit
def multiply(
    GROUP: gl.constexpr,
    bias_ptr,
    out_ptr,
    offs_ptr,
    a_memory,
    b_memory,
    out_memory,
    full,
    empty,
    turn,
    sizes,
    strides,
    operands,
    EPILOGUE: gl.constexpr,
    EPILOGUE_BATCHED: gl.constexpr,
    BATCH: gl.constexpr,
    BY_GROUPS: gl.constexpr,
    SPAN: gl.constexpr,
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
):
    """One group of warps: its tiles of this program, or its rows of each of them."""
    M, N, K = sizes
    stride_om, stride_on, stride_bias, stride_ob = strides
    TURNS: gl.constexpr = ROWS == BLOCK_M
    HALVES: gl.constexpr = BLOCK_M // ROWS
    HALF: gl.constexpr = 0 if TURNS else GROUP
    FIRST: gl.constexpr = GROUP if TURNS else 0
    EVERY: gl.constexpr = GROUPS if TURNS else 1
    PART: gl.constexpr = BLOCK_N // PARTS
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    if STORE_TMA and MAPS:
        out_desc = out_ptr
    elif STORE_TMA:
        COUNT: gl.constexpr = 1 if BY_GROUPS else BATCH
        out_desc = tma.make_tensor_descriptor(
            out_ptr, [COUNT, M, N], [stride_om if BY_GROUPS else stride_ob, stride_om, 1],
            [1, ROWS, PART], out_memory.layout,
        )  # fmt: skip
    else:
        out_desc = None
    steps = gl.cdiv(K, BLOCK_K)
    tiles, starts, counts, last = schedule(offs_ptr, M, N, BATCH, BY_GROUPS, SPAN, BLOCK_M, BLOCK_N)
    mine = (tiles - gl.program_id(0) + gl.num_programs(0) - 1) // gl.num_programs(0)
    for number in range(FIRST, mine, EVERY):
        tile = gl.program_id(0) + number * gl.num_programs(0)
        batch, first_m, first_n, end_m = place_of(
            tile, starts, counts, last, M, N, BY_GROUPS, BLOCK_M, BLOCK_N, GROUP_M
        )
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        bias = bias_of(bias_ptr, first_n, N, stride_bias, BLOCK_N, EDGE_N, HAS_BIAS, layout)
        acc = products(
            GROUP, acc, number, number * steps, steps, a_memory, b_memory, (full, empty, turn),
            HALVES, STAGES, A_ROWS, B_ROWS,
        )  # fmt: skip
        if HAS_BIAS:
            acc += gl.expand_dims(bias.to(gl.float32), 0)
        first_m += HALF * ROWS
        parts = split_columns(acc, PARTS)
        for i in gl.static_range(PARTS):
            finish_part(
                parts[i], batch, GROUP * BUFFERS + (number // EVERY * PARTS + i) % BUFFERS, first_m,
                first_n + i * PART,
                out_ptr, out_desc, out_memory, end_m, N, stride_ob, stride_om, stride_on, operands,
                EPILOGUE, EPILOGUE_BATCHED, BY_GROUPS, BUFFERS, EDGE_M, EDGE_N, WIDE, STORE,
                STORE_TMA, BY_LINES,
            )  # fmt: skip
    if STORE_TMA:
        tma.store_wait(0)


@gluon.jit
def finish_part(
    part,
    batch,
    buffer,
    first_m,
    first_n,
    out_ptr,
    out_desc,
    out_memory,
    M,
    N,
    stride_ob,
    stride_om,
    stride_on,
    operands,
    EPILOGUE: gl.constexpr,
    EPILOGUE_BATCHED: gl.constexpr,
    BY_GROUPS: gl.constexpr,
    BUFFERS: gl.constexpr,
    EDGE_M: gl.constexpr,
    EDGE_N: gl.constexpr,
    WIDE: gl.constexpr,
    STORE: gl.constexpr,
    STORE_TMA: gl.constexpr,
    BY_LINES: gl.constexpr,
):
    """Epilogue and store of `part`, which starts at (first_m, first_n) of product `batch`."""
    ROWS: gl.constexpr = part.shape[0]
    PART: gl.constexpr = part.shape[1]
    multiplied: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART, 16])
    layout: gl.constexpr = lines(ROWS, PART, 16) if BY_LINES else multiplied
    part = in_layout(part, layout, BY_LINES)
    rm, rn, mask = places_of(first_m, first_n, M, N, ROWS, PART, layout, EDGE_M, EDGE_N, WIDE)
    if EPILOGUE_BATCHED:
        value = EPILOGUE(part, rm, rn, mask, (batch.to(gl.int64),) + operands)  # noqa: RUF005
    else:
        value = EPILOGUE(part, rm, rn, mask, operands)
    if STORE:
        staged = out_memory.index(buffer)
        result = value.to(out_desc.dtype if STORE_TMA else out_ptr.dtype.element_ty)
        if STORE_TMA and BY_GROUPS:
            # A descriptor knows no end of a group: a tile that it ends in is stored by address.
            if first_m + ROWS <= M:
                store_part(result, [0, first_m, first_n], staged, out_desc, BUFFERS)
            else:
                gl.store(out_ptr + (rm * stride_om + rn * stride_on), result, mask=mask)
        elif STORE_TMA:
            store_part(result, [batch, first_m, first_n], staged, out_desc, BUFFERS)
        elif BY_GROUPS:
            gl.store(out_ptr + (rm * stride_om + rn * stride_on), result, mask=mask)
        else:
            start = out_ptr + batch.to(gl.int64) * stride_ob
            gl.store(start + (rm * stride_om + rn * stride_on), result, mask=mask)
