"""Who needs whom: the dependency graph of nodes, kept up to date while nodes merge."""

import heapq
from collections.abc import Iterable

from loop_ir.ir.analysis import mentioned, node_name, output_buffers, reads, writes
from loop_ir.ir.nodes import Extern, Graph, Node

CROWD = 32


class Dependencies:
    """Nodes by number (its first position in the graph) with edges for read after write, write
    after read, and write after write. Merging keeps the number of the first node.

    `readers`/`writers`: nodes by buffer, kept as nodes change. `kept`: buffers that must be
    stored: inputs, constants and outputs of the graph. `order`: places in an order in which the
    nodes can run."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: dict[int, Node] = dict(enumerate(graph.nodes))
        self.readers: dict[str, set[int]] = {}
        self.writers: dict[str, set[int]] = {}
        self.before: dict[int, set[int]] = {n: set() for n in self.nodes}
        self.after: dict[int, set[int]] = {n: set() for n in self.nodes}
        self.kept = output_buffers(graph) | {i.name for i in graph.inputs}
        self.kept |= {name for name, _ in graph.constants}
        self._edges()
        self.order: dict[int, int] = {}
        self.placed: dict[int, int] = {}
        self._sort()

    def _edges(self) -> None:
        last_write: dict[str, int] = {}
        since: dict[str, list[int]] = {}
        last_call: list[int] = []
        for number, node in self.nodes.items():
            read, written = reads(node), writes(node)
            if isinstance(node, Extern) and not read and not written:  # it does something: in turn
                for before in range(last_call[-1] if last_call else 0, number):
                    self._edge(before, number)
                last_call.append(number)
            elif last_call:
                self._edge(last_call[-1], number)
            for name in read:
                if name in last_write:
                    self._edge(last_write[name], number)
                since.setdefault(name, []).append(number)
                self.readers.setdefault(name, set()).add(number)
            for name in written:
                if name in last_write:
                    self._edge(last_write[name], number)
                for reader in since.get(name, ()):
                    self._edge(reader, number)
                since[name] = []
                last_write[name] = number
                self.writers.setdefault(name, set()).add(number)

        calls = [(n, node) for n, node in self.nodes.items() if isinstance(node, Extern)]
        bound = {symbol: number for number, call in calls for symbol in call.binds}
        for number, node in self.nodes.items() if bound else ():
            for name in bound.keys() & mentioned(node):
                self._edge(bound[name], number)

    def _edge(self, first: int, second: int) -> None:
        if first != second:
            self.after[first].add(second)
            self.before[second].add(first)

    def _sort(self) -> None:
        self.placed = dict(enumerate(self._sorted()))
        self.order = {n: place for place, n in self.placed.items()}

    def _sorted(self) -> list[int]:
        """Nodes in topological order, the smallest number first: valid and the same every time."""
        missing = {n: len(before) for n, before in self.before.items()}
        ready = [n for n, count in missing.items() if count == 0]
        heapq.heapify(ready)
        found = []
        while ready:
            number = heapq.heappop(ready)
            found.append(number)
            for following in self.after[number]:
                missing[following] -= 1
                if missing[following] == 0:
                    heapq.heappush(ready, following)
        return found

    def _sort_merged(self, kept: int, gone: int) -> None:
        """Makes the order valid again once `kept` stands for `gone` too: what came before both
        needs neither, and neither needs what came after both. Of the nodes between, those that it
        needs share out their places and its two, the first of them, and those that need it the
        last (Pearce and Kelly, A dynamic topological sort algorithm, 2007)."""
        first, last = sorted((self.order[kept], self.order.pop(gone)))
        self.order[kept] = first
        earlier = self._reached(kept, self.before, first, last)
        later = self._reached(kept, self.after, first, last)
        places = sorted((first, last, *(self.order[n] for n in (*earlier, *later))))
        for place in places:
            del self.placed[place]
        del places[len(earlier) + 1]
        for place, number in zip(places, (*earlier, kept, *later), strict=True):
            self.placed[place], self.order[number] = number, place

    def _reached(self, number: int, edges: dict[int, set[int]], first: int, last: int) -> list[int]:
        """Other nodes between two places that a path leads to, in order."""
        found: set[int] = set()
        left = [number]
        while left:
            new = (n for n in edges[left.pop()] if first < self.order[n] < last)
            added = [n for n in new if n not in found]
            found.update(added)
            left += added
        return sorted(found, key=self.order.__getitem__)

    def numbers(self) -> list[int]:
        """The numbers of the nodes, in an order in which they can run."""
        return sorted(self.order, key=self.order.__getitem__)

    def sorted_nodes(self) -> tuple[Node, ...]:
        """The nodes in an order in which they can run that hangs on their edges alone."""
        return tuple(self.nodes[n] for n in self._sorted())

    def between(self, first: int, second: int) -> int | None:
        """A node that must run after `first` and before `second`, or None."""
        limit, start = self.order[second], self.order[first]
        stack = [n for n in self.before[second] if n != first]
        seen: set[int] = set()
        while stack:
            number = stack.pop()
            if number in seen or self.order[number] < start or self.order[number] > limit:
                continue
            seen.add(number)
            if first in self.before[number]:
                return number
            stack += self.before[number]
        return None

    def needs(self, number: int, other: int) -> bool:
        """Whether node `number` must run after `other`, with none between them that must."""
        return other in self.before[number]

    def is_dead_after(self, name: str, merged: Iterable[int]) -> bool:
        """Whether nothing but the nodes in `merged` needs the content of a buffer."""
        if name in self.kept:
            return False
        gone = set(merged)
        return self.readers.get(name, set()) <= gone and self.writers.get(name, set()) <= gone

    def replace(self, number: int, node: Node) -> None:
        """Another node in the place of `number`, which waits for no more nodes than that did."""
        self._unindex(number)
        self.nodes[number] = node
        self._index(number)

    def merge(self, first: int, second: int, node: Node) -> int:
        """`node` in the place of two nodes; gives its number."""
        kept, gone = min(first, second), max(first, second)
        self._unindex(first)
        self._unindex(second)
        self.nodes[kept] = node
        for before in self.before[gone]:
            self.after[before].discard(gone)
            self._edge(before, kept)
        for after in self.after[gone]:
            self.before[after].discard(gone)
            self._edge(kept, after)
        del self.nodes[gone], self.before[gone], self.after[gone]
        self.before[kept] -= {kept, gone}
        self.after[kept] -= {kept, gone}
        self._index(kept)
        self._sort_merged(kept, gone)
        return kept

    def inherit(self, number: int, producer: int) -> None:
        """`number` takes over the inputs of `producer`, which it computes again."""
        for before in self.before[producer]:
            self._edge(before, number)

    def share(self, number: int, node: Node, after: int, left: Node) -> None:
        """`node` does what `number` did and a part of what `after` did, of which `left` remains,
        which needs `node`, and which `node` does not need."""
        self.inherit(number, after)
        self.before[number].discard(after)
        self.after[after].discard(number)
        self._edge(number, after)
        self.replace(number, node)
        self.replace(after, left)
        self._sort()

    def remove(self, number: int) -> None:
        """Takes out a node that nothing reads any more."""
        self._unindex(number)
        for before in self.before.pop(number):
            self.after[before].discard(number)
        for after in self.after.pop(number):
            self.before[after].discard(number)
        del self.nodes[number], self.placed[self.order.pop(number)]

    def neighbours(self, number: int) -> list[int]:
        """Nodes that share a buffer with `number`, in order; of a buffer that many nodes use,
        the nearest ones."""
        node = self.nodes[number]
        found: set[int] = set()
        for name in (*reads(node), *writes(node)):
            sharing = self.readers.get(name, set()) | self.writers.get(name, set())
            if len(sharing) > CROWD:
                near = sorted(sharing, key=lambda n: (abs(n - number), n))[:CROWD]
                sharing = set(near)
            found |= sharing
        found.discard(number)
        return sorted(found)

    def find(self, name: str) -> int | None:
        """The number of the node called `name`, if there is one."""
        return next((n for n, node in self.nodes.items() if node_name(node) == name), None)

    def _index(self, number: int) -> None:
        for name in reads(self.nodes[number]):
            self.readers.setdefault(name, set()).add(number)
        for name in writes(self.nodes[number]):
            self.writers.setdefault(name, set()).add(number)

    def _unindex(self, number: int) -> None:
        for name in reads(self.nodes[number]):
            self.readers[name].discard(number)
        for name in writes(self.nodes[number]):
            self.writers[name].discard(number)
