"""Puts statements into phases: reductions as early as they can be, all else as late."""

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from loop_ir.ir.names import operands, results
from loop_ir.ir.nodes import Axis, Kernel, Phase, Reduce, Scan, Stmt, Store


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
    Level 2k is the k-th `once`, level 2k + 1 the `over` that follows it."""
    inner_symbols = frozenset(a.symbol for a in inner)
    known: dict[str | sympy.Symbol, tuple[int, bool]] = {}
    levels: list[int] = []
    for item in items:
        uses = operands(item.stmt)
        is_inner = item.inner or any(known[u][1] for u in uses if u in known)
        is_inner = is_inner or not inner_symbols.isdisjoint(uses)
        if isinstance(item.stmt, Store) and is_inner != item.inner:
            raise Unstageable(f"the store to {item.stmt.buffer} runs once, its value does not")
        level = 1 if is_inner else 0
        for use in uses:
            if use in known:
                at, use_inner = known[use]
                level = max(level, at if use_inner or not is_inner else at + 1)
        levels.append(level)
        result = (level + 1, False) if isinstance(item.stmt, Reduce) else (level, is_inner)
        for name in results(item.stmt):
            known[name] = result
    first_use: dict[str | sympy.Symbol, int] = {}
    kept: list[tuple[int, Stmt]] = []
    for item, asap in zip(reversed(items), reversed(levels), strict=True):
        stmt = item.stmt
        level = asap
        if not isinstance(stmt, (Store, Reduce)):
            uses_at = [first_use[n] for n in results(stmt) if n in first_use]
            if not uses_at:
                continue
            level = min(uses_at)
            if level % 2 != asap % 2:
                level -= 1
        elif isinstance(stmt, Reduce) and not any(o in first_use for o in stmt.outs):
            continue
        for use in operands(stmt):
            first_use[use] = min(first_use.get(use, level), level)
        kept.append((level, stmt))
    bodies: dict[int, list[Stmt]] = {}
    for level, stmt in reversed(kept):
        bodies.setdefault(level, []).append(stmt)
    return tuple(
        Phase(inner if level % 2 else (), tuple(bodies[level])) for level in sorted(bodies)
    )


def items_of(kernel: Kernel, spread: bool = False) -> list[Item]:
    """The statements of a kernel for `stage`. `spread`: a pointwise kernel whose axes now are
    (partly) inner axes, so that its stores run at inner points."""
    out: list[Item] = []
    for phase in kernel.phases:
        inner = bool(phase.axes) or spread
        for stmt in phase.body:
            out.append(Item(stmt, inner and isinstance(stmt, (Store, Reduce, Scan))))
    return out
