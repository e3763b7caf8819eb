"""What is done to the inputs of a host program before it takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Runner = Callable[..., Sequence[Any]]
LazyInput = tuple[int, bool, bool]
"""The position of an input, and whether it was conjugated and negated when it was captured."""


def aligned_run(run: Runner, positions: Sequence[int]) -> Runner:
    """`run`, with a copy in place of each argument at `positions` (which are only read) whose
    first element does not lie at a multiple of 16 bytes: tensor maps take no other address."""
    if not positions:
        return run

    def checked(*args: Any) -> Sequence[Any]:
        if any(args[i].data_ptr() % 16 for i in positions):
            fixed = list(args)
            for i in positions:
                if args[i].data_ptr() % 16:
                    like = args[i]
                    fixed[i] = torch.empty_strided(
                        like.shape, like.stride(), dtype=like.dtype, device=like.device
                    ).copy_(like)
            return run(*fixed)
        return run(*args)

    return checked


def in_memory_run(run: Runner, lazy: Sequence[LazyInput]) -> Runner:
    """`run`, with the memory in place of each argument that is lazy, or was when captured."""
    if not lazy:
        return run
    from aten_lowering import lazy_memory  # not needed to run most programs, and slow to import

    def resolved(*args: Any) -> Sequence[Any]:
        given = list(args)
        for i, conj, neg in lazy:
            tensor = given[i]
            if conj or neg or tensor.is_conj() or tensor.is_neg():
                given[i] = lazy_memory(tensor, conj, neg)
        return run(*given)

    return resolved
