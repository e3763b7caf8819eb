"""Masks that attention can read.

attention(q, k, v, attn_mask=m)   ->   attention(q, k, v, attn_mask=m.narrow(...).contiguous())

where m's last dimension is a broadcast one, or strided: torch's fused attention kernels refuse such
a mask, and the product of all queries with all keys is written out in f32 instead. Dimensions
before the last along which the mask does not change are cut to 1: attention broadcasts them."""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aten_lowering.passes.base import tensor

_ATTENTION = (
    torch.nn.functional.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)


def make_masks_readable(graph: GraphModule) -> int:
    """Changes the graph, Dynamo's or ATen; returns for how many calls."""
    changed = 0
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or node.target not in _ATTENTION:
            continue
        mask = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
        value = tensor(mask)
        if value is None or value.dim() < 2 or not _is_unreadable(value):
            continue
        aten = node.target is _ATTENTION[1]
        with graph.graph.inserting_before(node):
            readable = _contiguous(graph.graph, mask, value, aten)
        node.replace_input_with(mask, readable)
        changed += 1
    if changed:
        graph.recompile()
    return changed


def _is_unreadable(mask: Tensor) -> bool:
    """Only what is known as a number: a question about a symbol would be a guard."""
    size, stride = mask.shape[-1], mask.stride(-1)
    return isinstance(stride, int) and stride != 1 and not (isinstance(size, int) and size == 1)


def _contiguous(graph: torch.fx.Graph, mask: Node, value: Tensor, aten: bool) -> Node:
    for dim in range(value.dim() - 1):
        stride, size = value.stride(dim), value.shape[dim]
        if isinstance(stride, int) and stride == 0 and not (isinstance(size, int) and size == 1):
            value = value.narrow(dim, 0, 1)
            if aten:
                mask = graph.call_function(torch.ops.aten.slice.Tensor, (mask, dim, 0, 1))
            else:
                mask = graph.call_method("narrow", (mask, dim, 0, 1))
            mask.meta["val" if aten else "example_value"] = value
    value = value.contiguous()
    if aten:
        options: dict[str, Any] = {"memory_format": torch.contiguous_format}
        mask = graph.call_function(torch.ops.aten.clone.default, (mask,), options)
    else:
        mask = graph.call_method("contiguous", (mask,))
    mask.meta["val" if aten else "example_value"] = value
    return mask
