"""Scans by a function of the user's: a running sum, product or extreme where the function is that
of two numbers, else the function at all points at once, in a logarithmic number of steps.

ys = associative_scan(f, (x,), ())        y = cumsum(x, 0, dtype=...)
y = ys[0]                            ->

                                          pairs = f(x[:-1:2], x[1::2])
                                     ->   y = (what f makes of those, between those of every other)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from aten_lowering.decomposition import decompositions
from aten_lowering.meta import op_name
from aten_lowering.opaque import attribute
from aten_lowering.torch_compat import FakeTensor, generic_associative_scan
from aten_lowering.whole import own_composites

aten = torch.ops.aten

_KNOWN: dict[Any, Callable[[Tensor], Tensor]] = {
    aten.add.Tensor: lambda x: torch.cumsum(x, 0, dtype=x.dtype),
    aten.mul.Tensor: lambda x: torch.cumprod(x, 0, dtype=x.dtype),
    aten.maximum.default: lambda x: torch.cummax(x, 0).values,
    aten.minimum.default: lambda x: torch.cummin(x, 0).values,
    aten.logaddexp.default: lambda x: torch.logcumsumexp(x, 0),
}


def associative_scans(root: torch.nn.Module, graph: fx.Graph) -> None:
    """Rewrites the calls of a graph of `root`, but for those over a dimension of a size that is not
    known by a function of the user's own, and those whose function has constants or takes numbers:
    they stay as they are."""
    for node in list(graph.nodes):
        if isinstance(node.target, HigherOrderOperator) and op_name(node) == "associative_scan":
            _rewrite(root, graph, node)


def _rewrite(root: torch.nn.Module, graph: fx.Graph, node: fx.Node) -> None:
    args: Any = node.args
    function = attribute(root, args[0])
    given: list[Any] = [*args[1], *args[2]]
    fakes: list[Any] = [n.meta.get("val") if isinstance(n, fx.Node) else n for n in given]
    mode = next((x.fake_mode for x in fakes if isinstance(x, FakeTensor)), None)
    tensors = all(isinstance(x, Tensor) for x in fakes)
    if not isinstance(function, fx.GraphModule) or mode is None or not tensors:
        return
    known = _known(function.graph)
    fixed = isinstance(fakes[0].shape[0], int) and not function.graph.find_nodes(op="get_attr")
    if known is None and not fixed:
        return
    count = len(args[1])

    def scanned(*inputs: Tensor) -> list[Tensor]:
        xs, rest = inputs[:count], inputs[count:]
        ys = _scan(function, xs, rest) if known is None else [known(xs[0])]
        return [_laid(y, like) for y, like in zip(ys, node.meta["val"], strict=True)]

    with own_composites(), mode:
        traced: fx.GraphModule = make_fx(scanned, decompositions())(*fakes)
    for inner in traced.graph.nodes:
        inner.meta = {**node.meta, "val": inner.meta.get("val")}
    env = dict(zip(traced.graph.find_nodes(op="placeholder"), given, strict=True))
    with graph.inserting_before(node):
        found: Any = graph.graph_copy(traced.graph, env)
    for user in list(node.users):
        user.replace_all_uses_with(found[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)


def _known(graph: fx.Graph) -> Callable[[Tensor], Tensor] | None:
    """The scan of a function that is one operator of its two numbers."""
    *places, call, output = graph.nodes
    one = [n.op for n in places] == ["placeholder"] * 2 and call.op == "call_function"
    numbers = sorted(map(str, call.args)) == sorted(map(str, places)) and not call.kwargs
    if not one or not numbers or tree_leaves(output.args) != [call]:
        return None
    return _KNOWN.get(call.target)


def _scan(
    function: Callable[..., Any], xs: Sequence[Tensor], rest: Sequence[Tensor]
) -> Sequence[Tensor]:
    dims = (*(0 for _ in xs), *(0 for _ in xs), *(None for _ in rest))
    scan: Any = generic_associative_scan
    found: Sequence[Tensor] = scan(lambda *pairs: torch.vmap(function, dims)(*pairs, *rest), xs)
    return found


def _laid(y: Tensor, like: Tensor) -> Tensor:
    """In the order of dimensions in memory that another tensor of the size has."""
    order = sorted(range(y.dim()), key=like.stride, reverse=True)
    back = sorted(range(y.dim()), key=order.__getitem__)
    return y.permute(order).contiguous().permute(back)
