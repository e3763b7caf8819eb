"""Counts in 32 bits what fits."""

from dataclasses import replace

import sympy

from loop_ir.ir.body import Body, fresh_values
from loop_ir.ir.names import value_types
from loop_ir.ir.nodes import Compute, Const, Kernel, Phase, Scan, Stmt
from tensor_ir import DType

# The largest magnitude of what these hold.
_LARGEST = {DType.bool_: 1, DType.u8: 255, DType.i8: 128, DType.i16: 1 << 15}


def narrow(kernel: Kernel) -> Kernel:
    """`w = cast(x: bool) : i64; v = scan sum(w) : i64  ->  v = cast(scan sum(cast(w) : i32)) : i64`
    where no sum of a line can leave 32 bits: those of 64 take twice the registers and shuffles."""
    made = {s.out: s for p in kernel.phases for s in p.body if isinstance(s, Compute | Const)}
    types = value_types(kernel)

    def largest(name: str) -> float:
        """The largest magnitude of an integer."""
        match made.get(name):
            case Const(value=value):
                return abs(value)
            case Compute(op="cast", args=(arg,)) if types[arg] in _LARGEST:
                return _LARGEST[types[arg]]
            case Compute(op="where", args=(_, one, other)):
                return max(largest(one), largest(other))
        return float("inf")

    def fits(stmt: Stmt, phase: Phase) -> bool:
        if not (isinstance(stmt, Scan) and stmt.op == "sum" and stmt.dtype is DType.i64):
            return False
        count = sympy.Mul(*(a.extent for a in phase.axes))
        return count.is_Integer and int(count) * largest(stmt.args[0]) < 1 << 31

    if not any(fits(s, p) for p in kernel.phases for s in p.body):
        return kernel
    body = Body(fresh_values(kernel))
    phases = []
    for phase in kernel.phases:
        start = len(body)
        for stmt in phase.body:
            if fits(stmt, phase) and isinstance(stmt, Scan):
                arg = body.compute(DType.i32, "cast", *stmt.args)
                total = next(body.fresh)
                body.append(replace(stmt, out=total, args=(arg,), dtype=DType.i32))
                body.compute(DType.i64, "cast", total, out=stmt.out)
            else:
                body.append(stmt)
        phases.append(replace(phase, body=tuple(body[start:])))
    return replace(kernel, phases=tuple(phases))
