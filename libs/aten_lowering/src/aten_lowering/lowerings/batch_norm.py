"""Batch norm: with the running statistics a pointwise kernel, in training a reduction over each
channel, whose running statistics come from the same kernel."""

from __future__ import annotations

import torch

from aten_lowering.builder import Coords, KernelBuilder, Operand, Value
from aten_lowering.call import Call, number, opmath
from aten_lowering.errors import require
from aten_lowering.frames import ReductionFrame
from aten_lowering.lowerings.normalizations import affine, store_used
from aten_lowering.registry import Table

aten = torch.ops.aten
table = Table()


@table.lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    call: Call,
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    running_mean: Operand,
    running_var: Operand,
    momentum: float,
    eps: float,
) -> None:
    """Pointwise with the running statistics, per channel (`[N, C, ...]`); momentum concerns
    training. The saved statistics are empty tensors here."""
    native_batch_norm(call, input, weight, bias, running_mean, running_var, False, momentum, eps)


@table.lowers(aten.native_batch_norm.default)
def native_batch_norm(
    call: Call,
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    running_mean: Operand | None,
    running_var: Operand | None,
    training: bool,
    momentum: float,
    eps: float,
) -> None:
    """Without training as `_native_batch_norm_legit_no_training`, else without running
    statistics, which it would write in place."""
    if training:
        require(running_mean is None and running_var is None, "running statistics in place")
        _training(call, input, weight, bias, None, momentum, eps)
        return
    require(input.dtype.is_float, "batch norm of integers")
    require(call.result(1) is None and call.result(2) is None, "saved statistics")
    require(running_mean is not None and running_var is not None, "no running statistics")
    assert running_mean is not None and running_var is not None
    acc = opmath(input.dtype)
    k = call.kernel(input.size)
    channel = k.coords[1:2]
    x = k.cast(k.load(input, k.coords), acc)
    mean, variance = (k.cast(k.load(s, channel), acc) for s in (running_mean, running_var))
    rstd = k.op("rsqrt", k.op("add", variance, k.const(eps, acc)))
    normal = k.op("mul", k.op("sub", x, mean), rstd)
    store_used(call, 0, k, k.coords, _affine(k, normal, weight, bias, channel))
    call.emit_kernel(k)


@table.lowers(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    call: Call,
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    running_mean: Operand,
    running_var: Operand,
    training: bool,
    momentum: float,
    eps: float,
) -> None:
    """Results: output, mean and 1 / standard deviation, and the running statistics as they are
    after this batch, with the variance of samples (`n - 1`)."""
    require(training, "running statistics that do not change")
    _training(call, input, weight, bias, (running_mean, running_var), momentum, eps)


@table.lowers(aten._native_batch_norm_legit.no_stats)
def batch_norm_without_statistics(
    call: Call,
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    training: bool,
    momentum: float,
    eps: float,
) -> None:
    """As `_native_batch_norm_legit_functional`, without running statistics."""
    _training(call, input, weight, bias, None, momentum, eps)


def _training(
    call: Call,
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    running: tuple[Operand, Operand] | None,
    momentum: float,
    eps: float,
) -> None:
    require(input.dtype.is_float and len(input.size) >= 2, "batch norm of this input")
    frame = ReductionFrame(call, input, [d for d in range(len(input.size)) if d != 1])
    k, acc = frame.k, opmath(input.dtype)
    channel = frame.out_coords(keepdim=False)
    x = k.cast(k.load(input, frame.start()), acc)
    mean, m2 = k.reduce("welford", x)
    k.once()
    count = number(k, frame.count, acc)
    variance = k.op("div", m2, count)
    rstd = k.op("rsqrt", k.op("add", variance, k.const(eps, acc)))
    store_used(call, 1, k, channel, mean)
    store_used(call, 2, k, channel, rstd)
    if running is not None:
        sample = k.op("div", m2, k.op("sub", count, k.const(1.0, acc)))
        for index, (old, new) in enumerate(zip(running, (mean, sample), strict=True)):
            if call.result(3 + index) is not None:
                kept = k.op("mul", k.cast(k.load(old, channel), acc), k.const(1 - momentum, acc))
                total = k.op("add", kept, k.op("mul", new, k.const(momentum, acc)))
                store_used(call, 3 + index, k, channel, total)
    coords = frame.start()
    normal = k.op("mul", k.op("sub", x, mean), rstd)
    store_used(call, 0, k, coords, _affine(k, normal, weight, bias, coords[1:2]))
    call.emit_kernel(k)


def _affine(
    k: KernelBuilder, x: Value, weight: Operand | None, bias: Operand | None, coords: Coords
) -> Value:
    """Without a bias eager adds 0, so that there is no -0."""
    x = affine(k, x, weight, bias, coords)
    return x if bias is not None else k.op("add", x, k.const(0.0, x.dtype))
