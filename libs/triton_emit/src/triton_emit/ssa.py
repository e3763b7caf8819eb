"""What of a kernel is computed where: without dead code and repetition, in scopes.

The plan of a kernel is a list of scopes: straight code, and (for a looped schedule) one loop for
every phase with inner axes, holding all that must be computed again in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from loop_ir import Axis, Compute, Kernel, Load, Reduce, Scan, Stmt, Store
from loop_ir.ir import Name, operands, results
from loop_ir.passes import drop_dead_statements, eliminate
from triton_emit.errors import UnsupportedKernel


def clean(kernel: Kernel) -> Kernel:
    """The same kernel without dead statements and repeated ones."""
    return drop_dead_statements(eliminate(kernel, in_order=True)) or kernel


@dataclass(frozen=True)
class Scope:
    """Statements in order; `axes` are the inner axes of a loop, `()` for straight code."""

    axes: tuple[Axis, ...]
    body: tuple[Stmt, ...]


def inner_dependent(kernel: Kernel) -> dict[Name, bool]:
    """Which names vary over inner axes."""
    varies: dict[Name, bool] = {a.symbol: True for phase in kernel.phases for a in phase.axes}
    for phase in kernel.phases:
        for stmt in phase.body:
            over = any(varies.get(u, False) for u in operands(stmt))
            if isinstance(stmt, Reduce | Scan):
                over = isinstance(stmt, Scan)
            varies.update(dict.fromkeys(results(stmt), over))
    return varies


def loops(kernel: Kernel) -> tuple[Scope, ...]:
    """One loop for each phase with inner axes. What a phase needs of earlier inner phases is
    computed again from its loads; what does not vary over the inner axes moves before the loop.

    Raises UnsupportedKernel where a load would be repeated after its buffer was overwritten, and
    where a phase has scans from the end and something else that joins elements."""
    varies = inner_dependent(kernel)
    inner: dict[Name, tuple[int, Stmt]] = {}
    order: list[Name] = []
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
            if isinstance(stmt, Store | Reduce) or any(varies[d] for d in results(stmt)):
                own.append(stmt)
            else:
                hoisted.append(stmt)
        needed: set[Name] = set()
        todo = [u for stmt in own for u in operands(stmt)]
        mine = {d for stmt in own for d in results(stmt)}
        while todo:
            name = todo.pop()
            if name in inner and name not in needed and name not in mine:
                needed.add(name)
                todo += operands(inner[name][1])
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
        both = [*again, *own]
        ways = {isinstance(s, Scan) and s.reverse for s in both if isinstance(s, Scan | Reduce)}
        if len(ways) > 1:
            raise UnsupportedKernel(
                kernel.name,
                f"phase {number} has to walk over its inner axes in both directions",
                "use a persistent schedule",
            )
        add(phase.axes, both)
        for stmt in own:
            if isinstance(stmt, Store):
                stores.append((number, stmt.buffer))
            elif not isinstance(stmt, Reduce):
                for d in results(stmt):
                    inner[d] = (number, stmt)
                    order.append(d)
    return tuple(scopes)


def skipped(body: Sequence[Stmt], escaping: frozenset[str]) -> dict[Stmt, list[Stmt]]:
    """What computes nothing but the second argument of a `rarely`, of each of them."""
    readers: dict[Name, list[Stmt]] = {}
    for stmt in body:
        for name in operands(stmt):
            readers.setdefault(name, []).append(stmt)
    found: dict[Stmt, list[Stmt]] = {}
    for number, stmt in enumerate(body):
        if not isinstance(stmt, Compute) or stmt.op != "rarely":
            continue
        condition, _, other = stmt.args
        own: list[Stmt] = []
        for s in reversed(body[:number]):
            if isinstance(s, Compute) and s.out not in (condition, other, *escaping):
                read = readers.get(s.out, [])
                if read and all(r is stmt or r in own for r in read):
                    own.insert(0, s)
        if own:
            found[stmt] = own
    return found
