"""An operator whose result is random and decided by a seed that is given: wherever it is computed,
it is the same.

    seed = seed(device, 0)                     torch's generator decides it
    drawn(seed, [n, m], [0, 1], 0.9)[i, j]     is true with probability 0.9, which seed[0] and
                                               i*m + j decide

They serve graphs of gradients (`passes.drawn_masks`): a backward pass, or one that checkpoints
repeat, computes a mask of dropout from eight bytes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aten_lowering.pool_offsets import LIBRARY
from loop_ir.ir import philox

LIBRARY.define(
    "seed(Device device, int number) -> Tensor", tags=[torch.Tag.nondeterministic_seeded]
)
LIBRARY.define("drawn(Tensor seed, SymInt[] size, int[] order, float p) -> Tensor")

ROW = 2
"""Integers of which a seed is the first: so many bytes apart, all begin where Triton says aligned.
"""


def below(p: float) -> int:
    """The word that those of 32 bits are below with the probability `p`."""
    return min(round(p * 2**32), 2**32 - 1)


def seed(device: torch.device, number: int) -> Tensor:
    """Of 63 bits, the first of `ROW` numbers. number: another for each of a graph's, which torch
    would take for one call otherwise."""
    return torch.randint(2**63 - 1, (ROW,), device=device)


def drawn(seed: Tensor, size: Sequence[int], order: Sequence[int], p: float) -> Tensor:
    """True with the probability `p`, of elements that count in the order of `size` and lie in
    memory in that of the dimensions `order`."""
    mask = _empty(seed, size, order, p)
    words = philox(seed[0].cpu().numpy(), np.arange(mask.numel()).reshape(mask.shape))
    return mask.copy_(torch.from_numpy(np.asarray(words < below(p))))


def _empty(seed: Tensor, size: Any, order: Sequence[int], p: float) -> Tensor:
    memory = seed.new_empty([size[d] for d in order], dtype=torch.bool)
    return memory.permute([order.index(d) for d in range(len(order))])


LIBRARY.impl("seed", seed, "CompositeExplicitAutograd")
LIBRARY.impl("drawn", drawn, "CompositeExplicitAutograd")
LIBRARY.impl("drawn", _empty, "Meta")
SEED = torch.ops.aten_lowering.seed.default
DRAWN = torch.ops.aten_lowering.drawn.default
