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


class Lengths(NamedTuple):
    """HEADS of the queries, GROUP of which share a head of keys and values; M queries, N keys; the
    COLUMNS of queries and keys, and those of values."""

    HEADS: Any
    GROUP: Any
    M: Any
    N: Any
    COLUMNS: Any
    VALUES: Any


class Tile(NamedTuple):
    """Constants. A program takes BLOCK_M queries, BLOCK_N keys at a time. BLOCK_D, BLOCK_V: powers
    of two that hold the columns. EVEN_M, EVEN_N: the blocks divide the lengths."""

    BLOCK_M: Any
    BLOCK_N: Any
    BLOCK_D: Any
    BLOCK_V: Any
    EVEN_M: Any
    EVEN_N: Any
    INPUT_PRECISION: Any


class Scores(NamedTuple):
    """PARTIAL(score, batch, head, rm, rn, mask, partial_operands) and FULL: what becomes of scores,
    with and without the mask; None: they stay as they are. `mask`: which lie inside of the tensors.
    SCALED: the products have been multiplied by SCALE for them; else the functions do nothing but
    to give -inf, and SCALE is positive."""

    SCALE: Any
    SCALED: Any = False
    PARTIAL: Any = None
    partial_operands: Any = ()
    FULL: Any = None
    full_operands: Any = ()


class Blocks(NamedTuple):
    """The blocks of COLUMNS keys that each block of ROWS queries looks at: `Heads` of their number,
    and of which they are; None where there are no blocks."""

    counts: Any = None
    indices: Any = None
    ROWS: Any = 0
    COLUMNS: Any = 0


class Call(NamedTuple):
    """All of one attention. logsumexp, maxima: of scores, to the base 2. partial, full: the blocks
    with a mask, and those without; where there are none, `partial` is all keys."""

    q: Any
    k: Any
    v: Any
    out: Any
    logsumexp: Any
    maxima: Any
    lengths: Any
    tile: Any
    scores: Any
    partial: Any
    full: Any


class Program(NamedTuple):
    """Where a program is: its batch, head and queries; their tile, and where keys and values of
    their head begin."""

    batch: Any
    head: Any
    rm: Any
    queries: Any
    k_start: Any
    v_start: Any
