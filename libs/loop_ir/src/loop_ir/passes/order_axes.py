"""Puts the parallel axes in the order in which most of the memory is walked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy

from loop_ir.affine import linear
from loop_ir.analysis import statements
from loop_ir.nodes import Axis, Graph, Kernel, Load, Store
from loop_ir.passes.merge_axes import rename_axes
from loop_ir.rewrite import map_kernels
from symexpr import symbol


@dataclass(frozen=True)
class OrderAxes:
    """`y[96*i1 + i0], i0 < 96, i1 < 3136 -> y[96*i0 + i1], i0 < 3136, i1 < 96`: the axis of the
    smallest stride is the innermost, as `y`'s bytes (and those of everything laid out like it)
    outweigh the others'. Points of parallel axes may run in any order. Only accesses that differ
    along every axis vote; stores decide a draw. Epilogues keep the axes of their matmul.
    """

    name = "order_axes"

    def run(self, graph: Graph) -> Graph:
        return map_kernels(graph, order)


def order(kernel: Kernel) -> Kernel:
    unit = tuple(a for a in kernel.axes if a.extent == 1)
    axes = tuple(a for a in kernel.axes if a.extent != 1)
    if len(axes) < 2:
        return kernel
    hints = {symbol(s.name): sympy.Integer(max(1, s.hint or s.low or 64)) for s in kernel.symbols}
    itemsize = {b.name: b.type.dtype.itemsize for b in kernel.buffers}
    votes: Counter[tuple[int, ...]] = Counter()
    accesses: set[tuple[str, sympy.Expr, bool]] = set()
    for stmt in statements(kernel):
        if isinstance(stmt, Load | Store):
            accesses.add((stmt.buffer, stmt.index, isinstance(stmt, Store)))
    for buffer, index, stored in accesses:
        ranked = _rank(index, axes, hints)
        if ranked is not None:
            votes[ranked] += 16 * itemsize[buffer] + stored
    if not votes:
        return kernel
    most = max(votes.values())
    kept = tuple(range(len(axes)))
    best = kept if votes[kept] == most else min(r for r, n in votes.items() if n == most)
    if best == kept:
        return kernel
    return rename_axes(replace(kernel, axes=(*unit, *(axes[i] for i in best))), kernel)


def _rank(
    index: sympy.Expr, axes: tuple[Axis, ...], hints: Mapping[sympy.Symbol, int]
) -> tuple[int, ...] | None:
    """Positions of the axes by falling stride; None where one of them does not move the index, or
    it is not linear."""
    form = linear(index, tuple(a.symbol for a in axes))
    if form is None or len(form.terms) < len(axes):
        return None
    strides = [form.coefficient(a.symbol).xreplace(dict(hints)) for a in axes]
    if not all(s.is_Integer for s in strides):
        return None
    return tuple(sorted(range(len(axes)), key=lambda i: -abs(int(strides[i]))))
