# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""Several programs a tile, each with a share of K, in one launch.

Every program leaves its f32 sums in a workspace and counts itself in; the one that comes last adds
them all up, always in the same order, and goes on to the bias and the epilogue. So a result does
not depend on who came last, and no second launch is needed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.templates.tiled import finish, load_blocks, prepare_blocks, tile_of


@triton.jit
def product_of(
    a_ptr,
    b_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    rm,
    rn,
    first,
    count,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EDGE_M: tl.constexpr,
    EDGE_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
    SWAP: tl.constexpr,
    a_operands=None,
    b_operands=None,
    PROLOGUE_A: tl.constexpr = None,
    PROLOGUE_B: tl.constexpr = None,
):
    """Sums of rows `rm` and columns `rn` over `count` blocks of K from block `first` on, in f32.

    SWAP: the result is the transpose, [BLOCK_N, BLOCK_M]: the tensor cores then take `b` for their
    first operand, whose tile is at least 64 high, and `a` for the second, which may be 8 wide.
    Edges and prologues are as in `tiled_mm`.
    """
    rk = tl.arange(0, BLOCK_K)
    if WIDE:
        rm = rm.to(tl.int64)
        rn = rn.to(tl.int64)
        rk = rk.to(tl.int64)
    start = first * BLOCK_K
    a_ptrs = a_ptr + (rm[:, None] * stride_am + (start + rk)[None, :] * stride_ak)
    b_ptrs = b_ptr + ((start + rk)[:, None] * stride_bk + rn[None, :] * stride_bn)
    if SWAP:
        acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in tl.range(0, count):
        left = K - start - step * BLOCK_K
        a, b = load_blocks(a_ptrs, b_ptrs, rm, rn, rk, M, N, left, EDGE_M, EDGE_N, EVEN_K)
        a, b = prepare_blocks(
            a, b, rm, rn, rk, M, N, start + step * BLOCK_K, left, a_operands, b_operands,
            PROLOGUE_A, PROLOGUE_B, EDGE_M, EDGE_N, EVEN_K,
        )  # fmt: skip
        if SWAP:
            acc = tl.dot(tl.trans(b), tl.trans(a), acc, input_precision=INPUT_PRECISION)
        else:
            acc = tl.dot(a, b, acc, input_precision=INPUT_PRECISION)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    return acc


@triton.jit
def share_of(part, K, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr, EVEN_SPLIT: tl.constexpr):
    """(first block of K, number of blocks) of one of SPLIT_K programs. EVEN_SPLIT: all have the
    same number, which is a constant if K is one."""
    steps = tl.cdiv(K, BLOCK_K)
    each = tl.cdiv(steps, SPLIT_K)
    first = part * each
    if EVEN_SPLIT:
        count = each
    else:
        count = tl.maximum(tl.minimum(each, steps - first), 0)
    return first, count


@triton.jit
def leave(acc, slot, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Stores the sums [HEIGHT, WIDTH] of one program at `slot`."""
    rows = tl.arange(0, HEIGHT)
    columns = tl.arange(0, WIDTH)
    tl.store(slot + (rows[:, None] * WIDTH + columns[None, :]), acc)


@triton.jit
def comes_last(counter, parts):
    """Counts this program in; whether all `parts` programs have been. All that they stored before
    is visible to the last one then: the barrier orders the stores of a program's threads before
    its count, and the count releases and acquires."""
    tl.debug_barrier()
    return tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == parts - 1


@triton.jit
def total_of(
    partials,
    SPLIT_K: tl.constexpr,
    CHUNK: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Sum of SPLIT_K partial sums [HEIGHT, WIDTH] that follow each other, CHUNK at a time (a power
    of two), so that many loads are under way at once. They bypass the L1 cache."""
    rows = tl.arange(0, HEIGHT)
    columns = tl.arange(0, WIDTH)
    chunk = tl.arange(0, CHUNK)[:, None, None]
    inside = (rows[:, None] * WIDTH + columns[None, :])[None, :, :]
    places = partials + (chunk * (HEIGHT * WIDTH) + inside)
    sums = tl.zeros((CHUNK, HEIGHT, WIDTH), dtype=tl.float32)
    for first in tl.range(0, SPLIT_K, CHUNK, loop_unroll_factor=4):
        at = places + first * (HEIGHT * WIDTH)
        if SPLIT_K % CHUNK == 0:
            sums += tl.load(at, cache_modifier=".cg")
        else:
            sums += tl.load(at, mask=first + chunk < SPLIT_K, other=0.0, cache_modifier=".cg")
    return tl.sum(sums, axis=0)


@triton.jit
def split_k_mm(
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
    EPILOGUE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    partials,
    counters,
    SPLIT_K: tl.constexpr,
    CHUNK: tl.constexpr,
    EVEN_SPLIT: tl.constexpr,
    SWAP: tl.constexpr,
    EDGE_M: tl.constexpr,
    EDGE_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
    STORE: tl.constexpr,
    a_operands=None,
    b_operands=None,
    PROLOGUE_A: tl.constexpr = None,
    PROLOGUE_B: tl.constexpr = None,
):
    """Like `tiled_mm`, for the grid (tiles, batch, SPLIT_K).

    partials: f32, SPLIT_K tiles for each tile; counters: i32, one for each tile, all zero before
    and after. Neither is used with SPLIT_K = 1.
    CHUNK, SWAP, EVEN_SPLIT: `total_of`, `product_of`, `share_of`.
    """
    pid = tl.program_id(0)
    part = tl.program_id(2)
    pid_m, pid_n = tile_of(pid, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    first, count = share_of(part, K, BLOCK_K, SPLIT_K, EVEN_SPLIT)
    acc = product_of(
        a_ptr, b_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, rm, rn, first, count,
        BLOCK_M, BLOCK_N, BLOCK_K, EDGE_M, EDGE_N, EVEN_K, WIDE, INPUT_PRECISION, SWAP,
        a_operands, b_operands, PROLOGUE_A, PROLOGUE_B,
    )  # fmt: skip
    if SPLIT_K == 1:
        conclude(
            acc, rm, rn, bias_ptr, out_ptr, M, N, stride_om, stride_on, stride_bias, operands,
            EPILOGUE, BLOCK_M, BLOCK_N, EDGE_M, EDGE_N, HAS_BIAS, WIDE, STORE, SWAP,
        )  # fmt: skip
    else:
        HEIGHT: tl.constexpr = BLOCK_N if SWAP else BLOCK_M
        WIDTH: tl.constexpr = BLOCK_M if SWAP else BLOCK_N
        tile = tl.program_id(1) * tl.num_programs(0) + pid
        places = partials + tile.to(tl.int64) * (SPLIT_K * BLOCK_M * BLOCK_N)
        leave(acc, places + part * (BLOCK_M * BLOCK_N), HEIGHT, WIDTH)
        if comes_last(counters + tile, SPLIT_K):
            tl.store(counters + tile, 0)
            total = total_of(places, SPLIT_K, CHUNK, HEIGHT, WIDTH)
            conclude(
                total, rm, rn, bias_ptr, out_ptr, M, N, stride_om, stride_on, stride_bias,
                operands, EPILOGUE, BLOCK_M, BLOCK_N, EDGE_M, EDGE_N, HAS_BIAS, WIDE, STORE, SWAP,
            )  # fmt: skip


@triton.jit
def conclude(
    acc,
    rm,
    rn,
    bias_ptr,
    out_ptr,
    M,
    N,
    stride_om,
    stride_on,
    stride_bias,
    operands,
    EPILOGUE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EDGE_M: tl.constexpr,
    EDGE_N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    STORE: tl.constexpr,
    SWAP: tl.constexpr,
):
    """`finish` for 32-bit row and column numbers, and sums that may be transposed."""
    if SWAP:
        acc = tl.trans(acc)
    if WIDE:
        rm = rm.to(tl.int64)
        rn = rn.to(tl.int64)
    finish(
        acc, rm[:, None], rn[None, :], bias_ptr, out_ptr, M, N, stride_om, stride_on, stride_bias,
        operands, EPILOGUE, BLOCK_M, BLOCK_N, EDGE_M, EDGE_N, HAS_BIAS, STORE,
    )  # fmt: skip
