"""Which convolutions are kernels of ours, and which calls are the vendor's."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, fx

from aten_lowering.registry import named

aten = torch.ops.aten
# The vendor's calls, which compute nothing else on the way.
CALLS = frozenset(named("convolution mm addmm bmm baddbmm linear"))
# Places of a window, so that its kernel names each; and of 16-bit images, which are read one by one
# where the vendor's kernels take two. On an H200, eager / Inductor / ours in us: 3x3 of f32 1239 /
# 862 / 318, 7x7 632 / 435 / 218; 3x3 of bf16 721 / 292 / 207, but 5x5 411 / 159 / 225, and 3x3 in
# steps of two 199 / 178 / 214. Channels-last the vendor's take half the time of ours (106, 200). It
# has no such of windows that are not square (3x7 of 32 x 128 x 128 x 256 of bf16 2340 / 8890).
MOST_PLACES, MOST_NARROW_PLACES = 49, 9
# Bytes of a channels-last image whose kernel the vendor takes longer to call than to run.
SMALL = 5 << 19


def is_depthwise(
    x: Tensor, weight: Tensor, stride: Sequence[int], transposed: bool, groups: int
) -> bool:
    """Whether each channel is a small convolution of its own that our kernel does faster."""
    known = all(isinstance(n, int) for n in weight.shape)
    if not known or x.dim() != weight.dim() or x.dim() < 3 or transposed:
        return False
    if groups == 1 or weight.shape[1] != 1:
        return False
    window = [int(n) for n in weight.shape[2:]]
    if not x.is_contiguous():
        return _is_small(x) and math.prod(window) <= MOST_PLACES
    narrow = x.dtype.itemsize <= 2 and x.dim() > 3
    square = window == window[:1] * len(window)
    places = MOST_NARROW_PLACES if narrow and square else MOST_PLACES
    return math.prod(window) <= places and (not narrow or all(step == 1 for step in stride))


def _is_small(x: Tensor) -> bool:
    """Channels-last images of so few numbers that what follows is better part of their kernel."""
    known = all(isinstance(n, int) for n in x.shape)
    return known and x.movedim(1, -1).is_contiguous() and x.nbytes <= SMALL


def is_vendors(node: fx.Node) -> bool:
    """Whether a call is one of `CALLS` that no kernel of ours stands for."""
    if node.op != "call_function" or node.target not in CALLS:
        return False
    if node.target != aten.convolution.default:
        return True
    x, weight, _, stride, _, _, transposed, _, groups = node.args
    assert isinstance(x, fx.Node) and isinstance(weight, fx.Node)
    return not is_depthwise(x.meta["val"], weight.meta["val"], stride, bool(transposed), groups)  # type: ignore[arg-type]  # numbers of a convolution
