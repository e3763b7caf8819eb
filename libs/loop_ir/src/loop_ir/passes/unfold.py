"""A graph of a few alike layers -> the graph of as many as the model has.

What a fused graph does for one layer, it does for the next one with buffers called otherwise. Of a
graph that was made, lowered and fused with most of its alike layers left out, the nodes of a layer
in the middle are repeated for those.

y1 = f(x, w0); y2 = f(y1, w1); y3 = f(y2, w7)   ->   y1; y2; y2_1 = f(y2, w2); ...; y3 = f(y2_5, w7)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from loop_ir.errors import Irregular
from loop_ir.ir.alike import node_form, renamed_node
from loop_ir.ir.analysis import node_name, reads, writes
from loop_ir.ir.nodes import Graph, GraphArg, Kernel, Node, TensorRef, UserKernel
from loop_ir.ir.renaming import fresh_name
from tensor_ir import Run, longest_run

LayerResult = tuple[tuple[int | None, ...], int | None]


@dataclass(frozen=True)
class Layers:
    """Alike layers, of which a graph has the first `ahead` and the last ones, in order.

    left_out: so many lie between these. rows: inputs that each layer has one of, by layer, those
    that are left out too. inputs: the names of all inputs of the whole graph, in order. results:
    each result of the whole, as the place of a result of the graph, and None, or of the one for
    each of its layers (None where there is none), and the layer that is meant.
    made: buffers that layers of the graph make, but for those of what was fused since."""

    ahead: int
    left_out: int
    rows: tuple[tuple[str, ...], ...]
    inputs: tuple[str, ...]
    results: tuple[LayerResult, ...]
    made: frozenset[str] = frozenset()

    def named(self, name: Callable[[str], str], made: Iterable[str]) -> Layers:
        """With the names that inputs have in the graph, each asked for once, and what it makes."""
        names = {n: None for row in (self.inputs, *self.rows) for n in row}
        called = {n: name(n) for n in names}
        rows = tuple(tuple(called[n] for n in row) for row in self.rows)
        inputs = tuple(called[n] for n in self.inputs)
        return replace(self, rows=rows, inputs=inputs, made=frozenset(made))

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """The row of an input that the graph has, and its layer in the graph."""
        out = range(self.ahead, self.ahead + self.left_out)
        return {
            name: (i, n if n < self.ahead else n - self.left_out)
            for i, row in enumerate(self.rows)
            for n, name in enumerate(row)
            if n not in out
        }


def unfold(graph: Graph, layers: Layers) -> Graph:
    """The graph with the layers that were left out. Raises `Irregular` where what it does for its
    layers is not the same."""
    return _Unfolding(graph, layers).graph_of_all()


class _Unfolding:
    """The nodes before `first`, those of the layer that is repeated, and from `last` on the
    others. next: what each name of a layer is in the next one."""

    def __init__(self, graph: Graph, layers: Layers) -> None:
        self.graph, self.layers = graph, layers
        self.given = {i.name for i in graph.inputs} | {name for name, _ in graph.constants}
        self.forms = [node_form(node) for node in graph.nodes]
        run = self._find()
        self.first = run.start + (run.count - 1) // 2 * run.period
        self.last, self.end = self.first + run.period, run.end
        self.writer: dict[str, int] = {}
        for i, node in enumerate(graph.nodes):
            for name in (*writes(node), *self._own(i)):
                first = self._part(self.writer.setdefault(name, i))
                if first != self._part(i) and (first or i < self.end):
                    raise Irregular(f"{name} is written in several layers")
        self.taken = self.given | {n for row in layers.rows for n in row} | {*layers.inputs}
        self.taken |= {*self.writer, *map(node_name, graph.nodes), *(s.name for s in graph.symbols)}
        self.versions: dict[tuple[str, int], str] = {}

    def _own(self, number: int) -> set[str]:
        """What a node makes for itself alone, as a matmul what it reads of its operands."""
        node = self.graph.nodes[number]
        return {*self.forms[number].names}.difference(reads(node), writes(node), self.given)

    def _part(self, number: int) -> int:
        return (number >= self.first) + (number >= self.last)

    def _find(self) -> Run:
        """Where layers are, of like nodes of which each has in the next layer what it has."""
        run = longest_run([form.structure for form in self.forms])
        found, start = [], 0 if run is None else run.start
        self.next: dict[str, str] = {}
        for i in range(start, 0 if run is None else run.end - run.period + 1):
            assert run is not None
            if i == run.end - run.period or not self._follows(i, i + run.period):
                found.append((i - start, start, self.next))
                start, self.next = i + 1, {}
        length, start, self.next = max(found, key=lambda each: each[0], default=(0, 0, {}))
        if run is None or length < run.period:
            raise Irregular("no two layers are alike")
        if len(set(self.next.values())) < len(self.next):
            raise Irregular("two names of a layer are one in the next")
        return Run(start, run.period, length // run.period + 1)

    def _written(self, name: str) -> int:
        """The part that writes a buffer, 0 for inputs."""
        return self._part(self.writer.get(name, 0))

    def _follows(self, i: int, j: int) -> bool:
        pairs = zip(self.forms[i].names, self.forms[j].names, strict=True)
        return all(
            self._is_next(*pair) and self.next.setdefault(*pair) == pair[1] for pair in pairs
        )

    def _is_next(self, name: str, later: str) -> bool:
        """Whether a name may be that in the next layer: inputs are its own, or one for all."""
        row, place = self.layers.places.get(name), self.layers.places.get(later)
        if row is not None:
            return place == (row[0], row[1] + 1)
        return place is None and (name == later or not {name, later} & self.given)

    def at(self, name: str, later: int) -> str:
        """What a name of the repeated layer, or of those before, is so many layers later."""
        if name in self.layers.places:
            row, layer = self.layers.places[name]
            return self.layers.rows[row][layer + later]
        if name in self.given or later == 0 or self.next.get(name) == name:
            return name
        if name not in self.writer:
            raise Irregular(f"{name} is no buffer")
        if self._written(name) == 1:
            if (name, later) not in self.versions:
                called = f"{name}_{later}"
                self.versions[name, later] = fresh_name(called, self.taken)
            return self.versions[name, later]
        if name in self.next:
            return self.at(self.next[name], later - 1)
        if name in self.layers.made or name in self.next.values():
            raise Irregular(f"{name} has no like in later layers")
        return name

    def named(self, number: int, later: int) -> Node:
        """A node with the names of so many layers later. Nodes after the repeated layer keep what
        they make, and those that are of no layer like it what was made before all layers."""
        node, part, names = self.graph.nodes[number], self._part(number), {}
        for name in self.forms[number].names:
            written = self._written(name)
            kept = part == 2 and written == 2
            if number >= self.end and written == 0 and name not in self.layers.places:
                kept = True
                if name in self.layers.made and self.next.get(name) != name:
                    raise Irregular(f"{name} is read after layers that are not alike")
            names[name] = name if kept else self.at(name, later)
        called = ""
        if isinstance(node, Kernel | UserKernel) and part == 1 and later:
            called = fresh_name(f"{node.name}_{later}", self.taken)
        return renamed_node(node, names, called)

    def nodes(self) -> Iterator[Node]:
        """Those of all layers."""
        for i in range(self.first):
            yield self.named(i, 0)
        for later in range(self.layers.left_out + 1):
            for i in range(self.first, self.last):
                yield self.named(i, later)
        for i in range(self.last, len(self.graph.nodes)):
            yield self.named(i, self.layers.left_out)

    def result(self, places: tuple[int | None, ...], layer: int | None) -> GraphArg:
        """A result of the graph of all layers: of those of layers, the one that is meant."""
        outputs, out = self.graph.outputs, self.layers.left_out
        if layer is None:
            (place,) = places
            assert place is not None
            return outputs[place]
        for n, place in enumerate(places):
            if place is None:
                continue
            value, later = outputs[place], layer - n
            if not isinstance(value, TensorRef):
                return value  # a size, which layers share
            name = value.buffer
            part = self._written(name)
            read = name in self.layers.places and name not in self.writer
            if read or later in ((0,), range(out + 1), (out,))[part]:
                return replace(value, buffer=name if part == 2 else self.at(name, later))
        raise Irregular(f"no result is that of layer {layer}")

    def _check_inputs(self, nodes: Iterable[Node]) -> None:
        """That layers that were left out take as often what is theirs as the one before them."""
        count = Counter(name for node in nodes for name in node_form(node).names)
        ahead, out = self.layers.ahead, self.layers.left_out
        for row in self.layers.rows:
            for name in row[ahead : ahead + out]:
                if row[0] in self.given and count[name] != count[row[ahead - 1]]:
                    raise Irregular(f"{name} is not taken as {row[ahead - 1]} is")

    def graph_of_all(self) -> Graph:
        """The graph of all layers."""
        types = {i.name: i for i in self.graph.inputs}
        for row in self.layers.rows:
            if alike := next((types[n] for n in row if n in types), None):
                types |= {n: types.get(n, alike) for n in row}
        nodes = tuple(self.nodes())
        self._check_inputs(nodes)
        outputs = tuple(self.result(*each) for each in self.layers.results)
        names = dict.fromkeys((*self.layers.inputs, *types))
        inputs = tuple(replace(types[n], name=n) for n in names)
        return replace(self.graph, inputs=inputs, nodes=nodes, outputs=outputs)
