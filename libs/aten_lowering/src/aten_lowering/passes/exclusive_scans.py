"""Running sums and products that begin in front of the first element."""

from typing import Any

import torch
from torch import fx

from aten_lowering.extern import bind
from aten_lowering.fills import filled_with
from aten_lowering.meta import tensor_type
from aten_lowering.passes.base import call
from aten_lowering.passes.purity import mutates

aten = torch.ops.aten

_SCANS = {aten.cumsum.default: 0, aten.cumprod.default: 1}
_NONE = object()


def exclusive_scans(graph: fx.Graph) -> None:
    """`cat([zeros, cumsum(x)[..., :-1]])` -> `cumsum(constant_pad_nd(x[..., :-1], [1, 0], 0))`, so
    that one kernel does it all; likewise ones and `cumprod`, and pads of what is scanned.
    Not where the running sums themselves are used too: the two would be rounded differently."""
    if mutates(graph):
        return
    nodes: list[Any] = list(graph.nodes)
    for node in nodes:
        if node.target is aten.cat.default and len(node.args[0]) == 2:
            (front, behind), dim = bind(node, node.target).values()
            rank, size = node.meta["val"].dim(), front.meta["val"].shape
            if len(size) == rank and isinstance(size[dim], int):
                pad = [0, 0] * (rank - 1 - dim % rank) + [size[dim], 0]
                _move(graph, node, behind, dim, pad, filled_with(front))
        elif node.target is aten.constant_pad_nd.default:
            behind, sizes, value = bind(node, node.target).values()
            padded = [i for i, n in enumerate(sizes) if not (isinstance(n, int) and n == 0)]
            if not padded or padded[-1] > padded[0] | 1 or padded[0] % 2:
                continue
            after = sizes[padded[0] + 1]
            if isinstance(after, int) and after <= 0:
                _move(graph, node, behind, -1 - padded[0] // 2, sizes, value)


def _move(graph: fx.Graph, node: Any, behind: Any, dim: int, pad: list[Any], value: Any) -> None:
    """Has `node`, which is `constant_pad_nd(behind, pad, value)` in front of `dim`, pad what is
    scanned, where `behind` is a scan, or the first part of one, in which the numbers change
    nothing."""
    slices = []
    while behind.target is aten.slice.Tensor:
        slices.append(behind)
        behind = behind.args[0]
    if _SCANS.get(behind.target, _NONE) != value:
        return
    result = behind.meta["val"]
    x, along, *_ = behind.args
    rank = result.dim()
    if not rank or along % rank != dim % rank or any(len(n.users) > 1 for n in (behind, *slices)):
        return
    if node.meta["val"].dtype is not result.dtype:
        return
    for cut in slices:
        _, where, start, _, step = bind(cut, cut.target).values()
        if where % rank == dim % rank and not (start in (None, 0) and step == 1):
            return
    with graph.inserting_before(node):
        made = [x]
        if x.meta["val"].dtype is not result.dtype:
            made.append(call(graph, aten._to_copy.default, x, dtype=result.dtype))
        for cut in reversed(slices):
            made.append(call(graph, aten.slice.Tensor, made[-1], *cut.args[1:]))
        made.append(call(graph, aten.constant_pad_nd.default, made[-1], pad, value))
        made.append(call(graph, behind.target, made[-1], along, dtype=result.dtype))
    for new in made[1:]:
        new.meta = {**behind.meta, **new.meta}
    if tensor_type(made[-1].meta["val"]) == tensor_type(node.meta["val"]):
        node.replace_all_uses_with(made[-1])
