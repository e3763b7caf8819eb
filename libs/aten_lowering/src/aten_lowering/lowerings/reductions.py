"""Sums, extremes, moments and logic over dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from aten_lowering.builder import KernelBuilder, Operand, Value
from aten_lowering.call import Call, Number, number, opmath
from aten_lowering.errors import require
from aten_lowering.frames import ReductionFrame
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()

Dims = Sequence[int] | None


def _fold(call: Call, x: Operand, dims: Dims, keepdim: bool, op: str) -> None:
    """`sum`, `prod`: the input is converted to the type of the result, as eager does, and folded
    in its opmath type."""
    frame = ReductionFrame(call, x, dims)
    k, out = frame.k, call.out
    value = k.cast(k.load(x, frame.start()), out.dtype)
    require(out.dtype is not DType.bool_, f"{op} with a bool result")
    (result,) = k.reduce(op, k.cast(value, opmath(out.dtype)))
    k.once()
    k.store(out.operand, frame.out_coords(keepdim), result)
    call.emit_kernel(k)


@table.lowers(aten.sum.dim_IntList)
def sum_dims(call: Call, input: Operand, dim: Dims, keepdim: bool, dtype: Any) -> None:
    _fold(call, input, dim, keepdim, "sum")


@table.lowers(aten.sum.default)
def sum_all(call: Call, input: Operand, dtype: Any) -> None:
    _fold(call, input, None, False, "sum")


@table.lowers(aten.prod.dim_int)
def prod_dim(call: Call, input: Operand, dim: int, keepdim: bool, dtype: Any) -> None:
    _fold(call, input, [dim], keepdim, "prod")


@table.lowers(aten.prod.default)
def prod_all(call: Call, input: Operand, dtype: Any) -> None:
    _fold(call, input, None, False, "prod")


@table.lowers(aten.mean.dim)
def mean_dims(call: Call, input: Operand, dim: Dims, keepdim: bool, dtype: Any) -> None:
    frame = ReductionFrame(call, input, dim)
    k, out = frame.k, call.out
    require(out.dtype.is_float, "mean of integers")
    value = k.cast(k.load(input, frame.start()), out.dtype)
    acc = opmath(out.dtype)
    (total,) = k.reduce("sum", k.cast(value, acc))
    k.once()
    mean = k.op("div", total, number(k, frame.count, acc))
    k.store(out.operand, frame.out_coords(keepdim), mean)
    call.emit_kernel(k)


@table.lowers(aten.mean.default)
def mean_all(call: Call, input: Operand, dtype: Any) -> None:
    mean_dims(call, input, None, False, dtype)


# -- extremes


def _extreme(call: Call, x: Operand, dims: Dims, keepdim: bool, op: str) -> None:
    frame = ReductionFrame(call, x, dims)
    k, out = frame.k, call.out
    value = k.load(x, frame.start())
    if x.dtype is DType.bool_:
        op = {"max": "any", "min": "all"}[op]
    (result,) = k.reduce(op, k.cast(value, opmath(x.dtype)))
    k.once()
    k.store(out.operand, frame.out_coords(keepdim), result)
    call.emit_kernel(k)


@table.lowers(aten.amax.default)
def amax(call: Call, input: Operand, dim: Dims, keepdim: bool) -> None:
    _extreme(call, input, dim, keepdim, "max")


@table.lowers(aten.amin.default)
def amin(call: Call, input: Operand, dim: Dims, keepdim: bool) -> None:
    _extreme(call, input, dim, keepdim, "min")


@table.lowers(aten.max.default)
def max_all(call: Call, input: Operand) -> None:
    _extreme(call, input, None, False, "max")


@table.lowers(aten.min.default)
def min_all(call: Call, input: Operand) -> None:
    _extreme(call, input, None, False, "min")


def _place(call: Call, x: Operand, dims: Dims, keepdim: bool, op: str) -> None:
    """Values (if asked for) and places of the first extreme; for `max.dim` and `argmax`."""
    require(x.dtype is not DType.bool_, f"{op} of bool")
    frame = ReductionFrame(call, x, dims)
    k = frame.k
    value = k.cast(k.load(x, frame.start()), opmath(x.dtype))
    several = len(call.results) == 2
    extreme = call.result(0) if several else None
    place = call.result(1) if several else call.out
    found = k.reduce(op, value) if extreme is not None else ()
    index = k.reduce(f"arg{op}", value) if place is not None else ()
    k.once()
    coords = frame.out_coords(keepdim)
    if extreme is not None:
        k.store(extreme.operand, coords, found[0])
    if place is not None:
        k.store(place.operand, coords, index[0])
    call.emit_kernel(k)


@table.lowers(aten.max.dim)
def max_dim(call: Call, input: Operand, dim: int, keepdim: bool) -> None:
    _place(call, input, [dim], keepdim, "max")


@table.lowers(aten.min.dim)
def min_dim(call: Call, input: Operand, dim: int, keepdim: bool) -> None:
    _place(call, input, [dim], keepdim, "min")


@table.lowers(aten.argmax.default)
def argmax(call: Call, input: Operand, dim: int | None, keepdim: bool) -> None:
    _place(call, input, None if dim is None else [dim], keepdim, "max")


@table.lowers(aten.argmin.default)
def argmin(call: Call, input: Operand, dim: int | None, keepdim: bool) -> None:
    _place(call, input, None if dim is None else [dim], keepdim, "min")


@table.lowers(aten.linalg_vector_norm.default)
def vector_norm(
    call: Call, input: Operand, ord: Number, dim: Dims, keepdim: bool, dtype: Any
) -> None:
    """`(sum |x|^ord)^(1/ord)`; the largest or smallest `|x|` for infinities, of order 0 the number
    of elements that are not 0."""
    require(input.dtype.is_float, "norm of this input")
    require(isinstance(ord, int | float), "a norm of an order that is not known")
    assert isinstance(ord, int | float)
    frame = ReductionFrame(call, input, dim)
    k, out = frame.k, call.out
    dims = (dim if input.size else None) or range(len(input.size))
    if ord != 0 and all(input.size[d] == 1 for d in dims):
        ord = math.inf  # of one element: its magnitude, which no power overflows on the way to
    x = k.cast(k.cast(k.load(input, frame.start()), out.dtype), opmath(out.dtype))
    term = k.op("mul", x, x) if ord == 2 else k.op("abs", x)
    if ord == 0:
        term = k.cast(k.op("ne", x, k.const(0, x.dtype)), x.dtype)
    elif ord not in (1, 2, math.inf, -math.inf):
        term = k.op("pow", term, k.const(ord, x.dtype))
    (result,) = k.reduce({math.inf: "max", -math.inf: "min"}.get(ord, "sum"), term)
    k.once()
    if ord == 2:
        result = k.op("sqrt", result)
    elif ord not in (0, 1, math.inf, -math.inf):
        result = k.op("pow", result, k.const(1 / ord, x.dtype))
    k.store(out.operand, frame.out_coords(keepdim), result)
    call.emit_kernel(k)


# -- logic


def _logic(call: Call, x: Operand, dims: Dims, keepdim: bool, op: str) -> None:
    require(dims is None or len(dims) > 0, f"{op} over an empty list of dims")
    frame = ReductionFrame(call, x, dims)
    k, out = frame.k, call.out
    (result,) = k.reduce(op, k.cast(k.load(x, frame.start()), DType.bool_))
    k.once()
    k.store(out.operand, frame.out_coords(keepdim), result)
    call.emit_kernel(k)


@table.lowers(aten.any.default)
def any_all(call: Call, input: Operand) -> None:
    _logic(call, input, None, False, "any")


@table.lowers(aten.any.dim)
def any_dim(call: Call, input: Operand, dim: int, keepdim: bool) -> None:
    _logic(call, input, [dim], keepdim, "any")


@table.lowers(aten.any.dims)
def any_dims(call: Call, input: Operand, dim: Dims, keepdim: bool) -> None:
    _logic(call, input, dim, keepdim, "any")


@table.lowers(aten.all.default)
def all_all(call: Call, input: Operand) -> None:
    _logic(call, input, None, False, "all")


@table.lowers(aten.all.dim)
def all_dim(call: Call, input: Operand, dim: int, keepdim: bool) -> None:
    _logic(call, input, [dim], keepdim, "all")


@table.lowers(aten.all.dims)
def all_dims(call: Call, input: Operand, dim: Dims, keepdim: bool) -> None:
    _logic(call, input, dim, keepdim, "all")


# -- moments


def _moments(
    call: Call, x: Operand, dims: Dims, correction: Number | None
) -> tuple[ReductionFrame, Value, Value]:
    """Mean and variance, known after the phase that this starts and ends."""
    require(x.dtype.is_float, "moments of integers")
    frame = ReductionFrame(call, x, dims)
    k, acc = frame.k, opmath(x.dtype)
    mean, m2 = k.reduce("welford", k.cast(k.load(x, frame.start()), acc))
    k.once()
    return frame, mean, k.op("div", m2, _freedom(k, frame, correction, acc))


def _freedom(
    k: KernelBuilder, frame: ReductionFrame, correction: Number | None, acc: DType
) -> Value:
    """`max(count - correction, 0)`: a division by it gives NaN or infinity, as in eager."""
    less = number(k, 1 if correction is None else correction, acc)
    rest = k.op("sub", number(k, frame.count, acc), less)
    return k.op("maximum", rest, k.const(0, acc))


@table.lowers(aten.var.correction)
def var(call: Call, input: Operand, dim: Dims, correction: Number | None, keepdim: bool) -> None:
    frame, _, variance = _moments(call, input, dim, correction)
    frame.k.store(call.out.operand, frame.out_coords(keepdim), variance)
    call.emit_kernel(frame.k)


@table.lowers(aten.std.correction)
def std(call: Call, input: Operand, dim: Dims, correction: Number | None, keepdim: bool) -> None:
    frame, _, variance = _moments(call, input, dim, correction)
    k = frame.k
    k.store(call.out.operand, frame.out_coords(keepdim), k.op("sqrt", variance))
    call.emit_kernel(k)


@table.lowers(aten.var_mean.correction)
def var_mean(
    call: Call, input: Operand, dim: Dims, correction: Number | None, keepdim: bool
) -> None:
    frame, mean, variance = _moments(call, input, dim, correction)
    coords = frame.out_coords(keepdim)
    for result, value in zip((call.result(0), call.result(1)), (variance, mean), strict=True):
        if result is not None:
            frame.k.store(result.operand, coords, value)
    call.emit_kernel(frame.k)
