"""Simplifies indices with what is known of axes and sizes."""

from collections.abc import Callable
from dataclasses import replace

import sympy

import symexpr
from loop_ir.ir.affine import nonnegative_over, substitute
from loop_ir.ir.analysis import lows_of
from loop_ir.ir.names import defined_values, expression, map_expressions, statements
from loop_ir.ir.nodes import Compute, Const, Index, Indirect, Kernel, Stmt
from loop_ir.ir.rewrite import (
    has_functions,
    map_statements,
    ranges_of,
    simplify_with,
)
from loop_ir.passes.dead_code import drop_dead_statements
from symexpr import Max, Min, Mod
from tensor_ir import DType

# No size is larger: memory has fewer elements.
_LONGEST = 1 << 48
_SIGNED = (DType.i8, DType.i16, DType.i32, DType.i64)
_ARITHMETIC: dict[str, Callable[..., sympy.Expr]] = {
    "cast": lambda a: a,
    "add": sympy.Add,
    "sub": lambda a, b: a - b,
    "mul": sympy.Mul,
    "neg": lambda a: -a,
    "abs": lambda a: Max(a, -a, 0),  # so that its bounds are known
    "minimum": Min,
    "maximum": Max,
    "mod": Mod,
    "fmod": Mod,
}


def simplify(kernel: Kernel) -> Kernel:
    """`x[64*FloorDiv(i0, 64) + Mod(i0, 64)] -> x[i0]`, and whatever else `symexpr.simplify`
    proves from the ranges of axes, sizes and indirect symbols.

    `v = index e; t = indirect v < n; x[t]  ->  x[e]`, when 0 <= e < n everywhere; `e` may be
    reached through integer arithmetic (`v = index i; w = fmod(add(v, 3), 56)`: a rolled tensor;
    `minimum(abs(sub(i, j)), 127)`: a distance that is cut off)."""
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
    axes = (*kernel.axes, *(a for p in kernel.phases for a in p.axes))
    sizes = {s for a in axes for s in a.extent.free_symbols}  # other integers have no end
    ranges = {
        s: (low, _LONGEST if high is None and s in sizes else high)
        for s, (low, high) in ranges_of(kernel)
    }

    def rewrite(stmt: Stmt, extents: dict[sympy.Symbol, sympy.Expr]) -> Stmt:
        if known:
            stmt = map_expressions(stmt, lambda e: substitute(e, tuple(known.items())))
        if (place := _place(stmt, values, ranges)) is not None:
            values[defined_values(stmt)[0]] = place
        elif isinstance(stmt, Indirect) and stmt.value in values:
            expr = values[stmt.value]
            ends = (expr, sympy.expand(stmt.extent - 1 - expr))
            linearly = all(nonnegative_over(e, extents, lows) for e in ends)
            if linearly or _within(expr, stmt.extent, ranges):
                known[stmt.symbol] = expr
        return stmt

    phases = []
    for phase in kernel.phases:
        extents = {a.symbol: a.extent for a in (*kernel.axes, *phase.axes)}
        phases.append(replace(phase, body=tuple(rewrite(s, extents) for s in phase.body)))
    if not known:
        return kernel
    out = replace(kernel, phases=tuple(phases))
    return drop_dead_statements(out) or out


def _place(stmt: Stmt, values: dict[str, sympy.Expr], ranges: symexpr.Ranges) -> sympy.Expr | None:
    """What a statement defines, as an integer expression of axes and sizes, if no step of it can
    leave the integers of its type."""
    if isinstance(stmt, Index):
        return stmt.expr
    if isinstance(stmt, Const) and stmt.dtype.is_int:
        return sympy.Integer(stmt.value)
    if not isinstance(stmt, Compute) or stmt.dtype not in _SIGNED:
        return None
    if stmt.op not in _ARITHMETIC or not all(a in values for a in stmt.args):
        return None
    args = [values[a] for a in stmt.args]
    if stmt.op in ("mod", "fmod"):
        lows = [symexpr.bounds(a, ranges)[0] for a in args]
        signs = stmt.op == "mod" or (lows[0] is not None and lows[0] >= 0)
        if not signs or lows[1] is None or lows[1] <= 0:
            return None
    place = sympy.expand(_ARITHMETIC[stmt.op](*args))
    low, high = symexpr.bounds(place, ranges)
    most = 2 ** (8 * stmt.dtype.itemsize - 1)
    inside = low is not None and high is not None and -most <= low and high < most
    return place if inside else None


def _within(expr: sympy.Expr, extent: sympy.Expr, ranges: symexpr.Ranges) -> bool:
    lows = (symexpr.bounds(e, ranges)[0] for e in (expr, extent - 1 - expr))
    return all(low is not None and low >= 0 for low in lows)
