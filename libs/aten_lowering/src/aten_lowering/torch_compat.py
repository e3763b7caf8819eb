"""What this package uses of torch that torch does not promise to keep: all of it, in one place. A
version of torch that moves a name is met here."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import sympy
import torch
import torch._functorch.config
from torch._C import DispatchKey, DispatchKeySet
from torch._C._functorch import is_batchedtensor as is_batch
from torch._decomp import get_decompositions
from torch._decomp.decompositions import _upsample_get_cubic_coefficients as cubic_coefficients
from torch._decomp.decompositions import index_add as decomposed_index_add
from torch._decomp.decompositions import pw_cast_for_opmath, upsample_compute_output_size
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.graph_bytecode_inputs import get_external_object_by_index as external_object
from torch._export.utils import _compiling_state_context as compiling_state
from torch._export.utils import _get_decomp_for_cia as decomposition_of
from torch._export.utils import _is_preservable_cia_op as is_preservable
from torch._functorch._aot_autograd.functional_utils import (
    assert_functional_graph,
    from_fun,
    has_data_mutation,
    to_fun,
)
from torch._guards import TracingContext, tracing
from torch._higher_order_ops.associative_scan import generic_associative_scan
from torch._higher_order_ops.auto_functionalize import (
    ViewInfo,
    auto_functionalized,
    auto_functionalized_v2,
    get_mutable_args,
    read_view_information_from_args,
)
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch._higher_order_ops.triton_kernel_wrap import (
    get_mutated_tensors,
    kernel_side_table,
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)
from torch._library.utils import lookup_op
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion
from torch._prims_common import (
    compute_elementwise_output_logical_to_physical_perm,
    compute_elementwise_output_strides,
    elementwise_dtypes,
    suggest_memory_format,
)
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.nn.attention.flex_attention import _vmap_for_bhqkv as vmap_over_scores

COMPOSITE = DispatchKey.CompositeImplicitAutograd
zeros_and_scatter: Any = torch.ops.flex_lib.zeros_and_scatter.default
"""What becomes of what functions of scores have captured, in their gradients."""
functorch_config = torch._functorch.config


def composite_operators() -> set[str]:
    """The names of the operators that are registered now with a rule of their own by which they
    decompose."""
    return set(torch._C._dispatch_get_registrations_for_dispatch_key(COMPOSITE.name))


#: Which torch leaves untyped.
sym_max: Callable[[Any, Any], Any] = torch.sym_max
sym_min: Callable[[Any, Any], Any] = torch.sym_min


def settle(symbol: torch.SymInt, value: torch.SymInt | int) -> None:
    """From now on a symbol, that torch made up for what it did not know, is `value`."""
    env = symbol.node.shape_env
    env.replacements[symbol.node.expr] = (
        value.node.expr if isinstance(value, torch.SymInt) else sympy.Integer(value)
    )
    env._update_version_counter()


def symmetric_memory() -> Any:
    """Torch's module of memory that the GPUs of a host share, which few programs import."""
    import torch.distributed._symmetric_memory as found

    return found


def has_kernel(operator: str, key: str) -> bool:
    """Whether `name.overload` has a kernel of its own for a dispatch key."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator, key))


def without_functionalization() -> torch._C._ExcludeDispatchKeyGuard:
    """Inside, tensors are not made functional."""
    return torch._C._ExcludeDispatchKeyGuard(DispatchKeySet(DispatchKey.Functionalize))


def negative(x: torch.Tensor) -> torch.Tensor:
    """A view of `x` that is lazily negated."""
    return torch._neg_view(x)


def ignore_backend_decomps() -> AbstractContextManager[None]:
    """A context in which operators do not become those of mkldnn, nnpack and cuDNN."""
    from torch.export._trace import _ignore_backend_decomps  # no graph that is found asks for it

    return _ignore_backend_decomps()


broadcast_shapes: Callable[..., Any] = torch.broadcast_shapes
_sizes_of_numbers: Callable[..., Any] = torch.nn.functional._infer_size  # type: ignore[attr-defined]  # torch's own


def _sizes(*shapes: Any) -> Any:
    symbols = any(isinstance(n, torch.SymInt) for shape in shapes for n in shape)
    return (broadcast_shapes if symbols else _sizes_of_numbers)(*shapes)


def broadcast_symbols() -> None:
    """Has losses of `torch.nn.functional` take weights of symbolic sizes."""
    torch.nn.functional._infer_size = _sizes  # type: ignore[attr-defined]  # as above
