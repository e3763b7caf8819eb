"""Tensors from nothing: arange, full and the like."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from aten_lowering.builder import Operand
from aten_lowering.call import Call, Number, number
from aten_lowering.errors import require
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()


def _fill(call: Call, value: Number, layout: Any, pin_memory: Any) -> None:
    # dtype and device show in the result.
    require(layout in (None, torch.strided) and not pin_memory, "layout or pinned memory")
    out = call.out
    k = call.kernel(out.size)
    k.store(out.operand, k.coords, number(k, value, out.dtype))
    call.emit_kernel(k)


@table.lowers(aten.full.default)
def full(
    call: Call, size: Any, fill_value: Number, dtype: Any, layout: Any, device: Any, pin_memory: Any
) -> None:
    _fill(call, fill_value, layout, pin_memory)


@table.lowers(aten.zeros.default)
def zeros(call: Call, size: Any, dtype: Any, layout: Any, device: Any, pin_memory: Any) -> None:
    _fill(call, 0, layout, pin_memory)


@table.lowers(aten.ones.default)
def ones(call: Call, size: Any, dtype: Any, layout: Any, device: Any, pin_memory: Any) -> None:
    _fill(call, 1, layout, pin_memory)


@table.lowers(aten.full_like.default)
def full_like(
    call: Call,
    input: Operand,
    fill_value: Number,
    dtype: Any,
    layout: Any,
    device: Any,
    pin_memory: Any,
    memory_format: Any,
) -> None:
    _fill(call, fill_value, layout, pin_memory)


@table.lowers(aten.zeros_like.default)
def zeros_like(
    call: Call,
    input: Operand,
    dtype: Any,
    layout: Any,
    device: Any,
    pin_memory: Any,
    memory_format: Any,
) -> None:
    _fill(call, 0, layout, pin_memory)


@table.lowers(aten.ones_like.default)
def ones_like(
    call: Call,
    input: Operand,
    dtype: Any,
    layout: Any,
    device: Any,
    pin_memory: Any,
    memory_format: Any,
) -> None:
    _fill(call, 1, layout, pin_memory)


@table.lowers(aten.new_full.default)
def new_full(
    call: Call,
    input: Operand,
    size: Any,
    fill_value: Number,
    dtype: Any,
    layout: Any,
    device: Any,
    pin_memory: Any,
) -> None:
    _fill(call, fill_value, layout, pin_memory)


@table.lowers(aten.new_zeros.default)
def new_zeros(
    call: Call, input: Operand, size: Any, dtype: Any, layout: Any, device: Any, pin_memory: Any
) -> None:
    _fill(call, 0, layout, pin_memory)


@table.lowers(aten.new_ones.default)
def new_ones(
    call: Call, input: Operand, size: Any, dtype: Any, layout: Any, device: Any, pin_memory: Any
) -> None:
    _fill(call, 1, layout, pin_memory)


@table.lowers(aten.scalar_tensor.default)
def scalar_tensor(
    call: Call, s: Number, dtype: Any, layout: Any, device: Any, pin_memory: Any
) -> None:
    _fill(call, s, layout, pin_memory)


@table.lowers(aten.arange.start_step)
def arange_step(
    call: Call,
    start: Number,
    end: Number,
    step: Number,
    dtype: Any,
    layout: Any,
    device: Any,
    pin_memory: Any,
) -> None:
    """`start + step * i`, i < the length of the result, which `end` has decided."""
    require(layout in (None, torch.strided) and not pin_memory, "layout or pinned memory")
    out = call.out
    k = call.kernel(out.size)
    (i,) = k.coords
    whole = all(isinstance(v, int | sympy.Expr) for v in (start, step))
    if whole and out.dtype.is_int:
        value = k.index(sympy.expand(start + step * i))
    else:
        require(out.dtype.is_float, f"arange of {out.dtype.value}")
        # Eager accumulates in f64 on the CPU, in f32 elsewhere (`at::acc_type`).
        wide = out.operand.type.device.kind == "cpu" or out.dtype is DType.f64
        acc = DType.f64 if wide else DType.f32
        scaled = k.op("mul", number(k, step, acc), k.cast(k.index(i), acc))
        value = k.op("add", number(k, start, acc), scaled)
    k.store(out.operand, k.coords, value)
    call.emit_kernel(k)


@table.lowers(aten.arange.start)
def arange_start(
    call: Call, start: Number, end: Number, dtype: Any, layout: Any, device: Any, pin_memory: Any
) -> None:
    arange_step(call, start, end, 1, dtype, layout, device, pin_memory)


@table.lowers(aten.arange.default)
def arange(call: Call, end: Number, dtype: Any, layout: Any, device: Any, pin_memory: Any) -> None:
    arange_step(call, 0, end, 1, dtype, layout, device, pin_memory)
