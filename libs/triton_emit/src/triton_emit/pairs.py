"""Kernels that read elements for two neighbouring points each do both points at once.

    i0 < 8, i1 < 256: y[i0*256 + i1] = f(x[i0*128 + i1//2])
 ->
    i0 < 8, i1 < 128: v = f(x[i0*128 + i1]); y[i0*256 + 2*i1] = v; y[i0*256 + 2*i1 + 1] = v

Loads move vectors again, what both points compute alike is computed once, and the two stores are
one of the values in turns, as wide as before.
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from loop_ir import Indirect, Kernel, Load, Phase, Stmt, Store
from loop_ir.ir import (
    defined_values,
    fresh_values,
    linear,
    map_expressions,
    ranges_of,
    renamed,
    renumber,
    simplify_with,
    statements,
    substitute,
)
from loop_ir.passes import eliminate
from symexpr import FloorDiv, symbol
from triton_emit.errors import BadSchedule


def paired(kernel: Kernel) -> Kernel | None:
    """The kernel that does two neighbouring points at once, where that pays: nothing is reduced,
    the last axis picks elements by half its place, and stores lie side by side along it. Each
    buffer has a store of the first point, and one of the second behind it."""
    body = list(statements(kernel))
    if len(kernel.phases) != 1 or kernel.phases[0].axes or not kernel.axes:
        return None
    last = kernel.axes[-1]
    if not last.extent.is_Integer or last.extent % 2 or any(isinstance(s, Indirect) for s in body):
        return None
    loaded = {s.buffer for s in body if isinstance(s, Load)}
    stores = [s for s in body if isinstance(s, Store)]
    axes = tuple(a.symbol for a in kernel.axes)
    for store in stores:
        form = linear(store.index, axes)
        if form is None or form.coefficient(last.symbol) != 1 or store.buffer in loaded:
            return None
        if store.mode != "set" or store.mask is not None:
            return None
    if not any(_halves(s.index, last.symbol) for s in body if isinstance(s, Load)):
        return None
    fresh = fresh_values(kernel)
    names = {name: next(fresh) for s in body for name in defined_values(s)}
    second = [renamed(s, names) for s in body]
    half = replace(last, extent=last.extent / 2)
    whole = replace(kernel, axes=(*kernel.axes[:-1], half))
    ranges = ranges_of(whole)

    def place(stmt: Stmt, which: int) -> Stmt:
        mapping = ((last.symbol, 2 * last.symbol + which),)
        return map_expressions(stmt, lambda e: simplify_with(substitute(e, mapping), ranges))

    both = (*(place(s, 0) for s in body), *(place(s, 1) for s in second))
    return renumber(eliminate(replace(whole, phases=(Phase((), both),))))


def in_pairs(kernel: Kernel) -> Kernel:
    """`paired`, of a kernel that must be."""
    found = paired(kernel)
    if found is None:
        raise BadSchedule(kernel.name, "pairs", 1, "False: no points that read the same")
    return found


def wide(axis: sympy.Symbol) -> sympy.Symbol:
    """An axis of the tile of both neighbours."""
    return symbol(f"{axis.name}_wide")


def _halves(index: sympy.Expr, axis: sympy.Symbol) -> bool:
    """Whether an index steps once for two neighbours along an axis."""
    for part in index.atoms(FloorDiv):
        form = linear(part.args[0], (axis,))
        if part.args[1] == 2 and form is not None and abs(form.coefficient(axis)) == 1:
            return True
    return False
