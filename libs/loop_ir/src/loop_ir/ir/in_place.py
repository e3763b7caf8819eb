"""Kernels that read a buffer and write it: which of them are right whatever runs first."""

from itertools import combinations

import sympy

from loop_ir.ir.affine import disjoint, linear, same
from loop_ir.ir.analysis import lows_of
from loop_ir.ir.names import operands, results, statements
from loop_ir.ir.nodes import Indirect, Kernel, Load, Phase, Reduce, Store


def in_place_buffers(kernel: Kernel) -> frozenset[str]:
    """Buffers that the kernel loads and stores to."""
    stored = {s.buffer for s in statements(kernel) if isinstance(s, Store)}
    return frozenset(
        s.buffer for s in statements(kernel) if isinstance(s, Load) and s.buffer in stored
    )


def is_in_place(kernel: Kernel) -> bool:
    """Whether the kernel stores to a buffer that it loads."""
    return bool(in_place_buffers(kernel))


def hazard(kernel: Kernel) -> str | None:
    """Why points of the kernel could read what others have written already; None where they cannot:
    each reads a buffer only where it alone writes it, before it does, and nothing after the store
    needs what was read at inner points (a looped schedule would read it again).

        x[i0] = x[i0] + 1, y[i0] = x[i0]     ->  None: y's is a load before the store
        x[i0] = x[i0 - 1]                    ->  x is read at other points
        x[t0] = x[t0] + 1, t0 = indirect     ->  several points may write one element
    """
    for name in sorted(in_place_buffers(kernel)):
        loads = [s for s in statements(kernel) if isinstance(s, Load) and s.buffer == name]
        stores = [s for s in statements(kernel) if isinstance(s, Store) and s.buffer == name]
        if len(stores) != 1 or stores[0].mode != "set":
            return f"{name} is added to and read"
        (store,) = stores
        if any(not same(load.index, store.index) for load in loads):
            return f"{name} is read at other points than it is written"
        number = next(n for n, p in enumerate(kernel.phases) if store in p.body)
        if not _is_one_to_one(kernel, store, number):
            return f"several points may write one element of {name}"
        order = [s for s in statements(kernel) if s is store or s in loads]
        if order[-1] is not store:
            return f"{name} is read after it is written"
        if _needed_later(kernel, loads, number):
            return f"what is read of {name} is needed after it is written"
    return None


def stores_apart(kernel: Kernel) -> bool:
    """Whether no two statements store the same element, as far as is known, and no point reads what
    another one writes."""
    stores = [
        (s, {a.symbol: a.extent for a in (*kernel.axes, *phase.axes)})
        for phase in kernel.phases
        for s in phase.body
        if isinstance(s, Store)
    ]
    lows = lows_of(kernel.symbols)
    return hazard(kernel) is None and all(
        a.buffer != b.buffer or disjoint(a.index, b.index, one, two, lows)
        for (a, one), (b, two) in combinations(stores, 2)
    )


def _is_one_to_one(kernel: Kernel, store: Store, number: int) -> bool:
    """Whether each point has an element of its own, as far as the index tells: it moves along each
    axis, and is no data."""
    indirect = {s.symbol for s in statements(kernel) if isinstance(s, Indirect)}
    if store.index.free_symbols & indirect:
        return False
    axes = [a for a in (*kernel.axes, *kernel.phases[number].axes) if a.extent != 1]
    form = linear(store.index, tuple(a.symbol for a in axes))
    return form is not None and len(form.terms) == len(axes)


def _needed_later(kernel: Kernel, loads: list[Load], stored: int) -> bool:
    """Whether a phase after number `stored` uses what varies over inner axes and depends on the
    loads."""
    varying: set[str | sympy.Symbol] = set()
    for number, phase in enumerate(kernel.phases):
        for stmt in phase.body:
            depends = not varying.isdisjoint(operands(stmt))
            if depends and number > stored:
                return True
            if isinstance(stmt, Reduce):
                continue
            if depends or (phase.axes and stmt in loads):
                varying.update(results(stmt))
    return False


def can_share(kernel: Kernel) -> bool:
    """Whether the inner points of a kernel without a hazard may be shared between programs, and its
    phases between kernels: what it reads and writes at inner points, it needs only at that point
    until it is written (a squared distance to a mean that is not known yet would read it again);
    what it reads and writes once a row is none of its inner points' business."""
    inside = {s.buffer for p in kernel.phases if p.axes for s in p.body if isinstance(s, Store)}
    inside &= in_place_buffers(kernel)
    again = any(
        isinstance(s, Reduce) and s.op == "welford" and not inside.isdisjoint(_stored(p))
        for p in kernel.phases
        for s in p.body
    )
    return not again and _stays_outside(kernel, in_place_buffers(kernel) - inside)


def stays_outside(kernel: Kernel) -> bool:
    """Whether what a kernel reads and writes is none of its inner points' business: it is loaded
    and stored once a row, and nothing at inner points depends on it."""
    return _stays_outside(kernel, in_place_buffers(kernel))


def _stored(phase: Phase) -> set[str]:
    return {s.buffer for s in phase.body if isinstance(s, Store)}


def _stays_outside(kernel: Kernel, names: frozenset[str]) -> bool:
    """Whether the buffers are loaded and stored once a row, and nothing at inner points depends on
    them."""
    old: set[str | sympy.Symbol] = set()
    for phase in kernel.phases:
        for stmt in phase.body:
            mine = isinstance(stmt, Load | Store) and stmt.buffer in names
            depends = not old.isdisjoint(operands(stmt))
            if phase.axes and (mine or depends):
                return False
            if (mine and isinstance(stmt, Load)) or depends:
                old.update(results(stmt))
    return True
