"""Loads at places that are data: embedding, index_select, gather, advanced indexing; stores of one
element a row.

An index out of range is the caller's error, as in eager. Where eager raises for negative indices
(embedding, gather), these count from the end here.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from aten_lowering.builder import Coords, KernelBuilder, Operand
from aten_lowering.call import Call, Number, number, wrap_dim
from aten_lowering.errors import require
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()


def _lookup(k: KernelBuilder, index: Operand, coords: Coords, extent: sympy.Expr) -> sympy.Symbol:
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
    # padding_idx, scale_grad_by_freq and sparse concern the gradient only.
    out = call.out
    k = call.kernel(out.size)
    row = _lookup(k, indices, k.coords[:-1], weight.size[0])
    k.store(out.operand, k.coords, k.load(weight, (row, k.coords[-1])))
    call.emit_kernel(k)


@table.lowers(aten.index_select.default)
def index_select(call: Call, input: Operand, dim: int, index: Operand) -> None:
    require(len(input.size) > 0 and len(index.size) == 1, "index_select of rank 0")
    out = call.out
    dim = wrap_dim(dim, len(input.size))
    k = call.kernel(out.size)
    i = _lookup(k, index, (k.coords[dim],), input.size[dim])
    k.store(out.operand, k.coords, k.load(input, (*k.coords[:dim], i, *k.coords[dim + 1 :])))
    call.emit_kernel(k)


@table.lowers(aten.gather.default)
def gather(call: Call, input: Operand, dim: int, index: Operand, sparse_grad: bool) -> None:
    require(len(input.size) > 0 and len(index.size) == len(input.size), "gather of rank 0")
    out = call.out
    dim = wrap_dim(dim, len(input.size))
    k = call.kernel(out.size)
    i = _lookup(k, index, k.coords, input.size[dim])
    k.store(out.operand, k.coords, k.load(input, (*k.coords[:dim], i, *k.coords[dim + 1 :])))
    call.emit_kernel(k)


@table.lowers(aten.scatter.value)
def scatter_value(call: Call, input: Operand, dim: int, index: Operand, value: Number) -> None:
    _scatter(call, input, dim, index, value)


@table.lowers(aten.scatter.src)
def scatter(call: Call, input: Operand, dim: int, index: Operand, src: Operand) -> None:
    _scatter(call, input, dim, index, src)


def _scatter(call: Call, input: Operand, dim: int, index: Operand, src: Operand | Number) -> None:
    """A copy of the input with one element a row replaced, at the place that the index says: every
    element asks whether it is that. (Several a row may meet in one place.)"""
    out = call.out
    require(len(out.size) > 0 and len(index.size) == len(out.size), "scatter of rank 0")
    require(index.dtype in (DType.i32, DType.i64), f"indices of {index.dtype.value}")
    dim = wrap_dim(dim, len(out.size))
    rows = (*out.size[:dim], sympy.S.One, *out.size[dim + 1 :])
    require(tuple(index.size) == rows, "a scatter that is not of one element to every row")
    k = call.kernel(out.size)
    at = (*k.coords[:dim], sympy.S.Zero, *k.coords[dim + 1 :])
    place = k.cast(k.load(index, at), DType.i64)
    here = k.op("eq", place, k.index(k.coords[dim]))
    if isinstance(src, Operand):
        new = k.cast(k.load(src, at), out.dtype)
    else:
        new = number(k, src, out.dtype)
    k.store(out.operand, k.coords, k.where(here, new, k.load(input, k.coords)))
    call.emit_kernel(k)


@table.lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(call: Call, input: Operand, indices: Sequence[Operand | None]) -> None:
    """Advanced indexing with integer tensors: they broadcast to one shape, which takes the place
    of the indexed dimensions if those are neighbours, and comes first if not."""
    places = [d for d, i in enumerate(indices) if i is not None]
    require(bool(places), "an index without tensors")
    tensors = [i for i in indices if i is not None]
    rank = max(len(i.size) for i in tensors)
    neighbours = places == list(range(places[0], places[-1] + 1))
    first = places[0] if neighbours else 0
    out = call.out
    k = call.kernel(out.size)
    shape, coords = out.size[first : first + rank], k.coords[first : first + rank]
    rest = iter((*k.coords[:first], *k.coords[first + rank :]))
    found: list[sympy.Expr] = []
    for d in range(len(input.size)):
        i = indices[d] if d < len(indices) else None
        if i is None:
            found.append(next(rest))
            continue
        require(i.dtype in (DType.i32, DType.i64), f"indices of {i.dtype.value}")
        require(input.size[d] != 0, "a lookup in an empty dimension")
        found.append(k.indirect(k.load_broadcast(i, shape, coords), input.size[d]))
    k.store(out.operand, k.coords, k.load(input, tuple(found)))
    call.emit_kernel(k)
