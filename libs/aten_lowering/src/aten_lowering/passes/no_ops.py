"""Removes copies and views that change nothing."""

from collections import Counter
from typing import Any

import torch
from torch import fx

from aten_lowering.memory import storage_key
from aten_lowering.passes.purity import escaping_storages, mutates, written_inputs
from aten_lowering.registry import named

aten = torch.ops.aten

_VIEWS = frozenset(named("view _unsafe_view expand permute slice.Tensor detach alias as_strided"))
_COPIES = frozenset({aten.clone.default, aten._to_copy.default, aten.lift_fresh_copy.default})


def no_ops(graph: fx.Graph) -> None:
    """`view(x)` -> `x`, when layout and type are x's, unless both are results, or x is an input:
    then they are two tensors.
    `clone(x)` -> `x`, when layout, type and device are x's, nothing in the graph is written in
    place but inputs other than x, at the end, and the copy does not keep a result of the graph
    apart from its inputs and results."""
    copies = not mutates(graph)
    written = written_inputs(graph)
    seen = escaping_storages(graph)
    end = graph.output_node()
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _VIEWS | _COPIES:
            continue
        source = node.args[0]
        if not isinstance(source, fx.Node) or not _same(node, source):
            continue
        if node.target in _COPIES and not (
            copies
            and not {storage_key(n.meta["val"]) for n in (node, source)} <= seen.keys()
            and storage_key(source.meta["val"]) not in written
        ):
            continue
        if end in node.users and node.target in _VIEWS and _stays(source, end):
            continue
        if end in node.users:
            seen[storage_key(source.meta["val"])] += end not in source.users
            seen -= Counter((storage_key(node.meta["val"]),))
        node.replace_all_uses_with(source)
        graph.erase_node(node)


def one_result(graph: fx.Graph, first: int) -> None:
    """Results from `first` on that are views of the same layout are what they are views of: no
    caller sees that they are one tensor, and autograd copies a gradient that is one twice."""
    end = graph.output_node()
    given: Any = end.args[0]
    results = list(given)
    for i in range(first, len(results)):
        while _is_view(results[i]) and _same(results[i], results[i].args[0]):
            results[i] = results[i].args[0]
    end.args = (tuple(results),)


def _is_view(node: object) -> bool:
    return isinstance(node, fx.Node) and node.target in _VIEWS


def _stays(source: fx.Node, end: fx.Node) -> bool:
    return end in source.users or source.op != "call_function"


def _same(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)):
        return False
    if x.layout != torch.strided or y.layout != torch.strided:
        return False
    if (x.dtype, x.device, x.dim()) != (y.dtype, y.device, y.dim()):
        return False
    if x.is_conj() != y.is_conj() or x.is_neg() != y.is_neg():
        return False
    pairs = zip((*x.shape, *x.stride()), (*y.shape, *y.stride()), strict=True)
    if not all(_equal(m, n) for m, n in pairs):
        return False
    if _equal(x.storage_offset(), y.storage_offset()):
        return True
    return a.target in _COPIES and not _viewed(a)


def _viewed(copy: fx.Node) -> bool:
    """Whether a user of the copy is a view of it, whose place in memory is known from there."""
    key = storage_key(copy.meta["val"])
    values = (u.meta.get("val") for u in copy.users)
    return any(isinstance(v, torch.Tensor) and storage_key(v) == key for v in values)


def _equal(m: int | torch.SymInt, n: int | torch.SymInt) -> bool:
    """The same expression (no guard is added)."""
    a = m.node.expr if isinstance(m, torch.SymInt) else m
    b = n.node.expr if isinstance(n, torch.SymInt) else n
    return bool(a == b)
