"""Ends the life of each storage right after its last use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from wrapper_ir import ops as ir
from wrapper_ir.analysis import alias_source, definitions, param_roots, storages, uses
from wrapper_ir.collectives import taken_until

_MADE = ir.Allocate | ir.CommAllocate | ir.Reuse | ir.ExternCall


@dataclass(frozen=True)
class InsertFrees:
    """`last use of b0 or of a view of it` -> the same, then `free b0`.

    What a communication was given is in use until the wait for its result, what another stream than
    that of the call uses until this has waited for it. Only for storages that the program made
    (alloc, comm_alloc, reuse, results of calls that alias nothing), never for those it returns, and
    not where they are freed or reused already. A storage that is made in a block of `if` is freed
    in that block; one that is last used inside a block is freed after the `if`."""

    name: ClassVar[str] = "insert_frees"

    def run(self, program: ir.Program) -> ir.Program:
        """The program with its storages freed."""
        roots = storages(program.ops, param_roots(program))
        return replace(program, ops=_insert(program.ops, roots))


def _insert(ops: Sequence[ir.Op], roots: Mapping[str, str]) -> tuple[ir.Op, ...]:
    last: dict[str, int] = {}
    shared: set[str] = set()
    taken = taken_until(ops, roots)
    joined = _joined(ops)
    for i, op in enumerate(ops):
        if isinstance(op, _MADE) and alias_source(op) is None:
            last.update({name: joined.get(i, i) for name, _ in definitions(op)})
            shared |= {op.out} if isinstance(op, ir.CommAllocate) else set()
        for name in (*uses(op), *taken.get(i, ())):
            if roots[name] in last:
                last[roots[name]] = max(last[roots[name]], joined.get(i, i))
        if isinstance(op, ir.Free | ir.CommFree | ir.Return):
            for name in uses(op):
                last.pop(roots[name], None)
        if isinstance(op, ir.Reuse):
            last.pop(roots[op.src], None)
    dying: dict[int, list[str]] = {}
    for name, i in last.items():
        dying.setdefault(i, []).append(name)
    out: list[ir.Op] = []
    for i, op in enumerate(ops):
        if isinstance(op, ir.If):
            op = replace(op, then=_insert(op.then, roots), orelse=_insert(op.orelse, roots))
        out.append(op)
        out += [ir.CommFree(n) if n in shared else ir.Free(n) for n in dying.get(i, ())]
    return tuple(out)


def _joined(ops: Sequence[ir.Op]) -> dict[int, int]:
    """By position of what runs on another stream than that of the call: of the wait for it."""
    stream, running = 0, dict[int, list[int]]()
    found: dict[int, int] = {}
    for i, op in enumerate(ops):
        if isinstance(op, ir.StreamSwitch):
            stream = op.stream
        elif isinstance(op, ir.StreamWait):
            if stream == 0:
                found |= dict.fromkeys(running.pop(op.stream, ()), i)
        elif stream != 0:
            running.setdefault(stream, []).append(i)
    return found
