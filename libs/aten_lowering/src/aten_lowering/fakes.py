"""What torch's fake tensors say of whole operators otherwise than its kernels do."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from aten_lowering import transforms
from aten_lowering.torch_compat import op_implementations_dict

aten = torch.ops.aten
_torch_of_counts: Callable[..., Tensor] = op_implementations_dict[aten.bincount.default]


def correct_fakes() -> None:
    """Has every fake tensor of the process take these rules."""
    op_implementations_dict.update(_FAKES)


def counts(
    mode: Any, op: OpOverload, x: Tensor, weights: Tensor | None = None, minlength: int = 0
) -> Tensor:
    """Sums of weights are f32 or f64; torch says integers."""
    result = _torch_of_counts(mode, op, x, weights, minlength)
    if weights is None:
        return result
    narrow = weights.dtype is torch.float32
    with mode:
        return torch.empty_like(result, dtype=torch.float32 if narrow else torch.float64)


_FAKES: dict[OpOverload, Callable[..., Any]] = {
    **dict.fromkeys(transforms.OPERATORS, transforms.fake),
    aten.bincount.default: counts,
}
