"""Rows in pieces, each nearly as long as a power of two."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import sympy

from loop_ir.ir.analysis import JOINS
from loop_ir.ir.body import Body, fresh_values
from loop_ir.ir.names import Name, operands, renamed, results, statements, symbol_names
from loop_ir.ir.nodes import Axis, Kernel, Load, Phase, Reduce, Scan, Stmt
from loop_ir.ir.renaming import fresh_symbols

_MOST_PIECES = 4


def row_of_pieces(kernel: Kernel) -> int:
    """How many elements the kernel's rows have, if they can be cut into pieces, else 0. They cannot
    if rows differ in length, have several inner axes, or are folded in order or in 16 bits."""
    spaces = {p.axes for p in kernel.phases if p.axes}
    folds = [s for s in statements(kernel) if isinstance(s, Reduce | Scan)]
    for s in folds:
        rounds = s.dtype.is_float and s.dtype.itemsize < 4 and s.op not in ("max", "min")
        if rounds or isinstance(s, Scan) or s.op not in (*JOINS, "welford"):
            return 0
    extents = [a.extent for space in spaces for a in space]
    return int(extents[0]) if len(extents) == 1 and extents[0].is_Integer else 0


def in_pieces(kernel: Kernel, width: int) -> Kernel:
    """The kernel whose rows are `width` elements (a power of two), and what is left of them:

       over r0 < 5000: v0 = load x[r0]; v1 = reduce sum(v0)
    -> over r0 < 4096: v0 = load x[r0]
       over r1 < 904: v2 = load x[r1 + 4096]
       over r0 < 4096: v3 = reduce sum(v0)
       over r1 < 904: v4 = reduce sum(v2)
       once: v1 = add(v3, v4)
    """
    (axis,) = next(p.axes for p in kernel.phases if p.axes)
    fresh = fresh_values(kernel)
    symbols, places = (fresh_symbols(letter, symbol_names(kernel)) for letter in "rt")
    extent = int(axis.extent)
    names: dict[Axis, dict[Name, sympy.Expr | str]] = {}
    for start, end in pairwise((*_starts(extent, width), extent)):
        piece = Axis(next(symbols) if start else axis.symbol, sympy.Integer(end - start))
        names[piece] = {axis.symbol: piece.symbol + start} if start else {}
    phases: list[Phase] = []
    for phase in _in_two_passes(kernel, fresh):
        if not phase.axes:
            phases.append(phase)
            continue
        bodies: dict[Axis, list[Stmt]] = {piece: [] for piece in names}
        for number, (piece, body) in enumerate(bodies.items()):
            for stmt in phase.body:
                for name in results(stmt) if number or isinstance(stmt, Reduce) else ():
                    symbol = isinstance(name, sympy.Symbol)
                    names[piece][name] = next(places) if symbol else next(fresh)
                body.append(renamed(stmt, names[piece]))
        phases += _loads_first(bodies)
        joined = Body(fresh)
        for stmt in phase.body:
            if isinstance(stmt, Reduce):
                (out,) = stmt.outs
                first, *others, last = (str(own.pop(out)) for own in names.values())
                for other in others:
                    first = joined.compute(stmt.dtype, JOINS[stmt.op], first, other)
                joined.compute(stmt.dtype, JOINS[stmt.op], first, last, out=out)
        phases.append(Phase((), tuple(joined)))
    return replace(kernel, phases=tuple(p for p in phases if p.body))


def _starts(extent: int, width: int) -> list[int]:
    """Where pieces begin: each but the last is a power of two long, and the last one more than
    four fifths of one, unless they are many."""
    starts = [0]
    while extent - starts[-1] > width:
        starts.append(starts[-1] + width)
        rest = extent - starts[-1]
        least = 1 << (rest - 1).bit_length()
        short = 4 * least > 5 * rest and len(starts) < _MOST_PIECES
        width = min(width, least // 2 if short else least)
    return starts


def _loads_first(bodies: dict[Axis, list[Stmt]]) -> Iterator[Phase]:
    """Of each piece what is read before anything is folded: threads wait for each other there."""
    for piece, body in bodies.items():
        needed: set[Name] = set()
        first: list[Stmt] = []
        for stmt in reversed(body):
            if isinstance(stmt, Load) or not needed.isdisjoint(results(stmt)):
                needed.update(operands(stmt))
                first.insert(0, stmt)
        yield Phase((piece,), tuple(first))
        body[:] = [s for s in body if s not in first]
    for piece, body in bodies.items():
        yield Phase((piece,), tuple(body))


def _in_two_passes(kernel: Kernel, fresh: Iterator[str]) -> Iterator[Phase]:
    """The phases, with means and sums of squared distances from them as sums."""
    for phase in kernel.phases:
        found = [s for s in phase.body if isinstance(s, Reduce) and s.op == "welford"]
        body = Body(fresh, (s for s in phase.body if s not in found))
        once, again = Body(fresh), Body(fresh)
        for stmt in found:
            (value,), (mean, m2), dtype = stmt.args, stmt.outs, stmt.dtype
            total = body.reduce(dtype, "sum", value)
            (axis,) = phase.axes
            once.compute(dtype, "div", total, once.const(float(axis.extent), dtype), out=mean)
            diff = again.compute(dtype, "sub", value, mean)
            again.reduce(dtype, "sum", again.compute(dtype, "mul", diff, diff), out=m2)
        yield from (Phase(phase.axes, tuple(body)), Phase((), tuple(once)))
        yield Phase(phase.axes, tuple(again))
