"""Kernels side by side: what an optimizer does to its parameters.

Each of them alone is too small for a launch of its own. Those that do not need each other are put
next to each other in the graph, and become one launch (`triton_emit.emit_list`). What they make
for other kernels is parts of one buffer: a hundred numbers are one allocation, and one argument."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import sympy

from loop_ir import Buffer, Graph, Kernel, Load, Node, Stmt, Store, programs_of_row
from loop_ir.fusion import Dependencies
from loop_ir.ir import map_statements, new_buffer, span, statements, traffic, union_buffers
from loop_ir.splitting import beside
from triton_emit import likeness, words_of

# Arguments of eight bytes that a launch has room for (32,764 bytes from CUDA 12.1 on).
_MOST_WORDS = 4000
# Bytes of a buffer that is better a part of another: its allocation costs more than its memory.
_TINY = 4096
# Elements: parts of so many, or of one, lie side by side, and begin where the widest vector does.
_VECTOR = 16
# What makes new buffers is moved ahead only where these are small: they live longer.
_SMALL = 4 << 20
# What reduces more than this alone is worth a schedule of its own, which may be measured.
_SHORT = 32 << 20
# So many kernels are a launch though they are unlike, or long: each of its own, they are too many.
# Unlike ones of a graph with such a crowd are one if they are two: what follows a crowd is small.
_MANY = 8

Lists = Mapping[str, tuple[Kernel, ...]]


def gather(graph: Graph, hints: Mapping[str, int]) -> tuple[Graph, Lists]:
    """The graph with kernels that do not need each other next to each other, where they are alike
    or many, and those of each such list by the name of its first.

       k0: make a[1] of x    k1: make b[1] of y    k2: read a    k3: read b
    -> k0: make a_parts[0] of x; k1: make a_parts[1] of y        k2: read a_parts[0]; ..."""
    kernels = [n for n in graph.nodes if isinstance(n, Kernel)]
    kinds = {n.name: _kind(n, hints) for n in kernels} if len(kernels) > 1 else {}
    if len(set(kinds.values())) == len(kinds) < _MANY:
        return graph, {}
    deps = Dependencies(graph)
    least = 2 if beside(graph, hints) else _MANY
    given = {i.name for i in graph.inputs}
    parts = _Parts(deps, set(given) | {name for name, _ in graph.constants})
    waiting: dict[Hashable, list[int]] = {}
    for number, node in deps.nodes.items():
        if isinstance(node, Kernel) and (kind := kinds[node.name]) is not None:
            waiting.setdefault(kind, []).append(number)
    done: set[int] = set()
    order: list[int] = []
    lists: dict[str, tuple[Kernel, ...]] = {}

    def kernel(number: int) -> Kernel:
        node = deps.nodes[number]
        assert isinstance(node, Kernel)
        return node

    def may_go(number: int) -> bool:
        if number in done or not deps.before[number] <= done:
            return False
        written = traffic(kernel(number), hints).written
        return sum(size for name, size in written.items() if name not in given) <= _SMALL

    def ready_with(number: int, kind: Hashable) -> Iterator[list[int]]:
        """Those that may be one launch with it, the alike ones together, its own kind first."""
        ready = {
            k: [n for n in numbers if n == number or may_go(n)] for k, numbers in waiting.items()
        }
        own = ready.pop(kind)
        yield [number, *(n for n in own if n != number)]
        small = may_go(number)  # not what a model makes, whose schedule may be measured
        if small and sum(map(len, ready.values())) + len(own) >= least:
            yield from filter(None, ready.values())

    def together(number: int, kind: Hashable) -> list[int]:
        """Of those as many as a launch takes; itself alone where it is long and they are few."""
        room = _MOST_WORDS
        found: list[int] = []
        for numbers in ready_with(number, kind):
            while (words := words_of([kernel(n) for n in numbers])) > room and numbers:
                numbers = numbers[: min(len(numbers) - 1, len(numbers) * room // words)]
            room -= words
            found += numbers
        few = len(found) < _MANY and _long(kernel(number), hints)
        return [number] if few else found

    def needed(kind: Hashable) -> list[int]:
        """What others of its kind wait for alone, and could go now: it would be a list without
        them."""
        others = (deps.before[n] - done for n in waiting[kind] if n not in done)
        found = set().union(*(o for o in others if all(map(goes, o))))
        return sorted(found)

    def goes(number: int) -> bool:
        node = deps.nodes[number]
        return isinstance(node, Kernel) and kinds[node.name] is not None and may_go(number)

    def take(number: int, kind: Hashable | None) -> None:
        members = [number] if kind is None else together(number, kind)
        done.update(members)
        order.extend(members)
        if len(members) > 1:
            lists[kernel(number).name] = tuple(map(kernel, members))
            for kernels in by_likeness(lists[kernel(number).name]):
                parts.join(kernels)

    def kind_of(node: Node) -> Hashable | None:
        return kinds[node.name] if isinstance(node, Kernel) else None

    for number, node in deps.nodes.items():
        if number not in done and (kind := kind_of(node)) is not None:
            for other in needed(kind):
                if other not in done:
                    take(other, kind_of(deps.nodes[other]))
        if number not in done:
            take(number, kind_of(node))
    ordered = (deps.nodes[n] for n in order)
    nodes = (parts.placed(n) if isinstance(n, Kernel) else n for n in ordered)
    placed = {name: tuple(map(parts.placed, kernels)) for name, kernels in lists.items()}
    return replace(graph, nodes=tuple(nodes)), placed


def by_likeness(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    """Those that are alike together."""
    groups: dict[Hashable, list[Kernel]] = {}
    for kernel in kernels:
        groups.setdefault(likeness(kernel), []).append(kernel)
    return [*groups.values()]


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

    def join(self, kernels: list[Kernel]) -> None:
        """Has what these kernels make be parts of one buffer, for each that one of them makes."""
        if len(kernels) < 2:
            return
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


def _long(kernel: Kernel, hints: Mapping[str, int]) -> bool:
    """Whether it reduces so much."""
    return any(p.axes for p in kernel.phases) and traffic(kernel, hints).total > _SHORT


def _kind(kernel: Kernel, hints: Mapping[str, int]) -> Hashable | None:
    """What kernels of a list have in common, if any takes it; long ones of several axes their sizes
    too, which are then known where they are divided by."""
    like = None if programs_of_row(kernel, hints) > 1 else likeness(kernel)
    known = len(kernel.axes) > 1 and traffic(kernel, hints).total > _SHORT
    return like and (like, kernel.axes if known or _long(kernel, hints) else ())
