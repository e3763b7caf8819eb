"""Formulas that have a cheaper form, many of them when only 16-bit results are stored."""

import math
from dataclasses import replace

from loop_ir import Compute, Const, DType, Kernel, Stmt, Store, reaching_steps
from loop_ir.ir import map_statements, operands, results
from triton_emit.bounded import within_bounds
from triton_emit.ssa import clean

_NEAR = {op: f"near_{op}" for op in ("div", "exp", "sigmoid", "tanh", "erf")}
_HALVES = (DType.bf16, DType.f16)
_CHEAPER = frozenset((*_NEAR, "log1p"))


def _stored(kernel: Kernel) -> set[DType]:
    types = {b.name: b.type.dtype for b in kernel.buffers}
    return {types[s.buffer] for p in kernel.phases for s in p.body if isinstance(s, Store)}


def cheaper(kernel: Kernel, rounded: bool = False) -> Kernel:
    """The kernel with operations of this library's own, each in place of formulas in f32. rounded:
    what is stored is on its way to results of 16 bits, and counts as one.

    `0.5*x * (erf(x * sqrt(0.5)) + 1)` -> `gelu(x)`, when no more than 16 bits of any result are
    stored and the value reaches no step: a third of the instructions (`helpers.gelu_f32`), to 3e-5
    of the value, 1.5e-4 below x = -4.2. Half a unit in the last place of f16 is at least 2.4e-4.

    `log1p(exp(-|x|))` -> `log1p_unit(exp(-|x|))`: as exact, for half of what `log1p` costs;
    of other exponentials `log1p_positive`, without what it does below 0.

    `x / y` -> `near_div(x, y)`, and `exp`, `sigmoid`, `tanh` and `erf` likewise, a few ulp off,
    where all that is made of the value is stored as floats of 16 bits, and reaches no step.

    And what `within_bounds` knows of values that are not large."""
    body = [s for phase in kernel.phases for s in phase.body]
    if not any(isinstance(s, Compute) and s.op in _CHEAPER for s in body):
        return within_bounds(kernel)
    narrow = rounded or all(t.itemsize <= 2 for t in _stored(kernel))
    steps = reaching_steps(kernel)
    made = {name: s for s in body for name in results(s)}
    exact = _exact(kernel, steps, rounded)

    def cheap(s: Stmt) -> Stmt:
        if not isinstance(s, Compute) or s.dtype is DType.f64:
            return s
        x = _gelu_of(s, made) if narrow and s.out not in steps else None
        if x is not None:
            return Compute(s.out, "gelu", (x,), DType.f32)
        if s.op == "log1p" and s.dtype is DType.f32:
            inner = made.get(s.args[0])
            if _in_unit(inner, made):
                return replace(s, op="log1p_unit")
            if isinstance(inner, Compute) and inner.op == "exp":
                return replace(s, op="log1p_positive")
        return replace(s, op=_NEAR[s.op]) if s.op in _NEAR and s.out not in exact else s

    found = map_statements(kernel, cheap)
    return within_bounds(kernel if found == kernel else clean(found))


def _exact(kernel: Kernel, steps: frozenset[str], rounded: bool) -> set[object]:
    """The values of which something else is stored than floats of 16 bits, or a step is made. What
    is made of a value that was rounded to 16 bits counts as that, if it is stored in no fewer."""
    types = {b.name: b.type.dtype for b in kernel.buffers}
    floats = _stored(kernel) <= {*_HALVES, DType.f32, DType.f64}
    found: set[object] = set(steps)
    for s in reversed([s for phase in kernel.phases for s in phase.body]):
        wide = isinstance(s, Store) and types[s.buffer] not in _HALVES
        rounds = floats and isinstance(s, Compute) and s.dtype in _HALVES and s.out not in steps
        if (wide and not rounded) or (not rounds and not found.isdisjoint(results(s))):
            found.update(operands(s))
    return found


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
