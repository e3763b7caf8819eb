"""Sums over rows of which one element differs from all others."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from loop_ir.ir.analysis import inner_axes, scans
from loop_ir.ir.body import Body, fresh_values
from loop_ir.ir.names import Name, defined_values, varying
from loop_ir.ir.nodes import Axis, Compute, Index, Indirect, Kernel, Reduce, Stmt, Store
from loop_ir.ir.staging import Item, items_of, stage
from tensor_ir import DType


def rewrite(kernel: Kernel) -> Kernel:
    """`sum over r0 < n of f(r0 == t) -> f(true) + (n - 1) * f(false)` where `0 <= t < n`, else
    `n * f(false)`, when f depends on r0 by that comparison alone (the gradient of a picked element,
    as of a cross entropy). The row is not walked over for it."""
    inner = inner_axes(kernel)
    if not inner or len(inner) != 1 or scans(kernel):
        return kernel
    fresh = fresh_values(kernel)
    items: list[Item] = []
    before: list[Stmt] = []
    changed = False
    for item in items_of(kernel):
        made = _sum(item.stmt, before, inner[0], fresh) if isinstance(item.stmt, Reduce) else None
        before += [item.stmt] if made is None else made
        items += [item] if made is None else [Item(s) for s in made]
        changed = changed or made is not None
    return replace(kernel, phases=stage(items, inner)) if changed else kernel


def _sum(
    stmt: Reduce, before: Sequence[Stmt], axis: Axis, fresh: Iterator[str]
) -> list[Stmt] | None:
    """What gives the result of a reduction of such a row, once a row; None if it is no such sum."""
    if stmt.op != "sum":
        return None
    found = varying(before, axis.symbol)
    needed = {*stmt.args}
    body: list[Compute] = []
    hot: Compute | None = None
    for s in reversed(before):
        if needed.isdisjoint(defined_values(s)) or found.isdisjoint(defined_values(s)):
            continue
        if not isinstance(s, Compute):
            return None
        if _is_place(s, before, axis, found):
            if hot is not None:
                return None
            hot = s
            continue
        needed.update(s.args)
        body.insert(0, s)
    if hot is None:
        return None
    place = next(a for a in hot.args if a not in found)
    (value,), dtype = stmt.args, stmt.dtype
    out = Body(fresh)

    def at(condition: bool) -> str:
        names = {hot.out: out.const(condition, DType.bool_)}
        for s in body:
            if s.op == "where" and s.args[0] == hot.out:
                chosen = s.args[1 if condition else 2]
                names[s.out] = names.get(chosen, chosen)
                continue
            args = (names.get(a, a) for a in s.args)
            names[s.out] = out.compute(s.dtype, s.op, *args)
        return names[value]

    one, other = at(True), at(False)
    known = (s for s in before if not isinstance(s, Store | Indirect))
    kind = next(s.dtype for s in known if place in defined_values(s))
    zero, end = out.const(0, kind), out.number(axis.extent, kind)
    inside = out.test("and", out.test("ge", place, zero), out.test("lt", place, end))
    number = out.compute(dtype, "cast", out.number(axis.extent - 1))
    others = out.compute(dtype, "mul", other, number)
    last = out.compute(dtype, "where", inside, one, other)
    out.compute(dtype, "add", last, others, out=stmt.outs[0])
    return out


def _is_place(stmt: Compute, before: Sequence[Stmt], axis: Axis, varies: set[Name]) -> bool:
    """`r0 == t` for a `t` that is the same all over the row."""
    if stmt.op != "eq" or len([a for a in stmt.args if a in varies]) != 1:
        return False
    (name,) = (a for a in stmt.args if a in varies)
    made = next(s for s in before if name in defined_values(s))
    return isinstance(made, Index) and made.expr == axis.symbol
