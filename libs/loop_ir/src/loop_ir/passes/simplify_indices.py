"""Simplifies indices with what is known of axes and sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy

from loop_ir.affine import linear, nonnegative, substitute
from loop_ir.analysis import expression, lows_of, statements
from loop_ir.nodes import Graph, Index, Indirect, Kernel, Stmt, Store
from loop_ir.passes.dead_code import drop_dead_statements
from loop_ir.rewrite import (
    has_functions,
    map_all_kernels,
    map_expressions,
    map_statements,
    ranges_of,
    simplify_with,
)


@dataclass(frozen=True)
class SimplifyIndices:
    """`x[64*FloorDiv(i0, 64) + Mod(i0, 64)] -> x[i0]`, and whatever else `symexpr.simplify`
    proves from the ranges of axes, sizes and indirect symbols.

    `v = index e; t = indirect v < n; x[t]  ->  x[e]`, when 0 <= e < n everywhere.
    """

    name = "simplify_indices"

    def run(self, graph: Graph) -> Graph:
        return map_all_kernels(graph, simplify)


def simplify(kernel: Kernel) -> Kernel:
    kernel = _direct(kernel)
    exprs = [e for e in map(expression, statements(kernel)) if e is not None]
    if not any(map(has_functions, exprs)):
        return kernel
    ranges = ranges_of(kernel)
    return map_statements(kernel, lambda s: map_expressions(s, lambda e: simplify_with(e, ranges)))


def _direct(kernel: Kernel) -> Kernel:
    """Indirect symbols whose value is an index expression in range, replaced by it."""
    if not any(isinstance(s, Indirect) for s in statements(kernel)):
        return kernel
    values: dict[str, sympy.Expr] = {}
    known: dict[sympy.Symbol, sympy.Expr] = {}
    lows = lows_of(kernel.symbols)

    def rewrite(stmt: Stmt, extents: dict[sympy.Symbol, sympy.Expr]) -> Stmt:
        if known:
            stmt = map_expressions(stmt, lambda e: substitute(e, tuple(known.items())))
        if isinstance(stmt, Index):
            values[stmt.out] = stmt.expr
        elif isinstance(stmt, Indirect) and stmt.value in values:
            expr = values[stmt.value]
            if _in_range(expr, stmt.extent, extents, lows):
                known[stmt.symbol] = expr
        return stmt

    phases = []
    for phase in kernel.phases:
        extents = {a.symbol: a.extent for a in (*kernel.axes, *phase.axes)}
        phases.append(replace(phase, body=tuple(rewrite(s, extents) for s in phase.body)))
    if not known:
        return kernel
    out = replace(kernel, phases=tuple(phases))
    live = frozenset(s.buffer for s in statements(out) if isinstance(s, Store))
    return drop_dead_statements(out, live) or out


def _in_range(
    expr: sympy.Expr,
    extent: sympy.Expr,
    extents: dict[sympy.Symbol, sympy.Expr],
    lows: tuple[tuple[sympy.Symbol, int], ...],
) -> bool:
    form = linear(expr, tuple(extents))
    if form is None or not all(nonnegative(c, lows) for _, c in form.terms):
        return False
    high = sympy.expand(form.rest + sympy.Add(*(c * (extents[s] - 1) for s, c in form.terms)))
    room = sympy.expand(extent - 1 - high)
    return nonnegative(form.rest, lows) and nonnegative(room, lows)
