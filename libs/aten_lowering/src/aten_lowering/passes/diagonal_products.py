"""Products with diagonal matrices.

`mm(diag_embed(x), b)` -> `masked_fill(b * unsqueeze(x, 1) + 0, others, nan)`, and likewise
`mm(b, diag_embed(x))`, transposes and batches. `others`: a number off the diagonal's place in a
column of `b` (a row, where `b` comes first) is infinite or NaN, for the product with a zero then is
NaN. An element is rounded once either way."""

import math
from typing import Any

import torch
from torch import fx

from aten_lowering.extern import bind
from aten_lowering.meta import tensor_type
from aten_lowering.passes.base import call, replace
from aten_lowering.passes.purity import mutates

aten = torch.ops.aten


def diagonal_products(graph: fx.Graph) -> None:
    """Changes the graph; new nodes have fake tensors, too."""
    if mutates(graph):
        return
    for node in list(graph.nodes):
        if node.target not in (aten.mm.default, aten.bmm.default):
            continue
        found = [(i, x) for i, a in enumerate(node.args) if (x := _diagonal(a)) is not None]
        if not found or not node.meta["val"].is_floating_point():
            continue
        side, x = found[0]
        with graph.inserting_before(node):
            made = _scaled(graph, node.args[1 - side], x, side - 2)
            if tensor_type(made.meta["val"]) != tensor_type(node.meta["val"]):
                made = call(graph, aten.clone.default, made, memory_format=torch.contiguous_format)
        replace(node, made)


def _diagonal(node: Any) -> fx.Node | None:
    """The `x` of a `diag_embed(x)`, or of its transpose."""
    rank = node.meta["val"].dim()
    while node.target is aten.permute.default:
        if [d % rank for d in node.args[1][:-2]] != list(range(rank - 2)):
            return None
        node = node.args[0]
    if node.target is not aten.diag_embed.default:
        return None
    x, offset, *dims = bind(node, node.target).values()
    ends = sorted(d % rank for d in dims) == [rank - 2, rank - 1]
    return x if ends and isinstance(offset, int) and not offset else None


def _scaled(graph: fx.Graph, b: fx.Node, x: fx.Node, summed: int) -> fx.Node:
    """The product, where the sums are over dimension `summed` of `b`."""
    finite = call(graph, aten.lt.Scalar, call(graph, aten.abs.default, b), math.inf)
    lost = call(graph, aten.logical_not.default, finite)
    total = call(graph, aten.sum.dim_IntList, lost, [summed], True, dtype=torch.int32)
    others = call(graph, aten.gt.Tensor, total, lost)
    product = call(graph, aten.mul.Tensor, b, call(graph, aten.unsqueeze.default, x, -3 - summed))
    product = call(graph, aten.add.Scalar, product, 0)
    return call(graph, aten.masked_fill.Scalar, product, others, math.nan)
