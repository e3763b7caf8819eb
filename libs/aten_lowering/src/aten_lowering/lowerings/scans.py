"""Running sums, products and extremes along a dimension."""

from __future__ import annotations

from typing import Any

import torch

from aten_lowering.builder import Operand
from aten_lowering.call import Call, opmath
from aten_lowering.errors import require
from aten_lowering.frames import ReductionFrame
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()


def _scan(call: Call, x: Operand, dim: int, op: str) -> None:
    """The input is converted to the type of the result, as eager does, and scanned in its opmath
    type. Eager's sums start from 0, so that there is no -0 among them, but where it copies a number
    or, on a GPU, has but one line to scan."""
    frame = ReductionFrame(call, x, [dim])
    k, out = frame.k, call.out
    require(out.dtype is not DType.bool_, f"{op} with a bool result")
    coords = frame.start()
    value = k.cast(k.load(x, coords), out.dtype)
    result = k.scan(op, k.cast(value, opmath(out.dtype)))
    plain = not x.size or (call.for_gpu and all(x.size[d] == 1 for d in frame.kept))
    if op != "prod" and result.dtype.is_float and not plain:
        result = k.op("add", result, k.const(0.0, result.dtype))
    k.store(out.operand, coords, result)
    call.emit_kernel(k)


@table.lowers(aten.cumsum.default)
def cumsum(call: Call, input: Operand, dim: int, dtype: Any) -> None:
    _scan(call, input, dim, "sum")


@table.lowers(aten.cumprod.default)
def cumprod(call: Call, input: Operand, dim: int, dtype: Any) -> None:
    _scan(call, input, dim, "prod")


@table.lowers(aten.logcumsumexp.default)
def logcumsumexp(call: Call, input: Operand, dim: int) -> None:
    require(input.dtype.is_float, "logcumsumexp of this input")
    _scan(call, input, dim, "logsumexp")


def _extreme(call: Call, x: Operand, dim: int, op: str) -> None:
    """Running extremes and the places of the last ones."""
    frame = ReductionFrame(call, x, [dim])
    k = frame.k
    coords = frame.start()
    computed = DType.i32 if x.dtype is DType.bool_ else opmath(x.dtype)
    value = k.cast(k.load(x, coords), computed)
    for result, scan in zip((call.result(0), call.result(1)), (op, f"arg{op}"), strict=True):
        if result is not None:
            k.store(result.operand, coords, k.scan(scan, value))
    call.emit_kernel(k)


@table.lowers(aten.cummax.default)
def cummax(call: Call, input: Operand, dim: int) -> None:
    _extreme(call, input, dim, "max")


@table.lowers(aten.cummin.default)
def cummin(call: Call, input: Operand, dim: int) -> None:
    _extreme(call, input, dim, "min")
