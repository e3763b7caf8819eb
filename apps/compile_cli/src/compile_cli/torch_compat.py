"""What this package uses of torch that torch does not promise to keep: all of it, in one place."""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.guards as guards
import torch._dynamo.symbolic_convert as tracer
import torch._functorch.config as functorch_config
import torch._higher_order_ops.triton_kernel_wrap as kernel_wrap
import torch.compiler.config
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch._dynamo.callback import CallbackArgs, callback_handler
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.output_graph import trace_call_log as call_log
from torch._dynamo.source import GlobalStateSource
from torch._dynamo.utils import counters
from torch._dynamo.variables.higher_order_ops import LocalMapWrappedHigherOrderVariable as LocalMap
from torch._functorch import partitioners
from torch._functorch._aot_autograd.autograd_cache import (
    AOTAutogradCacheDetails,
    BypassAOTAutogradCache,
    OutputCode,
)
from torch._functorch._aot_autograd.schemas import (
    OutputType,
    SerializableAOTDispatchCompiler,
    ViewAndMutationMeta,
)
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._prims import rng_prims
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import ShapeEnv

asserting: Any = torch._assert
"""Raises an `AssertionError` where a condition does not hold."""

untraced: Any = torch._dynamo.disable
"""Of a function: Dynamo does not look on as it runs."""

compiler_config: Any = torch.compiler.config  # it gets `patch` when it is imported

key_parts: Any = sys.modules[AOTAutogradCacheDetails.__base__.__module__]
"""The module of torch in which the key of its cache is made."""

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def export_at_level(*given: Any, **more: Any) -> Any:
    """`torch.export` at any level of its IR."""
    from torch.export._trace import _export  # no graph of Dynamo's asks for it

    return _export(*given, **more)


def in_transform() -> bool:
    """Whether a transform of `torch.func` is being applied."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def dual_level() -> bool:
    """Whether tensors may be dual numbers, which derivatives in forward mode are taken of."""
    return forward_ad._current_level >= 0


def is_transformed(x: Any) -> bool:
    """Whether a transform of `torch.func` has wrapped a tensor, or it is a dual number."""
    if not isinstance(x, torch.Tensor):
        return False
    wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(x)
    dual = forward_ad.unpack_dual(x)  # type: ignore[no-untyped-call]  # of torch
    return wrapped or dual.tangent is not None


without_transforms: Callable[[], Any] = temporarily_clear_interpreter_stack
"""A context in which operators do not know of transforms of `torch.func`."""


def fakes_on() -> bool:
    """Whether operators give fake tensors, which have no memory."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


autocast_on: Callable[[], bool] = torch._C._is_any_autocast_enabled
without_autocast: Callable[[], Any] = torch._C._DisableAutocast
"""A context in which operators take numbers as they are."""


def guard_dual_level() -> None:
    """The graph that Dynamo compiles is not called where `dual_level` is another."""
    if (context := TracingContext.try_get()) is not None:
        guard = GlobalStateSource().make_guard(guards.GuardBuilder.DUAL_LEVEL)
        context.guards_context.dynamo_guards.add(guard)


has_memory: Callable[[torch.Tensor], bool] = torch._C._has_storage
"""Batches and sparse tensors have none of their own."""


def of_batch(batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The gradients of a batch of `torch.autograd.grad(is_grads_batched=True)`. Its level is the
    first: a compiled graph is not differentiated twice."""
    return torch._remove_batch_dim(batch, 1, 0, 0).unbind()


def outside_of_batches() -> Any:
    """A context in which operators do not know that gradients are taken in batches."""
    mode: Any = torch._C._parse_dispatch_key("VmapMode")
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(mode))


def as_batch(stacked: torch.Tensor) -> torch.Tensor:
    """The inverse of `of_batch`, of a tensor of them."""
    return torch._add_batch_dim(stacked, 0, 1)


def memory_holders(tensor: torch.Tensor) -> int:
    """How many tensors of torch hold the memory of this one."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def default_store() -> Any:
    """What ranks put words into for each other; None where there is one rank, or none, or they are
    played (torch's groups for tests)."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    if dist.get_backend() in ("fake", "threaded"):
        return None
    return dist.distributed_c10d._get_default_store()


def in_data_parallel() -> bool:
    """Whether the forward pass of a `DistributedDataParallel`, or of what `fully_shard` has
    sharded, is under way."""
    module = sys.modules.get("torch.nn.parallel.distributed")
    if module is not None and module.DistributedDataParallel._active_ddp_module is not None:
        return True
    module = sys.modules.get("torch.distributed._composable_state")
    states = [ref() for ref in module._module_state_mapping.values()] if module else []
    return any(str(getattr(s, "_training_state", "")) == "TrainingState.FORWARD" for s in states)


def sharing_groups() -> list[str]:
    """The groups of ranks that share memory by torch's `enable_symm_mem_for_group`."""
    module = sys.modules.get("torch.distributed._symmetric_memory")
    return sorted(module._group_name_to_store) if module is not None else []
