"""Is a graph that was captured for dynamic sizes right for given ones?

Capturing decides what a model asks of its sizes, and takes them to be at least two, since one
broadcasts. To serve others with the same kernels, the model is captured again for exactly those
inputs, and both graphs must compute the same: operator by operator, on the same elements of the
same results. Views are looked through, since a capture for a size of one may spell the same view
otherwise. Nothing is compiled."""

import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx import GraphModule, Node

from symexpr import SymexprError, evaluate, from_torch


def difference(dynamic: GraphModule, static: GraphModule, env: Mapping[str, int]) -> str | None:
    """None where the graphs compute the same under `env` (symbol name -> value), else why not."""
    try:
        ours, theirs = _computations(dynamic, env), _computations(static, env)
    except SymexprError as error:
        return f"there a size has no value: {error}"
    for (op, uses), (other, other_uses) in zip(ours, theirs, strict=False):
        if op != other:
            return f"there {other} runs in place of {op}"
        if uses != other_uses:
            pairs = zip(uses, other_uses, strict=False)
            a, b = next(((a, b) for a, b in pairs if a != b), (len(uses), len(other_uses)))
            return f"there {other} has {b} in place of {a}"
    if len(ours) != len(theirs):
        return f"there {len(theirs)} operators run in place of {len(ours)}"
    return None


def _computations(graph: GraphModule, env: Mapping[str, int]) -> list[tuple[str, list[Any]]]:
    """Every operator that is no view, with what it takes: numbers as they are, tensors as (which
    computation, size, stride, offset), and what it makes."""
    number: dict[Node, int] = {}
    out: list[tuple[str, list[Any]]] = []
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            number[node] = len(number)
        elif node.op == "call_function" and not _is_view(node) and not _is_size(node):
            number[node] = len(number)
            made = [_layout(v, env) for v in pytree.tree_leaves(node.meta.get("val"))]
            out.append((str(node.target), _uses(node, number, env) + made))
        elif node.op == "output":
            out.append(("output", _uses(node, number, env)))
    return out


def _uses(node: Node, number: Mapping[Node, int], env: Mapping[str, int]) -> list[Any]:
    uses: list[Any] = []
    for leaf in pytree.tree_leaves((node.args, node.kwargs)):
        if not isinstance(leaf, Node):
            uses.append(_layout(leaf, env))
        elif isinstance(leaf.meta.get("val"), Tensor):
            uses.append((*_producer(leaf, number), _layout(leaf.meta["val"], env)))
        else:
            uses.append(_layout(leaf.meta.get("val"), env))
    return uses


def _is_view(node: Node) -> bool:
    """Results share the memory of an argument, which is not written."""
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    schema = node.target._schema
    return not schema.is_mutable and any(r.alias_info is not None for r in schema.returns)


def _is_size(node: Node) -> bool:
    """Computes a size, or states something about one."""
    val = node.meta.get("val")
    is_number = isinstance(val, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)
    return is_number or val is None


def _producer(node: Node, number: Mapping[Node, int]) -> tuple[int, int]:
    """The computation that made the elements a node shows, and which of its results."""
    result = 0
    while node not in number:
        if node.target is operator.getitem:
            index = node.args[1]
            assert isinstance(index, int)
            result = index
        base = node.args[0]
        assert isinstance(base, Node)
        if node.target is not operator.getitem:
            result = 0
        node = base
    return number[node], result


def _layout(x: Any, env: Mapping[str, int]) -> Any:
    """A tensor as dtype, size, strides of the dimensions that hold more than one element, and
    offset (an empty tensor as dtype and size); a size as a number."""
    if isinstance(x, Tensor):
        size = [_layout(n, env) for n in x.shape]
        stride = [_layout(n, env) for n in x.stride()]
        if 0 in size:
            return str(x.dtype), tuple(size)
        steps = tuple(s if n > 1 else 0 for n, s in zip(size, stride, strict=True))
        return str(x.dtype), tuple(size), steps, _layout(x.storage_offset(), env)
    if isinstance(x, torch.SymInt | torch.SymFloat):
        return evaluate(from_torch(x.node.expr), env)
    return x
