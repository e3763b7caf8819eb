"""Reductions of a few elements, written out."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import sympy

from loop_ir.ir.analysis import identity, inner_axes
from loop_ir.ir.body import Body, fresh_values
from loop_ir.ir.names import Name, free_names, renamed, results
from loop_ir.ir.nodes import Compute, Graph, Indirect, Kernel, Phase, Reduce, Scan, Stmt, Store
from loop_ir.ir.renaming import fresh_symbols
from loop_ir.ir.rewrite import map_kernels
from loop_ir.passes.dead_code import drop_dead_statements
from tensor_ir import DType

_FOLDS = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
_FOLDS |= {"any": "or", "all": "and"}
# Statements of a kernel in the end.
_MOST_STATEMENTS = 200


@dataclass(frozen=True)
class UnrollShortRows:
    """`over r0 < 2: s = reduce sum(x[2*i0 + r0])  ->  s = x[2*i0] + x[2*i0 + 1]`, where rows are of
    constant length, `most` at most, and nothing is stored for each of their elements. A pointwise
    kernel is left: its lanes are neighbouring rows, and none of them is idle. It may be computed
    again by whatever reads it, so that before fusion one element is enough."""

    name = "unroll_short_rows"
    most: int = 4

    def run(self, graph: Graph) -> Graph:
        """The graph without reductions of a few elements."""
        return map_kernels(graph, lambda kernel: rewrite(kernel, self.most))


def rewrite(kernel: Kernel, most: int = 4) -> Kernel:
    """The kernel with its reductions written out, if they are of a few elements."""
    inner = inner_axes(kernel)
    extents = [a.extent for a in inner or ()]
    if not extents or not kernel.axes or not all(e.is_Integer for e in extents):
        return kernel
    count = int(sympy.Mul(*extents))
    inside = [s for p in kernel.phases if p.axes for s in p.body]
    if count > most or count * len(inside) > _MOST_STATEMENTS or not all(map(_may_go, inside)):
        return kernel
    taken = free_names(kernel) | {a.symbol.name for a in kernel.axes}
    symbols = fresh_symbols("t", taken)
    body = Body(fresh_values(kernel))
    points: list[dict[Name, Any]] = [
        dict(zip((a.symbol for a in inner or ()), map(sympy.Integer, place), strict=True))
        for place in product(*(range(int(e)) for e in extents))
    ]
    for phase in kernel.phases:
        for stmt in phase.body:
            if not phase.axes:
                body.append(stmt)
            elif isinstance(stmt, Reduce):
                _fold(stmt, [names.get(stmt.args[0], stmt.args[0]) for names in points], body)
            else:
                fresh = symbols if isinstance(stmt, Indirect) else body.fresh
                for names in points:
                    names.update((name, next(fresh)) for name in results(stmt))
                    body.append(renamed(stmt, names))
    return replace(kernel, phases=(Phase((), tuple(body)),))


def spread(kernel: Kernel, most: int = 4) -> Kernel | None:
    """The kernel over all points of its rows, each of which computes again what is reduced or
    scanned of its row, if rows are of a few elements; else None:

        over r0 < 2: s = reduce sum(x[2*i0 + r0]); over r0 < 2: store y[2*i0 + r0] = x / s
     -> at i0, r0: store y[2*i0 + r0] = x[2*i0 + r0] / (x[2*i0] + x[2*i0 + 1])
    """
    inner = inner_axes(kernel)
    extents = [a.extent for a in inner or ()]
    if not extents or not all(e.is_Integer for e in extents):
        return None
    inside = [s for p in kernel.phases if p.axes for s in p.body]
    folded = [s for s in inside if isinstance(s, Reduce | Scan)]
    count = int(sympy.Mul(*extents))
    if not 0 < count <= most or count * len(inside) > _MOST_STATEMENTS:
        return None
    if any(s.op not in _FOLDS for s in folded):
        return None
    if any(isinstance(s, Store) for p in kernel.phases if not p.axes for s in p.body):
        return None
    axes = [a.symbol for a in inner or ()]
    symbols = fresh_symbols("t", free_names(kernel) | {a.symbol.name for a in kernel.axes})
    body = Body(fresh_values(kernel))
    points: list[dict[Name, Any]] = [
        dict(zip(axes, map(sympy.Integer, place), strict=True))
        for place in product(*(range(int(e)) for e in extents))
    ]
    place: sympy.Expr = sympy.S.Zero
    for symbol, extent in zip(axes, extents, strict=True):
        place = place * extent + symbol
    for phase in kernel.phases:
        for stmt in phase.body:
            if isinstance(stmt, Reduce):
                _fold(stmt, [names.get(stmt.args[0], stmt.args[0]) for names in points], body)
            elif isinstance(stmt, Scan):
                _fold_scan(stmt, points, sympy.expand(place), body)
            else:
                fresh = symbols if isinstance(stmt, Indirect) else body.fresh
                for names in points if phase.axes and not isinstance(stmt, Store) else ():
                    names.update((name, next(fresh)) for name in results(stmt))
                    body.append(renamed(stmt, names))
                body.append(stmt)
    stored = {s.buffer for s in inside if isinstance(s, Store)}
    whole = replace(kernel, axes=(*kernel.axes, *(inner or ())), phases=(Phase((), tuple(body)),))
    return drop_dead_statements(whole, stored)


def _fold_scan(stmt: Scan, points: list[dict[Name, Any]], place: sympy.Expr, body: Body) -> None:
    """What a scan gives at each of a few points, and at `place` among them."""
    op, dtype = _FOLDS[stmt.op], stmt.dtype
    order = list(enumerate(points))[:: -1 if stmt.reverse else 1]
    here = body.number(place)
    total = so_far = ""
    for number, names in order:
        value = names.get(stmt.args[0], stmt.args[0])
        total = (
            body.compute(dtype, op, total, value)
            if total
            else body.compute(dtype, op, body.const(identity(stmt.op, dtype), dtype), value)
        )
        names[stmt.out] = total
        reached = body.test(
            "le" if stmt.reverse else "ge", here, body.number(sympy.Integer(number))
        )
        last = stmt.out if number == order[-1][0] else None
        so_far = body.compute(dtype, "where", reached, total, so_far or total, out=last)


def _may_go(stmt: Stmt) -> bool:
    return not isinstance(stmt, Store | Scan | Reduce) or (
        isinstance(stmt, Reduce) and stmt.op in _FOLDS
    )


def _fold(stmt: Reduce, args: list[str], body: Body) -> None:
    """The reduction, element by element. A sum begins with 0, as that of zeros below 0 is 0; its
    products are added before they are rounded, in every kernel: of two products a compiler takes
    either for that, and what is computed again would not be equal to what it was."""
    op, dtype = _FOLDS[stmt.op], stmt.dtype
    made = {s.out: s for s in body if isinstance(s, Compute) and s.op == "mul"}
    if stmt.op == "sum" or len(args) == 1:
        args = [body.const(identity(stmt.op, dtype), dtype), *args]
    for number, arg in enumerate(args[1:], 2):
        last = stmt.outs[0] if number == len(args) else None
        factors = made.get(arg) if stmt.op == "sum" and dtype in (DType.f32, DType.f64) else None
        if factors is not None and factors.dtype is dtype:
            args[0] = body.compute(dtype, "fma", *factors.args, args[0], out=last)
        else:
            args[0] = body.compute(dtype, op, args[0], arg, out=last)
