"""Operators whose result is one number everywhere."""

from typing import Any

import torch

aten = torch.ops.aten

ZEROS = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
ONES = (aten.ones.default, aten.ones_like.default, aten.new_ones.default)
FULLS = (aten.full.default, aten.full_like.default, aten.new_full.default)
_FILLED = {**dict.fromkeys(ZEROS, 0), **dict.fromkeys(ONES, 1)}


def filled_with(node: Any) -> Any:
    """The number that all elements of a node of an FX graph are, if there is one."""
    return node.args[-1] if node.target in FULLS else _FILLED.get(node.target)
