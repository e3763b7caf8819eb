"""What this package uses of torch that torch does not promise to keep: all of it, in one place."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._C._dynamo.guards
from torch._higher_order_ops.triton_kernel_wrap import (
    create_tma_stable_metadata,
    kernel_side_table,
    triton_kernel_wrapper_mutation,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx.graph_module import _format_import_block
from torch.package import sys_importer
from torch.utils._python_dispatch import _disable_current_modes

_functions: Any = torch._C._dynamo.guards

reinterpret_tensor: Callable[..., torch.Tensor] = _functions._reinterpret_tensor
"""`(tensor, size, stride, skipped)`: a tensor over the same storage that begins `skipped` elements
after the first one of `tensor`. In half the time of `as_strided`: no operator is dispatched, nobody
looks whether the storage is long enough, and autograd does not know that it is a view."""

_MATMULS = ("mm", "addmm", "bmm", "baddbmm")
_ATTENTION = [f"_scaled_dot_product_{n}_attention" for n in ("flash", "efficient", "cudnn")]
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "aten.randint.low": torch.randint,
    **{
        f"aten.{name}.default": getattr(torch, name)
        for name in (*_MATMULS, "convolution", *_ATTENTION)
        if hasattr(torch, name)
    },
    **{f"aten.{name}.out": getattr(torch, name) for name in _MATMULS},
}
"""Functions of torch that call an operator with the same arguments, in half the time that
`torch.ops` takes: its callables look for what fits a schema."""


def cudnn_flags() -> tuple[bool, bool, bool]:
    """Whether cuDNN measures, is deterministic, and may use TF32, as torch asks it now."""
    exact = torch._C._get_cudnn_deterministic() or torch._C._get_deterministic_algorithms()
    tf32 = torch._C._get_fp32_precision_getter("cuda", "conv") == "tf32"
    return torch._C._get_cudnn_benchmark(), exact, tf32


def new_zeros(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory that no mode and no transform of torch's sees, which it may outlive."""
    off = torch._C
    with _disable_current_modes(), off.DisableTorchFunction(), off._DisableFuncTorch():
        return torch.zeros(count, dtype=dtype, device=device)


def current_stream(index: int) -> int:
    """The address of the current stream of a GPU."""
    found: int = torch._C._cuda_getCurrentRawStream(index)
    return found


def imports_of(gm: GraphModule) -> str:
    """Lines that import what the code of a module calls. Raises where that is of no module."""
    names = gm.graph.python_code("self").globals
    text: str = _format_import_block(names, sys_importer)
    return text


def new_mode() -> FakeTensorMode:
    """A mode of fake tensors whose sizes may be symbols."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # with Dynamo, which takes seconds

    return FakeTensorMode(shape_env=ShapeEnv())


def symbolic(hints: Mapping[str, int], mode: FakeTensorMode | None) -> dict[str, Any]:
    """Sizes as symbols of a mode that has some, each with its hint; else as they are."""
    shapes = None if mode is None else mode.shape_env
    if shapes is None:
        return dict(hints)
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    found: dict[str, Any] = {}
    for name, hint in hints.items():
        size = shapes.create_symbol(
            hint, ConstantSource(name), dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None,
            do_not_specialize_zero_one=True,
        )  # fmt: skip
        found[name] = shapes.create_symintnode(size, hint=hint)
    return found


def lookup_backend(name: str) -> Callable[..., Any]:
    """A backend of `torch.compile` by its name. Raises torch's `InvalidBackend`."""
    from torch._dynamo import lookup_backend as lookup  # which takes seconds to import

    found: Callable[..., Any] = lookup(name)
    return found


def allocator(device: torch.device) -> Callable[..., Any] | None:
    """`(size, stride, dtype)`, which allocates on the device in half the time of
    `torch.empty_strided`. None where there is none: on other devices, and on one of several GPUs,
    of which it takes the current one."""
    only = device.type == "cpu" or (device.type == "cuda" and torch.cuda.device_count() == 1)
    found: Callable[..., Any] | None = getattr(_functions, f"_empty_strided_{device.type}", None)
    return found if only else None
