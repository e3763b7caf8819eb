"""Tensors with the layouts of a program's, at given sizes: what planning measures with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fx_emit import TORCH_DTYPE
from symexpr import evaluate
from wrapper_ir import TensorType


def layout_at(type_: TensorType, hints: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Sizes and strides of a type at the hints."""
    size = [int(evaluate(n, hints)) for n in type_.size]
    return size, [int(evaluate(n, hints)) for n in type_.stride]


def random_tensor(
    type_: TensorType,
    hints: Mapping[str, int],
    generator: torch.Generator | None = None,
    below: int = 2,
) -> Tensor:
    """A tensor of this layout at the hints: random floats, integers below `below`. generator: where
    the random numbers are from; unless given, one of the call's own: the state of torch's is the
    user's."""
    size, stride = layout_at(type_, hints)
    stored = [1 if s == 0 and n > 1 else n for n, s in zip(size, stride, strict=True)]
    out: Tensor = torch.empty_strided(
        stored, stride, dtype=TORCH_DTYPE[type_.dtype], device=str(type_.device)
    )
    generator = generator or torch.Generator(out.device)
    if type_.dtype.is_float and type_.dtype.itemsize == 1:  # bits of finite positive numbers
        out.view(torch.uint8).random_(0, 0x78, generator=generator)
    elif type_.dtype.is_float:
        out.normal_(generator=generator)
    else:
        out.random_(0, below, generator=generator)
    return out.as_strided(size, stride)


def as_layout(tensor: Tensor, type_: TensorType, hints: Mapping[str, int]) -> Tensor:
    """The same memory under the sizes and strides of `type_`."""
    size, stride = layout_at(type_, hints)
    return torch.as_strided(tensor, size, stride)


def view_of(tensor: Tensor, type_: TensorType, hints: Mapping[str, int]) -> Tensor:
    """What `type_` says of the storage that a tensor lies in, its offset included."""
    size, stride = layout_at(type_, hints)
    return torch.as_strided(tensor, size, stride, int(evaluate(type_.offset, hints)))
