"""Masks of dropout, decided by seeds that a graph of gradients keeps in their place."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import CheckpointPolicy

from aten_lowering.drawn import DRAWN
from aten_lowering.passes.base import call, size_of
from aten_lowering.passes.results_again import draws, dropped

aten = torch.ops.aten


def drawn_masks(graph: fx.Graph) -> None:
    """`y, mask = native_dropout(x, p, True)` -> `mask = drawn(seeds, i, ..., 1 - p)`, `y = x * mask
    / (1 - p)`, of a graph forward and backward, with one call of torch's generator for the seeds of
    a device. They are kept; what is drawn of them may be computed again, in a checkpoint too."""
    found = defaultdict[torch.device, list[fx.Node]](list)
    for node in graph.find_nodes(op="call_function", target=aten.native_dropout.default):
        if draws(node) is not None:
            found[node.args[0].meta["val"].device].append(node)
    for device, nodes in found.items():
        with graph.inserting_before(nodes[0]):
            seeds = _seeds(graph, nodes[0].args[0].meta["val"], len(nodes), device)
        for place, node in enumerate(nodes):
            _replace(graph, node, seeds, place)


def _seeds(graph: fx.Graph, like: Tensor, count: int, device: torch.device) -> fx.Node:
    how = {"dtype": torch.int64, "device": device, "pin_memory": False}
    seeds = graph.call_function(aten.randint.low, (0, 2**63 - 1, [count]), how)
    fake = like.new_empty((count,), dtype=torch.int64)
    seeds.meta = {"val": fake, "recompute": CheckpointPolicy.MUST_SAVE}
    return seeds


def _replace(graph: fx.Graph, node: fx.Node, seeds: fx.Node, place: int) -> None:
    x: Any = node.args[0]
    p: Any = node.args[1]
    parts = {user.args[1]: user for user in node.users}
    like: Tensor = node.meta["val"][1]
    with graph.inserting_before(node):
        size = [size_of(graph, x, d) for d in range(like.dim())]
        mask = call(graph, DRAWN, seeds, place, size, _order(like), 1 - p)
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
