"""The bias of a convolution as an addition of its own, which fuses with what follows.

    y = convolution(x, w, b, ...)          c = convolution(x, w, None, ...)
    z = relu(y)                      ->    y = add(c, view(b, [64, 1, 1]))
                                           z = relu(y)

The vendor's library adds it in a kernel of its own, after the result was rounded, as here.
Depthwise convolutions are kernels of ours, which add it themselves."""

import torch
from torch import Tensor, fx

from aten_lowering.convolutions import is_vendors
from aten_lowering.passes.base import call

aten = torch.ops.aten
DEVICES = frozenset({"cuda"})


def convolution_bias(graph: fx.Graph) -> None:
    """Changes the graph; new nodes have fake tensors, too."""
    for node in list(graph.nodes):
        if is_vendors(node) and node.target == aten.convolution.default:
            take_out_bias(graph, node)


def take_out_bias(graph: fx.Graph, node: fx.Node) -> None:
    """Moves the bias of one convolution, if it has one, into an addition behind it."""
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
