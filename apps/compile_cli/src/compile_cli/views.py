"""Views that torch makes no functional graph of when they are written, in a form of which it does.

    v = expand(x, [-1, 4])  of x[3, 4]              ->   v = alias(x)
    v = unfold(x, 1, 3, 2)  of x[2, 3]: one window  ->   v = unfold(x, 1, 3, 3)

A write to an expanded tensor becomes `x + (written - v)`, which is NaN for infinities and refused
of bool; one to windows that the step says overlap is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

aten = torch.ops.aten


def writable_views(graph: GraphModule) -> None:
    """Changes the graph, Dynamo's or ATen."""
    changed = False
    for node in graph.graph.nodes:
        source = node.args[0] if node.args else None
        before, after = _value(source), _value(node)
        if before is None or after is None:
            continue
        if _calls(node, aten.expand.default, "expand", "expand_as"):
            if _sizes(before) == _sizes(after):
                node.op, node.target = "call_function", aten.alias.default
                node.args, node.kwargs = (source,), {}
                changed = True
        elif _calls(node, aten.unfold.default, "unfold") and len(node.args) == 4:
            _, dim, size, step = node.args
            numbers = all(isinstance(n, int) for n in (dim, size, step))
            if numbers and _sizes(after)[dim if dim >= 0 else dim - 1] == 1 and step < size:
                node.update_arg(3, size)
                changed = True
    if changed:
        graph.recompile()


def _calls(node: Node, op: Any, *methods: str) -> bool:
    return node.target is op or (node.op == "call_method" and node.target in methods)


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("val", node.meta.get("example_value")) if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def _sizes(x: Tensor) -> list[Any]:
    """Expressions in place of symbols, of which a comparison would be a guard."""
    return [n if isinstance(n, int) else n.node.expr for n in x.shape]
