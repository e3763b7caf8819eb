"""Building blocks of the passes: renaming, substitution, and putting statements into phases."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Literal, TypeAlias

import sympy

import symexpr
from loop_ir.ir.affine import CACHE, substitute
from loop_ir.ir.alike import Alike
from loop_ir.ir.names import map_expressions, statements
from loop_ir.ir.nodes import Graph, Indirect, Kernel, Matmul, Node, Stmt
from symexpr import free_symbols

Substitution = tuple[tuple[sympy.Symbol, sympy.Expr], ...]
OfMatmuls: TypeAlias = Literal["none", "prologues", "all"]
RangeItems = tuple[tuple[sympy.Symbol, tuple[int | None, int | sympy.Expr | None]], ...]


def map_kernels(
    graph: Graph, rewrite: Callable[[Kernel], Kernel], of_matmuls: OfMatmuls = "prologues"
) -> Graph:
    """The graph with `rewrite`, which asks for no names, applied to its kernels, once to alike
    ones. of_matmuls: and to which of those of matmuls (an epilogue's axes are its matmul's)."""
    alike = Alike()

    def one(kernel: Kernel) -> Kernel:
        return alike.once("", (kernel,), lambda: rewrite(kernel))

    def node(n: Node) -> Node:
        if isinstance(n, Matmul) and n.epilogue is not None and of_matmuls == "all":
            n = replace(n, epilogue=one(n.epilogue))
        if isinstance(n, Matmul) and n.prologues and of_matmuls != "none":
            return n.map_prologues(lambda kernel, _: one(kernel))
        return one(n) if isinstance(n, Kernel) else n

    return replace(graph, nodes=tuple(map(node, graph.nodes)))


def map_statements(kernel: Kernel, rewrite: Callable[[Stmt], Stmt]) -> Kernel:
    """The kernel with every statement rewritten."""
    phases = tuple(replace(p, body=tuple(map(rewrite, p.body))) for p in kernel.phases)
    return replace(kernel, phases=phases)


def rename_symbols(kernel: Kernel, mapping: Substitution) -> Kernel:
    """The kernel with expressions in the place of symbols in its statements, as they come out."""

    def moved(expr: sympy.Expr) -> sympy.Expr:
        return substitute(expr, mapping)

    return map_statements(kernel, lambda s: map_expressions(s, moved)) if mapping else kernel


def ranges_of(kernel: Kernel) -> RangeItems:
    """Inclusive ranges of sizes, axes and indirect symbols of a kernel, where it has a point: a
    size that a parallel axis is a multiple of is none that is 0."""
    items: dict[sympy.Symbol, tuple[int | None, int | sympy.Expr | None]] = {}
    factors = {f.as_base_exp()[0] for a in kernel.axes for f in sympy.Mul.make_args(a.extent)}
    for s in kernel.symbols:
        size = sympy.Symbol(s.name, integer=True)
        low = s.low if s.low is not None else 0  # an integer that is no size may be negative
        items[size] = (1 if low == 0 and size in factors else low, s.high)
    extents = [(a.symbol, a.extent) for a in kernel.axes]
    extents += [(a.symbol, a.extent) for p in kernel.phases for a in p.axes]
    extents += [(s.symbol, s.extent) for s in statements(kernel) if isinstance(s, Indirect)]
    for symbol, extent in extents:
        items[symbol] = (0, max(int(extent) - 1, 0) if extent.is_Integer else extent - 1)
    return tuple(items.items())


def simplify_with(expr: sympy.Expr, ranges: RangeItems) -> sympy.Expr:
    """`symexpr.simplify`, asked only where an expression holds a function (a polynomial is
    simple already), once per distinct question."""
    if not has_functions(expr):
        return expr
    free = set(free_symbols(expr))
    for symbol, (_, high) in ranges:
        if symbol in free and isinstance(high, sympy.Expr):
            free |= free_symbols(high)
    used = tuple((s, r) for s, r in ranges if s in free)
    return _simplify(expr, used)


def has_functions(expr: sympy.Expr) -> bool:
    """Whether the expression is more than a polynomial, so that simplifying may help."""
    return bool(expr.has(sympy.Function, sympy.logic.boolalg.Boolean))


@lru_cache(CACHE)
def _simplify(expr: sympy.Expr, ranges: RangeItems) -> sympy.Expr:
    return sympy.expand(symexpr.simplify(expr, dict(ranges)))


def substitute_axes(kernel: Kernel, mapping: Substitution, ranges: RangeItems) -> Kernel:
    """Axes of the statements replaced by expressions; the caller replaces the axes."""

    def rewrite(expr: sympy.Expr) -> sympy.Expr:
        return simplify_with(substitute(expr, mapping), ranges)

    return map_statements(kernel, lambda s: map_expressions(s, rewrite))
