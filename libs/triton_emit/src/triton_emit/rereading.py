"""Rows that are read twice rather than held: the second reading finds them in the caches."""

from __future__ import annotations

from loop_ir import Compute, Kernel, Reduce, Scan, Store
from triton_emit.errors import UnsupportedKernel
from triton_emit.ssa import clean, loops

_FOLDS = frozenset(("sum", "max", "min"))
# What a second loop computes again for less than another program would wait.
_CHEAP = frozenset(("cast", "narrow", "abs", "neg", "add", "sub", "mul", "maximum", "minimum"))


def rereads(kernel: Kernel) -> bool:
    """A row, one piece of memory, is read for its sums or extremes, then read again for what is
    stored of each element: a second loop would compute little of the first one's again."""
    try:
        found = [scope for scope in loops(clean(kernel)) if scope.axes]
    except UnsupportedKernel:
        return False
    if len(found) != 2 or any(len(scope.axes) > 1 for scope in found):
        return False
    first, second = (scope.body for scope in found)
    folds = [s for s in first if isinstance(s, Reduce | Scan)]
    again = [s for s in first if isinstance(s, Compute) and s in second]
    return (
        bool(folds)
        and all(isinstance(s, Reduce) and s.op in _FOLDS for s in folds)
        and not any(isinstance(s, Store) for s in first)
        and any(isinstance(s, Store) for s in second)
        and not any(isinstance(s, Reduce | Scan) for s in second)
        and all(s.op in _CHEAP for s in again)
    )


def divides(kernel: Kernel) -> bool:
    """Quotients are stored of elements: several operations of each."""
    return any(
        isinstance(s, Compute) and s.op in ("div", "near_div") and s.dtype.is_float
        for phase in kernel.phases
        if phase.axes
        for s in phase.body
    )
