"""What this package uses of torch that torch does not promise to keep: all of it, in one place."""

from torch._higher_order_ops.triton_kernel_wrap import (
    create_tma_stable_metadata,
    kernel_side_table,
    triton_kernel_wrapper_mutation,
)
from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = [
    "FakeTensorMode",
    "create_tma_stable_metadata",
    "kernel_side_table",
    "triton_kernel_wrapper_mutation",
]
