"""Sums, extremes, moments and logic over dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from aten_lowering.builder import KernelBuilder, Number, Operand, Scalar, Value
from aten_lowering.call import Call, opmath
from aten_lowering.errors import require
from aten_lowering.frames import ReductionFrame
from aten_lowering.registry import Lowering, Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()

Dims = Sequence[int] | None
# Of a call, its input, the dimensions to reduce (None: all), and whether they stay, of extent 1.
Reduction = Callable[[Call, Operand, Dims, bool], None]


def _over(reduction: Reduction, of_nothing: Scalar | None = None) -> Lowering:
    """The lowering of overloads that reduce all dimensions, one, or several. The `dtype` that some
    take is the result's. of_nothing: what they make of no elements."""

    def lowering(
        call: Call,
        input: Operand,
        dim: int | Dims = None,
        keepdim: bool = False,
        dtype: Any = None,
    ) -> None:
        dims = [dim] if isinstance(dim, int) else dim
        folded = [input.size[d] for d in dims or range(len(input.size))] if input.size else []
        if of_nothing is not None and sympy.S.Zero in folded:
            k = call.kernel()
            call.store(k, k.const(of_nothing, call.out.dtype))
        else:
            reduction(call, input, dims, keepdim)

    return lowering


def _fold(op: str) -> Reduction:
    """`sum`, `prod`: the input is converted to the type of the result, as eager does, and folded
    in its opmath type."""

    def reduction(call: Call, x: Operand, dims: Dims, keepdim: bool) -> None:
        frame = ReductionFrame(call, x, dims)
        k, out = frame.k, call.out
        require(out.dtype is not DType.bool_, f"{op} with a bool result")
        value, wide = k.load(x, frame.start()), opmath(out.dtype)
        if op == "sum" and _counts(x.dtype, frame.count) and wide is DType.i64:
            wide = DType.i32
        else:
            value = value.to(out.dtype)
        (result,) = k.reduce(op, value.to(wide))
        k.once()
        call.store(k, result.to(out.dtype), frame.out_coords(keepdim))

    return reduction


def _counts(dtype: DType, count: sympy.Expr) -> bool:
    """Sums of that many elements fit into 32 bits, which are added in half the instructions."""
    least = {DType.bool_: 1, DType.i8: 1 << 7, DType.u8: 1 << 8}.get(dtype)
    return least is not None and count.is_Integer and least * count < 2**31


def _mean(call: Call, x: Operand, dims: Dims, keepdim: bool) -> None:
    frame = ReductionFrame(call, x, dims)
    k, out = frame.k, call.out
    require(out.dtype.is_float, "mean of integers")
    value = k.load(x, frame.start()).to(out.dtype)
    acc = opmath(out.dtype)
    (total,) = k.reduce("sum", value.to(acc))
    k.once()
    mean = total / k.number(frame.count, acc)
    call.store(k, mean, frame.out_coords(keepdim))


table.lowers(aten.sum.dim_IntList, aten.sum.default)(_over(_fold("sum"), 0))
table.lowers(aten.prod.dim_int, aten.prod.default)(_over(_fold("prod"), 1))
table.lowers(aten.mean.dim, aten.mean.default)(_over(_mean, math.nan))


# -- extremes


def _extreme(op: str) -> Reduction:
    def reduction(call: Call, x: Operand, dims: Dims, keepdim: bool) -> None:
        frame = ReductionFrame(call, x, dims)
        k = frame.k
        value = k.load(x, frame.start())
        of_type = {"max": "any", "min": "all"}[op] if x.dtype is DType.bool_ else op
        (result,) = k.reduce(of_type, value.to(opmath(x.dtype)))
        k.once()
        call.store(k, result, frame.out_coords(keepdim))

    return reduction


def _place(op: str) -> Reduction:
    """Values (if asked for) and places of the first extreme; for `max.dim` and `argmax`."""

    def reduction(call: Call, x: Operand, dims: Dims, keepdim: bool) -> None:
        require(x.dtype is not DType.bool_, f"{op} of bool")
        frame = ReductionFrame(call, x, dims)
        k = frame.k
        value = k.load(x, frame.start()).to(opmath(x.dtype))
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

    return reduction


for _op, _amount, _both, _where in (
    ("max", aten.amax, aten.max, aten.argmax),
    ("min", aten.amin, aten.min, aten.argmin),
):
    table.lowers(_amount.default, _both.default)(_over(_extreme(_op)))
    table.lowers(_both.dim, _where.default)(_over(_place(_op)))


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
    x = k.load(input, frame.start()).to(out.dtype).to(opmath(out.dtype))
    term = x * x if ord == 2 else abs(x)
    if ord == 0:
        term = x("ne", 0).to(x.dtype)
    elif ord not in (1, 2, math.inf, -math.inf):
        term = term("pow", ord)
    (result,) = k.reduce({math.inf: "max", -math.inf: "min"}.get(ord, "sum"), term)
    k.once()
    if ord == 2:
        result = result("sqrt")
    elif ord not in (0, 1, math.inf, -math.inf):
        result = result("pow", 1 / ord)
    call.store(k, result, frame.out_coords(keepdim))


# -- logic


def _logic(op: str) -> Reduction:
    def reduction(call: Call, x: Operand, dims: Dims, keepdim: bool) -> None:
        require(dims is None or len(dims) > 0, f"{op} over an empty list of dims")
        frame = ReductionFrame(call, x, dims)
        k = frame.k
        (result,) = k.reduce(op, k.load(x, frame.start()).to(DType.bool_))
        k.once()
        call.store(k, result, frame.out_coords(keepdim))

    return reduction


for _op in ("any", "all"):
    _packet = getattr(aten, _op)
    table.lowers(_packet.default, _packet.dim, _packet.dims)(_over(_logic(_op), _op == "all"))


# -- moments


def _moments(
    call: Call, x: Operand, dims: Dims, correction: Number | None
) -> tuple[ReductionFrame, Value, Value]:
    """Mean and variance, known after the phase that this starts and ends."""
    require(x.dtype.is_float, "moments of integers")
    frame = ReductionFrame(call, x, dims)
    k, acc = frame.k, opmath(x.dtype)
    mean, m2 = k.reduce("welford", k.load(x, frame.start()).to(acc))
    k.once()
    return frame, mean, m2 / _freedom(k, frame, correction, acc)


def _freedom(
    k: KernelBuilder, frame: ReductionFrame, correction: Number | None, acc: DType
) -> Value:
    """`max(count - correction, 0)`: a division by it gives NaN or infinity, as in eager."""
    less = k.number(1 if correction is None else correction, acc)
    rest = k.number(frame.count, acc) - less
    return rest("maximum", 0)


@table.lowers(aten.var.correction)
def var(call: Call, input: Operand, dim: Dims, correction: Number | None, keepdim: bool) -> None:
    """The sum of squared distances from the mean, over the number of elements less `correction`."""
    frame, _, variance = _moments(call, input, dim, correction)
    call.store(frame.k, variance, frame.out_coords(keepdim))


@table.lowers(aten.std.correction)
def std(call: Call, input: Operand, dim: Dims, correction: Number | None, keepdim: bool) -> None:
    """The root of the variance."""
    frame, _, variance = _moments(call, input, dim, correction)
    call.store(frame.k, variance("sqrt"), frame.out_coords(keepdim))


@table.lowers(aten.var_mean.correction)
def var_mean(
    call: Call, input: Operand, dim: Dims, correction: Number | None, keepdim: bool
) -> None:
    """Variance and mean."""
    frame, mean, variance = _moments(call, input, dim, correction)
    coords = frame.out_coords(keepdim)
    for result, value in zip((call.result(0), call.result(1)), (variance, mean), strict=True):
        if result is not None:
            frame.k.store(result.operand, coords, value)
    call.emit_kernel(frame.k)
