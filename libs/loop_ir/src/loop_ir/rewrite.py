"""Building blocks of the passes: renaming, substitution, and putting statements into phases."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import sympy

import symexpr
from loop_ir.affine import CACHE, substitute
from loop_ir.analysis import defined_values, expression, statements, used_values
from loop_ir.nodes import (
    Axis,
    Buffer,
    Compute,
    Const,
    Graph,
    Index,
    Indirect,
    Kernel,
    Load,
    Matmul,
    Node,
    Phase,
    Reduce,
    Scan,
    Stmt,
    Store,
)

Substitution = tuple[tuple[sympy.Symbol, sympy.Expr], ...]
RangeItems = tuple[tuple[sympy.Symbol, tuple[int | None, int | None]], ...]


def map_kernels(graph: Graph, rewrite: Callable[[Kernel], Kernel]) -> Graph:
    """The graph with `rewrite` applied to its kernels and prologues (not to epilogues, whose axes
    are those of their matmul)."""

    def node(n: Node) -> Node:
        if isinstance(n, Matmul) and n.prologues:
            a, b = (p and rewrite(p) for p in (n.prologue_a, n.prologue_b))
            return replace(n, prologue_a=a, prologue_b=b)
        return rewrite(n) if isinstance(n, Kernel) else n

    return replace(graph, nodes=tuple(map(node, graph.nodes)))


def map_all_kernels(graph: Graph, rewrite: Callable[[Kernel], Kernel]) -> Graph:
    """The graph with `rewrite` applied to its kernels, prologues and epilogues."""
    nodes = tuple(
        replace(n, epilogue=rewrite(n.epilogue))
        if isinstance(n, Matmul) and n.epilogue is not None
        else n
        for n in graph.nodes
    )
    return map_kernels(replace(graph, nodes=nodes), rewrite)


def rename_uses(stmt: Stmt, names: Mapping[str, str]) -> Stmt:
    """The statement with the values that it uses renamed."""
    if names.keys().isdisjoint(used_values(stmt)):
        return stmt
    match stmt:
        case Load():
            return stmt if stmt.mask is None else replace(stmt, mask=_get(names, stmt.mask))
        case Compute() | Reduce() | Scan():
            return replace(stmt, args=tuple(_get(names, a) for a in stmt.args))
        case Indirect():
            return replace(stmt, value=_get(names, stmt.value))
        case Store():
            mask = None if stmt.mask is None else _get(names, stmt.mask)
            return replace(stmt, value=_get(names, stmt.value), mask=mask)
        case Index() | Const():
            return stmt


def rename_defs(stmt: Stmt, names: Mapping[str, str]) -> Stmt:
    """The statement with the values that it defines renamed."""
    match stmt:
        case Load() | Index() | Const() | Compute() | Scan():
            return replace(stmt, out=_get(names, stmt.out))
        case Reduce():
            return replace(stmt, outs=tuple(_get(names, o) for o in stmt.outs))
        case Indirect() | Store():
            return stmt


def _get(names: Mapping[str, str], name: str) -> str:
    return names.get(name, name)


def with_expression(stmt: Stmt, expr: sympy.Expr) -> Stmt:
    """The statement with another index (load, store) or expression (index)."""
    match stmt:
        case Load() | Store():
            return replace(stmt, index=expr)
        case Index():
            return replace(stmt, expr=expr)
        case _:
            return stmt


def map_expressions(stmt: Stmt, rewrite: Callable[[sympy.Expr], sympy.Expr]) -> Stmt:
    expr = expression(stmt)
    if expr is None:
        return stmt
    new = rewrite(expr)
    return stmt if new is expr else with_expression(stmt, new)


def map_statements(kernel: Kernel, rewrite: Callable[[Stmt], Stmt]) -> Kernel:
    phases = tuple(replace(p, body=tuple(map(rewrite, p.body))) for p in kernel.phases)
    return replace(kernel, phases=phases)


def ranges_of(kernel: Kernel, extra: Iterable[Axis] = ()) -> RangeItems:
    """Inclusive ranges of sizes, axes and indirect symbols of a kernel, where known. An open
    upper bound of an extent leaves the axis open."""
    items: dict[sympy.Symbol, tuple[int | None, int | None]] = {}
    for s in kernel.symbols:
        items[sympy.Symbol(s.name, integer=True)] = (s.low if s.low is not None else 0, s.high)
    sizes = dict(items)
    extents = [(a.symbol, a.extent) for a in (*kernel.axes, *extra)]
    extents += [(a.symbol, a.extent) for p in kernel.phases for a in p.axes]
    extents += [(s.symbol, s.extent) for s in statements(kernel) if isinstance(s, Indirect)]
    for symbol, extent in extents:
        if extent.is_Integer:
            items[symbol] = (0, int(extent) - 1)
        else:
            high = symexpr.bounds(extent, sizes)[1]
            items[symbol] = (0, None if high is None else high - 1)
    return tuple(items.items())


def simplify_with(expr: sympy.Expr, ranges: RangeItems) -> sympy.Expr:
    """`symexpr.simplify`, asked only where an expression holds a function (a polynomial is
    simple already), once per distinct question."""
    if not has_functions(expr):
        return expr
    free = expr.free_symbols
    used = tuple((s, r) for s, r in ranges if s in free)
    return _simplify(expr, used)


def has_functions(expr: sympy.Expr) -> bool:
    return bool(expr.has(sympy.Function, sympy.logic.boolalg.Boolean))


@lru_cache(CACHE)
def _simplify(expr: sympy.Expr, ranges: RangeItems) -> sympy.Expr:
    return sympy.expand(symexpr.simplify(expr, dict(ranges)))


def substitute_axes(kernel: Kernel, mapping: Substitution, ranges: RangeItems) -> Kernel:
    """Axes of the statements replaced by expressions; the caller replaces the axes."""

    def rewrite(expr: sympy.Expr) -> sympy.Expr:
        return simplify_with(substitute(expr, mapping), ranges)

    return map_statements(kernel, lambda s: map_expressions(s, rewrite))


@dataclass(frozen=True)
class Item:
    """A statement on its way into a phase. `inner`: it runs at every inner point (only stores,
    reductions and scans are told; other statements go where their operands lead)."""

    stmt: Stmt
    inner: bool = False


class Unstageable(Exception):
    """The statements do not fit into phases over the given inner axes."""


def stage(items: Sequence[Item], inner: tuple[Axis, ...]) -> tuple[Phase, ...]:
    """Statements (in a valid order) -> phases `once, over, once, over, ...`, empty ones left out.

    Reductions and stores go to the first phase where their operands are known, everything else
    to the last phase before its first use; what nothing uses is dropped. A statement that
    depends on no inner axis goes to a `once` phase.
    Level 2k is the k-th `once`, level 2k + 1 the `over` that follows it.
    """
    inner_symbols = frozenset(a.symbol for a in inner)
    known: dict[str | sympy.Symbol, tuple[int, bool]] = {}
    levels: list[int] = []
    for item in items:
        uses = _operands(item.stmt)
        is_inner = item.inner or any(known[u][1] for u in uses if u in known)
        expr = expression(item.stmt)
        if expr is not None and not is_inner:
            is_inner = bool(expr.free_symbols & inner_symbols)
        if isinstance(item.stmt, Store) and is_inner != item.inner:
            raise Unstageable(f"the store to {item.stmt.buffer} runs once, its value does not")
        level = 1 if is_inner else 0
        for use in uses:
            if use in known:
                at, use_inner = known[use]
                level = max(level, at if use_inner or not is_inner else at + 1)
        levels.append(level)
        result = (level + 1, False) if isinstance(item.stmt, Reduce) else (level, is_inner)
        for name in _results(item.stmt):
            known[name] = result
    first_use: dict[str | sympy.Symbol, int] = {}
    kept: list[tuple[int, Stmt]] = []
    for item, asap in zip(reversed(items), reversed(levels), strict=True):
        stmt = item.stmt
        level = asap
        if not isinstance(stmt, (Store, Reduce)):
            uses_at = [first_use[n] for n in _results(stmt) if n in first_use]
            if not uses_at:
                continue
            level = min(uses_at)
            if level % 2 != asap % 2:
                level -= 1
        elif isinstance(stmt, Reduce) and not any(o in first_use for o in stmt.outs):
            continue
        for use in _operands(stmt):
            first_use[use] = min(first_use.get(use, level), level)
        kept.append((level, stmt))
    bodies: dict[int, list[Stmt]] = {}
    for level, stmt in reversed(kept):
        bodies.setdefault(level, []).append(stmt)
    return tuple(
        Phase(inner if level % 2 else (), tuple(bodies[level])) for level in sorted(bodies)
    )


def _operands(stmt: Stmt) -> list[str | sympy.Symbol]:
    expr = expression(stmt)
    return [*used_values(stmt), *(expr.free_symbols if expr is not None else ())]


def _results(stmt: Stmt) -> tuple[str | sympy.Symbol, ...]:
    return (stmt.symbol,) if isinstance(stmt, Indirect) else defined_values(stmt)


def items_of(kernel: Kernel, spread: bool = False) -> list[Item]:
    """The statements of a kernel for `stage`. `spread`: a pointwise kernel whose axes now are
    (partly) inner axes, so that its stores run at inner points."""
    out: list[Item] = []
    for phase in kernel.phases:
        inner = bool(phase.axes) or spread
        for stmt in phase.body:
            out.append(Item(stmt, inner and isinstance(stmt, (Store, Reduce, Scan))))
    return out


def used_buffers(kernel: Kernel) -> Kernel:
    """The kernel with the declarations of unused buffers dropped, and `written` made true."""
    loaded: set[str] = set()
    stored: set[str] = set()
    for stmt in statements(kernel):
        if isinstance(stmt, Load):
            loaded.add(stmt.buffer)
        elif isinstance(stmt, Store):
            stored.add(stmt.buffer)
    buffers = tuple(
        replace(b, written=b.name in stored)
        for b in kernel.buffers
        if b.name in loaded or b.name in stored
    )
    return kernel if buffers == kernel.buffers else replace(kernel, buffers=buffers)


def union_buffers(first: Sequence[Buffer], second: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """Buffers that are read, then those that are written, each once."""
    merged: dict[str, Buffer] = {}
    for b in (*first, *second):
        old = merged.get(b.name)
        merged[b.name] = b if old is None else replace(old, written=old.written or b.written)
    return (
        *(b for b in merged.values() if not b.written),
        *(b for b in merged.values() if b.written),
    )


def renumber(kernel: Kernel) -> Kernel:
    """Values called `v<number>` and indirect symbols numbered in order of definition."""
    names: dict[str, str] = {}
    symbols: list[tuple[sympy.Symbol, sympy.Symbol]] = []
    taken = {s.name for s in kernel.symbols} | {a.symbol.name for a in kernel.axes}
    count = 0
    fresh = (f"t{n}" for n in range(1 << 30) if f"t{n}" not in taken)
    for stmt in statements(kernel):
        if isinstance(stmt, Indirect):
            symbols.append((stmt.symbol, symexpr.symbol(next(fresh))))
        for name in defined_values(stmt):
            if re.fullmatch(r"v\d+", name):
                names[name] = f"v{count}"
                count += 1
    mapping = tuple((a, b) for a, b in symbols)
    table = dict(symbols)

    def rewrite(stmt: Stmt) -> Stmt:
        stmt = rename_defs(rename_uses(stmt, names), names)
        if isinstance(stmt, Indirect):
            return replace(stmt, symbol=table[stmt.symbol])
        return map_expressions(stmt, lambda e: substitute(e, mapping))

    return map_statements(kernel, rewrite)
