"""Layouts of results that torch's decompositions lose: eager's rule, by operator.

A decomposition gives the layout that its last operation happens to have; the kernel in eager
allocates its result by a rule of its own (ATen/native: `zeros_like(..., LEGACY_CONTIGUOUS)`,
`empty_like(self)`, `suggest_memory_format`). The copy at the end is part of the kernel before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten
Layout = Callable[..., Tensor]


def contiguous(result: Tensor, *_args: Any) -> Tensor:
    return result.contiguous()


def like(result: Tensor, x: Tensor, *_args: Any) -> Tensor:
    """Dimensions in the order of those of `x`, the first argument."""
    if result.dim() != x.dim() or (x.is_contiguous() and result.is_contiguous()):
        return result
    order = sorted(range(x.dim()), key=lambda d: x.stride(d), reverse=True)
    inverse = [order.index(d) for d in range(x.dim())]
    return result.permute(order).contiguous().permute(inverse)


def suggested(result: Tensor, x: Tensor, *_args: Any) -> Tensor:
    """Channels last where `x` is, which is the first argument; else contiguous."""
    for dims, form in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == dims and x.is_contiguous(memory_format=form) and not x.is_contiguous():
            return result.contiguous(memory_format=form)
    return result.contiguous()


def suggested_on_cpu(result: Tensor, x: Tensor, *_args: Any) -> Tensor:
    """The kernels for CUDA give contiguous results, as the decompositions do."""
    return suggested(result, x) if x.device.type == "cpu" else result


LAYOUTS: dict[OpOverload, Layout] = {
    aten.huber_loss_backward.default: contiguous,
    aten.smooth_l1_loss_backward.default: contiguous,
    aten.mse_loss_backward.default: contiguous,
    aten.glu_backward.default: contiguous,
    aten.binary_cross_entropy.default: like,
    aten.upsample_nearest1d.default: suggested,
    aten._upsample_nearest_exact1d.default: suggested,
    aten.upsample_nearest3d.default: suggested,
    aten._upsample_nearest_exact3d.default: suggested,
    aten.reflection_pad2d.default: suggested_on_cpu,
    aten.reflection_pad2d_backward.default: suggested_on_cpu,
    aten.replication_pad2d.default: suggested_on_cpu,
    aten.max_unpool2d.default: suggested_on_cpu,
}


def laid_out(op: OpOverload, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition, with a result as eager lays it out."""
    layout = LAYOUTS.get(op)
    return decomposition if layout is None else functools.partial(_run, layout, decomposition)


def _run(layout: Layout, decomposition: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = decomposition(*args, **kwargs)
    return layout(result, *args) if isinstance(result, Tensor) else result
