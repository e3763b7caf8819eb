"""Views that torch makes no functional graph of when they are written, in a form of which it does.

    v = expand(x, [-1, 4])  of x[3, 4]              ->   v = alias(x)
    v = unfold(x, 1, 3, 2)  of x[2, 4]: one window  ->   v = unflatten(x[:, :3], 1, [1, 3])
    v = unfold(x, 0, 2, 3)  of x[7]: two windows    ->   v = unflatten(x[:6], 0, [2, 3])[:, :2]
    v = unfold(x, 0, 2, 3)  of x[n]  ->  v = as_strided(x, [(n - 2) // 3 + 1, 2], [3, 1])

A write to an expanded tensor becomes `x + (written - v)`, which is NaN for infinities and refused
of bool; one to windows that the step says overlap is refused; one to others adds them to zeros, so
that -0 is 0, as is what they leave out. Where nothing is written they stay windows, and a part that
ends at a dynamic size is not taken: torch makes a result that is such a view by `as_strided`, whose
gradient is not that of windows where the input's elements share memory."""

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aten_lowering.passes.base import tensor

aten = torch.ops.aten

# Of `operator`: what `x += y` calls.
_IN_PLACE = frozenset(f"i{name}" for name in ("add", "sub", "mul", "truediv", "and", "or", "xor"))


def writable_views(graph: GraphModule) -> None:
    """Changes the graph, Dynamo's or ATen."""
    changed, writes = False, any(map(_writes, graph.graph.nodes))
    for node in graph.graph.nodes:
        source = node.args[0] if node.args else None
        before, after = tensor(source), tensor(node)
        if before is None or after is None:
            continue
        if _calls(node, aten.expand.default, "expand", "expand_as"):
            if _sizes(before) == _sizes(after):
                node.op, node.target = "call_function", aten.alias.default
                node.args, node.kwargs = (source,), {}
                changed = True
        elif _calls(node, aten.unfold.default, "unfold") and len(node.args) == 4:
            changed = _unfold_all(graph, node, before, after, writes) or changed
    if changed:
        graph.recompile()


def _unfold_all(
    graph: GraphModule, node: Node, before: Tensor, after: Tensor, writes: bool
) -> bool:
    """Takes windows of a part that they cover, where there is one. writes: something is written."""
    source, dim, size, step = node.args
    if not (isinstance(dim, int) and isinstance(size, int) and isinstance(step, int)):
        return False
    if not before.dim():
        return False
    dim %= before.dim()
    windows, length = _sizes(after)[dim], _sizes(before)[dim]
    known = isinstance(windows, int) and isinstance(length, int)
    if windows == 1:  # also by a guard, of a length that is not known
        windows, step = 1, size
    if step < size or (known and windows * step > length):
        return False
    whole = windows * size == length and node.args[3] == step  # they show all of it
    if whole and not writes:
        return False
    gap = not known and windows != 1 and step > size  # there may be one behind the last window
    if not writes and (gap or not (known or windows == 1)):
        return False
    shown = (after.dim() - 1, 0, size)
    with graph.graph.inserting_before(node):
        add = graph.graph.call_function
        if gap:
            sizes, strides = (
                [add(op, (source, d)) for d in range(before.dim())]
                for op in (aten.sym_size.int, aten.sym_stride.int)
            )
            room = add(operator.floordiv, (add(operator.sub, (sizes[dim], size)), step))
            sizes[dim] = add(operator.add, (room, 1))
            strides.append(strides[dim])
            strides[dim] = add(operator.mul, (strides[dim], step))
            node.op, node.target = "call_function", aten.as_strided.default
            node.args, node.kwargs = (source, [*sizes, size], strides), {}
            return True
        end: Any = windows * step
        if not known and windows != 1:
            own = add(aten.sym_size.int, (source, dim))
            end = add(operator.sub, (own, add(operator.mod, (own, step))))
        source = source if whole else add(aten.slice.Tensor, (source, dim, 0, end))
        if writes:
            source = add(aten.unflatten.int, (source, dim, [windows if known else -1, step]))
            source = add(aten.movedim.int, (source, dim + 1, -1))
        else:
            source = add(aten.unfold.default, (source, dim, step, step))
    node.op, node.target = "call_function", aten.slice.Tensor
    node.args, node.kwargs = (source, *shown), {}
    return True


def _calls(node: Node, op: Any, *methods: str) -> bool:
    return node.target is op or (node.op == "call_method" and node.target in methods)


def _writes(node: Node) -> bool:
    """Whether a call changes a tensor, by its name or schema; one that may is one that does."""
    if schema := getattr(node.target, "_schema", None):
        return bool(schema.is_mutable)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    in_place = name.endswith("_") or name in ("setitem", *_IN_PLACE) or "out" in node.kwargs
    return node.op.startswith("call") and in_place


def _sizes(x: Tensor) -> list[Any]:
    """Expressions in place of symbols, of which a comparison would be a guard."""
    return [n if isinstance(n, int) else n.node.expr for n in x.shape]
