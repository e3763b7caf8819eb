"""What triton_emit proposes for a kernel, and how its launch meets the one before it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

import triton_emit
from loop_ir import Kernel
from planner.schedules.sizes import in_32_bits
from triton_emit import Schedule
from wrapper_ir import Device


def default_schedule(kernel: Kernel, hints: Mapping[str, int]) -> Schedule:
    """triton_emit's, overlapping the launch before it where all that it touches is on a GPU that
    can do that."""
    return _overlapping(triton_emit.default_schedule(kernel, hints), (kernel,))


def near_schedule(kernel: Kernel, hints: Mapping[str, int]) -> Schedule:
    """The same with the places in 32 bits where the hints need no more: for measuring what `select`
    launches there, under the condition that they do not."""
    return _launched(triton_emit.default_schedule(kernel, hints), kernel, hints)


def candidate_schedules(kernel: Kernel, hints: Mapping[str, int]) -> tuple[Schedule, ...]:
    """`near_schedule` and a few that may be faster, that one first."""
    found = triton_emit.candidate_schedules(kernel, hints)
    return tuple(_launched(schedule, kernel, hints) for schedule in found)


def list_schedule(kernels: Sequence[Kernel], hints: Mapping[str, int]) -> Schedule:
    """`default_schedule` for kernels that are one launch."""
    return _overlapping(triton_emit.list_schedule(kernels, hints), kernels)


def _launched(schedule: Schedule, kernel: Kernel, hints: Mapping[str, int]) -> Schedule:
    if kernel.symbols and schedule.index_bits == 64 and in_32_bits(kernel, hints) is not None:
        schedule = replace(schedule, index_bits=32)
    return _overlapping(schedule, (kernel,))


def _overlapping(schedule: Schedule, kernels: Sequence[Kernel]) -> Schedule:
    devices = {buffer.type.device for kernel in kernels for buffer in kernel.buffers}
    return replace(schedule, overlap=bool(devices) and all(map(_overlaps, devices)))


def _overlaps(device: Device) -> bool:
    """Programmatic dependent launch came with Hopper, which is assumed where there is no GPU."""
    if device.kind != "cuda":
        return False
    return not torch.cuda.is_available() or torch.cuda.get_device_capability(device.index) >= (9, 0)
