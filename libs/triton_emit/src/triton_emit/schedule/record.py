"""A schedule as data, and the width of its index arithmetic."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import sympy

from loop_ir import Indirect, Kernel
from loop_ir.ir import expression, ranges_of, statements
from symexpr import Ranges, bounds

Kind = Literal["flat", "tiled", "persistent", "looped"]
INT32_MAX = 2**31 - 1
# Pieces of rows from this many elements on begin at multiples of so many.
_LONG_PIECE, _ALIGNED = 1024, 128


@dataclass(frozen=True)
class Schedule:
    """`flat`: one tile dimension of `xblock` points. `tiled`: two, `xblock` points of the last axis
    by `yblock` of the others, for kernels that transpose or resample. `persistent`: a program
    holds `xblock` rows, `rblock` wide, or in pieces of that and what is left (`in_pieces`).
    `looped`: it walks over `xblock` rows in steps of `rblock`. `index_bits`: width of the index
    arithmetic.
    Block sizes are powers of two. `overlap`: launched as the kernel before it in the stream ends,
    for which it waits before it touches memory (programmatic dependent launch; Hopper and later).
    `vector`: how many neighbouring elements a thread of a flat or tiled kernel takes at most; 0: as
    many as the widest of its accesses moves at once. `steps`: of a looped kernel that scans
    columns, how many places along the scan a thread takes one after the other; 1: its tile is not
    cut so. `pairs`: a point of a flat kernel is two neighbours (`pairs.py`). `lookback`: of a
    looped kernel that scans a row, of how many chunks before its own a program reads what they fold
    to at once; 0: a program walks over all chunks of its row. `share`: of a persistent kernel, how
    many programs hold one row, a piece each; 1: a program holds whole rows."""

    kind: Kind
    xblock: int
    rblock: int = 1
    num_warps: int = 4
    num_stages: int = 1
    index_bits: Literal[32, 64] = 32
    yblock: int = 1
    overlap: bool = False
    vector: int = 0
    steps: int = 1
    pairs: bool = False
    lookback: int = 0
    share: int = 1


def next_power_of_two(n: int) -> int:
    """The least power of two that is at least `n`; 1 of what is less."""
    return 1 << max(0, n - 1).bit_length()


def piece_of(extent: int, share: int) -> int:
    """Elements of each piece but the last of a row that `share` programs hold: long ones begin
    where cache lines do."""
    piece = -(-extent // share)
    return piece if piece < _LONG_PIECE else -(-piece // _ALIGNED) * _ALIGNED


def index_bits(kernel: Kernel) -> Literal[32, 64]:
    """64 when an index, or a count of points, can pass 2**31 - 1 within the symbols' ranges.

    A tile overhangs its last row by less than a block, hence the margin."""
    ranges = dict(ranges_of(kernel))
    all_axes = {a for phase in kernel.phases for a in [phase.axes]} | {kernel.axes}
    counts = [sympy.Mul(*(a.extent for a in axes)) for axes in all_axes]
    body = list(statements(kernel))
    extents = [s.extent for s in body if isinstance(s, Indirect)]
    exprs = (e for e in map(expression, body) if e is not None)
    return 64 if passes_32_bits([*counts, *extents, *exprs], ranges) else 32


def passes_32_bits(values: Iterable[sympy.Expr], ranges: Ranges) -> bool:
    """Whether one of these may, with the margin, pass 2**31 - 1."""
    for e in values:
        low, high = bounds(e, ranges)
        if low is None or high is None or high > INT32_MAX - 65536 or low < -INT32_MAX:
            return True
    return False
