"""For which sizes a kernel of dynamic sizes may be written as if they were small."""

from collections.abc import Mapping
from dataclasses import replace

import sympy

from loop_ir import Kernel, Reduce, Scan
from loop_ir.ir import at_hints, ranges_of, statements
from symexpr import DivisionByZero, bounds, evaluate
from triton_emit import FITS, default_schedule, index_bits, size_in_32_bits

# Rows up to which several may share a program, whose places are then a tile.
_SHORT = 1024

Conditions = tuple[sympy.logic.boolalg.Boolean, ...]


def held_rows(node: Kernel, hints: Mapping[str, int]) -> tuple[Kernel, Conditions] | None:
    """The kernel for rows up to their typical length, or a quarter of a power of two more, which a
    program holds, and the sizes that those are: several of short rows, and longer ones that loops
    would read again. None of others, and where it holds rows of any length in range."""
    extents = {sympy.Mul(*(a.extent for a in p.axes)) for p in node.phases if p.axes}
    along = sorted({str(n) for e in extents for n in e.free_symbols})
    if not along or any(s.hint is None for s in node.symbols if s.name in along):
        return None
    try:
        rows = max(at_hints(e, hints) for e in extents)
        if rows < 1 or (rows > _SHORT and sum(bool(p.axes) for p in node.phases) == 1):
            return None
        if default_schedule(node, hints).kind != "looped":
            return None
        most = {n: hints[n] for n in along}
        if len(along) == 1:
            step = max(1, (1 << (rows - 1).bit_length()) // 4)
            most[along[0]] = -(-rows // step) * step * hints[along[0]] // rows
        symbols = (replace(s, high=most.get(s.name, s.high)) for s in node.symbols)
        near = replace(node, name=f"{node.name}_held", symbols=tuple(symbols))
        if default_schedule(near, hints).kind != "persistent":
            return None
    except DivisionByZero:
        return None
    return near, tuple(sympy.Le(sympy.Symbol(n, integer=True), high) for n, high in most.items())


def in_32_bits(node: Kernel, hints: Mapping[str, int]) -> sympy.logic.boolalg.Boolean | None:
    """The sizes at which a kernel whose index arithmetic takes 64 bits for the largest needs but
    32: where the places along several axes of dynamic sizes are quotients, or are counted by scans,
    each of which takes that for every element (nearest neighbours of 24 x 40 x 40 x 96 of bf16 on
    an H100: 717 us in 64 bits, 200 by torch), and those of short rows, which are tiles of places.
    None of others, and where the hints need 64."""
    spaces = (node.axes, *(phase.axes for phase in node.phases))
    many = any(sum(a.extent != 1 for a in axes) > 1 for axes in spaces)
    places = any(isinstance(s, Reduce | Scan) and s.op.startswith("arg") for s in statements(node))
    rows = [sympy.Mul(*(a.extent for a in p.axes)) for p in node.phases if p.axes]
    most = [bounds(e, dict(ranges_of(node)))[1] for e in rows]
    short = bool(node.axes) and any(m is not None and m <= _SHORT for m in most)
    if not (many or places or short) or index_bits(node) == 32:
        return None
    size = size_in_32_bits(node)
    if size is None or evaluate(size, hints) > FITS:
        return None
    return sympy.Le(size, FITS)
