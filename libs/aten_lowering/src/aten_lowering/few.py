"""When the places of scattered values are few: the values then wait for each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import sympy
import torch
from torch import fx

from aten_lowering.meta import IntLike, expr

aten = torch.ops.aten
Sizes = Sequence[sympy.Expr]

# Places at most, and values for each of them at least.
_MOST, _EACH = 32, 16
# Places at most that a row has for elements that replace its own, or are added to them.
_A_ROW = 8

_PUTS = (aten.index_put.default, aten._unsafe_index_put.default)
# Those that name a dimension and an index of as many dimensions, or a line of them.
_ALONG = (
    aten.scatter_add.default,
    aten.scatter.reduce,
    aten.scatter_reduce.two,
    aten.index_reduce.default,
)


def are_few(places: sympy.Expr, values: sympy.Expr) -> bool:
    """Each of the places may ask all of the values, which are many for each."""
    if not places.is_Integer or places > _MOST:
        return False
    return not values.is_Integer or bool(values >= _EACH * places)


def is_few_a_row(index: Sizes, size: Sizes, dim: int) -> bool:
    """An index of a scatter along `dim` has few places for each row: each of its elements may ask
    whether it is one of them."""
    if not size or not index[dim].is_Integer or not 0 < index[dim] <= _A_ROW:
        return False
    return all(n == m for d, (n, m) in enumerate(zip(index, size, strict=True)) if d != dim)


def reduces_in_few(node: fx.Node) -> bool:
    """The node combines many values in few places: it is part of what computes them."""
    given: list[Any] = [*fx.map_arg(node.args, lambda n: n.meta["val"])]
    x, *rest = given
    if node.target in _PUTS:
        indices, _, accumulate = (*rest, False)[:3]
        chosen = [(n, i) for n, i in zip(x.shape, indices, strict=False) if i is not None]
        if not accumulate or any(i.dtype is torch.bool for _, i in chosen):
            return False
        lines = zip_longest(*(reversed(i.shape) for _, i in chosen), fillvalue=1)
        values = [next((n for n in sizes if n != 1), 1) for sizes in lines]
        return are_few(_product(n for n, _ in chosen), _product(values))
    if node.target not in _ALONG or not x.dim():
        return False
    dim, index = rest[:2]
    values = index.shape[dim : dim + 1 or None] if index.dim() == x.dim() else index.shape
    return are_few(expr(x.shape[dim]), _product(values))


def _product(sizes: Iterable[IntLike]) -> sympy.Expr:
    return sympy.Mul(*map(expr, sizes))
