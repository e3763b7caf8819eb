"""A schedule as data, and the width of its index arithmetic."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import sympy

from loop_ir import Indirect, Kernel, Symbol
from loop_ir.ir import expression, once, ranges_of, statements
from symexpr import CeilDiv, FloorDiv, Max, Ranges, bounds
from triton_emit.intervals import FITS, INT32_MAX

Kind = Literal["flat", "tiled", "persistent", "looped"]
# Functions whose values, whatever their arguments, lie no farther from 0 than the sum of these.
_NEVER_LARGER = frozenset(("Min", "Max", "FloorDiv", "CeilDiv", "Mod"))
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


@once
def index_bits(kernel: Kernel) -> Literal[32, 64]:
    """64 when an index, what one is a remainder, quotient or end of, or a count of points, can pass
    2**31 - 1 within the symbols' ranges.

    A tile overhangs its last row by less than a block, hence the margin."""
    counted = _counted(kernel)
    functions = {f for e in counted for f in e.atoms(sympy.Function)}
    inside = [a for f in functions for a in f.args if isinstance(a, sympy.Expr)]
    return 64 if passes_32_bits([*counted, *inside], dict(ranges_of(kernel))) else 32


def _counted(kernel: Kernel) -> list[sympy.Expr]:
    """Counts of points, extents of places that are data, and indices."""
    all_axes = {phase.axes for phase in kernel.phases} | {kernel.axes}
    counts = [sympy.Mul(*(a.extent for a in axes)) for axes in all_axes]
    body = list(statements(kernel))
    extents = [s.extent for s in body if isinstance(s, Indirect)]
    return [
        *counts,
        *extents,
        *(e for e in map(expression, body) if e is not None and e.is_integer),
    ]


def size_in_32_bits(kernel: Kernel) -> sympy.Expr | None:
    """A sum of products of sizes: where that is at most `FITS`, 32 bits hold all that a kernel's
    index arithmetic meets. None where no such sum is known.

    i0 < s0, i1 < s1: y[i0*s1 + i1] = x[i1*s0 + i0]  ->  s0*s1 + s0 + s1"""
    extents = {a.symbol: a.extent for axes in (kernel.axes, *(p.axes for p in kernel.phases))
               for a in axes}  # fmt: skip
    extents |= {s.symbol: s.extent for s in statements(kernel) if isinstance(s, Indirect)}
    if any(s.low is None or s.low < 0 for s in kernel.symbols):
        return None
    most: dict[sympy.Expr, int] = {}
    counted = [*_counted(kernel), *map(_symbol, kernel.symbols)]
    counted += [d.args[0] for e in counted for d in e.atoms(FloorDiv, CeilDiv)]
    for e in counted:
        size = _size(e, extents)
        if size is None:
            return None
        for term, number in sympy.expand(size).as_coefficients_dict().items():
            most[term] = max(most.get(term, 0), int(sympy.ceiling(number)))
    least = {s: Max(1, s) for s in map(_symbol, kernel.symbols)}  # no factor hides another
    return sympy.Add(*(number * term for term, number in most.items())).xreplace(least)


def _symbol(size: Symbol) -> sympy.Symbol:
    return sympy.Symbol(size.name, integer=True)


def _size(e: sympy.Expr, extents: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Expr | None:
    """What neither an expression of sizes and axes nor any part of it passes, whatever its sign,
    but for what is divided."""
    if e.is_Integer:
        return abs(e)
    if e.is_Symbol:
        return _size(extents[e], extents) if e in extents else e
    if e.is_Pow and e.exp.is_Integer and e.exp > 0:
        base = _size(e.base, extents)
        return None if base is None else base**e.exp
    parts = [_size(a, extents) for a in e.args]
    if None in parts:
        return None
    if e.is_Mul:
        return sympy.Mul(*parts)
    if isinstance(e, FloorDiv | CeilDiv) and e.args[1].is_Integer and e.args[1] > 0:
        return parts[0] / e.args[1] + 1
    if e.is_Add or type(e).__name__ in _NEVER_LARGER:
        return sympy.Add(*parts)
    return None


def passes_32_bits(values: Iterable[sympy.Expr], ranges: Ranges) -> bool:
    """Whether one of these may, with the margin, pass 2**31 - 1."""
    for e in values:
        low, high = bounds(e, ranges)
        if low is None or high is None or high > FITS or low < -INT32_MAX:
            return True
    return False
