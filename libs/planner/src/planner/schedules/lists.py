"""Kernels that do the same to different tensors, side by side: the parameters of an optimizer.

Each of them alone is too small for a launch of its own. Those that do not need each other are put
next to each other in the graph, and become one launch (`triton_emit.emit_list`)."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace

from loop_ir import Graph, Kernel
from loop_ir.fusion import Dependencies
from loop_ir.ir import traffic
from triton_emit import likeness

# Pointers of one launch: 40 parameters of AdamW take 145 us so, 100 at once 3.6 ms (H200).
_MOST_BUFFERS = 240
# What makes new buffers is moved ahead only where these are small: they live longer.
_SMALL = 4 << 20
# What reduces more than this alone is worth a schedule of its own, which may be measured.
_SHORT = 32 << 20

Lists = Mapping[str, tuple[Kernel, ...]]


def gather(graph: Graph, hints: Mapping[str, int]) -> tuple[Graph, Lists]:
    """The graph with kernels that are alike and do not need each other next to each other, and
    those of each such list by the name of its first."""
    kinds = {n.name: _kind(n, hints) for n in graph.nodes if isinstance(n, Kernel)}
    if len(set(kinds.values())) == len(kinds):
        return graph, {}
    deps = Dependencies(graph)
    given = {i.name for i in graph.inputs}
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
        room = _MOST_BUFFERS // len(first.buffers)
        for other in waiting.get(kinds[first.name], ()):
            node = deps.nodes[other]
            if other == number or other in done or not isinstance(node, Kernel):
                continue
            if may_go(other, node):
                room -= 1
                if room < 1:
                    return
                yield other

    for number, node in deps.nodes.items():
        if number in done:
            continue
        members = [number]
        if isinstance(node, Kernel) and kinds[node.name] is not None:
            members += alike(number, node)
        done.update(members)
        order += members
        kernels = [k for m in members if isinstance(k := deps.nodes[m], Kernel)]
        if len(kernels) > 1:
            lists[kernels[0].name] = tuple(kernels)
    return replace(graph, nodes=tuple(deps.nodes[n] for n in order)), lists


def _kind(kernel: Kernel, hints: Mapping[str, int]) -> Hashable | None:
    if any(p.axes for p in kernel.phases) and traffic(kernel, hints).total > _SHORT:
        return None
    return likeness(kernel)
