"""Tensors from nothing: arange, full and the like."""

from typing import Any

import sympy
import torch

from aten_lowering.builder import Number
from aten_lowering.call import Call
from aten_lowering.errors import require
from aten_lowering.fills import FULLS, ONES, ZEROS
from aten_lowering.registry import Lowering, Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()


def plain_memory(layout: Any, pin_memory: Any) -> None:
    """Raises `CannotLower` for what memory of ours is not: pinned, or of another layout."""
    require(layout in (None, torch.strided) and not pin_memory, "layout or pinned memory")


def _filled(value: Number) -> Lowering:
    def lowering(call: Call, layout: Any, pin_memory: Any, **shown: Any) -> None:
        _fill(call, value, layout, pin_memory)

    return lowering


table.lowers(*ZEROS)(_filled(0))
table.lowers(*ONES)(_filled(1))


@table.lowers(*FULLS)
def full(call: Call, fill_value: Number, layout: Any, pin_memory: Any, **shown: Any) -> None:
    """One number everywhere."""
    _fill(call, fill_value, layout, pin_memory)


@table.lowers(aten.scalar_tensor.default)
def scalar_tensor(call: Call, s: Number, layout: Any, pin_memory: Any, **shown: Any) -> None:
    """A tensor of rank 0."""
    _fill(call, s, layout, pin_memory)


def _fill(call: Call, value: Number, layout: Any, pin_memory: Any) -> None:
    plain_memory(layout, pin_memory)
    k = call.kernel()
    call.store(k, k.number(value, call.out.dtype))


@table.lowers(aten.arange.start_step, aten.arange.start, aten.arange.default)
def arange(
    call: Call,
    end: Number,
    layout: Any,
    pin_memory: Any,
    start: Number = 0,
    step: Number = 1,
    **shown: Any,
) -> None:
    """`start + step * i`, i < the length of the result, which `end` has decided."""
    plain_memory(layout, pin_memory)
    out, k = call.out, call.kernel()
    (i,) = k.coords
    whole = all(isinstance(v, int | sympy.Expr) for v in (start, step))
    if whole and out.dtype.is_int:
        return call.store(k, k.index(sympy.expand(start + step * i)))
    require(out.dtype.is_float, f"arange of {out.dtype.value}")
    # Eager accumulates in f64 on the CPU, in f32 elsewhere (`at::acc_type`).
    acc = DType.f64 if call.on_cpu or out.dtype is DType.f64 else DType.f32
    scaled = k.number(step, acc) * k.index(i).to(acc)
    call.store(k, k.number(start, acc) + scaled)
