"""Batch norm: with the running statistics a pointwise kernel, in training a reduction over each
channel, whose running statistics come from the same kernel."""

import torch

from aten_lowering.builder import Coords, Operand, Value
from aten_lowering.call import Call, opmath
from aten_lowering.errors import require
from aten_lowering.frames import ReductionFrame
from aten_lowering.lowerings.normalizations import affine
from aten_lowering.registry import Table, named

aten = torch.ops.aten
table = Table()


@table.lowers(
    *named(
        "native_batch_norm _native_batch_norm_legit_no_training "
        "_native_batch_norm_legit_functional _native_batch_norm_legit.no_stats"
    )
)
def batch_norm(
    call: Call,
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    momentum: float,
    eps: float,
    running_mean: Operand | None = None,
    running_var: Operand | None = None,
    training: bool = False,
) -> None:
    """Per channel (`[N, C, ...]`): pointwise with the running statistics, or in training with those
    of the batch. Results: output, mean and 1 / standard deviation (empty tensors without training),
    and of the functional form the running statistics as they are after this batch."""
    functional = len(call.results) == 5
    require(training or not functional, "running statistics that do not change")
    require(functional or not training or running_mean is None, "running statistics in place")
    require(input.dtype.is_float, "batch norm of integers")
    if training:
        return _training(call, input, weight, bias, (running_mean, running_var), momentum, eps)
    require(call.result(1) is None and call.result(2) is None, "saved statistics")
    require(running_mean is not None and running_var is not None, "no running statistics")
    assert running_mean is not None and running_var is not None
    acc = opmath(input.dtype)
    k = call.kernel(input.size)
    channel = k.coords[1:2]
    x = k.load(input, k.coords).to(acc)
    mean, variance = (k.load(s, channel).to(acc) for s in (running_mean, running_var))
    normal = (x - mean) * (variance + eps)("rsqrt")
    call.put(0, k, _affine(normal, weight, bias, channel))
    call.emit_kernel(k)


def _training(
    call: Call,
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    running: tuple[Operand | None, Operand | None],
    momentum: float,
    eps: float,
) -> None:
    """The running variance is that of samples (`n - 1`)."""
    require(len(input.size) >= 2, "batch norm of this input")
    frame = ReductionFrame(call, input, [d for d in range(len(input.size)) if d != 1])
    k, acc = frame.k, opmath(input.dtype)
    channel = frame.out_coords(keepdim=False)
    x = frame.element().to(acc)
    mean, m2 = frame.fold("welford", x)
    count = k.number(frame.count, acc)
    rstd = (m2 / count + eps)("rsqrt")
    call.put(1, k, mean, channel)
    call.put(2, k, rstd, channel)
    if None not in running:
        sample = m2 / (count - 1.0)
        for index, (old, new) in enumerate(zip(running, (mean, sample), strict=True), start=3):
            if old is not None and call.result(index) is not None:
                kept = k.load(old, channel).to(acc) * (1 - momentum)
                call.put(index, k, kept + new * momentum, channel)
    coords = frame.start()
    call.put(0, k, _affine((x - mean) * rstd, weight, bias, coords[1:2]), coords)
    call.emit_kernel(k)


def _affine(x: Value, weight: Operand | None, bias: Operand | None, coords: Coords) -> Value:
    """Without a bias eager adds 0, so that there is no -0."""
    x = affine(x, weight, bias, coords)
    return x if bias is not None else x + 0.0
