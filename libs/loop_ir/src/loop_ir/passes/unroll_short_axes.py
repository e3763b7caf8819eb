"""Axes of a few points whose neighbours share lines of memory, written out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sympy

from loop_ir.ir.affine import linear
from loop_ir.ir.analysis import is_pointwise
from loop_ir.ir.body import fresh_values
from loop_ir.ir.names import Name, free_names, operands, renamed, results, statements, varying
from loop_ir.ir.nodes import Axis, Graph, Indirect, Kernel, Load, Phase, Stmt, Store
from loop_ir.ir.renaming import fresh_symbols
from loop_ir.passes.cse import eliminate
from loop_ir.passes.fold_tests import fold
from loop_ir.passes.merge_axes import rename_axes
from loop_ir.passes.simplify_indices import simplify

# Elements that neighbours along the last axis are apart, where they still share lines.
_NEAR = 16
# Points of the last axis that are worth it.
_LONG = 8
# Statements of a kernel in the end.
_MOST_STATEMENTS = 64


@dataclass(frozen=True)
class UnrollShortAxes:
    """`i0 < 3, i1 < 4096: y[i0*4096 + i1] = x[3*i1 + i0]`
     -> `i0 < 4096: y[i0] = x[3*i0]; y[i0 + 4096] = x[3*i0 + 1]; y[i0 + 8192] = x[3*i0 + 2]`

    in pointwise kernels, where the axis is not the last one and has `most` points at most, and what
    is stored lies side by side along the last one. Points along the axis read the lines that others
    read, far from them: images whose channels come last, patches, every second pixel.
    """

    name = "unroll_short_axes"
    most: int = 4

    def run(self, graph: Graph) -> Graph:
        """The graph without such axes."""
        nodes = (rewrite(n, self.most) if isinstance(n, Kernel) else n for n in graph.nodes)
        return replace(graph, nodes=tuple(nodes))


def rewrite(kernel: Kernel, most: int = 4) -> Kernel:
    """The kernel without such axes."""
    for axis in kernel.axes[:-1]:
        if axis.extent.is_Integer and 1 < axis.extent <= most and _interleaves(kernel, axis):
            kernel = _unrolled(kernel, axis) or kernel
    return kernel


def _interleaves(kernel: Kernel, axis: Axis) -> bool:
    """Elements that lie between those of neighbours along the last axis are those of neighbours
    along this one, and what is stored is in the order of the last."""
    extent, last = kernel.axes[-1].extent, kernel.axes[-1].symbol
    if extent.is_Integer and extent < _LONG:
        return False
    body = list(statements(kernel))
    loads = [s for s in body if isinstance(s, Load)]
    stores = [s for s in body if isinstance(s, Store)]
    if not is_pointwise(kernel) or {s.buffer for s in loads} & {s.buffer for s in stores}:
        return False
    for store in stores:
        form = linear(store.index, (last, axis.symbol))
        if store.mode != "set" or form is None or form.coefficient(last) != 1:
            return False

    def between(load: Load) -> bool:
        form = linear(load.index, (last, axis.symbol))
        if form is None:
            return False
        apart, here = form.coefficient(last), form.coefficient(axis.symbol)
        known = apart.is_Integer and here.is_Integer
        return bool(known and 0 < abs(here) * axis.extent <= abs(apart) <= _NEAR)

    return any(map(between, loads))


def _unrolled(kernel: Kernel, axis: Axis) -> Kernel | None:
    """The kernel that does all points along an axis at each of the others; None where that would be
    too many statements."""
    body = list(statements(kernel))
    differs = varying(body, axis.symbol)
    many = [s for s in body if isinstance(s, Store) or not differs.isdisjoint(operands(s))]
    if len(body) + (int(axis.extent) - 1) * len(many) > _MOST_STATEMENTS:
        return None
    values = fresh_values(kernel)
    symbols = fresh_symbols("t", free_names(kernel) | {a.symbol.name for a in kernel.axes})
    points: list[dict[Name, Any]] = [
        {axis.symbol: sympy.Integer(n)} for n in range(int(axis.extent))
    ]
    out: list[Stmt] = []
    for stmt in body:
        if stmt not in many:
            out.append(stmt)
            continue
        for names in points:
            fresh = symbols if isinstance(stmt, Indirect) else values
            names.update((name, next(fresh)) for name in results(stmt))
            out.append(renamed(stmt, names))
    axes = tuple(a for a in kernel.axes if a != axis)
    whole = replace(kernel, axes=axes, phases=(Phase((), tuple(out)),))
    return eliminate(fold(simplify(rename_axes(whole, kernel))))
