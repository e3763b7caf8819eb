"""Which convolutions are kernels of ours, and which calls are the vendor's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
# The vendor's calls, which compute nothing else on the way.
CALLS = frozenset(
    {
        aten.convolution.default,
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.linear.default,
    }
)
# Of a window, so that its kernel names each.
MOST_TAPS = 49


def is_depthwise(x: Sequence[Any], weight: Sequence[Any], transposed: bool, groups: Any) -> bool:
    """Of sizes of operands: whether each channel is a small convolution of its own."""
    known = isinstance(groups, int) and len(x) == len(weight) and len(x) > 2
    return (
        known
        and not transposed
        and groups > 1
        and weight[1] == 1
        and math.prod(int(n) for n in weight[2:]) <= MOST_TAPS
    )


def is_vendors(node: fx.Node) -> bool:
    """Whether a call is one of `CALLS` that no kernel of ours stands for."""
    if node.op != "call_function" or node.target not in CALLS:
        return False
    if node.target != aten.convolution.default:
        return True
    x, weight = (n.meta["val"] for n in node.args[:2] if isinstance(n, fx.Node))
    return not is_depthwise(x.shape, weight.shape, bool(node.args[6]), node.args[8])
