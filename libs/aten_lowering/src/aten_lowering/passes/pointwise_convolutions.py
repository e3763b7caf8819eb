"""Convolutions of one place, channels-last, as products of matrices.

    y = convolution(x, w, None, ...)     ->    a = view(permute(x, [0, 2, 3, 1]), [-1, 64])
                                               c = mm(a, permute(view(w, [256, 64]), [1, 0]))
                                               y = permute(view(c, [-1, 56, 56, 256]), [0, 3, 1, 2])

They are the same sums; in steps of several places, of a copy of these. A product takes a sixth of
the host's time, what follows becomes part of its kernel, and it is chosen by measuring, once: a
batch of any size would be at each of many. Each tensor has the strides that it had."""

from typing import Any

import torch
from torch import Tensor, fx

from aten_lowering.passes.base import call, tensor

aten = torch.ops.aten
DEVICES = frozenset({"cuda"})
_UNIT = 8  # elements in 16 bytes: rows that begin elsewhere are slow operands


def pointwise_convolutions(graph: fx.Graph) -> None:
    """Changes the graph; new nodes have fake tensors, too."""
    for node in list(graph.nodes):
        if not _is_product(node):
            continue
        x, weight = node.args[:2]
        out = node.meta["val"]
        dims = range(2, out.dim())
        channels, count = weight.meta["val"].shape[1], out.shape[1]
        with graph.inserting_before(node):
            for dim, step in zip(dims, node.args[3], strict=True):
                if step > 1:
                    x = call(graph, aten.slice.Tensor, x, dim, 0, x.meta["val"].shape[dim], step)
            last = call(graph, aten.permute.default, x, [0, *dims, 1])
            if x is not node.args[0]:
                last = call(graph, aten.clone.default, last, memory_format=torch.contiguous_format)
            rows = call(graph, aten.view.default, last, [-1, channels])
            matrix = call(graph, aten.view.default, weight, [count, channels])
            columns = call(graph, aten.permute.default, matrix, [1, 0])
            made = call(graph, aten.mm.default, rows, columns)
            wide = call(graph, aten.view.default, made, [-1, *out.shape[2:], count])
            found = call(
                graph, aten.permute.default, wide, [0, out.dim() - 1, *range(1, out.dim() - 1)]
            )
        found.meta["val"] = out
        node.replace_all_uses_with(found)
        graph.erase_node(node)


def _is_product(node: fx.Node) -> bool:
    """A convolution of one place and all channels, without a bias, of 16-bit numbers whose channels
    lie side by side."""
    if node.op != "call_function" or node.target != aten.convolution.default:
        return False
    given: tuple[Any, ...] = node.args
    x, weight, out = (tensor(n) for n in (*given[:2], node))
    bias, _, padding, _, transposed, _, groups = given[2:]
    if x is None or weight is None or out is None or x.device.type not in DEVICES:
        return False
    plain = bias is None and not transposed and groups == 1
    sizes = (*x.shape, *weight.shape, *x.stride())
    return bool(
        plain
        and x.dtype in (torch.bfloat16, torch.float16)
        and all(isinstance(n, int) for n in sizes)
        and set(weight.shape[2:]) == {1}
        and set(padding) == {0}
        and all(n and n % _UNIT == 0 for n in weight.shape[:2])
        and _rows(x).is_contiguous()
        and _rows(out).is_contiguous()
    )


def _rows(x: Tensor) -> Tensor:
    return x.movedim(1, -1)
