"""Compile, cache, load and launch Triton kernels; interpret them where there is no GPU.

Made for kernels that a program writes as text, and as good for hand-written ones: the source is
data, the binary is data, and a launch costs little more than the driver's own call.
"""

from typing import TYPE_CHECKING, Any

from triton_rt.binary import Binary
from triton_rt.build import compile, compile_many
from triton_rt.cache import Cache
from triton_rt.folders import private
from triton_rt.hooks import LaunchRecord, launch_hook
from triton_rt.kernel import Kernel
from triton_rt.lazy import LazyKernel
from triton_rt.modules import load_jit
from triton_rt.overlap import overlapped
from triton_rt.peel import PeeledKernel, peel
from triton_rt.pool import CompilePool, shared_pool, shared_workers
from triton_rt.source import KernelParam, KernelSource, Ref
from triton_rt.standalone import standalone_text
from triton_rt.target import Target
from triton_rt.tma import (
    MapPlan,
    TensorMap,
    Workspace,
    set_allocator,
    use_allocator,
    with_fallback,
)
from triton_rt.tune import (
    Candidate,
    Machine,
    Options,
    Tuned,
    TunedKernel,
    TuningPool,
    TuningStore,
    Work,
    autotune,
)
from triton_rt.workers import Workers

if TYPE_CHECKING:
    from triton_rt.graph_pool import GraphPool
    from triton_rt.graphs import Buckets, GraphedCallable

__all__ = [
    "Binary",
    "Buckets",
    "Cache",
    "Candidate",
    "CompilePool",
    "GraphPool",
    "GraphedCallable",
    "Kernel",
    "KernelParam",
    "KernelSource",
    "LaunchRecord",
    "LazyKernel",
    "Machine",
    "MapPlan",
    "Options",
    "PeeledKernel",
    "Ref",
    "Target",
    "TensorMap",
    "Tuned",
    "TunedKernel",
    "TuningPool",
    "TuningStore",
    "Work",
    "Workers",
    "Workspace",
    "autotune",
    "compile",
    "compile_many",
    "launch_hook",
    "load_jit",
    "overlapped",
    "peel",
    "private",
    "set_allocator",
    "shared_pool",
    "shared_workers",
    "standalone_text",
    "use_allocator",
    "with_fallback",
]


def __getattr__(name: str) -> Any:
    """What loads torch: compile workers and readers of binaries do without."""
    if name in ("Buckets", "GraphedCallable"):
        from triton_rt import graphs

        return getattr(graphs, name)
    if name == "GraphPool":
        from triton_rt.graph_pool import GraphPool

        return GraphPool
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
