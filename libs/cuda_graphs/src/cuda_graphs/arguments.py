"""What a graph asks of the arguments and results of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class ArgumentResult:
    """A result that is one of the arguments."""

    position: int


def why_unhashable(args: Sequence[Any]) -> str | None:
    """Which argument is neither a tensor nor hashable, in words; None if all are."""
    for i, value in enumerate(args):
        if not isinstance(value, torch.Tensor):
            try:
                hash(value)
            except TypeError:
                return f"argument {i} is {type(value).__name__}: arguments are tensors and hashable"
    return None


def why_attached(outputs: Any) -> str:
    """Why results that autograd follows forbid a graph; empty if there are none: without gradients
    only arguments are so."""
    values = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    attached = any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
    return "a result requires grad" if attached and torch.is_grad_enabled() else ""


def is_counted(value: Any) -> bool:
    """Whether a value is a tensor whose writes torch counts (`_version`)."""
    return isinstance(value, torch.Tensor) and not value.is_inference()


def addresses_of(args: Sequence[Any]) -> list[int | None]:
    """Where each tensor begins; None for what is no tensor."""
    return [a.data_ptr() if isinstance(a, torch.Tensor) else None for a in args]


def global_state() -> tuple[Any, ...]:
    """What of torch's state a graph is captured for."""
    casts = torch.is_autocast_enabled("cuda")
    dtype = torch.get_autocast_dtype("cuda") if casts else None
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), dtype


def share_memory(args: Sequence[Any]) -> bool:
    """Whether two tensors of the arguments have one storage."""
    storages = [a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)]
    return len(set(storages)) != len(storages)


def label_of(args: Sequence[Any], bucket: int | None) -> str:
    """A call in words: `(float32[4, 8], 3)`, or `bucket 16`."""
    parts = [
        f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}"
        if isinstance(a, torch.Tensor)
        else repr(a)
        for a in args
    ]
    return f"({', '.join(parts)})" if bucket is None else f"bucket {bucket}"


def name_arguments(outputs: Any, statics: Sequence[Any]) -> Any:
    """Results that are arguments, by identity, replaced by `ArgumentResult`."""

    def one(value: Any) -> Any:
        found = (i for i, a in enumerate(statics) if a is value and isinstance(a, torch.Tensor))
        position = next(found, None)
        return value if position is None else ArgumentResult(position)

    if type(outputs) in (tuple, list):
        return type(outputs)([one(v) for v in outputs])
    return one(outputs)


def why_unusable(outputs: Any, statics: Sequence[Any]) -> str:
    """Why these results forbid a graph; empty if they do not."""
    storages = {
        a.untyped_storage().data_ptr(): i
        for i, a in enumerate(statics)
        if isinstance(a, torch.Tensor)
    }
    for value in outputs if type(outputs) in (tuple, list) else [outputs]:
        if isinstance(value, torch.Tensor):
            position = storages.get(value.untyped_storage().data_ptr())
            if position is not None and value.numel():
                return f"a result shares the memory of argument {position}"
        elif not isinstance(value, (int, float, bool, str, type(None), ArgumentResult)):
            return f"a result is {type(value).__name__}: results are tensors and plain values"
    return ""


def same_tensors(
    tensors: Sequence[torch.Tensor], places: Sequence[int]
) -> Callable[[Sequence[Any]], bool]:
    """A function of a tuple or list: whether it has as many tensors, with the element types,
    devices, sizes and strides of these, and at `places` (positions) the same addresses."""

    def layouts(args: Sequence[Any]) -> list[Any]:
        return [(a.dtype, a.device, a.shape, a.stride()) for a in args]

    known, addresses = layouts(tensors), [tensors[i].data_ptr() for i in places]

    def same(args: Sequence[Any]) -> bool:
        alike = all(isinstance(a, torch.Tensor) for a in args) and layouts(args) == known
        return alike and [args[i].data_ptr() for i in places] == addresses

    return same
