"""Computes the same thing once within a kernel."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial

import sympy

from loop_ir.ir.affine import substitute
from loop_ir.ir.analysis import defined_values, statements
from loop_ir.ir.nodes import (
    Axis,
    Compute,
    Const,
    Graph,
    Index,
    Indirect,
    Kernel,
    Load,
    Reduce,
    Scan,
    Stmt,
    Store,
)
from loop_ir.ir.renaming import rename_uses
from loop_ir.ir.rewrite import map_all_kernels, map_expressions

_COMMUTATIVE = frozenset(("add", "mul", "maximum", "minimum", "eq", "ne", "and", "or", "xor"))


@dataclass(frozen=True)
class Cse:
    """`a = f(x); b = f(x) -> a = f(x)` with b renamed to a, when both run over the same inner
    axes (or the first runs once). Loads of a buffer that the kernel stores to are left alone."""

    name = "cse"

    def run(self, graph: Graph) -> Graph:
        """The graph with the values of every kernel computed once."""
        return map_all_kernels(graph, eliminate)


def eliminate(kernel: Kernel) -> Kernel:
    """The kernel with each value computed once."""
    stored = {s.buffer for s in statements(kernel) if isinstance(s, Store)}
    seen: dict[Hashable, Stmt] = {}
    names: dict[str, str] = {}
    symbols: dict[sympy.Symbol, sympy.Symbol] = {}
    phases = []
    for phase in kernel.phases:
        body: list[Stmt] = []
        for original in phase.body:
            stmt = rename_uses(original, names)
            if symbols:
                stmt = map_expressions(stmt, partial(substitute, mapping=tuple(symbols.items())))
            key = _key(stmt, stored)
            if key is None:
                body.append(stmt)
                continue
            # A reduction's result belongs to no inner point, but is known only after its phase.
            scope: tuple[Axis, ...] | int = phase.axes
            first = seen.get((key, scope)) or seen.get((key, ()))
            if first is None:
                seen[key, scope] = stmt
                body.append(stmt)
            elif isinstance(stmt, Indirect) and isinstance(first, Indirect):
                symbols[stmt.symbol] = first.symbol
            else:
                names.update(zip(defined_values(stmt), defined_values(first), strict=True))
        if body:
            phases.append(replace(phase, body=tuple(body)))
    if not names and not symbols:
        return kernel
    return replace(kernel, phases=tuple(phases))


def _key(stmt: Stmt, stored: set[str]) -> Hashable | None:
    match stmt:
        case Load():
            if stmt.buffer in stored:
                return None
            other = (type(stmt.other), repr(stmt.other))
            return ("load", stmt.buffer, stmt.index, stmt.mask, other)
        case Index():
            return ("index", stmt.expr, stmt.dtype)
        case Const():
            return ("const", type(stmt.value), repr(stmt.value), stmt.dtype)
        case Compute():
            args = tuple(sorted(stmt.args)) if stmt.op in _COMMUTATIVE else stmt.args
            return (stmt.op, args, stmt.dtype)
        case Reduce():
            return ("reduce", stmt.op, stmt.args, stmt.dtype)
        case Scan():
            return ("scan", stmt.op, stmt.args, stmt.dtype, stmt.reverse)
        case Indirect():
            return ("indirect", stmt.value, stmt.extent)
        case Store():
            return None
