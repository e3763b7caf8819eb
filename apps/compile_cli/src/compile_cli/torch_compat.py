"""What this package uses of torch that torch does not promise to keep: all of it, in one place."""

from __future__ import annotations

import torch
import torch._higher_order_ops.triton_kernel_wrap as kernel_wrap
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensor
from torch.export._trace import _export as export_at_level

__all__ = [
    "COMPOSITE",
    "FakeTensor",
    "aot_autograd",
    "export_at_level",
    "in_transform",
    "kernel_wrap",
    "min_cut_rematerialization_partition",
    "register_backend",
]

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def in_transform() -> bool:
    """Whether a transform of `torch.func` is being applied."""
    return torch._C._functorch.peek_interpreter_stack() is not None
