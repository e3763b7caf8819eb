"""Rows in pieces, each nearly as long as a power of two."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import sympy

from loop_ir.ir import names as ir_names
from loop_ir.ir.analysis import JOINS, PLACES, identity
from loop_ir.ir.body import Body, fresh_values, is_extreme
from loop_ir.ir.nodes import Axis, Kernel, Load, Phase, Reduce, Scan, Stmt, Store
from loop_ir.ir.renaming import fresh_symbols
from loop_ir.ir.rewrite import ranges_of
from symexpr import bounds
from tensor_ir import DType, once

_MOST_PIECES = 4
# The longest pieces that are all as long.
NARROW_PIECE = 64


@dataclass(frozen=True)
class _Piece:
    """A part of a row. space: its axis, which pieces of one length share; names: what is called
    otherwise there; end: of a piece that reaches past its row, the place in the row."""

    space: Axis
    names: dict[ir_names.Name, Any]
    end: sympy.Expr | None


@once
def row_of_pieces(kernel: Kernel) -> int:
    """How many elements the kernel's rows have at most, if they can be cut into pieces, else 0.
    They cannot if they differ in length from phase to phase, have several inner axes, or are folded
    in order or in 16 bits."""
    spaces = {p.axes for p in kernel.phases if p.axes}
    folds = [s for s in ir_names.statements(kernel) if isinstance(s, Reduce | Scan)]
    for s in folds:
        rounds = s.dtype.is_float and s.dtype.itemsize < 4 and s.op not in ("max", "min")
        if rounds or isinstance(s, Scan) or s.op not in (*JOINS, *PLACES, "welford"):
            return 0
    extents = [a.extent for space in spaces for a in space]
    return _bounds(kernel, extents[0])[1] if len(extents) == 1 else 0


def _bounds(kernel: Kernel, extent: sympy.Expr) -> tuple[int, int]:
    """How many elements a row has at least and at most; 0 where that is not known."""
    if extent.is_Integer:
        return int(extent), int(extent)
    low, high = bounds(extent, dict(ranges_of(kernel)))
    return low or 0, high or 0


def in_pieces(kernel: Kernel, width: int) -> Kernel:
    """The kernel whose rows are pieces of `width` elements (a power of two), and what is left of
    them. Pieces of one length are one space of inner points, whose elements are joined before they
    are folded: threads tell each other of all of them at once.

       over r0 < 9000: v0 = load x[r0]; v1 = reduce sum(v0)
    -> over r0 < 4096: v0 = load x[r0]; v2 = load x[r0 + 4096]
       over r1 < 808: v3 = load x[r1 + 8192]
       over r0 < 4096: v4 = add(v0, v2); v5 = reduce sum(v4)
       over r1 < 808: v6 = reduce sum(v3)
       once: v1 = add(v5, v6)

    Narrow pieces are all of one length: a mask says what there is of the last one.
    """
    (axis,) = next(p.axes for p in kernel.phases if p.axes)
    fresh = fresh_values(kernel)
    pieces = _pieces(kernel, axis, width)
    places = fresh_symbols("t", ir_names.symbol_names(kernel))
    phases: list[Phase] = []
    for phase in _in_two_passes(kernel, fresh):
        if not phase.axes:
            phases.append(phase)
            continue
        bodies = {piece.space: Body(fresh) for piece in pieces}
        masks: list[str | None] = []
        for number, piece in enumerate(pieces):
            body, mask = bodies[piece.space], None
            if piece.end is not None:
                mask = body.test("lt", body.number(piece.end), body.number(axis.extent))
            masks.append(mask)
            for stmt in (s for s in phase.body if not isinstance(s, Reduce)):
                for name in ir_names.results(stmt) if number else ():
                    piece.names[name] = next(places if isinstance(name, sympy.Symbol) else fresh)
                new = ir_names.renamed(stmt, piece.names)
                if mask is not None and isinstance(new, Load | Store):
                    new = body.guarded(new, mask)
                body.append(new)
        joined = Body(fresh)
        for fold in (s for s in phase.body if isinstance(s, Reduce)):
            _fold(fold, list(zip(pieces, masks, strict=True)), bodies, joined)
        phases += [*_loads_first(bodies), Phase((), tuple(joined))]
    return replace(kernel, phases=tuple(p for p in phases if p.body))


def _fold(
    stmt: Reduce,
    pieces: Sequence[tuple[_Piece, str | None]],
    bodies: Mapping[Axis, Body],
    joined: Body,
) -> None:
    """A reduction of all pieces, each with its mask: in `joined` where they are several spaces."""
    (arg,), (out,), dtype = stmt.args, stmt.outs, stmt.dtype
    found: dict[Axis, list[str]] = {space: [] for space in bodies}
    for piece, mask in pieces:
        body, value = bodies[piece.space], str(piece.names.get(arg, arg))
        if mask is not None:
            value = body.compute(
                dtype, "where", mask, value, body.const(identity(stmt.op, dtype), dtype)
            )
        found[piece.space].append(value)
    alone = out if len(bodies) == 1 else None
    folded = [
        bodies[space].reduce(dtype, stmt.op, _join(stmt, values, bodies[space]), alone)
        for space, values in found.items()
    ]
    if alone is None:
        _join(stmt, folded, joined, out)


def _pieces(kernel: Kernel, axis: Axis, width: int) -> list[_Piece]:
    """The pieces of a row."""
    symbols = fresh_symbols("r", ir_names.symbol_names(kernel))
    least, most = _bounds(kernel, axis.extent)
    spaces: dict[int, Axis] = {}
    pieces: list[_Piece] = []
    for start, end in pairwise((*_starts(most, width), most)):
        length = width if width <= NARROW_PIECE else end - start
        if length not in spaces:
            symbol = next(symbols) if start else axis.symbol
            spaces[length] = Axis(symbol, sympy.Integer(length))
        at = spaces[length].symbol + start
        names: dict[ir_names.Name, Any] = {axis.symbol: at} if start else {}
        pieces.append(_Piece(spaces[length], names, at if least < start + length else None))
    return pieces


def _join(stmt: Reduce, values: Sequence[str], body: Body, out: str | None = None) -> str:
    """The values of some elements, or of some parts of a row, as one."""
    first, *others = values
    for number, other in enumerate(others, 1):
        last = out if number == len(others) else None
        first = body.compute(stmt.dtype, JOINS[stmt.op], first, other, out=last)
    return first


def _starts(extent: int, width: int) -> list[int]:
    """Where pieces begin: each but the last is a power of two long, and the last one more than
    four fifths of one, unless they are many, or narrow."""
    starts = [0]
    while extent - starts[-1] > width:
        starts.append(starts[-1] + width)
        rest = extent - starts[-1]
        if width > NARROW_PIECE:
            least = 1 << (rest - 1).bit_length()
            short = 4 * least > 5 * rest and len(starts) < _MOST_PIECES
            width = min(width, least // 2 if short else least)
    return starts


def _loads_first(bodies: Mapping[Axis, list[Stmt]]) -> Iterator[Phase]:
    """Of each piece what is read before anything is folded: threads wait for each other there."""
    for piece, body in bodies.items():
        first = ir_names.behind((), body, Load)
        yield Phase((piece,), tuple(first))
        known = {*first}
        body[:] = [s for s in body if s not in known]
    for piece, body in bodies.items():
        yield Phase((piece,), tuple(body))


def _in_two_passes(kernel: Kernel, fresh: Iterator[str]) -> Iterator[Phase]:
    """The phases, with means and sums of squared distances from them as sums, and the places of
    extremes as the first of those that are equal to them, or NaN."""
    types = ir_names.value_types(kernel)
    for phase in kernel.phases:
        found = [s for s in phase.body if isinstance(s, Reduce) and s.op not in JOINS]
        body = Body(fresh, (s for s in phase.body if s not in found))
        once, again, last = Body(fresh), Body(fresh), Body(fresh)
        for stmt in found:
            (value,), dtype, (axis,) = stmt.args, stmt.dtype, phase.axes
            kind = types[value]
            if stmt.op == "welford":
                mean, m2 = stmt.outs
                total = body.reduce(dtype, "sum", value)
                count = once.compute(dtype, "cast", once.number(axis.extent))
                if axis.extent.is_Integer:
                    count = once.const(float(axis.extent), dtype)
                once.compute(dtype, "div", total, count, out=mean)
                diff = again.compute(dtype, "sub", value, mean)
                again.reduce(dtype, "sum", again.compute(dtype, "mul", diff, diff), out=m2)
                continue
            extreme = body.reduce(kind, PLACES[stmt.op], value)
            equal = is_extreme(value, extreme, kind, again)
            none = again.const(int(identity("min", DType.i32)), DType.i32)
            place = again.number(axis.symbol, DType.i32)
            place = again.compute(DType.i32, "where", equal, place, none)
            first = again.reduce(DType.i32, "min", place)
            last.compute(dtype, "cast", first, out=stmt.outs[0])
        yield from (Phase(phase.axes, tuple(body)), Phase((), tuple(once)))
        yield from (Phase(phase.axes, tuple(again)), Phase((), tuple(last)))
