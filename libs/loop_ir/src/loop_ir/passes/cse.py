"""Computes the same thing once within a kernel."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import fields, replace
from typing import get_args

from loop_ir.ir import nodes as ir
from loop_ir.ir.names import Name, renamed, results, statements

_COMMUTATIVE = frozenset(("add", "mul", "maximum", "minimum", "eq", "ne", "and", "or", "xor"))
# Of each kind of statement: its fields but the names of results.
_COMPARED: dict[type[ir.Stmt], tuple[str, ...]] = {
    kind: tuple(f.name for f in fields(kind) if f.name not in ("out", "outs", "symbol"))
    for kind in get_args(ir.Stmt)
}


def eliminate(kernel: ir.Kernel, in_order: bool = False) -> ir.Kernel:
    """The kernel with each value computed once:

    `a = f(x); b = f(x) -> a = f(x)` with b renamed to a, when both run over the same inner axes (or
    the first runs once). Loads of a buffer that the kernel stores to are left alone.

    in_order: for a code generator, which writes statements as they stand. Then loads of a buffer
    count as the same until something is stored to it, `store x[i] = a; b = load x[i]` gives a for
    b, and the first of two values may run at inner points where the second does not."""
    stored = {s.buffer for s in statements(kernel) if isinstance(s, ir.Store)}
    seen: dict[Hashable, tuple[Name, ...]] = {}
    names: dict[Name, Name] = {}
    stores: Counter[str] = Counter()
    phases = []
    for phase in kernel.phases:
        body: list[ir.Stmt] = []
        for original in phase.body:
            stmt = renamed(original, names)
            if isinstance(stmt, ir.Store):
                stores[stmt.buffer] += 1
                if in_order and stmt.mode == "set" and stmt.mask is None:
                    seen[_stored(stmt, stores)] = (stmt.value,)
            if isinstance(stmt, ir.Store) or (
                isinstance(stmt, ir.Load) and stmt.buffer in stored and not in_order
            ):
                body.append(stmt)
                continue
            key = _key(stmt, stores)
            # A reduction's result belongs to no inner point, but is known only after its phase.
            folds = isinstance(stmt, ir.Reduce | ir.Scan)
            scope: tuple[ir.Axis, ...] = () if in_order and not folds else phase.axes
            first = seen.get((key, scope)) or seen.get((key, ()))
            if isinstance(stmt, ir.Load) and stmt.mask is None:
                first = seen.get(_stored(stmt, stores)) or first
            if first is None:
                seen[key, scope] = results(stmt)
                body.append(stmt)
            else:
                names.update(zip(results(stmt), first, strict=True))
        if body:
            phases.append(replace(phase, body=tuple(body)))
    return replace(kernel, phases=tuple(phases)) if names else kernel


def _stored(stmt: ir.Load | ir.Store, stores: Counter[str]) -> Hashable:
    return stmt.buffer, stmt.index, stores[stmt.buffer]


def _key(stmt: ir.Stmt, stores: Counter[str]) -> Hashable:
    """What two statements have in common that give the same: all but the names of results."""
    values = tuple(
        [
            (type(value), repr(value)) if isinstance(value, float | bool) else value
            for name in _COMPARED[type(stmt)]
            for value in (getattr(stmt, name),)
        ]
    )
    if isinstance(stmt, ir.Compute) and stmt.op in _COMMUTATIVE:
        values = (stmt.op, tuple(sorted(stmt.args)), stmt.dtype)
    times = stores[stmt.buffer] if isinstance(stmt, ir.Load) else 0
    return (type(stmt), values, times)
