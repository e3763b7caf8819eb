"""When the places of scattered values are few: the values then wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import sympy
import torch
from torch import fx

from aten_lowering.meta import expr
from aten_lowering.registry import named

aten = torch.ops.aten
Sizes = Sequence[sympy.Expr]

# Places that a row has at most for elements that replace its own, or are added to them; and with
# more than two of them, questions that its elements ask.
_A_ROW, _QUESTIONS = 8, 8192
# Values for each place, from which on they wait for each other.
_CROWD = 16
# Places that ask all values: of rows, of less than a line of memory, and if nothing else gives the
# same sums in every run. (H200, 2**24 values in 64 x 64 places: 241 us, 43 of copies; 3 * 2**20 in
# 32 x 12: 40 us, 77 of copies, 794 in one place.)
_ROWS, _NUMBERS, _ORDERED = 8, 32, 512
_LINE = 16
# Numbers that all copies of places have: L2 adds up in as many at once.
_SPREAD = 1 << 15

_PUTS = (aten.index_put.default, aten._unsafe_index_put.default)
# Those that name a dimension and an index of as many dimensions, or a line of them.
_ALONG = named("scatter_add scatter.reduce scatter_reduce.two index_reduce")


@dataclass(frozen=True)
class Crowd:
    """Each of `values` rows of `columns` numbers goes to one of so many places. line: those of the
    numbers that lie side by side in a place."""

    places: sympy.Expr
    columns: sympy.Expr
    line: sympy.Expr
    values: sympy.Expr

    @staticmethod
    def of(size: Sizes, dims: Sequence[int], values: sympy.Expr) -> Crowd:
        """Of a tensor of which these dimensions are places."""
        places = sympy.Mul(*(size[d] for d in dims))
        columns = sympy.Mul(*(n for d, n in enumerate(size) if d not in dims))
        line = sympy.Mul(*size[max(dims, default=-1) + 1 :])
        return Crowd(places, columns, line, values)

    @property
    def _meets(self) -> bool:
        known = self.values.is_Integer
        some = self.places.is_Integer and self.places > 0
        return some and (not known or self.values >= _CROWD * self.places)

    @property
    def is_asked(self) -> bool:
        """Each of the places may ask all of the values."""
        thin = self.line.is_Integer and self.line < _LINE
        most = _NUMBERS if thin else _ROWS
        if torch.are_deterministic_algorithms_enabled():
            most = _ORDERED
        return self._meets and bool(self.places <= most)

    @property
    def copies(self) -> int:
        """Of the places, a power of two; 1 where that is not worth it."""
        if not (self._meets and self.values.is_Integer and self.columns.is_Integer):
            return 1
        most = min(_SPREAD // int(self.places * self.columns), int(self.values // self.places) // 8)
        return 1 << max(0, most.bit_length() - 1)


def is_few_a_row(index: Sizes, size: Sizes, dim: int) -> bool:
    """An index of a scatter along `dim` has few places for each row: each of its elements may ask
    whether it is one of them."""
    if not size or not index[dim].is_Integer or not 0 < index[dim] <= _A_ROW:
        return False
    asked = index[dim] * size[dim]
    if index[dim] > 2 and not (asked.is_Integer and asked <= _QUESTIONS):
        return False
    if len(index) != len(size):  # torch lets empty indices be of any rank
        return False
    return all(n == m for d, (n, m) in enumerate(zip(index, size, strict=True)) if d != dim)


def crowd_of(node: fx.Node) -> Crowd | None:
    """Of a node that combines values with what is at places that are data."""
    given: list[Any] = [*fx.map_arg(node.args, lambda n: n.meta["val"])]
    if node.target in _PUTS:
        x, indices, _, accumulate = (*given, False)[:4]
        dims = [d for d, i in enumerate(indices) if i is not None]
        chosen = [indices[d] for d in dims]
        if not accumulate or any(i.dtype is torch.bool for i in chosen):
            return None
        lines = zip_longest(*(reversed(i.shape) for i in chosen), fillvalue=1)
        values = [next((n for n in sizes if expr(n) != 1), 1) for sizes in lines]
    elif node.target in _ALONG and given[0].dim():
        x, dim, index = given[:3]
        dims = [dim % x.dim()]
        values = [index.shape[dims[0]] if index.dim() == x.dim() else index.numel()]
    else:
        return None
    size = [expr(n) for n in x.shape]
    return Crowd.of(size, dims, sympy.Mul(*map(expr, values)))
