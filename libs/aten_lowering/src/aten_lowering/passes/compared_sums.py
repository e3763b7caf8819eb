"""Sums of products whose result is compared for equality, rounded once in every kernel.

    y = x + a * 1.3   ->   y = add(x, a, alpha=1.3)
    y = x - a * b     ->   y = addcmul(x, a, b, value=-1)

Compilers take a product and a sum for one operation where the product has one reader, and for two
where it is a term of several sums. A gradient asks where a maximum is (`y == y.amax(0)`), often in
another kernel than the one that found it: it would be nowhere.
"""

from typing import Any

import torch
from torch import fx

from aten_lowering.passes.base import call, tensor
from aten_lowering.passes.dead_code import dead_code

aten = torch.ops.aten

_SIGNS = {aten.add.Tensor: 1, aten.sub.Tensor: -1}


def compared_sums(graph: fx.Graph) -> None:
    """Changes the graph; new nodes have fake tensors, too."""
    compared = set(graph.find_nodes(op="call_function", target=aten.eq.Tensor))
    for node in reversed(graph.nodes):
        if node in compared:
            compared.update(n for n in node.all_input_nodes if _is_wide(n))
    for node in list(graph.nodes):
        if node not in compared or node.target not in _SIGNS or node.kwargs:
            continue
        x, y = node.args
        sign = _SIGNS[node.target]
        if not _is_product(y, node) and _is_product(x, node):
            x, y = y, x
            if sign == -1:  # of the first term
                x, sign = _with_values(graph, node, aten.neg.default, x), 1
        if not _is_product(y, node) or not _is_wide(x):
            continue
        a, b = y.args
        if isinstance(b, fx.Node):
            made = _with_values(graph, node, aten.addcmul.default, x, a, b, value=sign)
        else:
            made = _with_values(graph, node, aten.add.Tensor, x, a, alpha=sign * b)
        if made.meta["val"].dtype is not node.meta["val"].dtype:
            continue
        made.meta = {**node.meta, "val": made.meta["val"]}
        node.replace_all_uses_with(made)
    dead_code(graph)


def _is_wide(node: Any) -> bool:
    value = tensor(node)
    return value is not None and value.dtype in (torch.float32, torch.float64)


def _is_product(node: Any, whole: fx.Node) -> bool:
    """Of two tensors, or of one and a number, in the type of the sum."""
    if not _is_wide(node) or node.target is not aten.mul.Tensor:
        return False
    a, b = node.args
    numbers = not isinstance(b, fx.Node) and isinstance(b, int | float)
    dtype = whole.meta["val"].dtype
    same = all(n.meta["val"].dtype is dtype for n in node.all_input_nodes)
    return same and isinstance(a, fx.Node) and (numbers or isinstance(b, fx.Node))


def _with_values(
    graph: fx.Graph, before: fx.Node, target: Any, *args: Any, **kwargs: Any
) -> fx.Node:
    with graph.inserting_before(before):
        return call(graph, target, *args, **kwargs)
