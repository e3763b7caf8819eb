"""Sums, extremes, moments and logic over dimensions."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from aten_lowering.builder import Number, Operand, Scalar, Value
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
        call: Call, input: Operand, dim: int | Dims = None, keepdim: bool = False, dtype: Any = None
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
        frame, out = ReductionFrame(call, x, dims), call.out.dtype
        require(out is not DType.bool_, f"{op} with a bool result")
        value, wide = frame.element(), opmath(out)
        if op == "sum" and _counts(x.dtype, frame.count) and wide is DType.i64:
            wide = DType.i32
        else:
            value = value.to(out)
        (result,) = frame.fold(op, value.to(wide))
        frame.store(result.to(out), keepdim)

    return reduction


def _counts(dtype: DType, count: sympy.Expr) -> bool:
    """Sums of that many elements fit into 32 bits, which are added in half the instructions."""
    least = {DType.bool_: 1, DType.i8: 1 << 7, DType.u8: 1 << 8}.get(dtype)
    return least is not None and count.is_Integer and least * count < 2**31


def _mean(call: Call, x: Operand, dims: Dims, keepdim: bool) -> None:
    frame, out = ReductionFrame(call, x, dims), call.out.dtype
    require(out.is_float, "mean of integers")
    (total,) = frame.fold("sum", frame.element().to(out).to(opmath(out)))
    frame.store(total / frame.count, keepdim)


table.lowers(aten.sum.dim_IntList, aten.sum.default)(_over(_fold("sum"), 0))
table.lowers(aten.prod.dim_int, aten.prod.default)(_over(_fold("prod"), 1))
table.lowers(aten.mean.dim, aten.mean.default)(_over(_mean, math.nan))


# -- extremes


def _extreme(op: str) -> Reduction:
    def reduction(call: Call, x: Operand, dims: Dims, keepdim: bool) -> None:
        frame = ReductionFrame(call, x, dims)
        of_type = {"max": "any", "min": "all"}[op] if x.dtype is DType.bool_ else op
        (result,) = frame.fold(of_type, frame.element().to(opmath(x.dtype)))
        frame.store(result, keepdim)

    return reduction


def _place(op: str) -> Reduction:
    """Values (if asked for) and places of the first extreme; for `max.dim` and `argmax`."""

    def reduction(call: Call, x: Operand, dims: Dims, keepdim: bool) -> None:
        require(x.dtype is not DType.bool_, f"{op} of bool")
        frame = ReductionFrame(call, x, dims)
        k, value = frame.k, frame.element().to(opmath(x.dtype))
        folds = (op, f"arg{op}")[-len(call.results) :]
        found = {i: k.reduce(fold, value)[0] for i, fold in enumerate(folds) if call.result(i)}
        k.once()
        for i, result in found.items():
            call.put(i, k, result, frame.out_coords(keepdim))
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
    frame, out = ReductionFrame(call, input, dim), call.out.dtype
    dims = (dim if input.size else None) or range(len(input.size))
    if ord != 0 and all(input.size[d] == 1 for d in dims):
        ord = math.inf  # of one element: its magnitude, which no power overflows on the way to
    x = frame.element().to(out).to(opmath(out))
    term = x * x if ord == 2 else abs(x)
    if ord == 0:
        term = x("ne", 0).to(x.dtype)
    elif ord not in (1, 2, math.inf, -math.inf):
        term = term("sqrt") if ord == 0.5 else term("pow", ord)
    (result,) = frame.fold({math.inf: "max", -math.inf: "min"}.get(ord, "sum"), term)
    if ord == 2:
        result = result("sqrt")
    elif ord not in (0, 1, math.inf, -math.inf):
        result = result("pow", 1 / ord)
    frame.store(result, keepdim)


# -- logic


def _logic(op: str) -> Reduction:
    def reduction(call: Call, x: Operand, dims: Dims, keepdim: bool) -> None:
        require(dims is None or len(dims) > 0, f"{op} over an empty list of dims")
        frame = ReductionFrame(call, x, dims)
        (result,) = frame.fold(op, frame.element().to(DType.bool_))
        frame.store(result, keepdim)

    return reduction


for _op in ("any", "all"):
    _packet = getattr(aten, _op)
    table.lowers(_packet.default, _packet.dim, _packet.dims)(_over(_logic(_op), _op == "all"))


# -- moments


def _moments(
    call: Call, x: Operand, dims: Dims, correction: Number | None
) -> tuple[ReductionFrame, Value, Value]:
    """Mean and variance, known after the phase that this starts and ends. The variance is the sum
    of squared distances from the mean, over `max(count - correction, 0)`: NaN or infinity where
    that is 0, as in eager."""
    require(x.dtype.is_float, "moments of integers")
    frame = ReductionFrame(call, x, dims)
    mean, m2 = frame.fold("welford", frame.element().to(opmath(x.dtype)))
    less = 1 if correction is None else correction
    if frame.count.is_Integer and isinstance(less, int | float):
        return frame, mean, m2 / max(int(frame.count) - less, 0)
    return frame, mean, m2 / (m2.number(frame.count) - m2.number(less))("maximum", 0)


@table.lowers(aten.var.correction, aten.std.correction)
def var(call: Call, input: Operand, dim: Dims, correction: Number | None, keepdim: bool) -> None:
    """The variance, or its root."""
    frame, _, variance = _moments(call, input, dim, correction)
    frame.store(variance("sqrt") if "std" in str(call.op) else variance, keepdim)


@table.lowers(aten.var_mean.correction)
def var_mean(
    call: Call, input: Operand, dim: Dims, correction: Number | None, keepdim: bool
) -> None:
    """Variance and mean."""
    frame, mean, variance = _moments(call, input, dim, correction)
    call.put(0, frame.k, variance, frame.out_coords(keepdim))
    call.put(1, frame.k, mean, frame.out_coords(keepdim))
    call.emit_kernel(frame.k)
