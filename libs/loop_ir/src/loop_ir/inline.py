"""A cheap pointwise producer computed where it is loaded, at whatever point that is.

    mask = where(m[i0] == 0, -inf, 0), i0 < 64      (own kernel, stored)
    s[i0*64 + i1] + mask[i1], i0, i1 < 64   ->   s[i0*64 + i1] + where(m[i1] == 0, -inf, 0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy

from loop_ir.affine import linear, nonnegative, product, quotient, same, substitute
from loop_ir.align import Mismatch
from loop_ir.analysis import (
    defined_values,
    expression,
    inner_axes,
    is_pointwise,
    statements,
    used_values,
)
from loop_ir.combine import fresh_name, rename_apart, union_origins, union_symbols
from loop_ir.nodes import (
    Axis,
    Compute,
    Const,
    Indirect,
    Kernel,
    Load,
    Phase,
    Stmt,
    Store,
)
from loop_ir.passes import cse
from loop_ir.rewrite import (
    Substitution,
    Unstageable,
    is_in_place,
    items_of,
    map_expressions,
    ranges_of,
    rename_defs,
    rename_uses,
    simplify_with,
    stage,
    union_buffers,
    used_buffers,
)
from wrapper_ir.types import DType


def inline(producer: Kernel, consumer: Kernel, buffer: str) -> Kernel | Mismatch:
    """`consumer` with its loads of `buffer` replaced by what `producer` stores there."""
    if not is_pointwise(producer):
        return Mismatch(f"{producer.name} reduces, so it is not computed again")
    if is_in_place(producer) or is_in_place(consumer):
        return Mismatch("one of them changes a buffer in place")
    stores = [s for s in statements(producer) if isinstance(s, Store) and s.buffer == buffer]
    if len(stores) != 1 or stores[0].mode != "set" or stores[0].mask is not None:
        return Mismatch(f"{producer.name} writes {buffer} in part or adds to it")
    store = stores[0]
    written = {s.buffer for s in statements(consumer) if isinstance(s, Store)}
    body = _slice(producer, store)
    if any(isinstance(s, Load) and s.buffer in written for s in body):
        return Mismatch(f"{consumer.name} changes what {producer.name} reads")
    lows = tuple((sympy.Symbol(s.name, integer=True), max(0, s.low or 0))
                 for s in union_symbols(producer.symbols, consumer.symbols))  # fmt: skip
    phases: list[Phase] = []
    for phase in consumer.phases:
        out: list[Stmt] = []
        axes = (*consumer.axes, *phase.axes)
        names: dict[str, str] = {}
        for original in phase.body:
            stmt = rename_uses(original, names)
            if not (isinstance(stmt, Load) and stmt.buffer == buffer):
                out.append(stmt)
                continue
            point = locate(store.index, producer.axes, stmt.index, axes, lows)
            if point is None:
                return Mismatch(
                    f"the index [{stmt.index}] of {buffer} gives no point of {producer.name}"
                )
            here = replace(phase, body=tuple(out))
            shell = replace(consumer, phases=(*consumer.phases, *phases, here))
            out += _copy(producer, body, store, stmt, point, shell)
        phases.append(replace(phase, body=tuple(out)))
    kernel = replace(
        consumer,
        buffers=union_buffers(
            [replace(b, written=False) for b in producer.buffers], consumer.buffers
        ),
        phases=tuple(phases),
        symbols=union_symbols(producer.symbols, consumer.symbols),
        origins=union_origins(producer.origins, consumer.origins),
    )
    inner = inner_axes(kernel)
    if inner:
        try:
            kernel = replace(kernel, phases=stage(items_of(kernel), inner))
        except Unstageable as e:
            return Mismatch(str(e))
    return used_buffers(cse.eliminate(kernel))


def _slice(kernel: Kernel, store: Store) -> list[Stmt]:
    """The statements that the stored value depends on, in order."""
    needed: set[object] = {store.value}
    body: list[Stmt] = []
    for stmt in reversed(list(statements(kernel))):
        results = (stmt.symbol,) if isinstance(stmt, Indirect) else defined_values(stmt)
        if not any(r in needed for r in results):
            continue
        needed.update(used_values(stmt))
        expr = expression(stmt)
        if expr is not None:
            needed.update(expr.free_symbols)
        body.append(stmt)
    return body[::-1]


def _copy(
    producer: Kernel,
    body: Sequence[Stmt],
    store: Store,
    load: Load,
    point: Substitution,
    shell: Kernel,
) -> list[Stmt]:
    """The producer's statements at `point`, the last one named as `load`."""
    part = replace(producer, phases=(replace(producer.phases[0], body=(*body, store)),))
    part = rename_apart(part, shell)
    ranges = ranges_of(shell)
    out: list[Stmt] = []
    for stmt in part.phases[0].body[:-1]:
        stmt = map_expressions(
            stmt, lambda e: simplify_with(substitute(e, point), ranges)
        )
        if isinstance(stmt, Load) and load.mask is not None:
            if stmt.mask is None:
                stmt = replace(stmt, mask=load.mask)
            else:
                both = fresh_name(f"{stmt.out}_mask", {n for s in out for n in defined_values(s)})
                out.append(Compute(both, "and", (stmt.mask, load.mask), DType.bool_))
                stmt = replace(stmt, mask=both)
        out.append(stmt)
    last = part.phases[0].body[-1]
    assert isinstance(last, Store)
    if load.mask is not None:
        other = fresh_name(f"{load.out}_other", {n for s in out for n in defined_values(s)})
        out.append(Const(other, load.other, load.dtype))
        out.append(Compute(load.out, "where", (load.mask, last.value, other), load.dtype))
        return out
    return _renamed(out, last.value, load.out)


def _renamed(body: list[Stmt], old: str, new: str) -> list[Stmt]:
    names = {old: new}
    return [rename_defs(rename_uses(s, names), names) for s in body]


def locate(
    store: sympy.Expr,
    producer: Sequence[Axis],
    load: sympy.Expr,
    axes: Sequence[Axis],
    lows: tuple[tuple[sympy.Symbol, int], ...],
) -> Substitution | None:
    """The producer's point, in terms of the consumer's axes, at which `store` equals `load`.

    The store index must be a mixed-radix number of the producer's axes (each stride the next
    one times its extent); the terms of the load index are then its digits. Digits are found
    without division: each term goes to the largest stride that divides its coefficient, and the
    sum within a digit must stay below the digit's extent.
    """
    form = linear(store, tuple(a.symbol for a in producer))
    given = linear(load, tuple(a.symbol for a in axes))
    if form is None or given is None or form.rest != 0:
        return None
    # The two kernels may use the same symbols for different axes.
    radix = {a.symbol: a.extent for a in producer}
    extents = {a.symbol: a.extent for a in axes}
    digits: list[tuple[sympy.Symbol, sympy.Expr]] = []
    step: sympy.Expr = sympy.S.One
    left = [a for a in producer if a.extent != 1]
    while left:
        found = [a for a in left if same(form.coefficient(a.symbol), step)]
        if len(found) != 1:
            return None
        left.remove(found[0])
        digits.insert(0, (found[0].symbol, step))
        step = product((step, found[0].extent))
    parts: dict[sympy.Symbol, sympy.Expr] = {s: sympy.S.Zero for s, _ in digits}
    highs: dict[sympy.Symbol, sympy.Expr] = {s: sympy.S.Zero for s, _ in digits}
    for axis, coefficient in given.terms:
        if extents[axis] == 1:
            continue
        for digit, stride in digits:
            scale = quotient(coefficient, stride)
            if scale is not None and nonnegative(scale, lows):
                parts[digit] += scale * axis
                highs[digit] += scale * (extents[axis] - 1)
                break
        else:
            return None
    rest = given.rest
    for digit, stride in digits:
        if rest == 0:
            break
        scale = quotient(rest, stride)
        if scale is not None and nonnegative(scale, lows):
            parts[digit] += scale
            highs[digit] += scale
            rest = sympy.S.Zero
    if rest != 0:
        return None
    inside = all(
        same(highs[s], radix[s] - 1)
        or nonnegative(sympy.expand(radix[s] - 1 - highs[s]), lows)
        for s, _ in digits
    )
    if not inside:
        return None
    return tuple((a.symbol, parts.get(a.symbol, sympy.S.Zero)) for a in producer)
