"""Removes calls whose results nobody uses and that have no effect of their own, and checks of what
is proven."""

import torch
from torch import fx
from torch._ops import OpOverload

from aten_lowering.opaque import Opaque
from aten_lowering.registry import named
from aten_lowering.user_kernels import writes_in_place

aten = torch.ops.aten

# Checks of what the fake tensors have proven already: metadata does not change between runs.
_PROVEN = named("_assert_tensor_metadata sym_constrain_range sym_constrain_range_for_size")


def dead_code(graph: fx.Graph) -> None:
    """`y = op(x)` -> nothing, when y is unused and the schema says that op mutates nothing (an
    op without results is an effect)."""
    for node in reversed(graph.nodes):
        if node.op in ("placeholder", "output") or node.users:
            continue
        if isinstance(node.target, OpOverload):
            schema = node.target._schema
            acts = schema.is_mutable or not schema.returns
            if acts and node.target not in _PROVEN:
                continue
        if isinstance(node.target, Opaque) and node.target.effects:
            continue
        if writes_in_place(node):
            continue
        graph.erase_node(node)
