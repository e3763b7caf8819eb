"""What the attention kernels take: tuples with names, as of `parts.operands`."""

from __future__ import annotations

from typing import Any, NamedTuple


class Heads(NamedTuple):
    """A tensor [batch, heads, rows, columns], or without columns: where it begins (None: there is
    none) and its strides."""

    ptr: Any = None
    stride_batch: Any = 0
    stride_head: Any = 0
    stride_row: Any = 0
    stride_column: Any = 0


class Side(NamedTuple):
    """The queries, or the keys: how many there are, of which BLOCK are taken at a time. EVEN: the
    blocks divide them, those of a mask too. BLOCK, EVEN: constants."""

    LENGTH: Any
    BLOCK: Any
    EVEN: Any


class Width(NamedTuple):
    """Columns, and a power of two that holds them. Constants."""

    COLUMNS: Any
    BLOCK: Any


class Shape(NamedTuple):
    """HEADS of the queries, GROUP of which share a head of keys and values; the columns of queries
    and keys, and those of values. PRECISION: of products of f32."""

    HEADS: Any
    GROUP: Any
    queries: Any
    keys: Any
    inner: Any
    outer: Any
    PRECISION: Any


class Scores(NamedTuple):
    """PARTIAL(score, batch, head, rm, rn, mask, partial_operands) and FULL: what becomes of scores,
    with and without the mask; None: they stay as they are. `mask`: which lie inside of the tensors.
    SCALED: the products have been multiplied by SCALE for them; else the functions do nothing but
    to give -inf, and SCALE is positive. PARTIAL_GRADIENT(score, grad, batch, ...), FULL_GRADIENT:
    the gradient of a scaled product, given that of what became of it; None: the same. SCATTERS:
    functions like these that add to memory what they captured gets, of which scatter_operands has
    the operands of each."""

    SCALE: Any
    SCALED: Any = False
    PARTIAL: Any = None
    partial_operands: Any = ()
    FULL: Any = None
    full_operands: Any = ()
    PARTIAL_GRADIENT: Any = None
    partial_gradient_operands: Any = ()
    FULL_GRADIENT: Any = None
    full_gradient_operands: Any = ()
    SCATTERS: Any = ()
    scatter_operands: Any = ()


class Blocks(NamedTuple):
    """The blocks of COLUMNS keys that each block of ROWS queries looks at (or of queries, that are
    looked at by one of keys): `Heads` of their number, and of which they are; None where there are
    no blocks."""

    counts: Any = None
    indices: Any = None
    ROWS: Any = 0
    COLUMNS: Any = 0


class Call(NamedTuple):
    """All of one attention. logsumexp, maxima: of scores, to the base 2. delta: memory for a number
    a query. partial, full: the blocks of keys with a mask, and those without; where there are none,
    `partial` is all keys. q_partial, q_full: likewise of queries."""

    q: Any
    k: Any
    v: Any
    shape: Any
    scores: Any
    out: Any = Heads()
    logsumexp: Any = Heads()
    maxima: Any = Heads()
    grad_out: Any = Heads()
    grad_logsumexp: Any = Heads()
    delta: Any = Heads()
    grad_q: Any = Heads()
    grad_k: Any = Heads()
    grad_v: Any = Heads()
    partial: Any = Blocks()
    full: Any = Blocks()
    q_partial: Any = Blocks()
    q_full: Any = Blocks()


class Program(NamedTuple):
    """Where a program is: its batch, head and queries; their tile, and where keys and values of
    their head begin. For gradients: those of the results, and what is known of each row."""

    batch: Any
    head: Any
    rm: Any
    queries: Any
    k_start: Any
    v_start: Any
    grads: Any = None
    shift: Any = None
    delta: Any = None


class KeyProgram(NamedTuple):
    """Batch, head of queries, keys; their tiles, and where queries and gradients begin."""

    batch: Any
    head: Any
    rn: Any
    keys_tile: Any
    values_tile: Any
    q_start: Any
    grad_start: Any
