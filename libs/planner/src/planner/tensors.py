"""Tensors with the layouts of a program's, at given sizes: what planning measures with."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import sympy
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
    if type_.dtype.is_float and type_.dtype.itemsize == 1:  # bits of finite numbers
        bits = out.view(torch.uint8).random_(0, 2 * 0x78, generator=generator)
        bits += 8 * (bits >= 0x78)
    elif type_.dtype.is_float:
        out.normal_(generator=generator)
    elif below == 1:  # torch draws no unsigned integers of more than 8 bits
        out.zero_()
    else:
        out.random_(0, below, generator=generator)
    return out.as_strided(size, stride)


def view_of(tensor: Tensor, type_: TensorType, hints: Mapping[str, int]) -> Tensor:
    """What `type_` says of the storage that a tensor lies in, its offset included."""
    size, stride = layout_at(type_, hints)
    return torch.as_strided(tensor, size, stride, int(evaluate(type_.offset, hints)))


@dataclass
class Buffers:
    """Random tensors by the names of buffers: what is of one buffer shares its memory.

    uses: all that is asked for, by buffer. hints: sizes at which. below: of integers, what all in a
    buffer are below, where that is not 2. given: tensors of a call, in place of random ones that
    would be no larger; what is measured does not write to them."""

    uses: Iterable[tuple[str, TensorType]]
    hints: Mapping[str, int]
    below: Mapping[str, int] = field(default_factory=dict)
    given: Mapping[str, Tensor] = field(default_factory=dict)
    _types: dict[str, TensorType] = field(default_factory=dict)
    _storages: dict[str, TensorType] = field(default_factory=dict)
    _made: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, type_ in self.uses:
            end = sympy.Integer(int(evaluate(type_.offset + type_.extent, self.hints)))
            self._types.setdefault(name, type_)
            if name not in self._storages or end > self._storages[name].size[0]:
                flat = TensorType(type_.dtype, (end,), (sympy.S.One,), type_.device)
                self._storages[name] = flat

    def view(self, name: str, type_: TensorType | None = None) -> Tensor:
        """A buffer as this type describes it; by default, as its first use does."""
        type_ = type_ or self._types[name]
        tensor, end = self.given.get(name), int(self._storages[name].size[0])
        if tensor is not None and TORCH_DTYPE[type_.dtype] is tensor.dtype:
            first = tensor.storage_offset()
            if (first + end) * tensor.element_size() <= tensor.untyped_storage().nbytes():
                return view_of(tensor, replace(type_, offset=type_.offset + first), self.hints)
        if name not in self._made:
            storage, number = self._storages[name], list(self._storages).index(name)
            generator = torch.Generator(str(storage.device)).manual_seed(number)
            below = self.below.get(name, 2)
            self._made[name] = random_tensor(storage, self.hints, generator, below)
        return view_of(self._made[name], type_, self.hints)

    def argument(self, arg: str | sympy.Expr) -> Tensor | int:
        """What a kernel takes for the name of a buffer, or for a size."""
        return self.view(arg) if isinstance(arg, str) else int(evaluate(arg, self.hints))
