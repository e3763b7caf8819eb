"""Axes of a kernel cut where a buffer that it reads was written along several axes."""

from dataclasses import replace
from itertools import pairwise

import sympy

from loop_ir.ir.affine import linear, quotient
from loop_ir.ir.analysis import inner_axes
from loop_ir.ir.names import statements, symbol_names
from loop_ir.ir.nodes import Axis, Kernel, Load, Store
from loop_ir.ir.renaming import fresh_symbols
from loop_ir.ir.rewrite import ranges_of, substitute_axes


def split_axes(kernel: Kernel, buffer: str, store: Store, axes: tuple[Axis, ...]) -> Kernel | None:
    """The kernel with an axis that walks over several of those along which `buffer` was stored
    (over `axes`) as one axis for each, None if there is no such axis:

        store b[8*i0 + 4*i1 + i2], i0 < 3, i1 < 2, i2 < 4;   load b[2*i0 + i1], i0 < 12, i1 < 2
     -> load b[8*i0 + 4*i1 + 2*i2 + i3], i0 < 3, i1 < 2, i2 < 2, i3 < 2
    """
    form = linear(store.index, tuple(a.symbol for a in axes))
    if form is None:
        return None
    strides = [c for _, c in form.terms]
    every = (*kernel.axes, *(inner_axes(kernel) or ()))
    symbols = fresh_symbols("i", symbol_names(kernel))
    parts: dict[sympy.Symbol, tuple[Axis, ...]] = {}
    mapping: dict[sympy.Symbol, sympy.Expr] = {}
    loads = (s for s in statements(kernel) if isinstance(s, Load) and s.buffer == buffer)
    for load in loads:
        given = linear(load.index, tuple(a.symbol for a in every))
        if given is None:
            continue
        for axis in every:
            lengths = _lengths(axis.extent, given.coefficient(axis.symbol), strides)
            if axis.symbol in parts or len(lengths) < 3:
                continue
            cut = [(next(symbols), b, quotient(a, b)) for a, b in pairwise(lengths)]
            parts[axis.symbol] = tuple(Axis(s, n) for s, _, n in cut if n is not None)
            mapping[axis.symbol] = sympy.Add(*(s * length for s, length, _ in cut))
    if not parts:
        return None

    def several(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(part for a in axes for part in parts.get(a.symbol, (a,)))

    phases = tuple(replace(p, axes=several(p.axes)) for p in kernel.phases)
    cut_up = replace(kernel, axes=several(kernel.axes), phases=phases)
    return substitute_axes(cut_up, tuple(mapping.items()), ranges_of(cut_up))


def _lengths(extent: sympy.Expr, step: sympy.Expr, strides: list[sympy.Expr]) -> list[sympy.Expr]:
    """The extent, and how far apart along it steps of these strides lie, down to 1, as far as each
    divides the one before; the innermost decide."""
    if not (step.is_Integer and step > 0):
        return []
    found = {quotient(s, step) for s in strides if s.is_Integer and s > step}
    lengths = [sympy.S.One]
    for length in sorted(n for n in found if n is not None):
        inside = quotient(extent, length)
        if quotient(length, lengths[0]) is not None and inside is not None and inside != 1:
            lengths.insert(0, length)
    return [extent, *lengths] if extent != 1 else []
