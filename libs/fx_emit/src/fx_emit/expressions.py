"""Integer expressions as nodes of a graph, each distinct computation once."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from fx_emit import host
from symexpr import Domain

Value = Node | int | float | bool

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_BITS: dict[str, Callable[[Any, Any], Any]] = {
    "LShift": operator.lshift, "RShift": operator.rshift, "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_, "BitwiseXor": operator.xor,
}  # fmt: skip
_ROUND: dict[str, Callable[[Any], Any]] = {
    "FloorToInt": math.floor, "CeilToInt": math.ceil, "TruncToInt": math.trunc,
    "RoundToInt": round,
}  # fmt: skip


class NodeDomain(Domain):
    """Values are nodes whose `meta["val"]` is the integer for the hints, or plain numbers.

    Operations on numbers are done at once; on nodes they become `operator` calls, and the same
    call on the same values is emitted once."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.memo: dict[tuple[Any, ...], Node] = {}

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        if not any(isinstance(a, Node) for a in args):
            return function(*args)
        key = (function, *((type(a), a) for a in args))
        if key not in self.memo:
            node = self.graph.call_function(function, args)
            values = [a.meta["val"] if isinstance(a, Node) else a for a in args]
            node.meta["val"] = function(*values)
            self.memo[key] = node
        return self.memo[key]

    def add(self, a: Any, b: Any) -> Any:
        return self.call(operator.add, a, b)

    def sub(self, a: Any, b: Any) -> Any:
        return self.call(operator.sub, a, b)

    def mul(self, a: Any, b: Any) -> Any:
        return self.call(operator.mul, a, b)

    def neg(self, a: Any) -> Any:
        return self.call(operator.neg, a)

    def pow(self, a: Any, b: Any) -> Any:
        return self.call(operator.pow, a, b)

    def truediv(self, a: Any, b: Any) -> Any:
        return self.call(operator.truediv, a, b)

    def floordiv(self, a: Any, b: Any) -> Any:
        return self.call(operator.floordiv, a, b)

    def ceildiv(self, a: Any, b: Any) -> Any:
        return self.call(host.ceildiv, a, b)

    def mod(self, a: Any, b: Any) -> Any:
        return self.call(operator.mod, a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self.call(min, a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return self.call(max, a, b)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return self.call(host.where, condition, a, b)

    def bits(self, name: str, a: Any, b: Any) -> Any:
        return self.call(_BITS[name], a, b)

    def to_float(self, a: Any) -> Any:
        return self.call(float, a)

    def round(self, name: str, a: Any) -> Any:
        return self.call(_ROUND[name], a)

    def compare(self, op: str, a: Any, b: Any) -> Any:
        return self.call(_COMPARE[op], a, b)

    def logical_and(self, a: Any, b: Any) -> Any:
        return self.call(operator.and_, a, b)

    def logical_or(self, a: Any, b: Any) -> Any:
        return self.call(operator.or_, a, b)

    def logical_not(self, a: Any) -> Any:
        return self.call(operator.not_, a)
