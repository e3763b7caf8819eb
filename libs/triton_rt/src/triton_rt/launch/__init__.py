"""Arguments -> a launch: checks, alignment, packing, and the call of the CUDA driver.

A `LazyKernel` compiles what its arguments need; a `Kernel` is one binary; a `FallbackKernel` has a
form without TMA."""

from triton_rt.launch.dispatch import Dispatch, make_dispatcher
from triton_rt.launch.fallback import FallbackKernel, with_fallback
from triton_rt.launch.hooks import LaunchRecord, launch_hook
from triton_rt.launch.kernel import Kernel
from triton_rt.launch.lazy import LazyKernel
from triton_rt.launch.loading import Entry
from triton_rt.launch.native import build_ahead
from triton_rt.launch.same import same_tensors
from triton_rt.launch.workspace import Workspace, set_allocator, use_allocator
