"""Axes of a few points whose neighbours share lines of memory or what is computed, written out."""

from collections.abc import Iterator, Set
from dataclasses import replace
from typing import Any

import sympy

from loop_ir.ir import nodes as ir
from loop_ir.ir.affine import linear, product
from loop_ir.ir.analysis import at_hints, hints_of, is_pointwise
from loop_ir.ir.body import fresh_values
from loop_ir.ir.in_place import stores_apart
from loop_ir.ir.names import Name, operands, renamed, results, statements, symbol_names, varying
from loop_ir.ir.renaming import fresh_symbols
from loop_ir.passes.cse import eliminate
from loop_ir.passes.fold_tests import fold
from loop_ir.passes.merge_axes import rename_axes
from loop_ir.passes.simplify_indices import simplify

# Elements that neighbours along the last axis are apart, where they still share lines.
_NEAR = 16
# Points of an axis that is written out, and of the last axis if that is worth it.
_MOST = 4
_LONG = 8
# Statements of a kernel in the end, and of one that reduces.
_MOST_STATEMENTS, _MOST_OF_ROWS = 64, 200
# Rows that are left, at least: four programs a multiprocessor of an H200.
_ROWS = 4 * 132
# Of what is computed at inner points of neighbours, so many halves are to be spared.
_HALVES = 3
# Computed numbers that a load costs whose place is data of a row.
_PICKED = 4


def rewrite(kernel: ir.Kernel) -> ir.Kernel:
    """`i0 < 3, i1 < 4096: y[i0*4096 + i1] = x[3*i1 + i0]`
     -> `i0 < 4096: y[i0] = x[3*i0]; y[i0 + 4096] = x[3*i0 + 1]; y[i0 + 8192] = x[3*i0 + 2]`

    in pointwise kernels, where the axis is not the last one and has few points, and what is stored
    lies side by side along the last one. Points along the axis read the lines that others read, far
    from them: images whose channels come last, patches, every second pixel.

    `i0 < 3: over r0: s = reduce sum(f(r0) * x[3*r0 + i0])` -> `over r0: t = f(r0); s = ..; s1 = ..`

    in kernels that reduce, where most of what they compute of an element is the same for all points
    of the axis (coordinates by weights of all pairs).

    Without an axis, those behind it have other names."""
    kept = 0
    while kept < len(kernel.axes):
        axis = kernel.axes[kept]
        apart = None
        if axis.extent.is_Integer and 1 < axis.extent <= _MOST:
            between = axis != kernel.axes[-1] and _interleaves(kernel, axis)
            apart = _unrolled(kernel, axis) if between or _repeats(kernel, axis) else None
        kernel, kept = (kernel, kept + 1) if apart is None else (apart, kept)
    return kernel


def _repeats(kernel: ir.Kernel, axis: ir.Axis) -> bool:
    """A kernel that reduces, and computes the same of an element for all points of the axis, or
    reads it at the same place that is data: by as much again as what it computes for one of them,
    it would have less to do."""
    others = product(a.extent for a in kernel.axes if a != axis)
    body = list(statements(kernel))
    if any(isinstance(s, ir.Scan) or (isinstance(s, ir.Store) and s.mode != "set") for s in body):
        return False
    if at_hints(others, hints_of(kernel.symbols)) < _ROWS:
        return False
    differs = varying(body, axis.symbol, over=False)
    rows = [varying(body, a.symbol, over=False) for a in kernel.axes if a != axis]
    places = {s.symbol for s in body if isinstance(s, ir.Indirect)} & set[Name]().union(*rows)
    work = [(_work(s, places), s) for p in kernel.phases if p.axes for s in p.body]
    now = axis.extent * sum(amount for amount, _ in work)
    shared = sum(amount for amount, s in work if differs.isdisjoint(operands(s)))
    return bool(2 * now >= _HALVES * (now - (axis.extent - 1) * shared) > 0)


def _work(stmt: ir.Stmt, places: Set[Name]) -> int:
    """What a statement costs of an element, in computed numbers."""
    if isinstance(stmt, ir.Load):
        return 0 if places.isdisjoint(stmt.index.free_symbols) else _PICKED
    return int(isinstance(stmt, ir.Compute))


def _interleaves(kernel: ir.Kernel, axis: ir.Axis) -> bool:
    """Elements that lie between those of neighbours along the last axis are those of neighbours
    along this one, and what is stored is in the order of the last."""
    extent, last = kernel.axes[-1].extent, kernel.axes[-1].symbol
    if extent.is_Integer and extent < _LONG:
        return False
    body = list(statements(kernel))
    loads = [s for s in body if isinstance(s, ir.Load)]
    stores = [s for s in body if isinstance(s, ir.Store)]
    if not is_pointwise(kernel) or {s.buffer for s in loads} & {s.buffer for s in stores}:
        return False
    for store in stores:
        form = linear(store.index, (last, axis.symbol))
        if store.mode != "set" or form is None or form.coefficient(last) != 1:
            return False

    def between(load: ir.Load) -> bool:
        form = linear(load.index, (last, axis.symbol))
        if form is None:
            return False
        apart, here = form.coefficient(last), form.coefficient(axis.symbol)
        known = apart.is_Integer and here.is_Integer
        return bool(known and 0 < abs(here) * axis.extent <= abs(apart) <= _NEAR)

    return any(map(between, loads))


def _unrolled(kernel: ir.Kernel, axis: ir.Axis) -> ir.Kernel | None:
    """The kernel that does all points along an axis at each of the others; None where that would be
    too many statements, or where its stores may meet as far as is known."""
    body = list(statements(kernel))
    differs = varying(body, axis.symbol, over=False)
    count = int(axis.extent)
    many = [s for s in body if isinstance(s, ir.Store) or not differs.isdisjoint(operands(s))]
    reduces = any(isinstance(s, ir.Reduce) for s in body)
    if len(body) + (count - 1) * len(many) > (_MOST_OF_ROWS if reduces else _MOST_STATEMENTS):
        return None
    values = fresh_values(kernel)
    symbols = fresh_symbols("t", symbol_names(kernel))
    points: list[dict[Name, Any]] = [{axis.symbol: sympy.Integer(n)} for n in range(count)]

    def all_points(stmt: ir.Stmt) -> Iterator[ir.Stmt]:
        if stmt not in many:
            yield stmt
            return
        for names in points:
            fresh = symbols if isinstance(stmt, ir.Indirect) else values
            names.update((name, next(fresh)) for name in results(stmt))
            yield renamed(stmt, names)

    phases = tuple(
        ir.Phase(p.axes, tuple(t for s in p.body for t in all_points(s))) for p in kernel.phases
    )
    axes = tuple(a for a in kernel.axes if a != axis)
    whole = replace(kernel, axes=axes, phases=phases)
    if not stores_apart(whole):
        return None
    return eliminate(fold(simplify(rename_axes(whole, kernel))))
