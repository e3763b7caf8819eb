"""How many neighbouring elements a thread of a flat kernel should take at once.

Triton gives each thread as many as its best aligned access can move in 16 bytes. An access that
cannot move them together then takes them one by one, in instructions whose lanes lie 16 bytes
apart: `y[i0*4096 + i1] = x[i0*4097 + i1]` of 16-bit elements is one store and eight loads a thread,
each of which touches every cache line that the eight together need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

import sympy

from loop_ir import Axis, Indirect, Kernel, Load, Store
from triton_emit.ssa import statements

_WIDEST = 16  # bytes of the widest access, and elements of the widest vector
_SECTOR = 32  # bytes that memory moves together
# One part in so many of a kernel's bytes decides how wide its vectors are.
_SHARE = 3


@dataclass(frozen=True)
class _Access:
    """`bytes`: moved in all; `whole`: elements in 16 bytes; `given`: how many Triton gives a thread
    for this access; `together`: how many of them it can move at once."""

    bytes: int
    whole: int
    given: int
    together: int


def vector(kernel: Kernel, count: Callable[[sympy.Expr], int]) -> int:
    """The widest vector, in elements, by which accesses of less than a third of a flat kernel's
    bytes are split; 0 where that is what Triton takes anyway. `count`: the value of a size.

    y[i0*4096 + i1] = x[i0*4097 + i1]         ->  1
    y[i0*4096 + i1] = x[i0*4096 + i1]         ->  0
    y[i0] = x[i0], i0 < 4097*4097             ->  1: its mask cuts a vector at the end
    y[i0] = x[2*i0]                           ->  1: neighbours that no vector holds
    y[i0*4096 + i1] = x[i0*s0 + i1]           ->  0: s0 may be a multiple of 16
    """
    found = _accesses(kernel, count)
    given = max((a.given for a in found), default=1)
    total = sum(a.bytes for a in found)
    width = given
    while width > 1:
        split = sum(a.bytes for a in found if a.together < min(width, a.whole))
        if split * _SHARE < total:
            break
        width //= 2
    return width if width < given else 0


def _accesses(kernel: Kernel, count: Callable[[sympy.Expr], int]) -> list[_Access]:
    types = {b.name: b.type for b in kernel.buffers}
    points = sympy.Mul(*(a.extent for a in kernel.axes))
    found: dict[tuple[str, type, sympy.Expr], _Access] = {}
    loaded = {s.symbol for _, s in statements(kernel) if isinstance(s, Indirect)}
    for _, stmt in statements(kernel):
        if not isinstance(stmt, Load | Store) or (isinstance(stmt, Store) and stmt.mode == "add"):
            continue
        tensor = types[stmt.buffer]
        size = tensor.dtype.itemsize
        moved = size * min(count(points), count(sympy.Mul(*tensor.size)))
        whole = max(1, _WIDEST // size)
        run = neighbours(stmt.index, kernel.axes, size, frozenset(loaded))
        if run is None:
            access = _Access(moved, whole, 1, whole)
        else:
            access = _Access(moved, whole, min(run, whole), min(run, whole, _divisor(points)))
        found[stmt.buffer, type(stmt), stmt.index] = access
    return list(found.values())


def neighbours(
    index: sympy.Expr,
    axes: tuple[Axis, ...],
    itemsize: int,
    loaded: frozenset[sympy.Symbol] = frozenset(),
) -> int | None:
    """How many elements, from each multiple of that number of points on, lie side by side in memory
    and begin at a multiple of it: a power of two, 16 at most. Sizes that are not known are taken
    for multiples of 16, `loaded` symbols for any integers. None where the elements that a thread
    takes make no difference, or are not known: the index does not move along the last axis, leaves
    the sector with each step, or is not linear in the axes.

    4096*i0 + i1 + 4, i0 < 8, i1 < 4096       ->  4
    4104*i0 + i1, i0 < 8, i1 < 4097           ->  1: the rows of points have an odd length
    2*i0                                      ->  1
    """
    axes = tuple(a for a in axes if a.extent != 1)
    symbols = [a.symbol for a in axes]
    index = sympy.expand(index)
    steps = [index.coeff(s) for s in symbols]
    rest = sympy.expand(index - sympy.Add(*(c * s for c, s in zip(steps, symbols, strict=True))))
    if not axes or any(set(symbols) & e.free_symbols for e in (rest, *steps)):
        return None
    last = steps[-1]
    if last == 0 or not last.is_Integer or abs(int(last)) * itemsize >= _SECTOR:
        return None
    if last != 1:
        return 1
    run = min(_divisor(t, loaded) for t in sympy.Add.make_args(rest))
    inside, joined = axes[-1].extent, True
    for axis, step in zip(axes[-2::-1], steps[-2::-1], strict=True):
        if joined and sympy.expand(step - inside) == 0:
            inside = inside * axis.extent
            continue
        if joined:
            run = min(run, _divisor(inside))
        joined = False
        run = min(run, _divisor(step))
    return run


def _divisor(e: sympy.Expr, loaded: frozenset[sympy.Symbol] = frozenset()) -> int:
    """The largest power of two up to 16 that may divide a term of sizes, and divides it whatever
    the `loaded` symbols are."""
    number, others = sympy.sympify(e).as_coeff_Mul()
    if others.free_symbols - loaded or not number.is_Integer:
        return _WIDEST
    return gcd(int(number), _WIDEST)
