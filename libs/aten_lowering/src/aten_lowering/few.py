"""When the places of scattered values are few: the values then wait for each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import sympy
import torch
from torch import fx

from aten_lowering.meta import IntLike, expr

aten = torch.ops.aten
Sizes = Sequence[sympy.Expr]

# Places that a row has at most for elements that replace its own, or are added to them.
_A_ROW = 8
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
_ALONG = (
    aten.scatter_add.default,
    aten.scatter.reduce,
    aten.scatter_reduce.two,
    aten.index_reduce.default,
)


@dataclass(frozen=True)
class Crowd:
    """Each of `values` rows of `columns` numbers goes to one of so many places."""

    places: sympy.Expr
    columns: sympy.Expr
    values: sympy.Expr

    @property
    def _meets(self) -> bool:
        known = self.values.is_Integer
        return self.places.is_Integer and (not known or self.values >= _CROWD * self.places)

    @property
    def is_asked(self) -> bool:
        """Each of the places may ask all of the values."""
        thin = self.columns.is_Integer and self.columns < _LINE
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
    return all(n == m for d, (n, m) in enumerate(zip(index, size, strict=True)) if d != dim)


def crowd_of(node: fx.Node) -> Crowd | None:
    """Of a node that combines values with what is at places that are data."""
    given: list[Any] = [*fx.map_arg(node.args, lambda n: n.meta["val"])]
    if node.target in _PUTS:
        x, indices, _, accumulate = (*given, False)[:4]
        chosen = [(n, i) for n, i in zip(x.shape, indices, strict=False) if i is not None]
        if not accumulate or any(i.dtype is torch.bool for _, i in chosen):
            return None
        lines = zip_longest(*(reversed(i.shape) for _, i in chosen), fillvalue=1)
        values = _product(next((n for n in sizes if n != 1), 1) for sizes in lines)
        places = _product(n for n, _ in chosen)
        return Crowd(places, _product(x.shape) / places, values) if places != 0 else None
    if node.target not in _ALONG or not given[0].dim():
        return None
    x, dim, index = given[:3]
    values = _product(index.shape[dim : dim + 1 or None] if index.dim() == x.dim() else index.shape)
    places = expr(x.shape[dim])
    return Crowd(places, _product(x.shape) / places, values) if places != 0 else None


def _product(sizes: Iterable[IntLike]) -> sympy.Expr:
    return sympy.Mul(*map(expr, sizes))
