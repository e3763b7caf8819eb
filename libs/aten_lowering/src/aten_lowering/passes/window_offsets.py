"""Places of maxima that only gradients read."""

import math
import operator
from typing import Any

import torch
from torch import fx

from aten_lowering.lowerings.windows import MOST
from aten_lowering.passes.base import size_of
from aten_lowering.pool_offsets import OFFSETS, OFFSETS_BACKWARD

aten = torch.ops.aten

_POOLS = {
    aten.max_pool2d_with_indices.default: aten.max_pool2d_with_indices_backward.default,
    aten.max_pool3d_with_indices.default: aten.max_pool3d_with_indices_backward.default,
}


def window_offsets(graph: fx.Graph) -> None:
    """`y, p = max_pool2d_with_indices(x, 3, 2, 1); max_pool2d_with_indices_backward(g, x, ..., p)`
    -> `y, o = max_pool_offsets(x, ...); max_pool_offsets_backward(g, o, ...)`, of a graph forward
    and backward: what is kept for the gradient is a byte a window, and `x` need not be. Not where
    anything else reads the places, as the user may, nor for windows that kernels walk over."""
    nodes: list[Any] = list(graph.nodes)
    for node in nodes:
        if node.target in _POOLS:
            _rewrite(graph, node)


def _rewrite(graph: fx.Graph, pool: Any) -> None:
    dims = 3 if "3d" in str(pool.target) else 2
    windows = _windows(dims, *pool.args[1:])
    values: Any = pool.meta["val"]
    x: Any = pool.args[0]
    if windows is None or pool.kwargs or x.meta["val"].dtype is torch.bool:
        return
    parts: dict[Any, Any] = {user.args[1]: user for user in pool.users}
    gradients: list[Any] = list(parts[1].users) if 1 in parts else []
    if not gradients or len(parts) < len(pool.users):
        return
    for user in gradients:
        known = user.target is _POOLS[pool.target] and not user.kwargs and len(user.args) == 8
        if not known or user.args[0] is parts[1] or _windows(dims, *user.args[2:7]) != windows:
            return
    with graph.inserting_before(pool):
        new = graph.call_function(OFFSETS, (x, *windows))
        new.meta = {**pool.meta, "val": (values[0], values[1].to(torch.int8))}
        image = [size_of(graph, x, d) for d in range(-dims, 0)]
        found = {}
        for i, part in parts.items():
            found[i] = graph.call_function(operator.getitem, (new, i))
            found[i].meta = {**part.meta, "val": new.meta["val"][i]}
    for user in gradients:
        step = user.meta["val"].stride()[-1]
        last = not (isinstance(step, int) and step == 1)
        with graph.inserting_before(user):
            given = (user.args[0], found[1], image, last, *windows)
            gradient = graph.call_function(OFFSETS_BACKWARD, given)
        gradient.meta = user.meta
        user.replace_all_uses_with(gradient)
        graph.erase_node(user)
    for i, part in parts.items():
        part.replace_all_uses_with(found[i])
        graph.erase_node(part)
    graph.erase_node(pool)


def _windows(
    dims: int, size: Any, step: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> tuple[Any, ...] | None:
    """Sizes, steps, paddings and dilations of each dimension, and whether windows may begin in the
    padding behind; None where they are not known, or too many places are."""
    lists: list[tuple[Any, ...]] = []
    for given in (size, step or size, padding, dilation):
        each = tuple(given) if isinstance(given, list | tuple) else (given,)
        lists.append(each * dims if len(each) == 1 else each)
    known = all(isinstance(n, int) for each in lists for n in each)
    return (*lists, ceil) if known and math.prod(lists[0]) <= MOST else None
