"""Kernels that read elements for two neighbouring points each do both points at once.

    i0 < 8, i1 < 256: y[i0*256 + i1] = f(x[i0*128 + i1//2])
 ->
    i0 < 8, i1 < 128: v = f(x[i0*128 + i1]); y[i0*256 + 2*i1] = v; y[i0*256 + 2*i1 + 1] = v

Loads move vectors again, what both points compute alike is computed once, and the two stores are
one of the values in turns, as wide as before. So is what two neighbours read of one buffer:

    i0 < 64, i1 < 2: y[2*i0 + i1] = f(x[2*i0]) if i1 < 1 else g(x[2*i0 + 1])
 ->
    i0 < 64: a, b = x[2*i0], x[2*i0 + 1]; y[2*i0] = f(a); y[2*i0 + 1] = g(b)
"""

from dataclasses import replace

import sympy

from loop_ir import Axis, Indirect, Kernel, Load, Phase, Stmt, Store, ir
from loop_ir.passes import eliminate, fold
from symexpr import FloorDiv, symbol
from triton_emit.errors import BadSchedule


def paired(kernel: Kernel) -> Kernel | None:
    """The kernel that does two neighbouring points at once, where that pays: nothing is reduced,
    the last axis picks elements by half its place or is two parts in turns, and stores lie side by
    side along it. Where windows overlap along other axes, two rows of these are done at once, too.
    Each buffer has a store of the first point of each row, and one of the second behind it."""
    body = list(ir.statements(kernel))
    if len(kernel.phases) != 1 or kernel.phases[0].axes or not kernel.axes:
        return None
    if any(isinstance(s, Indirect) for s in body) or not _even(kernel.axes[-1]):
        return None
    last = kernel.axes[-1]
    loads = [s for s in body if isinstance(s, Load)]
    stores = [s for s in body if isinstance(s, Store)]
    axes = tuple(a.symbol for a in kernel.axes)
    turns = last.extent == 2 and len(axes) > 1
    for store in stores:
        form = ir.linear(store.index, axes)
        if form is None or form.coefficient(last.symbol) != 1:
            return None
        if turns and form.coefficient(axes[-2]) != 2:
            return None
        if (
            store.mode != "set"
            or store.mask is not None
            or store.buffer in {s.buffer for s in loads}
        ):
            return None
    if not turns and not any(_halves(s.index, last.symbol) for s in loads):
        return None
    if turns:
        doubled = _doubled(kernel, last)
        out = replace(doubled, axes=doubled.axes[:-1])
        return out if _cheaper(out, kernel) else None
    for axis in kernel.axes[:-1]:
        if _even(axis) and _overlap(loads, axis.symbol):
            doubled = _doubled(kernel, axis)
            kernel = doubled if _cheaper(doubled, kernel) else kernel
    return _doubled(kernel, last)


def _doubled(kernel: Kernel, axis: Axis) -> Kernel:
    """The kernel that does two neighbours along an axis at each point."""
    body = list(ir.statements(kernel))
    fresh = ir.fresh_values(kernel)
    names = {name: next(fresh) for s in body for name in ir.defined_values(s)}
    second = [ir.renamed(s, names) for s in body]
    axes = tuple(replace(a, extent=a.extent / 2) if a == axis else a for a in kernel.axes)
    whole = replace(kernel, axes=axes)
    ranges = ir.ranges_of(whole)

    def place(stmt: Stmt, which: int) -> Stmt:
        to = which if axis.extent == 2 else 2 * axis.symbol + which
        mapping = ((axis.symbol, sympy.sympify(to)),)
        return ir.map_expressions(
            stmt, lambda e: ir.simplify_with(ir.substitute(e, mapping), ranges)
        )

    both = (*(place(s, 0) for s in body), *(place(s, 1) for s in second))
    return ir.renumber(eliminate(fold(replace(whole, phases=(Phase((), both),)))))


def in_pairs(kernel: Kernel) -> Kernel:
    """`paired`, of a kernel that must be."""
    found = paired(kernel)
    if found is None:
        raise BadSchedule(kernel.name, "pairs", 1, "False: no points that read the same")
    return found


def wide(axis: sympy.Symbol) -> sympy.Symbol:
    """An axis of the tile of both neighbours."""
    return symbol(f"{axis.name}_wide")


def _even(axis: Axis) -> bool:
    return bool(axis.extent.is_Integer) and axis.extent % 2 == 0


def _cheaper(both: Kernel, one: Kernel) -> bool:
    """Whether two points at once read at most three quarters of what they did one by one."""

    def loads(kernel: Kernel) -> int:
        return sum(isinstance(s, Load) for s in ir.statements(kernel))

    return 2 * loads(both) <= 3 * loads(one)


def _overlap(loads: list[Load], axis: sympy.Symbol) -> bool:
    """Whether a buffer is read at several places along an axis that are picked by half of it."""
    found = {(s.buffer, s.index) for s in loads if _halves(s.index, axis)}
    return len(found) >= 4 * len({buffer for buffer, _ in found}) > 0


def _halves(index: sympy.Expr, axis: sympy.Symbol) -> bool:
    """Whether an index steps once for two neighbours along an axis."""
    for part in index.atoms(FloorDiv):
        form = ir.linear(part.args[0], (axis,))
        if part.args[1] == 2 and form is not None and abs(form.coefficient(axis)) == 1:
            return True
    return False
