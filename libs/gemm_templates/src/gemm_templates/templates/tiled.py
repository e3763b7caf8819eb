"""One output tile per program: `out = EPILOGUE(a @ b + bias)`.

`tiled_mm` is a device function, for kernels that other code generates around it; `tiled_kernel`
is a kernel of its own.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_of(pid, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Program -> (tile row, tile column), GROUP_M rows at a time, so that programs which run
    together read few different rows of `a` and columns of `b` (from the L2 cache)."""
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = tl.cdiv(N, BLOCK_N)
    width = GROUP_M * num_n
    first = (pid // width) * GROUP_M
    rows = tl.minimum(num_m - first, GROUP_M)
    inside = pid % width
    return first + inside % rows, inside // rows


@triton.jit
def identity(acc, rm, rn, mask, operands):
    return acc


@triton.jit
def tiled_mm(
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
    EDGE_M: tl.constexpr,
    EDGE_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
    STORE: tl.constexpr,
    a_operands=None,
    b_operands=None,
    scale_operands=None,
    PROLOGUE_A: tl.constexpr = None,
    PROLOGUE_B: tl.constexpr = None,
    SCALE: tl.constexpr = None,
    IMPRECISE: tl.constexpr = None,
):
    """Computes the tile of `tl.program_id(0)`; the grid is cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N).

    EPILOGUE(acc, rm, rn, mask, operands) -> the value to store: `acc` [BLOCK_M, BLOCK_N] in f32
    with the bias added, `rm` [BLOCK_M, 1] and `rn` [1, BLOCK_N] the row and column numbers,
    `mask` where they lie inside. With STORE=False nothing is stored here: the epilogue has
    stored what it wanted.
    EDGE_M, EDGE_N: "none" if BLOCK divides the size; "mask" if rows (columns) outside are to be
    read as zeros.
    WIDE: offsets in 64 bits, for operands of 2**31 elements and more.
    PROLOGUE_A(tile, r_outer, rk, mask, a_operands) -> tile, before the product; so PROLOGUE_B.
    SCALE(rm, rn, first_n, k, scale_operands) -> an f32 factor for the product of each BLOCK_K.
    IMPRECISE: fp8 products are summed in f32 after that many along K (None: by the tensor cores
    alone). BLOCK_K of a block scale is its bound, too.
    """
    pid_m, pid_n = tile_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    if WIDE:
        rm = rm.to(tl.int64)
        rn = rn.to(tl.int64)
        rk = rk.to(tl.int64)
    a_ptrs = a_ptr + (rm[:, None] * stride_am + rk[None, :] * stride_ak)
    b_ptrs = b_ptr + (rk[:, None] * stride_bk + rn[None, :] * stride_bn)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    inner_m = tl.where(rm < M, rm, 0)[:, None]
    inner_n = tl.where(rn < N, rn, 0)[None, :]
    for step in tl.range(0, tl.cdiv(K, BLOCK_K)):
        left = K - step * BLOCK_K
        if SCALE is not None:
            factor = SCALE(inner_m, inner_n, pid_n * BLOCK_N, step * BLOCK_K, scale_operands)
        a, b = load_blocks(a_ptrs, b_ptrs, rm, rn, rk, M, N, left, EDGE_M, EDGE_N, EVEN_K)
        a, b = prepare_blocks(
            a, b, rm, rn, rk, M, N, step * BLOCK_K, left, a_operands, b_operands, PROLOGUE_A,
            PROLOGUE_B, EDGE_M, EDGE_N, EVEN_K,
        )  # fmt: skip
        if SCALE is not None:
            acc += tl.dot(a, b, input_precision=INPUT_PRECISION) * factor
        else:
            acc = tl.dot(
                a, b, acc, input_precision=INPUT_PRECISION, max_num_imprecise_acc=IMPRECISE
            )
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    finish(
        acc, rm[:, None], rn[None, :], bias_ptr, out_ptr, M, N, stride_om, stride_on, stride_bias,
        operands, EPILOGUE, BLOCK_M, BLOCK_N, EDGE_M, EDGE_N, HAS_BIAS, STORE,
    )  # fmt: skip


@triton.jit
def load_blocks(
    a_ptrs,
    b_ptrs,
    rm,
    rn,
    rk,
    M,
    N,
    left,
    EDGE_M: tl.constexpr,
    EDGE_N: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """A block of `a` and one of `b`, where `left` elements along K are left; zeros beyond them,
    and beyond edges that are masked. EVEN_K: there are always enough."""
    if EDGE_M == "mask":
        if EVEN_K:
            a = tl.load(a_ptrs, mask=rm[:, None] < M, other=0.0)
        else:
            a = tl.load(a_ptrs, mask=(rm[:, None] < M) & (rk[None, :] < left), other=0.0)
    else:
        if EVEN_K:
            a = tl.load(a_ptrs)
        else:
            a = tl.load(a_ptrs, mask=rk[None, :] < left, other=0.0)
    if EDGE_N == "mask":
        if EVEN_K:
            b = tl.load(b_ptrs, mask=rn[None, :] < N, other=0.0)
        else:
            b = tl.load(b_ptrs, mask=(rk[:, None] < left) & (rn[None, :] < N), other=0.0)
    else:
        if EVEN_K:
            b = tl.load(b_ptrs)
        else:
            b = tl.load(b_ptrs, mask=rk[:, None] < left, other=0.0)
    return a, b


@triton.jit
def prepare_blocks(
    a,
    b,
    rm,
    rn,
    rk,
    M,
    N,
    first,
    left,
    a_operands,
    b_operands,
    PROLOGUE_A: tl.constexpr,
    PROLOGUE_B: tl.constexpr,
    EDGE_M: tl.constexpr,
    EDGE_N: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """What the prologues (or None) make of the blocks that `load_blocks` gave, of which `first` is
    the number of the first element along K."""
    if PROLOGUE_A is not None:
        inside = tl.broadcast_to(rk[None, :] < left, a.shape)
        if EDGE_M == "mask":
            inside = inside & (rm[:, None] < M)
        a = prepare(a, rm[:, None], first + rk[None, :], inside, a_operands, PROLOGUE_A, EVEN_K)
    if PROLOGUE_B is not None:
        inside = tl.broadcast_to(rk[:, None] < left, b.shape)
        if EDGE_N == "mask":
            inside = inside & (rn[None, :] < N)
        b = prepare(b, rn[None, :], first + rk[:, None], inside, b_operands, PROLOGUE_B, EVEN_K)
    return a, b


@triton.jit
def prepare(tile, r_outer, rk, inside, operands, PROLOGUE: tl.constexpr, EVEN_K: tl.constexpr):
    """A prologue's tile; what lies outside along K is zero, whatever the prologue makes of it."""
    tile = PROLOGUE(tile, r_outer, rk, inside, operands)
    if not EVEN_K:
        tile = tl.where(inside, tile, tl.zeros_like(tile))
    return tile


@triton.jit
def finish(
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
    STORE: tl.constexpr,
):
    """Bias, epilogue and store of one tile of accumulators."""
    value, mask = epilogue_of(
        acc, rm, rn, bias_ptr, M, N, stride_bias, operands, EPILOGUE, BLOCK_M, BLOCK_N, EDGE_M,
        EDGE_N, HAS_BIAS,
    )  # fmt: skip
    if STORE:
        out_ptrs = out_ptr + (rm * stride_om + rn * stride_on)
        tl.store(out_ptrs, value.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def epilogue_of(
    acc,
    rm,
    rn,
    bias_ptr,
    M,
    N,
    stride_bias,
    operands,
    EPILOGUE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EDGE_M: tl.constexpr,
    EDGE_N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """The value of one tile, and where it lies inside of the matrix. Where the blocks divide the
    sizes the mask is a constant, which the compiler drops."""
    if EDGE_M == "none":
        if EDGE_N == "none":
            mask = tl.full((BLOCK_M, BLOCK_N), True, tl.int1)
        else:
            mask = tl.broadcast_to(rn < N, (BLOCK_M, BLOCK_N))
    else:
        if EDGE_N == "none":
            mask = tl.broadcast_to(rm < M, (BLOCK_M, BLOCK_N))
        else:
            mask = (rm < M) & (rn < N)
    if HAS_BIAS:
        if EDGE_N == "none":
            bias = tl.load(bias_ptr + rn * stride_bias)
        else:
            bias = tl.load(bias_ptr + rn * stride_bias, mask=rn < N, other=0.0)
        acc += bias.to(tl.float32)
    return EPILOGUE(acc, rm, rn, mask, operands), mask


@triton.jit
def tiled_kernel(
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
    EDGE_M: tl.constexpr,
    EDGE_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
    STORE: tl.constexpr,
):
    """`tiled_mm` as a kernel, for direct use with Triton's own launcher."""
    tiled_mm(
        a_ptr, b_ptr, bias_ptr, out_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
        stride_om, stride_on, stride_bias, operands, EPILOGUE, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M,
        EDGE_M, EDGE_N, EVEN_K, HAS_BIAS, WIDE, INPUT_PRECISION, STORE,
    )  # fmt: skip
