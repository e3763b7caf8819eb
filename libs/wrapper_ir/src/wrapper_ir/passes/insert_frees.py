"""Ends the life of each storage right after its last use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from wrapper_ir.analysis import alias_source, definitions, param_roots, storages, uses
from wrapper_ir.collectives import taken_until
from wrapper_ir.ops import Allocate, ExternCall, Free, If, Op, Program, Return, Reuse


@dataclass(frozen=True)
class InsertFrees:
    """`last use of b0 or of a view of it` -> the same, then `free b0`.

    What a communication was given is in use until the wait for its result. Only for storages that
    the program made (alloc, reuse, results of extern calls that alias nothing), never for those it
    returns, and not where they are freed or reused already. A storage that is made in a block of
    `if` is freed in that block; one that is last used inside a block is freed after the `if`."""

    name: ClassVar[str] = "insert_frees"

    def run(self, program: Program) -> Program:
        """The program with its storages freed."""
        roots = storages(program.ops, param_roots(program))
        return replace(program, ops=_insert(program.ops, roots))


def _insert(ops: Sequence[Op], roots: Mapping[str, str]) -> tuple[Op, ...]:
    last: dict[str, int] = {}
    taken = taken_until(ops, roots)
    for i, op in enumerate(ops):
        if isinstance(op, Allocate | Reuse | ExternCall) and alias_source(op) is None:
            last.update({name: i for name, _ in definitions(op)})
        for name in (*uses(op), *taken.get(i, ())):
            if roots[name] in last:
                last[roots[name]] = i
        if isinstance(op, Free | Return):
            for name in uses(op):
                last.pop(roots[name], None)
        if isinstance(op, Reuse):
            last.pop(roots[op.src], None)
    dying: dict[int, list[str]] = {}
    for name, i in last.items():
        dying.setdefault(i, []).append(name)
    out: list[Op] = []
    for i, op in enumerate(ops):
        if isinstance(op, If):
            op = replace(op, then=_insert(op.then, roots), orelse=_insert(op.orelse, roots))
        out.append(op)
        out += [Free(name) for name in dying.get(i, ())]
    return tuple(out)
