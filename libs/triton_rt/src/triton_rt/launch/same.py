"""Whether the tensors of a call are like those of a call before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from triton_rt.launch import native


def same_tensors(
    tensors: Sequence[torch.Tensor], places: Sequence[int] = ()
) -> Callable[[Sequence[Any]], bool]:
    """A function of a tuple or list: whether it has as many tensors, with the element types,
    devices, sizes and strides of these, and at `places` (positions) the same addresses. It keeps
    none of them. With the native launcher one call of C does it, in 0.02 us a tensor, which says no
    of tensors that are of a class of their own where these were not.

    >>> same = same_tensors([torch.ones(2, 3)])
    >>> same((torch.zeros(2, 3),)), same((torch.zeros(3, 2).t(),))
    (True, False)
    """
    module = native.extension()
    if module is not None:
        try:
            found: Callable[[Sequence[Any]], bool] = module.Same(tuple(tensors), tuple(places))
        except TypeError:
            pass  # one is of a class of its own, or torch's C functions are not to be trusted
        else:
            return found
    known = [_layout(t) for t in tensors]
    addresses = [(i, tensors[i].data_ptr()) for i in places]

    def same(others: Sequence[Any]) -> bool:
        if not all(isinstance(t, torch.Tensor) for t in others):
            return False
        alike = known == [_layout(t) for t in others]
        return alike and all(others[i].data_ptr() == address for i, address in addresses)

    return same


def _layout(t: torch.Tensor) -> tuple[Any, ...]:
    return t.dtype, t.device, t.shape, t.stride()
