"""Programs on several GPUs: launches run where their tensors are."""

from dataclasses import replace

from wrapper_ir.analysis import first_device, types_of, uses, walk
from wrapper_ir.ops import DeviceGuard, Launch, Op, Program, Workspace


def guarded(program: Program) -> Program:
    """`launch a (x0); launch b (x1)` -> `launch a (x0); device cuda:1; launch b (x1)`, where none
    stands yet."""
    types = types_of(program)
    current, ops = first_device(program), list[Op]()
    for op in program.ops:
        if isinstance(op, DeviceGuard):
            current = op.device
        used = [n for inner in walk([op]) if isinstance(inner, Launch) for n in uses(inner)]
        used += [op.out] if isinstance(op, Workspace) else []
        places = (types[name].device for name in used)
        there = next((place for place in places if place.kind == "cuda"), current)
        if there is not None and there != current:
            ops.append(DeviceGuard(there))
            current = there
        ops.append(op)
    return replace(program, ops=tuple(ops))
