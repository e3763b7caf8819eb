# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""`gluon_hopper.py` for fp8 whose sums leave the tensor cores: each step along K is added in f32,
by a factor of its own where operands have block scales.

Both groups of warps share a tile, and each has its part of it in registers twice: the sum, and the
products of a step. One group adds while the other's products are made.
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
from triton.language.extra.cuda import gdc_wait

from gemm_templates.templates.gluon_hopper import load
from gemm_templates.templates.gluon_parts import (
    GROUPS,
    LOADER,
    MULTIPLIER,
    bias_of,
    places_of,
    ring_barriers,
    split_columns,
    store_part,
)
from gemm_templates.templates.tiled import tile_of


@gluon.jit
def gluon_scaled_mm(
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
    STORE_TMA: gl.constexpr,
    PARTS: gl.constexpr,
    EDGE_M: gl.constexpr,
    EDGE_N: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    WIDE: gl.constexpr,
    INPUT_PRECISION: gl.constexpr,
    STORE: gl.constexpr,
    scale_operands=None,
    SCALE: gl.constexpr = None,
    IMPRECISE: gl.constexpr = None,
    MAPS: gl.constexpr = False,
    OVERLAP: gl.constexpr = False,
):
    """Like `gluon_mm` with tiles that both groups share; `a` and `b` are contiguous along K.

    SCALE: as of `tiled_mm`; it gets values that have a layout. IMPRECISE: BLOCK_K, where given.
    """
    ROWS: gl.constexpr = BLOCK_M // GROUPS
    PART: gl.constexpr = BLOCK_N // PARTS
    dtype_a: gl.constexpr = a_ptr.dtype if MAPS else a_ptr.dtype.element_ty
    dtype_b: gl.constexpr = b_ptr.dtype if MAPS else b_ptr.dtype.element_ty
    a_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK_K], dtype_a)
    b_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_K], dtype_b)
    a_memory = gl.allocate_shared_memory(dtype_a, [STAGES * GROUPS, ROWS, BLOCK_K], a_layout)
    b_memory = gl.allocate_shared_memory(dtype_b, [STAGES, BLOCK_N, BLOCK_K], b_layout)
    if STORE_TMA:
        out_dtype: gl.constexpr = out_ptr.dtype if MAPS else out_ptr.dtype.element_ty
        out_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, PART], out_dtype)
        out_memory = gl.allocate_shared_memory(out_dtype, [GROUPS, ROWS, PART], out_layout)
    else:
        out_memory = a_memory
    full, empty = ring_barriers(STAGES, 2, GROUPS)  # a and b
    fence_async_shared()
    if OVERLAP:
        gdc_wait()

    # Roles take values, not None: what is not there is something else that nobody touches.
    bias_or_a = bias_ptr if HAS_BIAS else a_ptr
    out_or_a = out_ptr if STORE else a_ptr
    scales = operands if SCALE is None else scale_operands
    memory = (a_memory, b_memory, out_memory)
    gl.warp_specialize(
        [
            (
                multiply_and_add,
                (
                    0, bias_or_a, out_or_a, memory, (full, empty), (M, N, K),
                    (stride_om, stride_on, stride_bias), operands, scales, EPILOGUE, SCALE,
                    BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, STORE_TMA, PARTS, EDGE_M, EDGE_N,
                    HAS_BIAS, WIDE, STORE, MAPS,
                ),
            ),
            (
                multiply_and_add,
                (
                    1, bias_or_a, out_or_a, memory, (full, empty), (M, N, K),
                    (stride_om, stride_on, stride_bias), operands, scales, EPILOGUE, SCALE,
                    BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, STORE_TMA, PARTS, EDGE_M, EDGE_N,
                    HAS_BIAS, WIDE, STORE, MAPS,
                ),
            ),
            (
                load,
                (
                    a_ptr, stride_am, a_memory, full, empty, (M, N, K), True, 0, GROUPS, BLOCK_M,
                    BLOCK_N, BLOCK_K, GROUP_M, ROWS, STAGES, True, MAPS,
                ),
            ),
            (
                load,
                (
                    b_ptr, stride_bn, b_memory, full, empty, (M, N, K), False, 0, 1, BLOCK_M,
                    BLOCK_N, BLOCK_K, GROUP_M, ROWS, STAGES, True, MAPS,
                ),
            ),
        ],
        [4, 1, 1],
        [MULTIPLIER, LOADER, LOADER],
    )  # fmt: skip


@gluon.jit
def multiply_and_add(
    GROUP: gl.constexpr,
    bias_ptr,
    out_ptr,
    memory,
    barriers,
    sizes,
    strides,
    operands,
    scale_operands,
    EPILOGUE: gl.constexpr,
    SCALE: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    STAGES: gl.constexpr,
    STORE_TMA: gl.constexpr,
    PARTS: gl.constexpr,
    EDGE_M: gl.constexpr,
    EDGE_N: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    WIDE: gl.constexpr,
    STORE: gl.constexpr,
    MAPS: gl.constexpr,
):
    """One group's rows of each of this program's tiles."""
    a_memory, b_memory, out_memory = memory
    full, empty = barriers
    M, N, K = sizes
    stride_om, stride_on, stride_bias = strides
    ROWS: gl.constexpr = BLOCK_M // GROUPS
    PART: gl.constexpr = BLOCK_N // PARTS
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
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
    count = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        pid_m, pid_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        first_m = pid_m * BLOCK_M + GROUP * ROWS
        first_n = pid_n * BLOCK_N
        bias = bias_of(bias_ptr, first_n, N, stride_bias, BLOCK_N, EDGE_N, HAS_BIAS, layout)
        rm = gl.expand_dims(first_m + gl.arange(0, ROWS, gl.SliceLayout(1, layout)), 1)
        rn = gl.expand_dims(first_n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout)), 0)
        rm = gl.where(rm < M, rm, 0)
        rn = gl.where(rn < N, rn, 0)
        if WIDE:
            rm = rm.to(gl.int64)
            rn = rn.to(gl.int64)
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        product = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        for step in range(steps):
            slot = count % STAGES
            if SCALE is not None:  # read while the operands are on their way
                factor = SCALE(rm, rn, first_n, step * BLOCK_K, scale_operands)
            mbarrier.wait(full.index(slot), (count // STAGES) & 1)
            a = a_memory.index(slot * GROUPS + GROUP)
            b = b_memory.index(slot).permute([1, 0])
            product = warpgroup_mma(a, b, product, use_acc=False, is_async=True)
            product = warpgroup_mma_wait(0, (product,))
            mbarrier.arrive(empty.index(slot))
            if SCALE is not None:
                acc += product * factor
            else:
                acc += product
            count += 1
        if HAS_BIAS:
            acc += gl.expand_dims(bias.to(gl.float32), 0)
        parts = split_columns(acc, PARTS)
        for i in gl.static_range(PARTS):
            finish_rows(
                parts[i], out_memory.index(GROUP), first_m, first_n + i * PART, out_ptr, out_desc,
                M, N, stride_om, stride_on, operands, EPILOGUE, EDGE_M, EDGE_N, WIDE, STORE,
                STORE_TMA,
            )  # fmt: skip
    if STORE_TMA:
        tma.store_wait(0)


@gluon.jit
def finish_rows(
    part,
    staged,
    first_m,
    first_n,
    out_ptr,
    out_desc,
    M,
    N,
    stride_om,
    stride_on,
    operands,
    EPILOGUE: gl.constexpr,
    EDGE_M: gl.constexpr,
    EDGE_N: gl.constexpr,
    WIDE: gl.constexpr,
    STORE: gl.constexpr,
    STORE_TMA: gl.constexpr,
):
    """Epilogue and store of `part`, which starts at (first_m, first_n), by way of `staged`."""
    ROWS: gl.constexpr = part.shape[0]
    PART: gl.constexpr = part.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART, 32])
    part = gl.convert_layout(part, layout, assert_trivial=True)
    rm, rn, mask = places_of(first_m, first_n, M, N, ROWS, PART, layout, EDGE_M, EDGE_N, WIDE)
    value = EPILOGUE(part, rm, rn, mask, operands)
    if STORE:
        result = value.to(out_desc.dtype if STORE_TMA else out_ptr.dtype.element_ty)
        if STORE_TMA:
            store_part(result, [first_m, first_n], staged, out_desc, 1)
        else:
            gl.store(out_ptr + (rm * stride_om + rn * stride_on), result, mask=mask)
