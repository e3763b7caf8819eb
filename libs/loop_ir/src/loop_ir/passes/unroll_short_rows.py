"""Reductions of a few elements, written out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import sympy

from loop_ir.ir import nodes as ir
from loop_ir.ir.analysis import JOINS, PLACES, identity, inner_axes
from loop_ir.ir.body import Body, fresh_values, is_extreme
from loop_ir.ir.in_place import stores_apart
from loop_ir.ir.names import Name, renamed, results, symbol_names, value_types
from loop_ir.ir.points import place_in
from loop_ir.ir.renaming import fresh_symbols
from loop_ir.ir.rewrite import map_kernels
from loop_ir.ir.strides import picks_along
from loop_ir.passes.cse import eliminate
from loop_ir.passes.dead_code import drop_dead_statements
from loop_ir.passes.fold_tests import fold
from loop_ir.passes.simplify_indices import simplify
from tensor_ir import DType

# Statements of a kernel in the end, and of one whose rows are picked, or scanned.
_MOST_STATEMENTS, _MOST_PICKED = 200, 320
# Elements of rows of which a tile takes longer than they do by themselves.
_COSTLY = 12


@dataclass(frozen=True)
class UnrollShortRows:
    """`over r0 < 2: s = reduce sum(x[2*i0 + r0])  ->  s = x[2*i0] + x[2*i0 + 1]`, where rows are of
    constant length, `most` at most, and nothing is stored for each of their elements. A pointwise
    kernel is left: its lanes are neighbouring rows, and none of them is idle. It may be computed
    again by whatever reads it, so that before fusion one element is enough. 12 of rows that would
    leave lanes of a tile idle, or are folded again after their exponentials: of a tile of them most
    of a warp's work is to join lanes (cross entropy of 9 classes for an H100: 10,000 instructions
    for 64 rows a warp). picked: the most of what is picked by data for many neighbours at once
    (`picks_along`). stores: as of `rewrite`."""

    name = "unroll_short_rows"
    most: int = 4
    picked: int = 0
    stores: bool = False

    def run(self, graph: ir.Graph) -> ir.Graph:
        """The graph without reductions of a few elements."""

        def written_out(kernel: ir.Kernel) -> ir.Kernel:
            most = max(self.most, _COSTLY) if self.most > 1 and _is_costly(kernel) else self.most
            flat = rewrite(kernel, most, self.picked, self.stores)
            return kernel if flat is kernel else eliminate(simplify(fold(flat)))

        return map_kernels(graph, written_out)


@dataclass(frozen=True)
class _Rows:
    """The inner axes of a kernel whose rows are of a few elements; what is done at these, and for
    each of them what its axes and values are called."""

    axes: tuple[ir.Axis, ...]
    inside: list[ir.Stmt]
    points: list[dict[Name, Any]]

    @staticmethod
    def of(kernel: ir.Kernel, most: int, picked: int = 0) -> _Rows | None:
        """None where rows are of more elements than `most`, or of no constant length."""
        axes = inner_axes(kernel) or ()
        inside = [s for p in kernel.phases if p.axes for s in p.body]
        count = sympy.Mul(*(a.extent for a in axes))
        if not axes or not all(a.extent.is_Integer for a in axes):
            return None
        length = _MOST_STATEMENTS
        if most < count <= picked and any(picks_along(kernel, a) for a in kernel.axes):
            most, length = picked, _MOST_PICKED
        elif any(isinstance(s, ir.Scan) for s in inside):
            length = _MOST_PICKED
        if not 0 < count <= most or count * len(inside) > length:
            return None
        symbols = [a.symbol for a in axes]
        places = product(*(map(sympy.Integer, range(int(a.extent))) for a in axes))
        return _Rows(axes, inside, [dict(zip(symbols, at, strict=True)) for at in places])

    def args(self, stmt: ir.Reduce) -> list[str]:
        """What a reduction folds, by element."""
        return [names.get(stmt.args[0], stmt.args[0]) for names in self.points]

    def write_out(self, stmt: ir.Stmt, symbols: Iterator[sympy.Symbol], body: Body) -> None:
        """Adds a statement for each element."""
        fresh = symbols if isinstance(stmt, ir.Indirect) else body.fresh
        for names in self.points:
            names.update((name, next(fresh)) for name in results(stmt))
            body.append(renamed(stmt, names))


def rewrite(kernel: ir.Kernel, most: int = 4, picked: int = 0, stores: bool = False) -> ir.Kernel:
    """The kernel with its reductions written out, if they are of a few elements. stores: also where
    something is stored for each of these, or they are scanned, if that moves along memory, and as
    far as is known never to what another one reads or writes."""
    rows = _Rows.of(kernel, most, picked)
    if rows is None or not kernel.axes or not all(map(_may_go, rows.inside)):
        return kernel
    kept = [s for s in rows.inside if isinstance(s, ir.Store | ir.Scan)]
    if kept and not (stores and all(_along(s, kernel) for s in kept)):
        return kernel
    symbols, body = fresh_symbols("t", symbol_names(kernel)), Body(fresh_values(kernel))
    types = value_types(kernel)
    for phase in kernel.phases:
        for stmt in phase.body:
            if not phase.axes:
                body.append(stmt)
            elif isinstance(stmt, ir.Reduce) and stmt.op in JOINS:
                _fold(stmt, rows.args(stmt), body)
            elif isinstance(stmt, ir.Reduce):
                _find(stmt, rows.args(stmt), types[stmt.args[0]], body)
            elif isinstance(stmt, ir.Scan):
                _fold_scan(stmt, rows.points, body)
            else:
                rows.write_out(stmt, symbols, body)
    whole = replace(kernel, phases=(ir.Phase((), tuple(body)),))
    return whole if not kept or stores_apart(whole) else kernel


def _is_costly(kernel: ir.Kernel) -> bool:
    count = sympy.Mul(*(a.extent for a in inner_axes(kernel) or ()))
    inside = [s for p in kernel.phases if p.axes for s in p.body]
    exponentials = any(isinstance(s, ir.Compute) and s.op == "exp" for s in inside)
    again = exponentials and sum(isinstance(s, ir.Reduce) for s in inside) > 1
    return again or (count.is_Integer and int(count).bit_count() > 1)


def spread(kernel: ir.Kernel, most: int = 4) -> ir.Kernel | None:
    """The kernel over all points of its rows, each of which computes again what is reduced or
    scanned of its row, if rows are of a few elements; else None:

        over r0 < 2: s = reduce sum(x[2*i0 + r0]); over r0 < 2: store y[2*i0 + r0] = x / s
     -> at i0, r0: store y[2*i0 + r0] = x[2*i0 + r0] / (x[2*i0] + x[2*i0 + 1])
    """
    rows = _Rows.of(kernel, most)
    if rows is None or any(
        isinstance(s, ir.Reduce | ir.Scan) and s.op not in JOINS for s in rows.inside
    ):
        return None
    if any(isinstance(s, ir.Store) for p in kernel.phases if not p.axes for s in p.body):
        return None
    symbols, body = fresh_symbols("t", symbol_names(kernel)), Body(fresh_values(kernel))
    for phase in kernel.phases:
        for stmt in phase.body:
            if isinstance(stmt, ir.Reduce):
                _fold(stmt, rows.args(stmt), body)
            elif isinstance(stmt, ir.Scan):
                _choose(stmt, _fold_scan(stmt, rows.points, body), place_in(rows.axes), body)
            else:
                if phase.axes and not isinstance(stmt, ir.Store):
                    rows.write_out(stmt, symbols, body)
                body.append(stmt)
    whole = replace(kernel, axes=(*kernel.axes, *rows.axes), phases=(ir.Phase((), tuple(body)),))
    return drop_dead_statements(whole)


def _fold_scan(stmt: ir.Scan, points: list[dict[Name, Any]], body: Body) -> list[tuple[int, str]]:
    """What a scan gives at each of a few points, by number, in the order of the scan."""
    op, dtype = JOINS[stmt.op], stmt.dtype
    found: list[tuple[int, str]] = []
    for number, names in list(enumerate(points))[:: -1 if stmt.reverse else 1]:
        value = names.get(stmt.args[0], stmt.args[0])
        before = found[-1][1] if found else body.const(identity(stmt.op, dtype), dtype)
        names[stmt.out] = body.compute(dtype, op, before, value)
        found.append((number, names[stmt.out]))
    return found


def _choose(stmt: ir.Scan, found: list[tuple[int, str]], place: sympy.Expr, body: Body) -> None:
    """What a scan gives at `place` among a few points."""
    here, so_far = body.number(place), found[0][1]
    for number, total in found:
        reached = body.test(
            "le" if stmt.reverse else "ge", here, body.number(sympy.Integer(number))
        )
        last = stmt.out if number == found[-1][0] else None
        so_far = body.compute(stmt.dtype, "where", reached, total, so_far, out=last)


def _may_go(stmt: ir.Stmt) -> bool:
    places = isinstance(stmt, ir.Reduce) and stmt.op in PLACES
    return not isinstance(stmt, ir.Scan | ir.Reduce) or stmt.op in JOINS or places


def _along(stmt: ir.Store | ir.Scan, kernel: ir.Kernel) -> bool:
    """Neighbouring rows store neighbouring elements."""
    own = kernel.axes[-1].symbol
    return isinstance(stmt, ir.Scan) or (stmt.mask is None and stmt.index.coeff(own) == 1)


def _fold(stmt: ir.Reduce, args: list[str], body: Body) -> None:
    """The reduction, element by element. A sum begins with 0, as that of zeros below 0 is 0; its
    products are added before they are rounded, in every kernel: of two products a compiler takes
    either for that, and what is computed again would not be equal to what it was."""
    op, dtype = JOINS[stmt.op], stmt.dtype
    made = {s.out: s for s in body if isinstance(s, ir.Compute) and s.op == "mul"}
    if stmt.op == "sum" or len(args) == 1:
        args = [body.const(identity(stmt.op, dtype), dtype), *args]
    for number, arg in enumerate(args[1:], 2):
        last = stmt.outs[0] if number == len(args) else None
        factors = made.get(arg) if stmt.op == "sum" and dtype in (DType.f32, DType.f64) else None
        if factors is not None and factors.dtype is dtype:
            args[0] = body.compute(dtype, "fma", *factors.args, args[0], out=last)
        else:
            args[0] = body.compute(dtype, op, args[0], arg, out=last)


def _find(stmt: ir.Reduce, args: list[str], dtype: DType, body: Body) -> None:
    """The place of the first element that is the extreme of all, or NaN."""
    op, place = JOINS[PLACES[stmt.op]], body.const(len(args) - 1, DType.i32)
    extreme = args[0]
    for arg in args[1:]:
        extreme = body.compute(dtype, op, extreme, arg)
    for number, arg in reversed(list(enumerate(args[:-1]))):
        here = is_extreme(arg, extreme, dtype, body)
        place = body.compute(DType.i32, "where", here, body.const(number, DType.i32), place)
    body.compute(stmt.dtype, "cast", place, out=stmt.outs[0])
