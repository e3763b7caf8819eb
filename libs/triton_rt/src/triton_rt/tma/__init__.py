"""TMA: tensor maps made on the host, descriptors made in the kernel, and kernels without either.

Imports torch and Triton only where they are needed, as `triton_rt.binary` uses the layouts.
"""

from triton_rt.tma.fallback import FallbackKernel, with_fallback
from triton_rt.tma.layout import MapLayout
from triton_rt.tma.plan import MapPlan
from triton_rt.tma.rules import Violation
from triton_rt.tma.tensor_map import Address, TensorMap, as_tensor_map, describe
from triton_rt.tma.workspace import Workspace, set_allocator, use_allocator

__all__ = [
    "Address",
    "FallbackKernel",
    "MapLayout",
    "MapPlan",
    "TensorMap",
    "Violation",
    "Workspace",
    "as_tensor_map",
    "describe",
    "set_allocator",
    "use_allocator",
    "with_fallback",
]
