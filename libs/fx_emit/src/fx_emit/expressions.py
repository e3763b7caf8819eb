"""Integer expressions as nodes of a graph, each distinct computation once."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from fx_emit import host
from symexpr import BIT_OPERATIONS, COMPARISONS, ROUNDINGS, Domain

Value = Node | int | float | bool


def _calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method of `NodeDomain` that calls `function`."""

    def method(self: NodeDomain, *args: Any) -> Any:
        return self.call(function, *args)

    return method


class NodeDomain(Domain):
    """Values are nodes whose `meta["val"]` is the integer for the hints, or plain numbers.

    Operations on numbers are done at once; on nodes they become `operator` calls, and the same
    call on the same values is emitted once."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.memo: dict[tuple[Any, ...], Node] = {}

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """The value of `function(*args)`: a number if all arguments are, else a node."""
        if not any(isinstance(a, Node) for a in args):
            return function(*args)
        key = (function, *((type(a), a) for a in args))
        if key not in self.memo:
            node = self.graph.call_function(function, args)
            values = [a.meta["val"] if isinstance(a, Node) else a for a in args]
            node.meta["val"] = function(*values)
            self.memo[key] = node
        return self.memo[key]

    add = _calls(operator.add)
    sub = _calls(operator.sub)
    mul = _calls(operator.mul)
    neg = _calls(operator.neg)
    pow = _calls(operator.pow)
    truediv = _calls(operator.truediv)
    floordiv = _calls(operator.floordiv)
    ceildiv = _calls(host.ceildiv)
    mod = _calls(operator.mod)
    minimum = _calls(min)
    maximum = _calls(max)
    where = _calls(host.where)
    to_float = _calls(float)
    logical_and = _calls(operator.and_)
    logical_or = _calls(operator.or_)
    logical_not = _calls(operator.not_)

    def bits(self, name: str, a: Any, b: Any) -> Any:
        """The operation on bits that symexpr calls `name`."""
        return self.call(BIT_OPERATIONS[name], a, b)

    def round(self, name: str, a: Any) -> Any:
        """The rounding to an integer that symexpr calls `name`."""
        return self.call(ROUNDINGS[name], a)

    def compare(self, op: str, a: Any, b: Any) -> Any:
        """`a op b`, for an `op` such as `<=`."""
        return self.call(COMPARISONS[op], a, b)
