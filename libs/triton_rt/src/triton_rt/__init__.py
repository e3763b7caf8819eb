"""Compile, cache, load and launch Triton kernels; interpret them where there is no GPU.

Made for kernels that a program writes as text, and as good for hand-written ones: the source is
data, the binary is data, and a launch costs little more than the driver's own call."""

from typing import TYPE_CHECKING

from multikernel import imported_later
from triton_rt.compiler import (
    Binary,
    Cache,
    CompilePool,
    Target,
    Workers,
    compile,
    compile_many,
    shared_pool,
    shared_workers,
)
from triton_rt.config import Config, worker_environment
from triton_rt.files import private
from triton_rt.source import KernelParam, KernelSource, Ref, flatten, overlapped, standalone_text
from triton_rt.tma import Address, MapPlan, TensorMap

if TYPE_CHECKING:
    from triton_rt.interp import load_jit
    from triton_rt.launch import (
        Kernel,
        LaunchRecord,
        LazyKernel,
        Workspace,
        build_ahead,
        launch_hook,
        same_tensors,
        set_allocator,
        use_allocator,
        with_fallback,
    )

__all__ = [
    "Address",
    "Binary",
    "Cache",
    "CompilePool",
    "Config",
    "Kernel",
    "KernelParam",
    "KernelSource",
    "LaunchRecord",
    "LazyKernel",
    "MapPlan",
    "Ref",
    "Target",
    "TensorMap",
    "Workers",
    "Workspace",
    "build_ahead",
    "compile",
    "compile_many",
    "flatten",
    "launch_hook",
    "load_jit",
    "overlapped",
    "private",
    "same_tensors",
    "set_allocator",
    "shared_pool",
    "shared_workers",
    "standalone_text",
    "use_allocator",
    "with_fallback",
    "worker_environment",
]

#: What loads torch, or Triton: compile workers and readers of binaries do without.
__getattr__ = imported_later(__name__, ("launch", "interp"))
