"""Higher-order operators whose subgraphs are lowered like the graph that calls them.

y = invoke_subgraph(g, "g", x, w)[0]        (y,) = extern subgraph.g(x, w)
y = cond(p, f, g, (x,))[0]            ->    (y,) = extern subgraph.cond(p, x)
y = while_loop(more, f, (i, x), (w,))       (j, y) = extern subgraph.while_loop(i, x, w)
c, ys = scan(f, [c0], [xs], ())             (c, ys) = extern subgraph.scan(c0, xs)

A subgraph gives tensors of its own, and writes to none that it takes. It is lowered once for all of
its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from aten_lowering.builder import Operand
from aten_lowering.errors import CannotLower, UnsupportedGraph, require
from aten_lowering.lowered import Control, Lowered
from aten_lowering.meta import op_name
from aten_lowering.opaque import attribute
from loop_ir import Graph, GraphInput, TensorType
from loop_ir.ir import bound_by_data, writes
from symexpr import symbol


@dataclass(frozen=True)
class Within:
    """What a subgraph is lowered for. names: those taken by the graphs around it. carries: so many
    results are of the types of its first inputs."""

    names: set[str]
    for_gpu: bool
    carries: int


@dataclass(frozen=True)
class Parts:
    """A call of a higher-order operator. form: None where it is only a call. args: what its
    subgraphs take, after the predicate of an "if"."""

    form: str | None
    subgraphs: tuple[fx.Node, ...]
    args: tuple[Any, ...]
    carries: int = 0
    over: int = 0
    predicate: tuple[Any, ...] = ()


def parts_of(node: fx.Node) -> Parts:
    """What a node says that `is_control`."""
    args: Any = node.args
    match op_name(node):
        case "invoke_subgraph":
            return Parts(None, args[:1], tuple(args[2:]))
        case "cond":
            return Parts("if", args[1:3], tuple(args[3]), predicate=args[:1])
        case "while_loop":
            return Parts("while", args[:2], (*args[2], *args[3]), len(args[2]))
        case "while_loop_stack_output":
            return Parts("trace", args[:2], (*args[2], *args[3]), len(args[2]))
        case "scan":
            given = (*args[1], *args[2], *args[3])
            return Parts("scan", args[:1], given, len(args[1]), len(args[2]))
    return Parts("scan", args[:1], (*args[1], *args[2]), 0, len(args[1]))


@dataclass(eq=False)
class Subgraphs:
    """The subgraphs that a graph calls: what was lowered, by name, and their controls."""

    root: torch.nn.Module
    fresh: Callable[[str], str]
    lower: Callable[[fx.GraphModule, str, Within], Lowered]
    lowered: dict[str, Lowered] = field(default_factory=dict)
    controls: dict[Control, str] = field(default_factory=dict)
    _known: dict[Any, tuple[str, Lowered]] = field(default_factory=dict)
    _sized: dict[Any, str] = field(default_factory=dict)

    def body(self, node: fx.Node, within: Within) -> tuple[str, Lowered]:
        """What a `get_attr` node names, lowered."""
        graph = attribute(self.root, node) if node.op == "get_attr" else None
        if not isinstance(graph, fx.GraphModule):
            raise CannotLower("a subgraph that is no graph")
        key = graph, within.carries
        if key not in self._known:
            name = self.fresh(str(node.target))
            try:
                lowered = self.lower(graph, name, within)
            except UnsupportedGraph as error:
                raise CannotLower(f"its subgraph {name}: {error}") from error
            outer = {i.name for i in lowered.graph.inputs} | {n for n, _ in lowered.graph.constants}
            changed = {n for inner in lowered.graph.nodes for n in writes(inner)} & outer
            require(not changed, "a subgraph that writes to what it takes")
            self._known[key] = name, lowered
        return self._known[key]

    def target(
        self, parts: Parts, bodies: Sequence[tuple[str, Lowered]]
    ) -> tuple[str, tuple[str, ...]]:
        """What a call of the parts calls, and the sizes that it takes last: those that a body
        computes with, and no integer that it takes is."""
        sizes = tuple(
            dict.fromkeys(
                s.name
                for _, body in bodies
                for s in body.graph.symbols
                if not any(i.name == s.name for i in body.graph.inputs)
                and s.name not in bound_by_data(body.graph.nodes)
            )
        )
        numbers = {tuple(i.name for i in b.graph.inputs if i.type is None) for _, b in bodies}
        require(len(numbers) == 1 or not sizes, "subgraphs that name sizes otherwise")
        names = tuple(self._with_sizes(*body, sizes) for body in bodies)
        if parts.form is None:
            return names[0], sizes
        control = Control(parts.form, names, parts.carries, parts.over)
        if control not in self.controls:
            self.controls[control] = self.fresh(f"{parts.form}_{names[-1]}")
        return self.controls[control], sizes

    def _with_sizes(self, name: str, lowered: Lowered, sizes: tuple[str, ...]) -> str:
        if (name, sizes) not in self._sized:
            own = name if name not in self.lowered else self.fresh(name)
            inputs = (*lowered.graph.inputs, *(GraphInput(s, None) for s in sizes))
            graph = replace(lowered.graph, name=own, inputs=inputs)
            self.lowered[own] = replace(lowered, graph=graph)
            self._sized[name, sizes] = own
        return self._sized[name, sizes]


def taken_types(graphs: Sequence[Graph], parts: Parts, args: Sequence[Any]) -> list[Any]:
    """The type in which the subgraphs take each argument, None for integers. Raises `CannotLower`
    where those differ, or are none that the argument can have."""
    columns: list[list[Any]] = [_types(graph, args) for graph in graphs]
    types: list[Any] = []
    for arg, given in zip(args, zip(*columns, strict=True), strict=True):
        first = given[0]
        require(all(type == first for type in given), "subgraphs that take other layouts")
        if first is not None:
            require(isinstance(arg, Operand), "a number that the subgraph takes as a tensor")
            whole = arg.type
            if parts.carries <= len(types) < parts.carries + parts.over:
                require(len(whole.size) > 0, "a scan over a number")
                lies = whole.stride[1:] == first.stride
                require(lies or first.is_contiguous, "steps of a scan that lie apart")
                outer = whole.stride[0] if lies else first.numel
                size, stride = (whole.size[0], *first.size), (outer, *first.stride)
                first = replace(first, size=size, stride=stride)
            have, want = ((t.size, t.dtype, t.device) for t in (whole, first))
            require(have == want, "a tensor of another size than the subgraph takes")
        types.append(first)
    return types


def _types(graph: Graph, args: Sequence[Any]) -> list[TensorType | None]:
    """The types of what a graph takes, for the numbers among the arguments."""
    require(len(graph.inputs) == len(args), "arguments that the subgraph does not take")
    pairs = list(zip(graph.inputs, args, strict=True))
    known = {symbol(i.name): arg for i, arg in pairs if i.type is None}

    def there(type: TensorType) -> TensorType:
        size, stride = (tuple(n.xreplace(known) for n in ns) for ns in (type.size, type.stride))
        return replace(type, size=size, stride=stride)

    return [None if i.type is None else there(i.type) for i, _ in pairs]


def constants_of(lowered: Lowered) -> Mapping[str, torch.Tensor]:
    """The tensors of the constants of a graph and of its subgraphs."""
    inner = (constants_of(each).items() for each in lowered.subgraphs.values())
    return dict(lowered.constants, **{k: v for items in inner for k, v in items})
