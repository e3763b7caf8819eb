"""Decompositions lay out their results as eager does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aten_lowering import decompositions
from aten_lowering.layouts import LAYOUTS

aten = torch.ops.aten
IMAGE = torch.randn(2, 4, 6, 6).contiguous(memory_format=torch.channels_last)
WIDE = torch.randn(2, 4, 8, 8).contiguous(memory_format=torch.channels_last)
PLACES = torch.arange(36).reshape(6, 6).expand(2, 4, 6, 6)
ONE = torch.tensor(1.0)
MATRIX = torch.rand(5, 4).t()
LINE, CUBE = torch.randn(4, 3, 2).transpose(0, 2), torch.randn(4, 4, 4, 3, 2).transpose(0, 4)
CALLS: dict[Any, tuple[Any, ...]] = {
    aten.huber_loss_backward.default: (ONE, MATRIX, -MATRIX, 1, 1.0),
    aten.smooth_l1_loss_backward.default: (ONE, MATRIX, -MATRIX, 1, 1.0),
    aten.mse_loss_backward.default: (ONE, MATRIX, -MATRIX, 1),
    aten.glu_backward.default: (IMAGE, torch.cat([IMAGE, IMAGE], 3), 3),
    aten.binary_cross_entropy.default: (MATRIX, MATRIX.contiguous(), None, 0),
    aten.upsample_nearest1d.default: (LINE, [3]),
    aten._upsample_nearest_exact1d.default: (LINE, [3]),
    aten.upsample_nearest3d.default: (CUBE, [3, 3, 3]),
    aten._upsample_nearest_exact3d.default: (CUBE, [3, 3, 3]),
    aten.reflection_pad2d.default: (IMAGE, [1, 1, 1, 1]),
    aten.reflection_pad2d_backward.default: (WIDE, IMAGE, [1, 1, 1, 1]),
    aten.replication_pad2d.default: (IMAGE, [1, 1, 1, 1]),
    aten.max_unpool2d.default: (
        IMAGE, PLACES.contiguous(memory_format=torch.channels_last), [12, 12],
    ),
}  # fmt: skip


@pytest.mark.parametrize("op", LAYOUTS, ids=str)
def test_a_decomposition_lays_out_its_result_as_eager(op: Any) -> None:
    for change in (lambda t: t, torch.Tensor.contiguous):
        args = [change(a) if isinstance(a, torch.Tensor) else a for a in CALLS[op]]
        got, want = decompositions()[op](*args), op(*args)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
