"""Programs on several GPUs: launches run where their tensors are."""

from dataclasses import replace

from wrapper_ir.analysis import definitions, first_device, uses, walk
from wrapper_ir.ops import Describe, DeviceGuard, Launch, Op, Program, Workspace


def guarded(program: Program) -> Program:
    """`launch a (x0); launch b (x1)` -> `launch a (x0); device cuda:1; launch b (x1)`, where it has
    no guards yet."""
    places = {p.name: p.type.device for p in program.params if p.type is not None}
    for op in walk(program.ops):
        places |= {name: type.device for name, type in definitions(op)}
        if isinstance(op, Describe):
            places[op.out] = places[op.src]
    current, ops = first_device(program), list[Op]()
    for op in program.ops:
        used = [n for inner in walk([op]) if isinstance(inner, Launch) for n in uses(inner)]
        used += [op.out] if isinstance(op, Workspace) else []
        there = next((places[n] for n in used if places[n].kind == "cuda"), current)
        if there is not None and there != current:
            ops.append(DeviceGuard(there))
            current = there
        ops.append(op)
    return replace(program, ops=tuple(ops))
