"""Batch and instance norm in training: one kernel, statistics included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from loop_ir import Kernel

SIZES = [(4, 3, 5, 2), (6, 3), (2, 4, 7), (3, 2, 2, 1, 2)]


@pytest.mark.spread(2)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_training_gives_results_and_statistics(oracle: Any, size: Any, dtype: torch.dtype) -> None:
    x = torch.randn(size, dtype=dtype) * 3 + 1
    c = size[1]
    w, b, m, v = (torch.rand(c, dtype=dtype) for _ in range(4))
    lowered = oracle(
        lambda x, w, b, m, v: torch.ops.aten._native_batch_norm_legit_functional(
            x, w, b, m, v, True, 0.3, 1e-5
        ),
        x, w, b, m, v,
    )  # fmt: skip
    assert [type(n) for n in lowered.graph.nodes] == [Kernel]
    oracle(lambda x, w: torch.ops.aten._native_batch_norm_legit.no_stats(
        x, w, None, True, 0.1, 1e-3), x, w)  # fmt: skip


def test_narrow_inputs_with_wide_statistics(oracle: Any) -> None:
    """The saved statistics have the type of the weight, though torch's fake tensors say another."""
    x, m, v = torch.randn(4, 3, 6).bfloat16(), torch.zeros(3), torch.ones(3)
    aten = torch.ops.aten

    def run(x: Any, m: Any, v: Any) -> Any:
        found = [
            *aten._native_batch_norm_legit_functional(x, v, m, m, v, True, 0.1, 1e-5),
            *aten._native_batch_norm_legit.no_stats(x, v, m, True, 0.1, 1e-5),
            *aten.native_group_norm(x, v, m, 4, 3, 6, 3, 1e-5),
            *aten.native_layer_norm(x, [6], torch.cat([v, v]), None, 1e-5),
        ]
        assert not any(s.dtype is torch.bfloat16 for s in found if s.dim() < 3 or s.shape[-1] == 1)
        return found

    oracle(run, x, m, v)


def test_layouts(oracle: Any) -> None:
    x = torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last)
    oracle(lambda x: F.batch_norm(x, None, None, None, None, True), x)
    oracle(lambda x: F.instance_norm(x), torch.randn(2, 3, 4, 4))


def test_statistics_that_are_given_do_not_change(oracle: Any) -> None:
    x, m = torch.randn(4, 3, 6), torch.rand(3)
    oracle(
        lambda x, m: torch.ops.aten._native_batch_norm_legit_functional(
            x, None, None, m, m, False, 0.1, 1e-5
        )[0],
        x, m, fallbacks=["aten._native_batch_norm_legit_functional.default"],
    )  # fmt: skip
