"""Masks of dropout, decided by seeds that a graph of gradients may keep in their place."""

from typing import Any

import torch
from torch import Tensor, fx

from aten_lowering.drawn import DRAWN, ROW, SEED
from aten_lowering.passes.base import call, replace, size_of
from aten_lowering.passes.results_again import draws, dropped

aten = torch.ops.aten


def drawn_masks(graph: fx.Graph) -> None:
    """`y, mask = native_dropout(x, p)` -> `mask = drawn(seed, ...); y = x * mask / (1 - p)`, and
    `bernoulli(x, p)` -> `drawn(seed, ...)` in its type, of a graph forward and backward. The seed
    is what is kept where the mask is computed again, in a checkpoint too."""
    for node in graph.find_nodes(op="call_function", target=aten.native_dropout.default):
        if (p := draws(node)) is not None:
            parts = {user.args[1]: user for user in node.users}
            with graph.inserting_before(node):
                mask = _drawn(graph, node, node.meta["val"][1], 1 - p)
                y = dropped(graph, node.args[0], mask, p)
            for part, new in enumerate((y, mask)):
                if part in parts:
                    replace(parts[part], new)
            graph.erase_node(node)
    for node in graph.find_nodes(op="call_function", target=aten.bernoulli.p):
        p = node.args[1] if len(node.args) == 2 and not node.kwargs else None
        if isinstance(p, float) and 0 < p < 1:
            value = node.meta["val"]
            with graph.inserting_before(node):
                mask = _drawn(graph, node, value, p)
                replace(node, call(graph, aten._to_copy.default, mask, dtype=value.dtype))


def _drawn(graph: fx.Graph, node: fx.Node, like: Tensor, p: float) -> fx.Node:
    """A mask, and its seed."""
    x: Any = node.args[0]
    number = len(graph.find_nodes(op="call_function", target=SEED))
    seed = graph.call_function(SEED, (like.device, number))
    seed.meta["val"] = like.new_empty((ROW,), dtype=torch.int64)
    size = [size_of(graph, x, d) for d in range(like.dim())]
    mask = call(graph, DRAWN, seed, size, order_of(like), p)
    mask.meta = {**node.meta, "val": mask.meta["val"]}
    return mask


def order_of(x: Tensor) -> list[int]:
    """The dimensions of a dense tensor as they lie in memory, the last one of neighbours; as they
    are, where that is not known."""
    strides = x.stride()
    known = all(isinstance(s, int) for s in strides)
    return sorted(range(x.dim()), key=lambda d: -strides[d]) if known else [*range(x.dim())]
