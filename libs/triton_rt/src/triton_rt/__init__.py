"""Compile, cache, load and launch Triton kernels; interpret them where there is no GPU.

Made for kernels that a program writes as text, and as good for hand-written ones: the source is
data, the binary is data, and a launch costs little more than the driver's own call."""

from typing import TYPE_CHECKING

from multikernel import imported_later
from triton_rt.compiler import Binary as Binary
from triton_rt.compiler import Cache as Cache
from triton_rt.compiler import CompilePool as CompilePool
from triton_rt.compiler import Target as Target
from triton_rt.compiler import Workers as Workers
from triton_rt.compiler import compile as compile
from triton_rt.compiler import compile_many as compile_many
from triton_rt.compiler import shared_pool as shared_pool
from triton_rt.compiler import shared_workers as shared_workers
from triton_rt.config import Config as Config
from triton_rt.config import worker_environment as worker_environment
from triton_rt.files import private as private
from triton_rt.source import KernelParam as KernelParam
from triton_rt.source import KernelSource as KernelSource
from triton_rt.source import Ref as Ref
from triton_rt.source import flatten as flatten
from triton_rt.source import overlapped as overlapped
from triton_rt.source import standalone_text as standalone_text
from triton_rt.tma import Address as Address
from triton_rt.tma import MapPlan as MapPlan
from triton_rt.tma import TensorMap as TensorMap

if TYPE_CHECKING:
    from triton_rt.interp import load_jit as load_jit
    from triton_rt.launch import Kernel as Kernel
    from triton_rt.launch import LaunchRecord as LaunchRecord
    from triton_rt.launch import LazyKernel as LazyKernel
    from triton_rt.launch import Workspace as Workspace
    from triton_rt.launch import build_ahead as build_ahead
    from triton_rt.launch import launch_hook as launch_hook
    from triton_rt.launch import same_tensors as same_tensors
    from triton_rt.launch import set_allocator as set_allocator
    from triton_rt.launch import use_allocator as use_allocator
    from triton_rt.launch import with_fallback as with_fallback


#: What loads torch, or Triton: compile workers and readers of binaries do without.
__getattr__ = imported_later(__name__, ("launch", "interp"))
