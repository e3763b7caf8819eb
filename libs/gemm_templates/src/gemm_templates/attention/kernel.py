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
def rows_of(x, start, first, side, width, EDGE: tl.constexpr):
    """A block of a side, from `first` on, of the matrix of `x` at `start`; zeros outside. EDGE:
    rows may lie there."""
    rows = tl.arange(0, side.BLOCK)[:, None]
    columns = tl.arange(0, width.BLOCK)[None, :]
    places = start + tl.cast(first, tl.int64) * x.stride_row
    places += rows * x.stride_row + columns * x.stride_column
    if EDGE and width.BLOCK != width.COLUMNS:
        inside = (first + rows < side.LENGTH) & (columns < width.COLUMNS)
        tile = tl.load(places, mask=inside, other=0.0)
    elif EDGE:
        tile = tl.load(places, mask=first + rows < side.LENGTH, other=0.0)
    elif width.BLOCK != width.COLUMNS:
        tile = tl.load(places, mask=columns < width.COLUMNS, other=0.0)
    else:
        tile = tl.load(places)
    return tile


@triton.jit
def store_rows(x, batch, head, tile, first, side, width):
    """A tile as the rows from `first` on of the matrix of a head."""
    rows = first + tl.arange(0, side.BLOCK)[:, None]
    columns = tl.arange(0, width.BLOCK)[None, :]
    places = start_of(x, batch, head) + rows.to(tl.int64) * x.stride_row
    inside = (rows < side.LENGTH) & (columns < width.COLUMNS)
    tile = tile.to(x.ptr.dtype.element_ty)
    tl.store(places + columns * x.stride_column, tile, mask=inside)


@triton.jit
def scores_of(product, batch, head, rm, rn, call, PARTIAL: tl.constexpr, EDGE: tl.constexpr):
    """The scores of products. PARTIAL: with the mask. EDGE: keys may lie outside."""
    inside = (rm < call.shape.queries.LENGTH) & (rn < call.shape.keys.LENGTH)
    if call.scores.SCALED:
        product = product * call.scores.SCALE
    if PARTIAL and call.scores.PARTIAL is not None:
        at = call.scores.partial_operands
        product = call.scores.PARTIAL(product, batch, head, rm, rn, inside, at)
    if not PARTIAL and call.scores.FULL is not None:
        at = call.scores.full_operands
        product = call.scores.FULL(product, batch, head, rm, rn, inside, at)
    if EDGE:
        product = tl.where(rn < call.shape.keys.LENGTH, product, float("-inf"))
    return product


@triton.jit
def over_all(STEP, state, program, call, side):
    """`STEP` of each block of the other side."""
    whole = side.LENGTH // side.BLOCK * side.BLOCK
    for first in tl.range(0, whole, side.BLOCK):
        state = STEP(state, first, program, call, True, False)
    if not side.EVEN:
        state = STEP(state, whole, program, call, True, True)
    return state


@triton.jit
def over_blocks(STEP, state, row, program, call, side, blocks, PARTIAL: tl.constexpr):
    """`STEP` of each block of the other side in those of the mask that what begins at `row` looks
    at. Which is next is read one step ahead."""
    PIECES: tl.constexpr = blocks.COLUMNS // side.BLOCK
    EDGE: tl.constexpr = not side.EVEN
    at = row // blocks.ROWS
    counts = start_of(blocks.counts, program.batch, program.head) + at * blocks.counts.stride_row
    places = start_of(blocks.indices, program.batch, program.head) + at * blocks.indices.stride_row
    pieces = tl.load(counts) * PIECES
    block = tl.load(places, mask=pieces > 0, other=0)
    for i in tl.range(0, pieces):
        first = block * blocks.COLUMNS + (i % PIECES) * side.BLOCK
        following = (i + 1) // PIECES * blocks.indices.stride_column
        block = tl.load(places + following, mask=i + 1 < pieces, other=0)
        state = STEP(state, first, program, call, PARTIAL, EDGE)
    return state


@triton.jit
def over(STEP, state, row, program, call, side, partial, full):
    """`STEP` of all of the other side that what begins at `row` looks at."""
    if partial.counts is None:
        state = over_all(STEP, state, program, call, side)
    else:
        state = over_blocks(STEP, state, row, program, call, side, partial, True)
        if full.counts is not None:
            state = over_blocks(STEP, state, row, program, call, side, full, False)
    return state


@triton.jit
def forward_step(state, first, program, call, PARTIAL: tl.constexpr, EDGE: tl.constexpr):
    """A block of keys from `first` on. state: sums of weighted values, of weights, and maxima."""
    acc, total, peak = state
    FACTOR: tl.constexpr = LOG2_E if call.scores.SCALED else call.scores.SCALE * LOG2_E
    rn = first + tl.arange(0, call.shape.keys.BLOCK)[None, :]
    keys = rows_of(call.k, program.k_start, first, call.shape.keys, call.shape.inner, EDGE)
    product = tl.dot(program.queries, keys.T, input_precision=call.shape.PRECISION)
    product = scores_of(product, program.batch, program.head, program.rm, rn, call, PARTIAL, EDGE)
    top = tl.maximum(peak, tl.max(product, 1) * FACTOR)
    shift = tl.where(top == float("-inf"), 0.0, top)
    weights = tl.exp2(tl.fma(product, FACTOR, -shift[:, None]))
    less = tl.exp2(peak - shift)
    total = tl.fma(total, less, tl.sum(weights, 1))
    acc = acc * less[:, None]
    values = rows_of(call.v, program.v_start, first, call.shape.keys, call.shape.outer, EDGE)
    weights = weights.to(values.dtype)
    acc = tl.dot(weights, values, acc, input_precision=call.shape.PRECISION)
    return acc, total, top


@triton.jit
def place_of(side, HEADS, LAST_FIRST: tl.constexpr):
    """The batch, the head, and the first row of a program. LAST_FIRST: the last rows of a head come
    first: under a causal mask their queries take the longest, the first keys do."""
    programs = tl.cdiv(side.LENGTH, side.BLOCK)
    matrix = tl.program_id(0) // programs
    row = tl.program_id(0) % programs * side.BLOCK
    if LAST_FIRST:
        row = (programs - 1) * side.BLOCK - row
    return matrix // HEADS, matrix % HEADS, row


@triton.jit
def attention_forward(call):
    """A block of queries of a head of a batch a program; the grid is cdiv(queries, BLOCK) * heads
    of all batches. Where no key counts the result is 0, and logsumexp and maxima are -inf."""
    batch, head, row = place_of(call.shape.queries, call.shape.HEADS, True)
    EDGE: tl.constexpr = not call.shape.queries.EVEN
    rows = row + tl.arange(0, call.shape.queries.BLOCK)
    inside = rows < call.shape.queries.LENGTH
    start = start_of(call.q, batch, head)
    queries = rows_of(call.q, start, row, call.shape.queries, call.shape.inner, EDGE)
    k_start = start_of(call.k, batch, head // call.shape.GROUP)
    v_start = start_of(call.v, batch, head // call.shape.GROUP)
    program = Program(batch, head, rows[:, None], queries, k_start, v_start)
    acc = tl.zeros([call.shape.queries.BLOCK, call.shape.outer.BLOCK], tl.float32)
    total = tl.zeros([call.shape.queries.BLOCK], tl.float32)
    peak = tl.full([call.shape.queries.BLOCK], float("-inf"), tl.float32)
    state = (acc, total, peak)
    state = over(forward_step, state, row, program, call, call.shape.keys, call.partial, call.full)
    acc, total, peak = state
    if call.logsumexp.ptr is not None:
        at = start_of(call.logsumexp, batch, head) + rows * call.logsumexp.stride_row
        tl.store(at, peak + tl.log2(total), mask=inside)
    if call.maxima.ptr is not None:
        at = start_of(call.maxima, batch, head) + rows * call.maxima.stride_row
        tl.store(at, peak, mask=inside)
    if call.out.ptr is not None:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        store_rows(call.out, batch, head, acc, row, call.shape.queries, call.shape.outer)
