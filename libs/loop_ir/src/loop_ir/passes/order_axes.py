"""Puts axes in the order in which most of the memory is walked."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import sympy

from loop_ir.ir.affine import linear
from loop_ir.ir.analysis import inner_axes
from loop_ir.ir.names import statements
from loop_ir.ir.nodes import Axis, Kernel, Load, Reduce, Scan, Stmt, Store
from loop_ir.ir.strides import step
from loop_ir.passes.merge_axes import rename_axes
from symexpr import symbol

# What an access at inner points counts for: there are many of them to one of the others. Those of
# rows that are contiguous themselves do not care for the order of rows.
_INNER = 1024
# Bytes that a store of one at a point counts for: it costs as much where each is alone (pixels
# of 16 x 27 x 300 x 300 of bf16 shuffled into bytes on an H100: 132 us, Inductor 68).
_STORED = 4


def order(kernel: Kernel) -> Kernel:
    """`y[96*i1 + i0], i0 < 96, i1 < 3136 -> y[96*i0 + i1], i0 < 3136, i1 < 96`: the axis of the
    smallest stride is the innermost, as `y`'s bytes (and those of everything laid out like it)
    outweigh the others'. Points of parallel axes may run in any order, and those of inner axes that
    all phases share, too, unless a reduction counts them (argmax). Only accesses that differ along
    every axis vote; stores decide a draw."""
    out = kernel
    ordered = _ordered(kernel, kernel.axes)
    if ordered is not None:
        out = replace(out, axes=ordered)
    inner = inner_axes(kernel)
    if inner and not any(map(_counts_points, statements(kernel))):
        ordered = _ordered(kernel, inner)
        if ordered is not None:
            phases = tuple(replace(p, axes=ordered) if p.axes else p for p in out.phases)
            out = replace(out, phases=phases)
    return out if out is kernel else rename_axes(out, kernel)


def order_as_read(kernel: Kernel, buffer: str) -> Kernel:
    """The kernel with its parallel axes in the order in which it first walks `buffer`."""
    axes = tuple(a for a in kernel.axes if a.extent != 1)
    for stmt in statements(kernel):
        if isinstance(stmt, Load) and stmt.buffer == buffer:
            ranked = _rank(stmt.index, axes, _hints(kernel))
            if ranked is None or ranked == tuple(range(len(axes))):
                break
            unit = (a for a in kernel.axes if a.extent == 1)
            return replace(kernel, axes=(*unit, *(axes[i] for i in ranked)))
    return kernel


def _hints(kernel: Kernel) -> dict[sympy.Symbol, sympy.Integer]:
    return {symbol(s.name): sympy.Integer(max(1, s.typical)) for s in kernel.symbols}


def _counts_points(stmt: Stmt) -> bool:
    """Its result depends on the order of the inner points, not by rounding alone."""
    return isinstance(stmt, Scan) or (isinstance(stmt, Reduce) and stmt.op in ("argmax", "argmin"))


def _ordered(kernel: Kernel, given: tuple[Axis, ...]) -> tuple[Axis, ...] | None:
    """The parallel or inner axes in the order of the votes; None: as they are."""
    unit = tuple(a for a in given if a.extent == 1)
    axes = tuple(a for a in given if a.extent != 1)
    if len(axes) < 2:
        return None
    hints = _hints(kernel)
    itemsize = {b.name: b.type.dtype.itemsize for b in kernel.buffers}
    votes: Counter[tuple[int, ...]] = Counter()
    accesses: set[tuple[str, sympy.Expr, bool, bool]] = set()
    for phase in kernel.phases:
        for stmt in phase.body:
            if isinstance(stmt, Load | Store):
                inner = [a for a in phase.axes if a.extent != 1]
                often = bool(inner) and (given == phase.axes or step(stmt.index, inner[-1]) != 1)
                accesses.add((stmt.buffer, stmt.index, isinstance(stmt, Store), often))
    for buffer, index, stored, often in accesses:
        ranked = _rank(index, axes, hints)
        if ranked is not None:
            size = itemsize[buffer]
            size = _STORED if size == 1 and stored and not often else size
            votes[ranked] += (16 * size + stored) * (_INNER if often else 1)
    if not votes:
        return None
    most = max(votes.values())
    kept = tuple(range(len(axes)))
    best = kept if votes[kept] == most else min(r for r, n in votes.items() if n == most)
    return None if best == kept else (*unit, *(axes[i] for i in best))


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
