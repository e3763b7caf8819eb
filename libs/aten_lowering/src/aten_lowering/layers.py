"""Alike layers of a graph: most of them are left out, and lowered and fused as the others are.

h1 = layer(h0, w0); ...; h32 = layer(h31, w31)   ->   the first two layers, and the last two

A layer is a stretch of calls that comes again with other inputs: the same operators on tensors of
the same layouts, each of which is the same value in all layers, or an input of that layer, or what
the same call of this layer or the one before gives."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from aten_lowering.drawn import SEED
from aten_lowering.passes.purity import mutates, written_inputs
from aten_lowering.seeds import is_drawn, seed_name
from loop_ir import LayerResult, Layers
from tensor_ir import Run, longest_run

AHEAD = BEHIND = 2  # layers that a graph keeps
LEAST = 2  # layers that are worth being left out


def fold(graph: fx.Graph) -> tuple[fx.Graph, Layers, frozenset[str]] | None:
    """A copy of the graph with fewer layers, which ones those are, and the names of the nodes of
    layers. None of a graph that has too few alike layers, or writes to its inputs."""
    if mutates(graph) or written_inputs(graph):
        return None
    nodes = _ordered(graph)
    calls = [n for n in nodes if n.op == "call_function"]
    run = longest_run([_kind(n) for n in calls])
    if run is None or run.count < AHEAD + BEHIND + LEAST:
        return None
    found = _Folding(nodes, calls)
    return found.folded() if found.set_layers(run) else None


def _ordered(graph: fx.Graph) -> list[fx.Node]:
    """The nodes, of which those that only results hang on follow what they take: the views that
    are kept of each layer come last else."""
    only: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        target = node.target
        plain = isinstance(target, OpOverload) and not is_drawn(node)
        if plain and all(user.op == "output" or user in only for user in node.users):
            only.add(node)
    number = {node: i for i, node in enumerate(graph.nodes)}
    root: dict[fx.Node, fx.Node] = {}
    behind: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        roots = [root[n] for n in node.all_input_nodes]
        last = max(roots, key=lambda n: number[n], default=node)
        root[node] = last if node in only and last.op == "call_function" else node
        behind.setdefault(root[node], []).append(node)
    return [node for each in graph.nodes for node in behind.get(each, ())]


def _kind(node: fx.Node) -> Hashable:
    """What a call does, but for which values it takes."""
    args = node.args[:1] if node.target is SEED else node.args  # without the number of a seed
    given = _plain((args, node.kwargs))
    value, original = node.meta.get("val"), node.meta.get("original_aten")
    return str(node.target), given, _plain(value), str(original)


def _plain(value: Any) -> Hashable:
    match value:
        case fx.Node():
            return fx.Node
        case torch.Tensor():
            sizes = tuple(map(str, (*value.shape, *value.stride(), value.storage_offset())))
            return value.dtype, value.device, value.is_conj(), value.is_neg(), sizes
        case dict():
            return tuple((k, _plain(v)) for k, v in value.items())
        case list() | tuple():
            return type(value).__name__, *map(_plain, value)
        case slice():
            return "slice", *map(_plain, (value.start, value.stop, value.step))
    return type(value).__name__, str(value)


class _Folding:
    def __init__(self, nodes: list[fx.Node], calls: list[fx.Node]) -> None:
        self.nodes, self.calls = nodes, calls
        self.number = {node: i for i, node in enumerate(calls)}
        self.results = tuple(nodes[-1].args[0])  # type: ignore[arg-type]  # a list of results

    def set_layers(self, run: Run) -> bool:
        """Finds the layers in a stretch of like calls. False if there are too few, or if anything
        but the last ones has other readers than these and the results."""
        self.alike = run.start
        begins, begin = [], self.begin(run.start)
        for i in range(run.start, run.end - run.period):
            if not self.follows(i, i + run.period):
                begins.append((i - begin, begin))
                begin = self.begin(i + 1)
        length, begin = max((*begins, (run.end - run.period - begin, begin)))
        self.run = run = Run(begin, run.period, length // run.period + 1)
        self.out = run.count - AHEAD - BEHIND
        if self.out < LEAST:
            return False
        self.begin(begin)
        inner = range(begin, run.end - run.period)
        for i in inner:
            self.follows(i, i + run.period)
        first = {n: None for i in inner[: run.period] for n in _nodes(self.calls[i])}
        self.inputs = [[n] for n in first if self.next.get(n, n) is not n]
        for row in self.inputs:
            while len(row) < run.count:
                row.append(self.next[row[-1]])
        self.layer = {
            self.calls[i]: ((i - begin) % run.period, (i - begin) // run.period)
            for i in range(begin, run.end)
        }
        for place, row in enumerate(self.inputs, run.period):
            self.layer.update({node: (place, layer) for layer, node in enumerate(row)})
        if len(self.layer) < run.count * (run.period + len(self.inputs)):
            return False
        for node, (place, layer) in self.layer.items():
            others = [u for u in node.users if u.op != "output" and u not in self.layer]
            if others and (place >= run.period or layer < AHEAD + self.out):
                return False
        return self.set_results()

    def begin(self, start: int) -> int:
        """Layers begin at call `start`."""
        self.start = start
        self.next: dict[fx.Node, fx.Node] = {}
        self.before: dict[fx.Node, fx.Node] = {}
        return start

    def follows(self, i: int, j: int) -> bool:
        """Whether call `j` takes in its layer what call `i` takes in the one before."""
        pairs = zip(_nodes(self.calls[i]), _nodes(self.calls[j]), strict=True)
        return all(self._follows(one, other, i, j) for one, other in pairs)

    def _follows(self, one: fx.Node, other: fx.Node, i: int, j: int) -> bool:
        at, then = self.number.get(one), self.number.get(other)
        if at is not None and then is not None:
            if at == then:
                return at < self.start
            return then - at == j - i and at >= max(self.alike, 2 * i - j)
        if at is not None or then is not None:
            return False
        if one.op == "get_attr" or other.op == "get_attr":
            return one.op == other.op and one.target == other.target
        if one is not other and _plain(one.meta.get("val")) != _plain(other.meta.get("val")):
            return False
        mapped = self.next.setdefault(one, other), self.before.setdefault(other, one)
        return mapped == (other, one)

    def set_results(self) -> bool:
        """Whether layers give the same results, but for the first and the last of them."""
        self.given: dict[int, dict[int, int]] = {}
        for i, value in enumerate(self.results):
            if isinstance(value, fx.Node) and value in self.layer:
                place, layer = self.layer[value]
                if self.given.setdefault(place, {}).setdefault(layer, i) != i:
                    return False
        middle = set(range(1, self.run.count - 1))
        return all(middle <= {*each} or not middle & {*each} for each in self.given.values())

    def is_left_out(self, value: Any) -> bool:
        """Whether a node belongs to a layer that is left out."""
        if not isinstance(value, fx.Node) or value not in self.layer:
            return False
        return 0 <= self.layer[value][1] - AHEAD < self.out

    def folded(self) -> tuple[fx.Graph, Layers, frozenset[str]]:
        """The graph without layers, what they are, and the names of the nodes of layers."""
        made: dict[fx.Node, fx.Node] = {}
        graph = fx.Graph()

        def there(node: fx.Node) -> fx.Node:
            if node in self.number and self.is_left_out(node):
                node = self.calls[self.number[node] - self.out * self.run.period]
            return made[node]

        for node in self.nodes:
            if node.op != "output" and not self.is_left_out(node):
                made[node] = graph.node_copy(node, there)
        kept = [i for i, value in enumerate(self.results) if not self.is_left_out(value)]
        graph.output(fx.map_arg(tuple(self.results[i] for i in kept), there))
        places = {i: place for place, i in enumerate(kept)}
        results = tuple(self._result(i, places) for i in range(len(self.results)))
        rows = [[node.name for node in row] for row in self.inputs]
        for i in range(self.run.start, self.run.start + self.run.period):
            if is_drawn(self.calls[i]):
                again = self.calls[i : self.run.end : self.run.period]
                rows.append([seed_name(node) for node in again])
        names = tuple(n.name for n in self.nodes if n.op == "placeholder")
        layers = Layers(AHEAD, self.out, tuple(map(tuple, rows)), names, results)
        return graph, layers, frozenset(n.name for n in self.layer)

    def _result(self, number: int, places: dict[int, int]) -> LayerResult:
        value = self.results[number]
        if not isinstance(value, fx.Node) or value not in self.layer:
            return (places[number],), None
        place, layer = self.layer[value]
        last = range(AHEAD + self.out, self.run.count)
        each = self.given[place]
        return tuple(places[each[n]] if n in each else None for n in (*range(AHEAD), *last)), layer


def _nodes(node: fx.Node) -> list[fx.Node]:
    """What a call takes, in order, as often as it does."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found
