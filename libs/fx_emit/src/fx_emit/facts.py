"""What the emitter asks of a program."""

from typing import Any

import sympy

from wrapper_ir import ops as ir
from wrapper_ir.analysis import alias_source, definitions, uses, walk


def chain(op: ir.If) -> tuple[list[Any], list[tuple[ir.Op, ...]]]:
    """`if a: x else: if b: y else: z` -> conditions [a, b], blocks [x, y, z].

    Only comparisons of sums and products are looked at before their turn: a division may be what
    an earlier condition guards."""
    conditions, blocks = [op.condition], [op.then]
    while (
        len(op.orelse) == 1
        and isinstance(op.orelse[0], ir.If)
        and not op.orelse[0].condition.atoms(sympy.Function)
    ):
        op = op.orelse[0]
        conditions.append(op.condition)
        blocks.append(op.then)
    return conditions, [*blocks, op.orelse]


def exposed(program: ir.Program) -> frozenset[str]:
    """The tensors that are returned or written to by operators, and those of which they are views:
    what torch knows of these (that writes count, say) is seen outside."""
    found: set[str] = set()
    for op in reversed(list(walk(program.ops))):
        match op:
            case ir.Return():
                found |= set(uses(op))
            case ir.ExternCall():
                found |= set(op.mutates)
            case ir.CopyBack():
                found.add(op.dst)
        source = alias_source(op)
        if source is not None and not found.isdisjoint(name for name, _ in definitions(op)):
            found.add(source)
    return frozenset(found)
