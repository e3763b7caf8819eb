# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives kernel parameters their types at compile time.
"""Products over parts of K, then their sum: two launches, no counters.

The first kernel leaves SPLIT_K matrices of f32 in a workspace; the second adds them up in a fixed
order, with bias and epilogue. The workspace may hold anything before, so any host program can run
them, for any M.

With OVERLAP (Hopper and later) the second kernel may be launched while the first runs, and waits
for its results (programmatic dependent launch). Launched in the plain way it waits for nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.templates.split_k import product_of, share_of
from gemm_templates.templates.tiled import finish, tile_of


@triton.jit
def decompose_k_mm(
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
    SPLIT_K: tl.constexpr,
    EVEN_SPLIT: tl.constexpr,
    OVERLAP: tl.constexpr,
    EARLY: tl.constexpr,
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
    """The products, for the grid (tiles, batch, SPLIT_K). partials: f32 [SPLIT_K, batch, M, N].

    Prologues are as in `tiled_mm`.
    EARLY: the next kernel may be launched once all programs have begun, else once their loops end.
    """
    if OVERLAP and EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    part = tl.program_id(2)
    pid_m, pid_n = tile_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    first, count = share_of(part, K, BLOCK_K, SPLIT_K, EVEN_SPLIT)
    acc = product_of(
        a_ptr, b_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, rm, rn, first, count,
        BLOCK_M, BLOCK_N, BLOCK_K, EDGE_M, EDGE_N, EVEN_K, WIDE, INPUT_PRECISION, False,
        a_operands, b_operands, PROLOGUE_A, PROLOGUE_B,
    )  # fmt: skip
    if OVERLAP and not EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    matrix = (part * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * M * N
    if WIDE:
        rm = rm.to(tl.int64)
        rn = rn.to(tl.int64)
    places = partials + matrix + (rm[:, None] * N + rn[None, :])
    tl.store(places, acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def reduce_k_mm(
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
    SPLIT_K: tl.constexpr,
    CHUNK: tl.constexpr,
    OVERLAP: tl.constexpr,
    EDGE_M: tl.constexpr,
    EDGE_N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
    STORE: tl.constexpr,
):
    """Their sum with bias and epilogue, for the grid (tiles, batch), with tiles of its own; CHUNK
    matrices at a time (a power of two)."""
    pid_m, pid_n = tile_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    if WIDE:
        rm = rm.to(tl.int64)
        rn = rn.to(tl.int64)
    inside = (rm[:, None] * N + rn[None, :])[None, :, :]
    within = ((rm[:, None] < M) & (rn[None, :] < N))[None, :, :]
    chunk = tl.arange(0, CHUNK)[:, None, None]
    batches = tl.num_programs(1)
    sums = tl.zeros((CHUNK, BLOCK_M, BLOCK_N), dtype=tl.float32)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    for first in tl.range(0, SPLIT_K, CHUNK, loop_unroll_factor=4):
        matrix = ((first + chunk) * batches + tl.program_id(1)).to(tl.int64) * M * N
        mask = within if SPLIT_K % CHUNK == 0 else within & (first + chunk < SPLIT_K)
        sums += tl.load(partials + (matrix + inside), mask=mask, other=0.0)
    acc = tl.sum(sums, axis=0)
    finish(
        acc, rm[:, None], rn[None, :], bias_ptr, out_ptr, M, N, stride_om, stride_on, stride_bias,
        operands, EPILOGUE, BLOCK_M, BLOCK_N, EDGE_M, EDGE_N, HAS_BIAS, STORE,
    )  # fmt: skip
