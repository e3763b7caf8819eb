"""In which order the points of a kernel are visited."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy

from loop_ir import ATOMICS, Axis, Compute, Kernel, Load, Store
from loop_ir.ir import hazard, linear, statements

# Points of the last parallel axis that are reduced side by side, and that a pointwise kernel does
# at once; of a tile of one that transposes.
LANES, BLOCK, TILE = 64, 1024, 16
# Operations, about one of a vector each, for which threads are worth waking.
_WORTH = 1 << 18
_PLAIN_OPS = """
neg abs add sub mul maximum minimum eq ne lt le gt ge and or xor not where rarely cast narrow
bitcast floor ceil trunc round isnan isinf signbit fma shl shr
"""
_PLAIN = frozenset(_PLAIN_OPS.split())


@dataclass(frozen=True)
class Walk:
    """lanes: in vectors over the last parallel axis, `block` of its points at a time; else over the
    innermost axis of each phase. tile: the parallel axis that is cut into blocks of `TILE`, too.
    walked: sums over the last parallel axis are among the results. serial: one point after the
    other. worth: the number of points from which threads share them."""

    lanes: bool
    block: int = LANES
    tile: Axis | None = None
    walked: bool = False
    serial: bool = False
    worth: int = 0


def is_plain(op: str) -> bool:
    """Whether an operation takes about as long as an addition."""
    return op in _PLAIN


def walk_of(kernel: Kernel) -> Walk:
    """How the kernel is visited."""
    body = list(statements(kernel))
    modes = {s.mode for s in body if isinstance(s, Store)}
    serial = not modes.isdisjoint(ATOMICS) or hazard(kernel) is not None
    costs = (1 if not isinstance(s, Compute) or is_plain(s.op) else 12 for s in body)
    worth = _WORTH // max(1, sum(costs))
    pointwise = all(not p.axes for p in kernel.phases)
    if "sum" in modes or not kernel.axes:
        return Walk(False, walked="sum" in modes, serial=serial, worth=worth)
    if not pointwise:
        return Walk(_lies_across(kernel), serial=serial, worth=worth)
    tile = None if serial else _other_direction(kernel)
    return Walk(True, TILE if tile else BLOCK, tile, serial=serial, worth=worth)


def _strides(kernel: Kernel, inner: bool) -> Iterator[dict[sympy.Symbol, sympy.Expr]]:
    """What each access, at inner points or others, moves by along each axis."""
    for phase in kernel.phases:
        axes = tuple(a.symbol for a in (*kernel.axes, *phase.axes) if a.extent != 1)
        for stmt in phase.body:
            if isinstance(stmt, Load | Store) and bool(phase.axes) is inner:
                form = linear(stmt.index, axes)
                if form is not None:
                    yield dict(form.terms)


def _lies_across(kernel: Kernel) -> bool:
    """Whether more of what a kernel with inner axes reads and writes there lies along its last
    parallel axis than along an inner one."""
    last = kernel.axes[-1].symbol
    inner = {p.axes[-1].symbol for p in kernel.phases if p.axes}
    votes = 0
    for strides in _strides(kernel, inner=True):
        across = strides.get(last) == 1
        along = any(strides.get(s) == 1 for s in inner)
        votes += across - along
    return votes > 0


def _other_direction(kernel: Kernel) -> Axis | None:
    """The axis along which some of a pointwise kernel's memory lies, if other memory lies along
    the last axis."""
    *others, last = kernel.axes
    found = {
        next((a for a in others if strides.get(a.symbol) == 1), None)
        for strides in _strides(kernel, inner=False)
        if strides.get(last.symbol, 0) not in (0, 1)
    } - {None}
    return found.pop() if len(found) == 1 else None
