"""Rows that are read again rather than held: later readings find them in the caches."""

from collections.abc import Sequence

from loop_ir import Compute, Kernel, Reduce, Scan, Stmt, Store
from triton_emit.errors import UnsupportedKernel
from triton_emit.ssa import clean, loops

_FOLDS = frozenset(("sum", "max", "min"))
# What a second loop computes again for less than another program would wait.
_CHEAP = frozenset(("cast", "narrow", "abs", "neg", "add", "sub", "mul", "maximum", "minimum"))


def times_read(kernel: Kernel) -> int:
    """How often a row, one piece of memory, is read: for its sums or extremes, perhaps for those of
    what these change, and for what is stored of each element; 0 where anything else is done, or
    later loops would compute much of the earlier ones' again."""
    try:
        found = [scope for scope in loops(clean(kernel)) if scope.axes]
    except UnsupportedKernel:
        return 0
    if len(found) < 2 or any(len(scope.axes) > 1 for scope in found):
        return 0
    *folding, last = (scope.body for scope in found)
    met: set[Stmt] = set()
    for body in (*folding, last):
        if any(isinstance(s, Compute) and s in met and s.op not in _CHEAP for s in body):
            return 0
        met.update(body)
    stores = any(isinstance(s, Store) for s in last)
    if not stores or any(isinstance(s, Reduce | Scan) for s in last):
        return 0
    return len(found) if all(map(_folds, folding)) else 0


def computes_again(kernel: Kernel) -> int:
    """How many loops over a row there would be, the last of which would compute functions again
    that the one before it did; 0 where it would not."""
    try:
        found = [scope.body for scope in loops(clean(kernel)) if scope.axes]
    except UnsupportedKernel:
        return 0
    *_, before, last = ([], *found)
    costly = any(isinstance(s, Compute) and s.op not in _CHEAP and s in before for s in last)
    return len(found) if costly else 0


def _folds(body: Sequence[Stmt]) -> bool:
    """A loop does nothing but fold its elements, in any order."""
    folds = [s for s in body if isinstance(s, Reduce | Scan)]
    plain = all(isinstance(s, Reduce) and s.op in _FOLDS for s in folds)
    return bool(folds) and plain and not any(isinstance(s, Store) for s in body)
