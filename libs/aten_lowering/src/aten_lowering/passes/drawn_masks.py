"""Masks of dropout, decided by seeds that a graph of gradients may keep in their place."""

from typing import Any

import torch
from torch import Tensor, fx

from aten_lowering.drawn import DRAWN, ROW, SEED
from aten_lowering.passes.base import call, size_of
from aten_lowering.passes.results_again import draws, dropped

aten = torch.ops.aten


def drawn_masks(graph: fx.Graph) -> None:
    """`y, mask = native_dropout(x, p)` -> `mask = drawn(seed, ...); y = x * mask / (1 - p)`, of a
    graph forward and backward. The seed is what is kept where the mask is computed again, in a
    checkpoint too."""
    for node in graph.find_nodes(op="call_function", target=aten.native_dropout.default):
        if (p := draws(node)) is not None:
            _replace(graph, node, p)


def _replace(graph: fx.Graph, node: fx.Node, p: float) -> None:
    x: Any = node.args[0]
    parts = {user.args[1]: user for user in node.users}
    like: Tensor = node.meta["val"][1]
    with graph.inserting_before(node):
        seed = graph.call_function(SEED, (like.device,))
        seed.meta["val"] = like.new_empty((ROW,), dtype=torch.int64)
        size = [size_of(graph, x, d) for d in range(like.dim())]
        mask = call(graph, DRAWN, seed, size, _order(like), 1 - p)
        y = dropped(graph, x, mask, p)
    for new, part in ((y, 0), (mask, 1)):
        new.meta = {**node.meta, "val": new.meta["val"]}
        if part in parts:
            parts[part].replace_all_uses_with(new)
            graph.erase_node(parts[part])
    graph.erase_node(node)


def _order(x: Tensor) -> list[int]:
    """The dimensions of a dense tensor as they lie in memory, the last one of neighbours; as they
    are, where that is not known."""
    strides = x.stride()
    known = all(isinstance(s, int) for s in strides)
    return sorted(range(x.dim()), key=lambda d: -strides[d]) if known else [*range(x.dim())]
