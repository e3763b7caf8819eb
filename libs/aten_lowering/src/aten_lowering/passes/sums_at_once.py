"""Small sums over ranks in one kernel, through memory that the GPUs of a host share.

    r = all_reduce(x, "sum", group)     ->     s = shared_memory(sizes, dtype, device, group)
    w = wait_tensor(r)                         w = sum_at_once(s, x, group)

Each rank writes its part where all can read it, and adds up the others': one launch, of which an
all-reduce through a ring of messages takes several times as long. Sums of one size and type take
one part: the views that make it cost the host more than the sum. Only for groups for which torch's
symmetric memory is enabled (`enable_symm_mem_for_group`), as it is, or is not, on every rank."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from aten_lowering.passes.base import call
from aten_lowering.pool_offsets import LIBRARY
from aten_lowering.torch_compat import symmetric_memory

# Bytes up to which one kernel is faster, that of each rank reads what all others have.
MOST = 256 << 10
_DTYPES = (torch.bfloat16, torch.float32)
_SHARE = 16  # bytes that a thread moves at once


def shared_memory(
    size: Sequence[int], dtype: torch.dtype, device: torch.device, group: str
) -> Tensor:
    """A tensor of this form in the memory that the ranks of a group share, which is one."""
    memory, count = symmetric_memory(), math.prod(size)
    memory.get_symm_mem_workspace(group, max(MOST, count * dtype.itemsize))
    workspace: Tensor = memory._group_name_to_workspace_tensor[group]
    return workspace.view(dtype)[:count].view(size)


def sum_at_once(shared: Tensor, x: Tensor, group: str) -> Tensor:
    """The sum of what all ranks of a group give. Each call is one of all ranks."""
    x = x if x.data_ptr() % _SHARE == 0 else x.clone()
    out: Tensor = _sum()(shared, x, "sum", group)
    return out


@cache
def _sum() -> Any:
    return torch.ops.symm_mem.one_shot_all_reduce_copy.default


for made, taken in (
    (shared_memory, "SymInt[] size, ScalarType dtype, Device device"),
    (sum_at_once, "Tensor shared, Tensor x"),
):
    LIBRARY.define(f"{made.__name__}({taken}, str group) -> Tensor")
    LIBRARY.impl(made.__name__, made, "CompositeExplicitAutograd")
    getattr(torch.ops.aten_lowering, made.__name__).default.direct = made  # 2 us less a call
torch.library.register_fake(
    "aten_lowering::shared_memory",
    lambda size, dtype, device, _: torch.empty(size, dtype=dtype, device=device),
    lib=LIBRARY,
)
torch.library.register_fake(
    "aten_lowering::sum_at_once", lambda shared, *_: torch.empty_like(shared), lib=LIBRARY
)


def sums_at_once(graph: fx.Graph) -> None:
    """Changes the graph where it sums few numbers over the ranks of such a group."""
    family, own = torch.ops._c10d_functional, torch.ops.aten_lowering
    parts: dict[str, fx.Node] = {}
    for node in graph.find_nodes(op="call_function", target=family.all_reduce.default):
        x, kind, group = node.args
        (wait,) = node.users if len(node.users) == 1 else (None,)
        if wait is None or wait.target is not family.wait_tensor.default:
            continue
        if kind == "sum" and _is_small(x.meta["val"]) and _shares(group):
            with graph.inserting_before(node), x.meta["val"].fake_mode:
                like = x.meta["val"]
                key = list(like.shape), like.dtype, like.device, group
                part = parts.get(str(key)) or call(graph, own.shared_memory.default, *key)
                parts[str(key)] = part
                made = call(graph, own.sum_at_once.default, part, x, group)
            wait.replace_all_uses_with(made)
            graph.erase_node(wait)
            graph.erase_node(node)


def _is_small(x: Any) -> bool:
    fits = x.is_cuda and x.is_contiguous() and x.dtype in _DTYPES
    count = x.numel() * x.element_size()
    return fits and isinstance(count, int) and count <= MOST and count % _SHARE == 0


def _shares(group: str) -> bool:
    return bool(symmetric_memory().is_symm_mem_enabled_for_group(group))
