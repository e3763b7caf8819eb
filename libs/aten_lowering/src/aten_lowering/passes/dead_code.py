"""Removes calls whose results nobody uses and that have no effect of their own."""

from __future__ import annotations

from torch import fx
from torch._ops import OpOverload


def dead_code(graph: fx.Graph) -> None:
    """`y = op(x)` -> nothing, when y is unused and the schema says that op mutates nothing (an
    op without results is an effect)."""
    for node in reversed(graph.nodes):
        if node.op in ("placeholder", "output") or node.users:
            continue
        if isinstance(node.target, OpOverload):
            schema = node.target._schema
            if schema.is_mutable or not schema.returns:
                continue
        graph.erase_node(node)
