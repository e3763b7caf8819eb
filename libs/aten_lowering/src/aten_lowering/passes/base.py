"""A pass over the FX graph of a model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from tensor_ir import VerifyError

aten = torch.ops.aten


@dataclass(frozen=True)
class FxPass:
    """A `tensor_ir.Pass`, called by the name of `rewrite`, which changes a graph where it is."""

    rewrite: Callable[[fx.Graph], None]

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.rewrite.__name__

    def run(self, graph: fx.Graph) -> fx.Graph:
        """The same graph, changed."""
        self.rewrite(graph)
        return graph


class IllFormed(VerifyError):
    """Each node is defined once, before its first use, and knows its users."""


def lint(graph: fx.Graph) -> None:
    """Raises `IllFormed` where `torch.fx.Graph.lint` objects to something."""
    try:
        graph.lint()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    except RuntimeError as error:
        raise IllFormed(str(error), "FX graph") from error


def call(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A node that calls an operator, with the fake result of its arguments'."""
    node = graph.call_function(target, args, kwargs)
    given: Any = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
    node.meta["val"] = target(*given[0], **given[1])
    return node


def replace(node: fx.Node, made: fx.Node) -> None:
    """Puts `made` in the place of a node, of which it keeps what is noted, but the value."""
    made.meta = {**node.meta, **made.meta}
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)


def size_of(graph: fx.Graph, x: fx.Node, dim: int) -> Any:
    """The size of a dimension: a number, or a node."""
    size = x.meta["val"].shape[dim]
    return size if isinstance(size, int) else call(graph, aten.sym_size.int, x, dim)


def tensor(node: Any) -> Tensor | None:
    """The fake tensor of a node of Dynamo's graph or ATen's; None of what has none."""
    value = node.meta.get("val", node.meta.get("example_value")) if isinstance(node, fx.Node) else 0
    return value if isinstance(value, Tensor) else None
