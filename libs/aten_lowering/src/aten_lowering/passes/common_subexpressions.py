"""Merges calls that compute the same value."""

from collections.abc import Container
from typing import Any

import torch
from torch import fx

from aten_lowering.memory import storage_key
from aten_lowering.passes.purity import escaping_storages, is_pure, mutates


def common_subexpressions(graph: fx.Graph) -> None:
    """`a = op(x); b = op(x)` -> `b` replaced by `a`, when op is pure, nothing in the graph is
    written in place before the end, and neither is a result of the graph (two results must not
    become one)."""
    if mutates(graph):
        return
    escaping = escaping_storages(graph)
    known: dict[object, fx.Node] = {}
    for node in list(graph.nodes):
        if not is_pure(node) or _escapes(node, escaping):
            continue
        key = _key(node)
        first = known.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _escapes(node: fx.Node, escaping: Container[int]) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(v, torch.Tensor) and storage_key(v) in escaping for v in values)


def _key(node: fx.Node) -> object:
    return (node.target, _freeze(node.args), _freeze(node.kwargs))


def _freeze(value: Any) -> object:
    """Hashable, and telling 1, 1.0 and True apart (and -0.0 from 0.0)."""
    if isinstance(value, list | tuple):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _freeze(v)) for k, v in sorted(value.items()))
    if isinstance(value, fx.Node):
        return value
    return (type(value), repr(value))
