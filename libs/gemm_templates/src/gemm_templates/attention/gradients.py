"""Gradients of attention without a matrix of scores: the weights are computed again from the scores
and the logsumexp of their rows (FlashAttention-2), once for the gradient of queries, by rows, and
once for those of keys and values, by columns. No sum of these is atomic: the results are the same
each time; sums of what functions of scores have captured are, and differ in the last bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gemm_templates.attention.kernel import (
    LOG2_E,
    over,
    place_of,
    rows_of,
    scores_of,
    start_of,
    store_rows,
)
from gemm_templates.attention.operands import KeyProgram, Program


@triton.jit
def weights_of(
    product, shift, batch, head, rm, rn, call, PARTIAL: tl.constexpr, EDGE: tl.constexpr
):
    """What each key counts for each query, of which `shift` is the logsumexp."""
    FACTOR: tl.constexpr = LOG2_E if call.scores.SCALED else call.scores.SCALE * LOG2_E
    scores = scores_of(product, batch, head, rm, rn, call, PARTIAL, EDGE)
    return tl.exp2(tl.fma(scores, FACTOR, -shift))


@triton.jit
def through_scores(grad, product, batch, head, rm, rn, call, PARTIAL: tl.constexpr):
    """The gradient of scaled products, given that of scores."""
    inside = (rm < call.shape.queries.LENGTH) & (rn < call.shape.keys.LENGTH)
    product = product * call.scores.SCALE
    if PARTIAL and call.scores.PARTIAL_GRADIENT is not None:
        at = call.scores.partial_gradient_operands
        changed = call.scores.PARTIAL_GRADIENT(product, grad, batch, head, rm, rn, inside, at)
        grad = tl.where(inside, changed, 0.0)
    if not PARTIAL and call.scores.FULL_GRADIENT is not None:
        at = call.scores.full_gradient_operands
        changed = call.scores.FULL_GRADIENT(product, grad, batch, head, rm, rn, inside, at)
        grad = tl.where(inside, changed, 0.0)
    return grad


@triton.jit
def shifts_of(x, batch, head, rows, side):
    """The logsumexp of queries; infinite where no key counts, or they lie outside, so that all
    weights are 0."""
    places = start_of(x, batch, head) + rows * x.stride_row
    found = tl.load(places, mask=rows < side.LENGTH, other=float("inf"))
    return tl.where(found == float("-inf"), float("inf"), found)


@triton.jit
def query_step(acc, first, program, call, PARTIAL: tl.constexpr, EDGE: tl.constexpr):
    """A block of keys from `first` on, to the gradient of the program's queries."""
    rn = first + tl.arange(0, call.shape.keys.BLOCK)[None, :]
    keys = rows_of(call.k, program.k_start, first, call.shape.keys, call.shape.inner, EDGE)
    values = rows_of(call.v, program.v_start, first, call.shape.keys, call.shape.outer, EDGE)
    batch, head, rm = program.batch, program.head, program.rm
    product = tl.dot(program.queries, keys.T, input_precision=call.shape.PRECISION)
    weights = weights_of(product, program.shift, batch, head, rm, rn, call, PARTIAL, EDGE)
    grad = tl.dot(program.grads, values.T, input_precision=call.shape.PRECISION)
    grad = weights * (grad - program.delta)
    inside = (rm < call.shape.queries.LENGTH) & (rn < call.shape.keys.LENGTH)
    for i in tl.static_range(len(call.scores.SCATTERS)):
        at = call.scores.scatter_operands[i]
        scaled = product * call.scores.SCALE
        call.scores.SCATTERS[i](scaled, grad, batch, head, rm, rn, inside, at)
    grad = through_scores(grad, product, batch, head, rm, rn, call, PARTIAL).to(keys.dtype)
    return tl.dot(grad, keys, acc, input_precision=call.shape.PRECISION)


@triton.jit
def gradient_of_queries(call):
    """The gradient of a block of queries of a head a program, and `delta`, what is taken off the
    gradients of their weights: sum(out * grad) - grad_logsumexp. Grid: that of `attention_forward`.
    """
    EDGE: tl.constexpr = not call.shape.queries.EVEN
    batch, head, row = place_of(call.shape.queries, call.shape.HEADS, True)
    rows = row + tl.arange(0, call.shape.queries.BLOCK)
    inside = rows < call.shape.queries.LENGTH
    start = start_of(call.out, batch, head)
    out = rows_of(call.out, start, row, call.shape.queries, call.shape.outer, EDGE)
    start = start_of(call.grad_out, batch, head)
    grads = rows_of(call.grad_out, start, row, call.shape.queries, call.shape.outer, EDGE)
    delta = tl.sum(out.to(tl.float32) * grads.to(tl.float32), 1)
    if call.grad_logsumexp.ptr is not None:
        at = start_of(call.grad_logsumexp, batch, head) + rows * call.grad_logsumexp.stride_row
        delta -= tl.load(at, mask=inside, other=0.0) * LOG2_E
    at = start_of(call.delta, batch, head) + rows * call.delta.stride_row
    tl.store(at, delta, mask=inside)
    if call.grad_q.ptr is not None or len(call.scores.SCATTERS) > 0:
        start = start_of(call.q, batch, head)
        queries = rows_of(call.q, start, row, call.shape.queries, call.shape.inner, EDGE)
        shift = shifts_of(call.logsumexp, batch, head, rows, call.shape.queries)[:, None]
        k_start = start_of(call.k, batch, head // call.shape.GROUP)
        v_start = start_of(call.v, batch, head // call.shape.GROUP)
        where = (batch, head, rows[:, None], queries, k_start, v_start)
        program = Program(*where, grads, shift, delta[:, None])
        acc = tl.zeros([call.shape.queries.BLOCK, call.shape.inner.BLOCK], tl.float32)
        acc = over(query_step, acc, row, program, call, call.shape.keys, call.partial, call.full)
        if call.grad_q.ptr is not None:
            acc = acc * call.scores.SCALE
            store_rows(call.grad_q, batch, head, acc, row, call.shape.queries, call.shape.inner)


@triton.jit
def key_step(state, first, program, call, PARTIAL: tl.constexpr, EDGE: tl.constexpr):
    """A block of queries from `first` on, to the gradients of the program's keys and values. Tiles
    of scores are [keys, queries]."""
    grad_k, grad_v = state
    KEYS_EDGE: tl.constexpr = not call.shape.keys.EVEN
    batch, head, rn = program.batch, program.head, program.rn
    rows = first + tl.arange(0, call.shape.queries.BLOCK)
    rm = rows[None, :]
    queries = rows_of(call.q, program.q_start, first, call.shape.queries, call.shape.inner, EDGE)
    product = tl.dot(program.keys_tile, queries.T, input_precision=call.shape.PRECISION)
    shift = shifts_of(call.logsumexp, batch, head, rows, call.shape.queries)[None, :]
    weights = weights_of(product, shift, batch, head, rm, rn, call, PARTIAL, KEYS_EDGE)
    if EDGE:  # of queries that are none, what is looked up in a table is no number
        weights = tl.where(rm < call.shape.queries.LENGTH, weights, 0.0)
    start = program.grad_start
    grads = rows_of(call.grad_out, start, first, call.shape.queries, call.shape.outer, EDGE)
    of_values = weights.to(grads.dtype)
    grad_v = tl.dot(of_values, grads, grad_v, input_precision=call.shape.PRECISION)
    at = start_of(call.delta, batch, head) + rows * call.delta.stride_row
    delta = tl.load(at, mask=rows < call.shape.queries.LENGTH, other=0.0)[None, :]
    grad = tl.dot(program.values_tile, grads.T, input_precision=call.shape.PRECISION)
    grad = weights * (grad - delta)
    grad = through_scores(grad, product, batch, head, rm, rn, call, PARTIAL).to(queries.dtype)
    grad_k = tl.dot(grad, queries, grad_k, input_precision=call.shape.PRECISION)
    return grad_k, grad_v


@triton.jit
def gradient_of_keys(call):
    """The gradients of a block of keys of a head, and of their values, a program: over the queries
    of all heads that share it. Grid: cdiv(keys, BLOCK) * heads of keys of all batches."""
    EDGE: tl.constexpr = not call.shape.keys.EVEN
    batch, kv_head, row = place_of(call.shape.keys, call.shape.HEADS // call.shape.GROUP, False)
    rn = row + tl.arange(0, call.shape.keys.BLOCK)[:, None]
    start = start_of(call.k, batch, kv_head)
    keys = rows_of(call.k, start, row, call.shape.keys, call.shape.inner, EDGE)
    start = start_of(call.v, batch, kv_head)
    values = rows_of(call.v, start, row, call.shape.keys, call.shape.outer, EDGE)
    grad_k = tl.zeros([call.shape.keys.BLOCK, call.shape.inner.BLOCK], tl.float32)
    grad_v = tl.zeros([call.shape.keys.BLOCK, call.shape.outer.BLOCK], tl.float32)
    state = (grad_k, grad_v)
    for i in tl.range(0, call.shape.GROUP):
        head = kv_head * call.shape.GROUP + i
        q_start = start_of(call.q, batch, head)
        grad_start = start_of(call.grad_out, batch, head)
        program = KeyProgram(batch, head, rn, keys, values, q_start, grad_start)
        state = over(
            key_step, state, row, program, call, call.shape.queries, call.q_partial, call.q_full
        )
    grad_k, grad_v = state
    if call.grad_k.ptr is not None:
        grad_k = grad_k * call.scores.SCALE
        store_rows(call.grad_k, batch, kv_head, grad_k, row, call.shape.keys, call.shape.inner)
    if call.grad_v.ptr is not None:
        store_rows(call.grad_v, batch, kv_head, grad_v, row, call.shape.keys, call.shape.outer)
