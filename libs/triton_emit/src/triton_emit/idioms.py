"""Formulas that have a much cheaper form when only 16-bit results are stored."""

from __future__ import annotations

import math
from dataclasses import replace

from loop_ir import Compute, Const, DType, Kernel, Stmt, Store, reaching_steps
from loop_ir.ir import results
from triton_emit.ssa import clean


def may_approximate(kernel: Kernel, *ops: str) -> bool:
    """Whether the results of `ops` in f32 may be a few ulp off: only floats of 16 bits are stored,
    and none of the results meets an operation where a small difference becomes a large one
    (`floor(x / y)`, `x / y == 2`)."""
    if not _stored(kernel) <= {DType.bf16, DType.f16}:
        return False
    computed = [s for phase in kernel.phases for s in phase.body if isinstance(s, Compute)]
    if any(s.op == "truncdiv" for s in computed):  # a quotient, rounded
        return False
    steps = reaching_steps(kernel)
    return not any(s.op in ops and s.out in steps for s in computed)


def _stored(kernel: Kernel) -> set[DType]:
    types = {b.name: b.type.dtype for b in kernel.buffers}
    return {types[s.buffer] for p in kernel.phases for s in p.body if isinstance(s, Store)}


def cheaper(kernel: Kernel) -> Kernel:
    """`0.5*x * (erf(x * sqrt(0.5)) + 1)` in f32 -> `gelu(x)`, when no more than 16 bits of any
    result are stored and the value reaches no step; `log1p(exp(-|x|))` -> `log1p_unit(exp(-|x|))`.

    Both are operations of this library's own. `helpers.gelu_f32` takes a third of the instructions,
    to 3e-5 of the value, 1.5e-4 below x = -4.2. Half a unit in the last place of f16 is at least
    2.4e-4. `helpers.log1p_unit_f32` is as exact as `log1p_f32`, for half of what it costs.
    """
    body = [s for phase in kernel.phases for s in phase.body if isinstance(s, Compute)]
    if {"erf", "log1p"}.isdisjoint(s.op for s in body):
        return kernel
    narrow = all(t.itemsize <= 2 for t in _stored(kernel))
    steps = reaching_steps(kernel)
    made = {name: s for phase in kernel.phases for s in phase.body for name in results(s)}
    cheap: dict[Stmt, Stmt] = {}
    for s in body:
        x = _gelu_of(s, made) if narrow and s.out not in steps else None
        if x is not None:
            cheap[s] = Compute(s.out, "gelu", (x,), DType.f32)
        elif s.op == "log1p" and s.dtype is DType.f32 and _in_unit(made.get(s.args[0]), made):
            cheap[s] = replace(s, op="log1p_unit")
    if not cheap:
        return kernel
    phases = tuple(replace(p, body=tuple(cheap.get(s, s) for s in p.body)) for p in kernel.phases)
    return clean(replace(kernel, phases=phases))


def _in_unit(stmt: Stmt | None, made: dict[str, Stmt]) -> bool:
    """Whether a value is `exp(-|x|)`, which lies in [0, 1]."""
    for op in ("exp", "neg", "abs"):
        if not isinstance(stmt, Compute) or stmt.op != op:
            return False
        stmt = made.get(stmt.args[0])
    return True


def _gelu_of(stmt: Stmt, made: dict[str, Stmt]) -> str | None:
    """The x of a statement that computes the exact GELU of x."""
    for half, one_plus in _either(stmt, "mul"):
        x = _scaled(half, 0.5, made)
        for inner, one in _either(made.get(one_plus), "add"):
            erf = made.get(inner)
            if not _is(one, 1.0, made) or not isinstance(erf, Compute) or erf.op != "erf":
                continue
            if x is not None and _scaled(erf.args[0], math.sqrt(0.5), made) == x:
                return x
    return None


def _either(stmt: Stmt | None, op: str) -> list[tuple[str, str]]:
    """The arguments of an f32 operation, both ways round."""
    if isinstance(stmt, Compute) and stmt.op == op and stmt.dtype is DType.f32:
        a, b = stmt.args
        return [(a, b), (b, a)]
    return []


def _scaled(name: str, factor: float, made: dict[str, Stmt]) -> str | None:
    """x where `name` is `x * factor`."""
    for x, other in _either(made.get(name), "mul"):
        if _is(other, factor, made):
            return x
    return None


def _is(name: str, value: float, made: dict[str, Stmt]) -> bool:
    const = made.get(name)
    return isinstance(const, Const) and math.isclose(const.value, value, rel_tol=1e-7)
