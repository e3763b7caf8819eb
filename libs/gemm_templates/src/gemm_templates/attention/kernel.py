"""Attention without a matrix of scores: softmax(SCORE(q @ k.T * SCALE)) @ v, BLOCK_M rows a
program, in one pass over the keys (Dao, FlashAttention-2, arXiv:2307.08691)."""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.attention.operands import Program

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def start_of(x, batch, head):
    """Where the matrix of a head begins."""
    return x.ptr + batch.to(tl.int64) * x.stride_batch + head.to(tl.int64) * x.stride_head


@triton.jit
def load_tile(pointers, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """What is at `pointers`, zeros outside. ROWS, COLUMNS: all of them are inside."""
    if ROWS and COLUMNS:
        tile = tl.load(pointers)
    elif COLUMNS:
        tile = tl.load(pointers, mask=rows, other=0.0)
    elif ROWS:
        tile = tl.load(pointers, mask=columns, other=0.0)
    else:
        tile = tl.load(pointers, mask=rows & columns, other=0.0)
    return tile


@triton.jit
def scores_of(product, program, rn, call, PARTIAL: tl.constexpr, EDGE: tl.constexpr):
    """The scores of products. PARTIAL: with the mask. EDGE: columns may lie outside."""
    rm = program.rm
    inside = (rm < call.lengths.M) & (rn < call.lengths.N)
    if call.scores.SCALED:
        product = product * call.scores.SCALE
    if PARTIAL and call.scores.PARTIAL is not None:
        at = call.scores.partial_operands
        product = call.scores.PARTIAL(product, program.batch, program.head, rm, rn, inside, at)
    if not PARTIAL and call.scores.FULL is not None:
        at = call.scores.full_operands
        product = call.scores.FULL(product, program.batch, program.head, rm, rn, inside, at)
    if EDGE:
        product = tl.where(rn < call.lengths.N, product, float("-inf"))
    return product


@triton.jit
def step(acc, total, peak, first, program, call, PARTIAL: tl.constexpr, EDGE: tl.constexpr):
    """BLOCK_N keys from `first` on."""
    FACTOR: tl.constexpr = LOG2_E if call.scores.SCALED else call.scores.SCALE * LOG2_E
    ALL_D: tl.constexpr = call.tile.BLOCK_D == call.lengths.COLUMNS
    ALL_V: tl.constexpr = call.tile.BLOCK_V == call.lengths.VALUES
    columns = tl.arange(0, call.tile.BLOCK_N)
    rn = first + columns
    rd = tl.arange(0, call.tile.BLOCK_D)
    rv = tl.arange(0, call.tile.BLOCK_V)
    keys = program.k_start + tl.cast(first, tl.int64) * call.k.stride_row
    keys += rd[:, None] * call.k.stride_column + columns[None, :] * call.k.stride_row
    found = rn[None, :] < call.lengths.N
    keys = load_tile(keys, found, rd[:, None] < call.lengths.COLUMNS, not EDGE, ALL_D)
    product = tl.dot(program.queries, keys, input_precision=call.tile.INPUT_PRECISION)
    product = scores_of(product, program, rn[None, :], call, PARTIAL, EDGE)
    top = tl.maximum(peak, tl.max(product, 1) * FACTOR)
    shift = tl.where(top == float("-inf"), 0.0, top)
    weights = tl.exp2(product * FACTOR - shift[:, None])
    less = tl.exp2(peak - shift)
    total = total * less + tl.sum(weights, 1)
    acc = acc * less[:, None]
    values = program.v_start + tl.cast(first, tl.int64) * call.v.stride_row
    values += columns[:, None] * call.v.stride_row + rv[None, :] * call.v.stride_column
    found = rn[:, None] < call.lengths.N
    values = load_tile(values, found, rv[None, :] < call.lengths.VALUES, not EDGE, ALL_V)
    weights = weights.to(values.dtype)
    acc = tl.dot(weights, values, acc, input_precision=call.tile.INPUT_PRECISION)
    return acc, total, top


@triton.jit
def over_blocks(acc, total, peak, row, program, call, blocks, PARTIAL: tl.constexpr):
    """The keys in the blocks of `blocks` that the queries from `row` on look at. Which block is
    next is read one step ahead."""
    PIECES: tl.constexpr = blocks.COLUMNS // call.tile.BLOCK_N
    EDGE: tl.constexpr = not call.tile.EVEN_N
    at = row // blocks.ROWS
    counts = start_of(blocks.counts, program.batch, program.head) + at * blocks.counts.stride_row
    pieces = tl.load(counts) * PIECES
    places = start_of(blocks.indices, program.batch, program.head) + at * blocks.indices.stride_row
    block = tl.load(places, mask=pieces > 0, other=0)
    for i in tl.range(0, pieces):
        first = block * blocks.COLUMNS + (i % PIECES) * call.tile.BLOCK_N
        following = (i + 1) // PIECES * blocks.indices.stride_column
        block = tl.load(places + following, mask=i + 1 < pieces, other=0)
        acc, total, peak = step(acc, total, peak, first, program, call, PARTIAL, EDGE)
    return acc, total, peak


@triton.jit
def over_all(acc, total, peak, program, call):
    """All keys."""
    whole = call.lengths.N // call.tile.BLOCK_N * call.tile.BLOCK_N
    for first in tl.range(0, whole, call.tile.BLOCK_N):
        acc, total, peak = step(acc, total, peak, first, program, call, True, False)
    if not call.tile.EVEN_N:
        acc, total, peak = step(acc, total, peak, whole, program, call, True, True)
    return acc, total, peak


@triton.jit
def attention_forward(call):
    """BLOCK_M queries of a head of a batch a program, the last queries of a head first: under a
    causal mask they take the longest. The grid is cdiv(M, BLOCK_M) * heads of all batches. Where no
    key counts the result is 0, and logsumexp and maxima are -inf."""
    lengths = call.lengths
    programs = tl.cdiv(lengths.M, call.tile.BLOCK_M)
    batch = tl.program_id(0) // programs // lengths.HEADS
    head = tl.program_id(0) // programs % lengths.HEADS
    row = (programs - 1 - tl.program_id(0) % programs) * call.tile.BLOCK_M
    rows = row + tl.arange(0, call.tile.BLOCK_M)
    rm = rows[:, None]
    rd = tl.arange(0, call.tile.BLOCK_D)
    places = start_of(call.q, batch, head) + rm.to(tl.int64) * call.q.stride_row
    places += rd[None, :] * call.q.stride_column
    ALL: tl.constexpr = call.tile.BLOCK_D == call.lengths.COLUMNS
    columns = rd[None, :] < lengths.COLUMNS
    queries = load_tile(places, rm < lengths.M, columns, call.tile.EVEN_M, ALL)
    keys = start_of(call.k, batch, head // lengths.GROUP)
    values = start_of(call.v, batch, head // lengths.GROUP)
    program = Program(batch, head, rm, queries, keys, values)
    acc = tl.zeros([call.tile.BLOCK_M, call.tile.BLOCK_V], tl.float32)
    total = tl.zeros([call.tile.BLOCK_M], tl.float32)
    peak = tl.full([call.tile.BLOCK_M], float("-inf"), tl.float32)
    if call.partial.counts is None:
        acc, total, peak = over_all(acc, total, peak, program, call)
    else:
        acc, total, peak = over_blocks(acc, total, peak, row, program, call, call.partial, True)
        if call.full.counts is not None:
            acc, total, peak = over_blocks(acc, total, peak, row, program, call, call.full, False)
    inside = rows < lengths.M
    if call.logsumexp.ptr is not None:
        at = start_of(call.logsumexp, batch, head) + rows * call.logsumexp.stride_row
        tl.store(at, peak + tl.log2(total), mask=inside)
    if call.maxima.ptr is not None:
        at = start_of(call.maxima, batch, head) + rows * call.maxima.stride_row
        tl.store(at, peak, mask=inside)
    if call.out.ptr is not None:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        rv = tl.arange(0, call.tile.BLOCK_V)
        places = start_of(call.out, batch, head) + rm.to(tl.int64) * call.out.stride_row
        places += rv[None, :] * call.out.stride_column
        inside = (rm < lengths.M) & (rv[None, :] < lengths.VALUES)
        tl.store(places, acc.to(call.out.ptr.dtype.element_ty), mask=inside)
