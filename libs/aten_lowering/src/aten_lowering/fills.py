"""Operators whose result is one number everywhere."""

from __future__ import annotations

import torch

aten = torch.ops.aten

ZEROS = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
ONES = (aten.ones.default, aten.ones_like.default, aten.new_ones.default)
FULLS = (aten.full.default, aten.full_like.default, aten.new_full.default)
