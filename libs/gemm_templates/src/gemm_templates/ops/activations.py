"""What `act` means, as torch's function and as an epilogue."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gemm_templates.epilogues import ACTIVATIONS, GELU_NARROW
from gemm_templates.fused import Epilogue

TORCH_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
}


def epilogue_of(act: str, dtype: torch.dtype) -> Epilogue | None:
    """The GELU for 16-bit results is exact to less than their rounding. None for "none"."""
    if act == "gelu" and dtype not in (torch.float32, torch.float64):
        return GELU_NARROW
    return ACTIVATIONS.get(act)
