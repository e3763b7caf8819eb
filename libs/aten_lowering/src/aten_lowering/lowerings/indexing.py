"""Loads at places that are data: embedding, index_select, gather, advanced indexing; stores of one
element a row.

An index out of range is the caller's error, as in eager. Where eager raises for negative indices
(embedding, gather), these count from the end here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from aten_lowering.builder import Coords, KernelBuilder, Number, Operand, Value, at
from aten_lowering.call import Call, wrap_dim
from aten_lowering.errors import require
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()


def lookup(k: KernelBuilder, index: Operand, coords: Coords, extent: sympy.Expr) -> sympy.Symbol:
    """The element of `index` at `coords` as a coordinate of a dimension of that extent."""
    require(index.dtype in (DType.i32, DType.i64), f"indices of {index.dtype.value}")
    require(extent != 0, "a lookup in an empty dimension")
    return k.indirect(k.load(index, coords), extent)


@table.lowers(aten.embedding.default)
def embedding(
    call: Call,
    weight: Operand,
    indices: Operand,
    padding_idx: object,
    scale_grad_by_freq: bool,
    sparse: bool,
) -> None:
    """The rows of `weight` at the indices. padding_idx, scale_grad_by_freq and sparse concern the
    gradient only."""
    k = call.kernel()
    row = lookup(k, indices, k.coords[:-1], weight.size[0])
    call.store(k, k.load(weight, (row, k.coords[-1])))


@table.lowers(aten.index_select.default)
def index_select(call: Call, input: Operand, dim: int, index: Operand) -> None:
    """The slices of dimension `dim` at the indices, which are a line of them."""
    dim, k = wrap_dim(dim, len(input.size)), call.kernel()
    own: Coords = ()
    if input.size:
        i = lookup(k, index, (k.coords[dim],) if index.size else (), input.size[dim])
        own = at(k.coords, dim, i)
    call.store(k, k.load(input, own))


@table.lowers(aten.gather.default)
def gather(call: Call, input: Operand, dim: int, index: Operand, sparse_grad: bool) -> None:
    """Each element with its coordinate of dimension `dim` taken from `index`."""
    dim, k = wrap_dim(dim, len(input.size)), call.kernel()
    own: Coords = ()
    if input.size:
        own = at(k.coords, dim, lookup(k, index, k.coords, input.size[dim]))
    call.store(k, k.load(input, own))


def _search(
    call: Call,
    bounds: Operand,
    value: Operand | Number,
    right: bool,
    row: bool,
    sorter: Operand | None = None,
) -> None:
    """How many of the sorted bounds lie before each value, by halves as in eager, which hangs on
    their order where they are not sorted: NaN compares with nothing. row: bounds are those of the
    value's row. sorter: where each of the bounds in their order is."""
    n = bounds.size[-1]
    require(n.is_Integer, "a search among a number of bounds that is not known")
    k = call.kernel()
    lead = k.coords[:-1] if row else ()
    kinds = {bounds.dtype, value.dtype} if isinstance(value, Operand) else {bounds.dtype}
    require(len(kinds) == 1, "a search among bounds of another type")
    wanted = k.read(value, k.coords, *kinds)
    first, end = k.const(0, DType.i64), k.index(n)
    for _ in range(int(n).bit_length()):
        middle = (first + end) >> 1
        place = k.indirect(middle("minimum", n - 1), n)
        if sorter is not None:
            place = k.indirect(k.load(sorter, (*lead, place)), n)
        bound = k.load(bounds, (*lead, place))
        behind = bound("gt" if right else "ge", wanted)
        after = (middle + 1)("minimum", end)
        first, end = behind.choose(first, after), behind.choose(middle, end)
    call.store(k, first)


@table.lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    call: Call, input: Operand | Number, boundaries: Operand, right: bool, **shown: Any
) -> None:
    """The number of the first bound that is not less (`right`: that is larger)."""
    _search(call, boundaries, input, right, False)


@table.lowers(aten.searchsorted.Tensor)
def searchsorted(
    call: Call,
    sorted_sequence: Operand,
    input: Operand,
    right: bool,
    side: str | None,
    sorter: Operand | None,
    **shown: Any,
) -> None:
    """`bucketize` with bounds that are the same for all rows, or one list for each row."""
    row = len(sorted_sequence.size) > 1
    _search(call, sorted_sequence, input, right or side == "right", row, sorter)


@dataclass(frozen=True)
class Advanced:
    """Indexing with integer tensors: they broadcast to one shape, which takes the place of the
    indexed dimensions if those are neighbours, and comes first if not.

    points: sizes of what is indexed. shape: those that the tensors broadcast to, which begin at
    dimension `first` of the points."""

    indices: tuple[Operand | None, ...]
    size: tuple[sympy.Expr, ...]
    points: tuple[sympy.Expr, ...]
    shape: tuple[sympy.Expr, ...]
    first: int

    @staticmethod
    def of(indices: Sequence[Operand | None], size: tuple[sympy.Expr, ...]) -> Advanced:
        """`indices` of a tensor of this size, one a dimension, None for all of it."""
        places = [d for d, i in enumerate(indices) if i is not None]
        require(bool(places), "an index without tensors")
        tensors = [i for i in indices if i is not None]
        for i in tensors:
            require(i.dtype in (DType.i32, DType.i64), f"indices of {i.dtype.value}")
        require(all(size[d] != 0 for d in places), "a lookup in an empty dimension")
        rank = max(len(i.size) for i in tensors)
        padded = [(sympy.S.One,) * (rank - len(i.size)) + i.size for i in tensors]
        shape = tuple(
            next((n for n in sizes if n != 1), sympy.S.One) for sizes in zip(*padded, strict=True)
        )
        neighbours = places == list(range(places[0], places[-1] + 1))
        first = places[0] if neighbours else 0
        rest = [n for d, n in enumerate(size) if d not in places]
        points = (*rest[:first], *shape, *rest[first:])
        return Advanced(tuple(indices), size, points, shape, first)

    def places(self, k: KernelBuilder, coords: Coords, mask: Value | None = None) -> Coords:
        """The element that the point at `coords` is. mask: where indices mean anything."""
        end = self.first + len(self.shape)
        rest = iter((*coords[: self.first], *coords[end:]))
        found: list[sympy.Expr] = []
        for d, n in enumerate(self.size):
            i = self.indices[d] if d < len(self.indices) else None
            if i is None:
                found.append(next(rest))
            else:
                value = k.load_broadcast(i, self.shape, coords[self.first : end])
                if mask is not None:
                    value = mask.choose(value, 0)
                found.append(k.indirect(value, n))
        return tuple(found)


@table.lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(call: Call, input: Operand, indices: Sequence[Operand | None]) -> None:
    """Advanced indexing with integer tensors."""
    k = call.kernel()
    call.store(k, k.load(input, Advanced.of(indices, input.size).places(k, k.coords)))
