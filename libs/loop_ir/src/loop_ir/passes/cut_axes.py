"""Cuts axes in two where that shows that a tensor is read across the other part."""

from dataclasses import replace

import sympy

from loop_ir.ir.affine import quotient
from loop_ir.ir.names import expression, statements, symbol_names
from loop_ir.ir.nodes import Axis, Kernel, Load, Store
from loop_ir.ir.renaming import fresh_symbols
from loop_ir.ir.rewrite import ranges_of, substitute_axes
from loop_ir.ir.strides import across, step
from loop_ir.passes.order_axes import order
from symexpr import FloorDiv

# What is narrower is no side of a tile.
_NARROW = 16


def cut(kernel: Kernel) -> Kernel:
    """`y[i0] = x[2000*(i0 % 128) + i0//128], i0 < 256000
     -> y[128*i0 + i1] = x[2000*i1 + i0], i0 < 2000, i1 < 128`: windows that are added to a line, a
    quotient and a remainder of one axis. Tiles then read along the one and write along the other.
    An axis is left where tiles would serve no access: each point is to have its own place in a
    tensor that is read or written across the last one."""
    if any(p.axes for p in kernel.phases) or across(kernel) is not None:
        return kernel
    for axis, length in _quotients(kernel):
        outer = quotient(axis.extent, length)
        if outer is None or length < _NARROW or (outer.is_Integer and outer < _NARROW):
            continue
        letters = fresh_symbols("i", symbol_names(kernel))
        high, low = next(letters), next(letters)
        parts = (Axis(high, outer), Axis(low, length))
        axes = tuple(p for a in kernel.axes for p in (parts if a == axis else (a,)))
        apart = replace(kernel, axes=axes)
        apart = substitute_axes(apart, ((axis.symbol, high * length + low),), ranges_of(apart))
        if _crosses(apart := order(apart)):
            return apart
    return kernel


def _crosses(kernel: Kernel) -> bool:
    other, symbols = across(kernel), {a.symbol for a in kernel.axes}
    accesses = (s.index for s in statements(kernel) if isinstance(s, Load | Store))
    return other is not None and any(
        step(index, other) == 1 and symbols <= index.free_symbols for index in accesses
    )


def _quotients(kernel: Kernel) -> list[tuple[Axis, sympy.Expr]]:
    """Axes, and numbers by which they are divided."""
    axes = {a.symbol: a for a in kernel.axes}
    found: dict[tuple[Axis, sympy.Expr], None] = {}
    for expr in map(expression, statements(kernel)):
        for atom in sorted(expr.atoms(FloorDiv), key=str) if expr is not None else ():
            if atom.args[0] in axes and atom.args[1].is_Integer:
                found[axes[atom.args[0]], atom.args[1]] = None
    return list(found)
