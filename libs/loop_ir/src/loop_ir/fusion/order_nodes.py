"""The order of nodes in which the fewest bytes are held at once."""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from loop_ir.fusion.dependencies import Dependencies
from loop_ir.ir.affine import span
from loop_ir.ir.analysis import at_hints, hints_of, reads, writes
from loop_ir.ir.nodes import CopyBack, Extern, Graph, Kernel, Matmul, Node
from tensor_ir import TensorType


@dataclass(frozen=True)
class OrderNodes:
    """What makes less than it is the last to read runs as soon as it can, what makes more as late:

        a = f(x)    y = g(z)    b = sum(a)    return b, y
     -> a = f(x)    b = sum(a)    y = g(z)    return b, y

    where the fullest moment, at the hints, is less full so. Calls stay in their order, and so does
    all of a graph that talks to other ranks or a host, where what begins ahead is hidden."""

    name = "order_nodes"

    def run(self, graph: Graph) -> Graph:
        """The graph, whose nodes may have another order."""
        calls = [n for n, node in enumerate(graph.nodes) if isinstance(node, Extern)]
        targets = (node.target for node in graph.nodes if isinstance(node, Extern))
        if any("c10d" in target or "fetch" in target for target in targets):
            return graph
        deps = Dependencies(graph)
        for first, second in pairwise(calls):
            deps.after[first].add(second)
            deps.before[second].add(first)
        before, after = _Held(graph, deps), _Held(graph, deps)
        for number in deps.nodes:
            before.run(number)
        missing = {n: len(needed) for n, needed in deps.before.items()}
        ready = [(after.grows(n), n) for n, count in missing.items() if count == 0]
        heapq.heapify(ready)
        order: list[int] = []
        done: set[int] = set()
        while ready:
            grows, number = heapq.heappop(ready)
            if number in done or grows != after.grows(number):
                continue  # it became the last reader of something, and is here again
            done.add(number)
            order.append(number)
            touched = after.run(number)
            for following in deps.after[number]:
                missing[following] -= 1
                touched.add(following)
            for other in touched:
                if missing[other] == 0 and other not in done:
                    heapq.heappush(ready, (after.grows(other), other))
        if after.most >= before.most:
            return graph
        return replace(graph, nodes=tuple(deps.nodes[n] for n in order))


class _Held:
    """Bytes that are held while nodes run one after the other, those of inputs and results left
    out of what is given back. most: at the fullest moment."""

    def __init__(self, graph: Graph, deps: Dependencies) -> None:
        hints = hints_of(graph.symbols)
        self.kept = deps.kept
        self.made: dict[int, dict[str, int]] = {}
        self.needs: dict[int, tuple[str, ...]] = {}
        self.users: dict[str, set[int]] = {}
        known = {i.name for i in graph.inputs} | {name for name, _ in graph.constants}
        self.bytes: Counter[str] = Counter()
        for number, node in deps.nodes.items():
            new = {n: t for n, t in _results(node) if n not in known}
            sizes = {n: at_hints(span(t), hints) * t.dtype.itemsize for n, t in new.items()}
            known |= sizes.keys()
            self.bytes.update(sizes)
            self.made[number] = sizes
            self.needs[number] = tuple(dict.fromkeys((*reads(node), *writes(node))))
            for name in self.needs[number]:
                self.users.setdefault(name, set()).add(number)
        self.now = self.most = 0

    def _given_back(self, number: int) -> list[str]:
        return [n for n in self.needs[number] if n not in self.kept and self.users[n] == {number}]

    def grows(self, number: int) -> int:
        """Bytes more that are held once a node has run."""
        back = sum(self.bytes[name] for name in self._given_back(number))
        return sum(self.made[number].values()) - back

    def run(self, number: int) -> set[int]:
        """Runs a node; gives those that are now the last to need something."""
        self.now += sum(self.made[number].values())
        self.most = max(self.most, self.now)
        self.now -= sum(self.bytes[name] for name in self._given_back(number))
        last: set[int] = set()
        for name in self.needs[number]:
            self.users[name].discard(number)
            if len(self.users[name]) == 1:
                last |= self.users[name]
        return last


def _results(node: Node) -> Iterable[tuple[str, TensorType]]:
    """What a node writes, with its layout."""
    if isinstance(node, Matmul):
        if node.epilogue is None:
            return [(node.out, node.type)]
        node = node.epilogue
    if isinstance(node, Kernel):
        return [(b.name, b.type) for b in node.buffers if b.written]
    return [] if isinstance(node, CopyBack) else [out for out in node.outs if out is not None]
