"""Bags of one size, as rows that a kernel adds up."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from aten_lowering.extern import bind
from aten_lowering.meta import expr
from aten_lowering.passes.base import call

aten = torch.ops.aten

_BAGS = (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
_FOLDS = {0: aten.sum.dim_IntList, 1: aten.mean.dim}
# Rows of a bag that a kernel writes out. (H200: 2**17 bags of 4 rows of 64 in bf16 27 us, 141 by
# torch's; 2**15 bags of 20 of 64 in f32 50 us, 112 by torch's. Tiles of some of more rows take
# longer than torch's.)
_LONGEST = 32


def regular_bags(graph: fx.Graph) -> None:
    """`y, bags, sizes, _ = _embedding_bag(w, ids, arange(0, n, 4))`
    -> `y = embedding(w, ids.view(-1, 4)).sum(1)`, which is what `F.embedding_bag` calls for ids of
    two dimensions. Neither for largest elements nor where an id stands for no row."""
    for node in list(graph.nodes):
        if node.target in _BAGS:
            _rewrite(graph, node)


def _rewrite(graph: fx.Graph, bag: Any) -> None:
    weight, ids, offsets, _, mode, _, weights, last, padding = bind(bag, bag.target).values()
    length = _length(offsets, ids)
    if length is None or mode not in _FOLDS or last:
        return
    if padding >= 0 or (weights is not None and mode != 0):
        return
    parts = {user.args[1] for user in bag.users if user.users}
    if not parts or 3 in parts or any(u.target is not operator.getitem for u in bag.users):
        return
    values, fake = bag.meta["val"], offsets.meta["val"]
    if 1 in parts and values[1].shape != ids.meta["val"].shape:
        return
    if 2 in parts and values[2].shape != fake.shape:
        return
    made: dict[Any, fx.Node] = {}
    with graph.inserting_before(bag):
        if 0 in parts:
            picked = call(graph, aten.view.default, ids, [-1, length])
            rows = call(graph, aten.embedding.default, weight, picked)
            if weights is not None:
                each = call(graph, aten.view.default, weights, [-1, length, 1])
                rows = call(graph, aten.mul.Tensor, rows, each)
            made[0] = call(graph, _FOLDS[mode], rows, [1])
        if 1 in parts:
            number = call(graph, aten.div.Tensor_mode, offsets, length, rounding_mode="floor")
            each = call(graph, aten.unsqueeze.default, number, 1)
            each = call(graph, aten.expand.default, each, [-1, length])
            each = call(graph, aten.clone.default, each, memory_format=torch.contiguous_format)
            made[1] = call(graph, aten.view.default, each, [-1])
        if 2 in parts:
            made[2] = call(graph, aten.full_like.default, offsets, length)
    for part in list(bag.users):
        if part.users:
            part.replace_all_uses_with(made[part.args[1]])
        graph.erase_node(part)
    graph.erase_node(bag)


def _length(offsets: Any, ids: Any) -> int | None:
    """Of all bags, where they begin at multiples of it."""
    if not isinstance(offsets, fx.Node) or offsets.target is not aten.arange.start_step:
        return None
    start, _, step = (*offsets.args, 1)[:3]
    if start != 0 or not isinstance(step, int) or not 0 < step <= _LONGEST:
        return None
    count, bags = (expr(n.meta["val"].shape[0]) for n in (ids, offsets))
    return step if count - step * bags == 0 else None
