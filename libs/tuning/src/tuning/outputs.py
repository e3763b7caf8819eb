"""The tensors of a call that candidates write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from triton_rt import LazyKernel, flatten
from tuning.options import Grid
from tuning.saved import Span, spans


def tensor_of(arg: Any) -> torch.Tensor | None:
    """The tensor of an argument: itself, or the one under a descriptor (its `base`, or that one's
    `owner`)."""
    for _ in range(3):
        if isinstance(arg, torch.Tensor):
            return arg
        arg = getattr(arg, "base", getattr(arg, "owner", None))
    return None


def mutated_spans(
    candidates: Sequence[tuple[LazyKernel, Grid]],
    args: Sequence[Any],
    only: Sequence[str] | None = None,
) -> list[Span]:
    """The bytes that some candidate writes; of parameters named in `only`, if given."""
    return spans(outputs_of(candidates, args, only))


def outputs_of(
    candidates: Sequence[tuple[LazyKernel, Grid]],
    args: Sequence[Any],
    only: Sequence[str] | None = None,
) -> list[torch.Tensor]:
    """The tensors of mutated parameters, each once."""
    found: dict[int, torch.Tensor] = {}
    flat = flatten(args)
    for kernel, _ in candidates:
        for i, (param, arg) in enumerate(zip(kernel.source.params, flat, strict=True)):
            tensor = tensor_of(arg)
            if param.mutated and tensor is not None and (only is None or param.name in only):
                found[i] = tensor
    return list(found.values())
