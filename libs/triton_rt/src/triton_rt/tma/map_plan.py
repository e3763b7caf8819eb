"""A descriptor whose sizes are known at the call."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton_rt.errors import WrongDescriptor
from triton_rt.tma.tensor_map import Address, TensorMap

#: A number, the name of one, or a function of all numbers by name.
Size = int | str | Callable[[Mapping[str, int]], int]


@dataclass(frozen=True)
class MapPlan:
    """How to describe a tensor once the sizes are there.

    `shape` and `strides` default to the tensor's own; `offset` skips elements of it.

    >>> import torch
    >>> plan = MapPlan((8, 16), shape=("rows", lambda s: s["cols"] // 2), strides=("cols", 1))
    >>> plan.bind(torch.zeros(12, 64), {"rows": 12, "cols": 64}).shape
    (12, 32)
    """

    block: tuple[int, ...]
    shape: tuple[Size, ...] | None = None
    strides: tuple[Size, ...] | None = None
    offset: Size = 0
    padding: str = "zero"

    def bind(self, base: Any, sizes: Mapping[str, Any] | None = None) -> TensorMap:
        """A tensor's (or `Address`'s) descriptor. Raises `WrongDescriptor` for a missing size."""
        known = sizes or {}
        offset = _value(self.offset, known)
        if offset:
            # The owner keeps the memory: a view by bytes would need a torch of one dtype.
            kind = TensorMap(base, (1,), shape=(1,), strides=(1,)).kind
            at = base.data_ptr() + offset * base.dtype.itemsize
            given = base
            base = Address(at, kind, given.get_device(), given)
            shape = self.shape if self.shape is not None else tuple(given.shape)
            strides = self.strides if self.strides is not None else tuple(given.stride())
        else:
            shape, strides = self.shape, self.strides  # type: ignore[assignment]  # resolved below
        return TensorMap(
            base,
            self.block,
            shape=_values(shape, known),
            strides=_values(strides, known),
            padding=self.padding,
        )


def _values(items: Sequence[Size] | None, sizes: Mapping[str, Any]) -> list[int] | None:
    return None if items is None else [_value(item, sizes) for item in items]


def _value(item: Size, sizes: Mapping[str, Any]) -> int:
    try:
        value = item(sizes) if callable(item) else sizes[item] if isinstance(item, str) else item
    except KeyError as error:
        raise WrongDescriptor(f"size {error} is not given; given are {', '.join(sizes)}") from None
    return operator.index(value)
