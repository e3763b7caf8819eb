"""What a phase needs of earlier ones: statements that are said again, and rows of values that are
kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cpp_loops.walk import Walk, is_plain
from loop_ir import Axis, Compute, Const, Index, Indirect, Kernel, Load, Reduce, Stmt
from loop_ir.ir import Name, operands, results, writes

# Loads and plain operations that are as soon done again as read from a row.
_AGAIN = 6


@dataclass
class Needs:
    """again: the statements that each phase says again before its own, in order. read: the values
    that it reads from rows. rows: all values that are kept, with the inner axes of their rows."""

    again: list[list[Stmt]] = field(default_factory=list)
    read: list[list[str]] = field(default_factory=list)
    rows: dict[str, tuple[Axis, ...]] = field(default_factory=dict)


def needs_of(kernel: Kernel, walk: Walk) -> Needs:
    """What its phases need of each other."""
    made: dict[Name, tuple[int, Stmt]] = {
        name: (number, stmt)
        for number, phase in enumerate(kernel.phases)
        for stmt in phase.body
        for name in results(stmt)
    }
    order = {id(s): n for n, (_, s) in enumerate(made.values())}
    written, found = frozenset(writes(kernel)), Needs()
    costs: dict[Name, float] = {}

    def known(name: Name, number: int) -> bool:
        """Whether a phase has it in a variable."""
        at, stmt = made[name]
        once = not walk.lanes and not kernel.phases[at].axes
        return at == number or isinstance(stmt, Reduce) or once

    def cost(name: Name, number: int) -> float:
        """Of saying it again in a phase."""
        if name not in made or known(name, number):
            return 0
        if name not in costs:
            stmt = made[name][1]
            own: float = not isinstance(stmt, Const | Index | Indirect)
            if not isinstance(stmt, Const | Index | Indirect | Load | Compute) or (
                isinstance(stmt, Compute) and not is_plain(stmt.op)
            ):
                own = math.inf
            if isinstance(stmt, Load) and stmt.buffer in written:
                own = math.inf
            costs[name] = own + sum(cost(o, number) for o in operands(stmt))
        return costs[name]

    for number, phase in enumerate(kernel.phases):
        again: dict[int, Stmt] = {}
        read: dict[str, None] = {}
        left = [o for stmt in phase.body for o in operands(stmt)]
        costs.clear()
        while left:
            name = left.pop()
            if name not in made or known(name, number):
                continue
            at, stmt = made[name]
            if isinstance(stmt, Indirect) or cost(name, number) <= _AGAIN:
                if id(stmt) not in again:
                    again[id(stmt)] = stmt
                    left += operands(stmt)
            else:
                read[str(name)] = None
                found.rows[str(name)] = kernel.phases[at].axes
        found.again.append(sorted(again.values(), key=lambda s: order[id(s)]))
        found.read.append(list(read))
    return found
