"""The gradient of what a depthwise convolution reads, as another one.

a, b, c = convolution_backward(g, x, w, ..., [True, True, True])
    ->
a = convolution(g, flip(w, [2, 3]), ...)
_, b, c = convolution_backward(g, x, w, ..., [False, True, True])

It is a kernel of ours then, with what comes before and after. Of steps of 1: others would leave
places out."""

import operator
from collections.abc import Sequence

import torch
from torch import fx

from aten_lowering.convolutions import is_depthwise
from aten_lowering.passes.base import call

aten = torch.ops.aten


def depthwise_gradients(graph: fx.Graph) -> None:
    """Changes the graph; new nodes have fake tensors, too."""
    for node in list(graph.nodes):
        if node.target != aten.convolution_backward.default:
            continue
        wanted = [u for u in node.users if u.target is operator.getitem and u.args[1] == 0]
        gradient, _, weight, _, stride, padding, dilation, transposed, _, groups, mask = node.args
        fakes = gradient.meta["val"], weight.meta["val"]
        if not wanted or not mask[0] or not is_depthwise(*fakes, stride, transposed, groups):
            continue
        taps = fakes[1].shape
        if taps[0] != groups or any(step != 1 for step in stride):
            continue
        dims = range(2, len(taps))
        lists = zip(taps[2:], _each(padding, dims), _each(dilation, dims), strict=True)
        room = [d * (size - 1) - p for size, p, d in lists]
        if min(room) < 0:
            continue
        with graph.inserting_before(node):
            turned = call(graph, aten.flip.default, weight, list(dims))
            how = [1] * len(dims), room, list(dilation), False, [0] * len(dims), groups
            made = call(graph, aten.convolution.default, gradient, turned, None, *how)
        before = wanted[0].meta["val"]
        if made.meta["val"].stride() != before.stride():
            graph.erase_node(made)
            graph.erase_node(turned)
            continue
        for user in wanted:
            user.replace_all_uses_with(made)
            graph.erase_node(user)
        node.args = (*node.args[:-1], [False, *mask[1:]])
        _, *others = node.meta["val"]
        node.meta["val"] = (None, *others)


def _each(values: Sequence[int], dims: range) -> Sequence[int]:
    return values if len(values) == len(dims) else [values[0]] * len(dims)
