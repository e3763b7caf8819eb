"""Kernels that do the same to different tensors, side by side: the parameters of an optimizer.

Each of them alone is too small for a launch of its own. Those that do not need each other are put
next to each other in the graph, and become one launch (`triton_emit.emit_list`). What they make
for other kernels is parts of one buffer: a hundred numbers are one allocation, and one argument."""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

import sympy

from loop_ir import Buffer, Graph, Kernel, Load, Node, Stmt, Store
from loop_ir.fusion import Dependencies
from loop_ir.ir import map_statements, new_buffer, span, statements, traffic, union_buffers
from triton_emit import likeness

# Pointers of one launch: 40 parameters of AdamW take 145 us so, 100 at once 3.6 ms (H200).
_MOST_BUFFERS = 240
# Bytes of a buffer that is better a part of another: its allocation costs more than its memory.
_TINY = 4096
# Elements: parts of so many, or of one, lie side by side, and begin where the widest vector does.
_VECTOR = 16
# What makes new buffers is moved ahead only where these are small: they live longer.
_SMALL = 4 << 20
# What reduces more than this alone is worth a schedule of its own, which may be measured.
_SHORT = 32 << 20

Lists = Mapping[str, tuple[Kernel, ...]]


def gather(graph: Graph, hints: Mapping[str, int]) -> tuple[Graph, Lists]:
    """The graph with kernels that are alike and do not need each other next to each other, and
       those of each such list by the name of its first.

       k0: make a[1] of x    k1: make b[1] of y    k2: read a    k3: read b
    -> k0: make a_parts[0] of x; k1: make a_parts[1] of y        k2: read a_parts[0]; ..."""
    kinds = {n.name: _kind(n, hints) for n in graph.nodes if isinstance(n, Kernel)}
    if len(set(kinds.values())) == len(kinds):
        return graph, {}
    deps = Dependencies(graph)
    given = {i.name for i in graph.inputs}
    parts = _Parts(deps, set(given) | {name for name, _ in graph.constants})
    waiting: dict[Hashable, list[int]] = {}
    for number, node in deps.nodes.items():
        if isinstance(node, Kernel) and (kind := kinds[node.name]) is not None:
            waiting.setdefault(kind, []).append(number)
    done: set[int] = set()
    order: list[int] = []
    lists: dict[str, tuple[Kernel, ...]] = {}

    def may_go(number: int, node: Kernel) -> bool:
        if not deps.before[number] <= done:
            return False
        written = traffic(node, hints).written
        return sum(size for name, size in written.items() if name not in given) <= _SMALL

    def alike(number: int, first: Kernel) -> Iterator[int]:
        held = parts.pointers(first)
        for other in waiting.get(kinds[first.name], ()):
            node = deps.nodes[other]
            if other == number or other in done or not isinstance(node, Kernel):
                continue
            if may_go(other, node):
                held |= parts.pointers(node)
                if len(held) > _MOST_BUFFERS:
                    return
                yield other

    def needed(first: Kernel) -> list[int]:
        """What others of its kind wait for alone, and could go now: it would be a list without
        them."""
        others = (deps.before[n] - done for n in waiting[kinds[first.name]] if n not in done)
        found = set().union(*(o for o in others if all(map(goes, o))))
        return sorted(found)

    def goes(number: int) -> bool:
        node = deps.nodes[number]
        return isinstance(node, Kernel) and kinds[node.name] is not None and may_go(number, node)

    def take(number: int, node: Node) -> None:
        members = [number]
        if isinstance(node, Kernel) and kinds[node.name] is not None:
            members += alike(number, node)
        done.update(members)
        order.extend(members)
        kernels = [k for m in members if isinstance(k := deps.nodes[m], Kernel)]
        if len(kernels) > 1:
            lists[kernels[0].name] = tuple(kernels)
            parts.join(kernels)

    for number, node in deps.nodes.items():
        if number not in done and isinstance(node, Kernel) and kinds[node.name] is not None:
            for other in needed(node):
                if other not in done:
                    take(other, deps.nodes[other])
        if number not in done:
            take(number, node)
    ordered = (deps.nodes[n] for n in order)
    nodes = (parts.placed(n) if isinstance(n, Kernel) else n for n in ordered)
    placed = (alike for kernels in lists.values() for alike in _still(map(parts.placed, kernels)))
    return replace(graph, nodes=tuple(nodes)), {a[0].name: a for a in placed if len(a) > 1}


def _still(placed: Iterable[Kernel]) -> Collection[tuple[Kernel, ...]]:
    """Those that are alike of kernels that were so: where two tensors that one of them reads are
    parts of one buffer now, and of another are not, they are no longer."""
    groups: dict[Hashable, tuple[Kernel, ...]] = {}
    for kernel in placed:
        key = likeness(kernel)
        groups[key] = (*groups.get(key, ()), kernel)
    return groups.values()


@dataclass
class _Parts:
    """Small buffers that are parts of others, by what they are parts of and where they begin.
    taken: names of buffers of the graph."""

    deps: Dependencies
    taken: set[str]
    places: dict[str, tuple[Buffer, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.taken |= self.deps.writers.keys()

    def _may_move(self, buffer: Buffer) -> bool:
        """Whether it is small, made by one kernel, and only kernels read it; and no gap would be
        behind it, which nothing writes."""
        extent, dtype = span(buffer.type), buffer.type.dtype
        writers = self.deps.writers.get(buffer.name, set())
        users = writers | self.deps.readers.get(buffer.name, set())
        return (
            buffer.name not in self.deps.kept
            and extent.is_Integer
            and (extent == 1 or extent % _VECTOR == 0)
            and int(extent) * dtype.itemsize <= _TINY
            and not dtype.is_complex
            and len(writers) == 1
            and all(isinstance(self.deps.nodes[n], Kernel) for n in users)
        )

    def pointers(self, kernel: Kernel) -> set[str]:
        """What a list of such kernels is passed for this one, where a number stands for what is to
        be a part of a buffer that the list makes."""
        found = set()
        for number, b in enumerate(_in_order(kernel)):
            if b.name in self.places:
                found.add(self.places[b.name][0].name)
            else:
                found.add(str(number) if b.written and self._may_move(b) else b.name)
        return found

    def join(self, kernels: list[Kernel]) -> None:
        """Has what these kernels make be parts of one buffer, for each that one of them makes."""
        for same in zip(*map(_in_order, kernels), strict=True):
            first = same[0]
            extents = [span(b.type) for b in same]
            if not all(b.written and self._may_move(b) for b in same) or (
                1 in extents and set(extents) != {1}
            ):
                continue
            begins = list(accumulate(map(int, extents), initial=0))
            name = f"{first.name}_parts"
            while name in self.taken:
                name += "_"
            self.taken.add(name)
            size = (sympy.Integer(begins[-1]),)
            whole = new_buffer(name, first.type.dtype, size, first.type.device)
            self.places |= {b.name: (whole, at) for b, at in zip(same, begins, strict=False)}

    def placed(self, kernel: Kernel) -> Kernel:
        """The kernel, which finds its buffers where they are parts of others."""
        if self.places.keys().isdisjoint(b.name for b in kernel.buffers):
            return kernel

        def moved(stmt: Stmt) -> Stmt:
            if not isinstance(stmt, Load | Store) or stmt.buffer not in self.places:
                return stmt
            whole, at = self.places[stmt.buffer]
            return replace(stmt, buffer=whole.name, index=stmt.index + at)

        buffers = (
            replace(self.places[b.name][0], written=b.written) if b.name in self.places else b
            for b in kernel.buffers
        )
        return replace(map_statements(kernel, moved), buffers=union_buffers(tuple(buffers), ()))


def _in_order(kernel: Kernel) -> list[Buffer]:
    """Buffers in the order in which the kernel uses them, which alike kernels have in common."""
    buffers = {b.name: b for b in kernel.buffers}
    used = (s.buffer for s in statements(kernel) if isinstance(s, Load | Store))
    return [buffers[name] for name in dict.fromkeys(used)]


def _kind(kernel: Kernel, hints: Mapping[str, int]) -> Hashable | None:
    """What kernels of a list have in common; long ones of several axes their sizes too, which are
    then known where they are divided by."""
    points = not any(p.axes for p in kernel.phases)
    long = (len(kernel.axes) > 1 or not points) and traffic(kernel, hints).total > _SHORT
    like = None if long and not points else likeness(kernel)
    return like and (like, kernel.axes if long else ())
