"""The bias of a convolution as an addition of its own, which fuses with what follows.

    y = convolution(x, w, b, ...)          c = convolution(x, w, None, ...)
    z = relu(y)                      ->    y = add(c, view(b, [64, 1, 1]))
                                           z = relu(y)

The vendor's library adds it in a kernel of its own, after the result was rounded, as here. Only
depthwise kernels of contiguous tensors add it themselves: theirs stays where nothing follows.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from aten_lowering.passes.base import call

aten = torch.ops.aten
DEVICES = frozenset({"cuda"})
# What does not take an addition into itself.
CALLS = frozenset(
    {
        aten.convolution.default,
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.linear.default,
    }
)


def convolution_bias(graph: fx.Graph) -> None:
    """Changes the graph; new nodes have fake tensors, too."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target != aten.convolution.default:
            continue
        fuses = any(user.op == "call_function" and user.target not in CALLS for user in node.users)
        depthwise = isinstance(node.args[8], int) and node.args[8] > 1
        if fuses or not depthwise:
            take_out_bias(graph, node)


def take_out_bias(graph: fx.Graph, node: fx.Node) -> None:
    """Of one convolution, if it has a bias."""
    bias, out = node.args[2], node.meta.get("val")
    if not isinstance(bias, fx.Node) or not isinstance(out, Tensor):
        return
    if out.device.type not in DEVICES:
        return
    with graph.inserting_after(node):
        wide = call(graph, aten.view.default, bias, [out.shape[1], *[1] * (out.dim() - 2)])
    with graph.inserting_after(wide):
        # The tensor of before stays that of the sum, since others share it: the call gets another.
        node.meta["val"] = aten.empty_like.default(out)
        total = call(graph, aten.add.Tensor, node, wide)
    total.meta["val"] = out
    node.replace_all_uses_with(total, lambda user: user is not total)
    node.update_arg(2, None)
