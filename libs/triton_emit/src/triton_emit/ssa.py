"""What a kernel's statements use and define: dead code, common subexpressions, recomputation.

The plan of a kernel is a list of scopes: straight code, and (for a looped schedule) one loop for
every phase with inner axes, holding all that must be computed again in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import sympy

from loop_ir import (
    Axis,
    Compute,
    Const,
    Index,
    Indirect,
    Kernel,
    Load,
    Phase,
    Reduce,
    Scan,
    Stmt,
    Store,
)
from triton_emit.errors import UnsupportedKernel


def defines(stmt: Stmt) -> tuple[str, ...]:
    """Names that a statement defines; an indirect symbol counts under its own name."""
    if isinstance(stmt, Reduce):
        return stmt.outs
    if isinstance(stmt, Indirect):
        return (stmt.symbol.name,)
    if isinstance(stmt, Store):
        return ()
    return (stmt.out,)


def expressions(stmt: Stmt) -> tuple[sympy.Expr, ...]:
    """The integer expressions of a statement."""
    if isinstance(stmt, Load | Store):
        return (stmt.index,)
    if isinstance(stmt, Index):
        return (stmt.expr,)
    if isinstance(stmt, Indirect):
        return (stmt.extent,)
    return ()


def uses(stmt: Stmt) -> tuple[str, ...]:
    """Names that a statement needs: values, and symbols of its expressions."""
    names: list[str] = []
    if isinstance(stmt, Compute | Reduce | Scan):
        names += stmt.args
    if isinstance(stmt, Store | Indirect):
        names.append(stmt.value)
    if isinstance(stmt, Load | Store) and stmt.mask is not None:
        names.append(stmt.mask)
    for e in expressions(stmt):
        names += sorted(s.name for s in e.free_symbols)
    return tuple(names)


def _renamed(stmt: Stmt, values: dict[str, str], symbols: dict[sympy.Symbol, sympy.Symbol]) -> Stmt:
    def v(name: str) -> str:
        return values.get(name, name)

    def mask(name: str | None) -> str | None:
        return None if name is None else v(name)

    if isinstance(stmt, Load):
        return replace(stmt, index=stmt.index.xreplace(symbols), mask=mask(stmt.mask))
    if isinstance(stmt, Store):
        return replace(
            stmt, index=stmt.index.xreplace(symbols), value=v(stmt.value), mask=mask(stmt.mask)
        )
    if isinstance(stmt, Index):
        return replace(stmt, expr=stmt.expr.xreplace(symbols))
    if isinstance(stmt, Indirect):
        return replace(stmt, value=v(stmt.value), extent=stmt.extent.xreplace(symbols))
    if isinstance(stmt, Compute | Reduce | Scan):
        return replace(stmt, args=tuple(v(a) for a in stmt.args))
    return stmt


def _key(stmt: Stmt, version: int, phase: int) -> tuple[object, ...] | None:
    if isinstance(stmt, Load):
        return ("load", stmt.buffer, stmt.index, stmt.mask, stmt.other, stmt.dtype, version)
    if isinstance(stmt, Index):
        return ("index", stmt.expr, stmt.dtype)
    if isinstance(stmt, Const):
        return ("const", repr(stmt.value), stmt.dtype)
    if isinstance(stmt, Compute):
        return ("compute", stmt.op, stmt.args, stmt.dtype)
    if isinstance(stmt, Indirect):
        return ("indirect", stmt.value, stmt.extent)
    if isinstance(stmt, Reduce):
        return ("reduce", phase, stmt.op, stmt.args, stmt.dtype)
    if isinstance(stmt, Scan):
        return ("scan", phase, stmt.op, stmt.args, stmt.dtype, stmt.reverse)
    return None


def clean(kernel: Kernel) -> Kernel:
    """The same kernel without dead statements and repeated ones.

    before: `v0 = load x[i]; ...; v7 = load x[i]` -> `v0 = load x[i]` and v0 for v7, when nothing
    was stored to x between. `store x[i] = v1; v2 = load x[i]` -> v1 for v2.
    """
    values: dict[str, str] = {}
    symbols: dict[sympy.Symbol, sympy.Symbol] = {}
    seen: dict[tuple[object, ...], Stmt] = {}
    version: dict[str, int] = {}
    stored: dict[tuple[str, sympy.Expr], str] = {}
    phases: list[Phase] = []
    spaces: dict[tuple[Axis, ...], int] = {}
    for phase in kernel.phases:
        space = spaces.setdefault(phase.axes, len(spaces))
        body: list[Stmt] = []
        for raw in phase.body:
            stmt = _renamed(raw, values, symbols)
            if isinstance(stmt, Store):
                version[stmt.buffer] = version.get(stmt.buffer, 0) + 1
                stored = {k: x for k, x in stored.items() if k[0] != stmt.buffer}
                if stmt.mode == "set" and stmt.mask is None:
                    stored[stmt.buffer, stmt.index] = stmt.value
                body.append(stmt)
                continue
            if isinstance(stmt, Load):
                known = stored.get((stmt.buffer, stmt.index))
                if known is not None and stmt.mask is None:
                    values[stmt.out] = known
                    continue
            at = version.get(stmt.buffer, 0) if isinstance(stmt, Load) else 0
            key = _key(stmt, at, space)
            twin = seen.get(key) if key is not None else None
            if twin is None:
                if key is not None:
                    seen[key] = stmt
                body.append(stmt)
            elif isinstance(stmt, Indirect) and isinstance(twin, Indirect):
                symbols[stmt.symbol] = twin.symbol
            else:
                values.update(zip(defines(stmt), defines(twin), strict=True))
        phases.append(Phase(phase.axes, tuple(body)))
    return replace(kernel, phases=_without_dead(tuple(phases)))


def _without_dead(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    live: set[str] = set()
    out: list[Phase] = []
    for phase in reversed(phases):
        body: list[Stmt] = []
        for stmt in reversed(phase.body):
            if isinstance(stmt, Store) or live.intersection(defines(stmt)):
                live.update(uses(stmt))
                body.append(stmt)
        if body:
            out.append(Phase(phase.axes, tuple(reversed(body))))
    return tuple(reversed(out))


@dataclass(frozen=True)
class Scope:
    """Statements in order; `axes` are the inner axes of a loop, `()` for straight code."""

    axes: tuple[Axis, ...]
    body: tuple[Stmt, ...]


def inner_dependent(kernel: Kernel) -> dict[str, bool]:
    """Which names vary over inner axes."""
    varies = {a.symbol.name: True for phase in kernel.phases for a in phase.axes}
    for phase in kernel.phases:
        for stmt in phase.body:
            over = any(varies.get(u, False) for u in uses(stmt))
            if isinstance(stmt, Reduce | Scan):
                over = isinstance(stmt, Scan)
            varies.update(dict.fromkeys(defines(stmt), over))
    return varies


def loops(kernel: Kernel) -> tuple[Scope, ...]:
    """One loop for each phase with inner axes. What a phase needs of earlier inner phases is
    computed again from its loads; what does not vary over the inner axes moves before the loop.

    Raises UnsupportedKernel where a load would be repeated after its buffer was overwritten.
    """
    varies = inner_dependent(kernel)
    inner: dict[str, tuple[int, Stmt]] = {}
    order: list[str] = []
    stores: list[tuple[int, str]] = []
    scopes: list[Scope] = []

    def add(axes: tuple[Axis, ...], body: list[Stmt]) -> None:
        if body and not axes and scopes and not scopes[-1].axes:
            scopes[-1] = Scope((), scopes[-1].body + tuple(body))
        elif body:
            scopes.append(Scope(axes, tuple(body)))

    for number, phase in enumerate(kernel.phases):
        if not phase.axes:
            add((), list(phase.body))
            stores += [(number, s.buffer) for s in phase.body if isinstance(s, Store)]
            continue
        hoisted: list[Stmt] = []
        own: list[Stmt] = []
        for stmt in phase.body:
            if isinstance(stmt, Store | Reduce) or any(varies[d] for d in defines(stmt)):
                own.append(stmt)
            else:
                hoisted.append(stmt)
        needed: set[str] = set()
        todo = [u for stmt in own for u in uses(stmt)]
        mine = {d for stmt in own for d in defines(stmt)}
        while todo:
            name = todo.pop()
            if name in inner and name not in needed and name not in mine:
                needed.add(name)
                todo += uses(inner[name][1])
        again = [inner[name][1] for name in order if name in needed]
        for stmt in again:
            if isinstance(stmt, Load):
                made = inner[stmt.out][0]
                if any(made <= at and buffer == stmt.buffer for at, buffer in stores):
                    raise UnsupportedKernel(
                        kernel.name,
                        f"phase {number} needs {stmt.out}, loaded from {stmt.buffer} before that "
                        "buffer was overwritten",
                        "use a persistent schedule, or write to another buffer",
                    )
        add((), hoisted)
        add(phase.axes, [*again, *own])
        for stmt in own:
            if isinstance(stmt, Store):
                stores.append((number, stmt.buffer))
            elif not isinstance(stmt, Reduce):
                for d in defines(stmt):
                    inner[d] = (number, stmt)
                    order.append(d)
    return tuple(scopes)


def statements(kernel: Kernel) -> Iterator[tuple[Phase, Stmt]]:
    """Every statement with its phase, in order."""
    for phase in kernel.phases:
        for stmt in phase.body:
            yield phase, stmt
