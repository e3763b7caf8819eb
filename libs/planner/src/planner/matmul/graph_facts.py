"""What planning the matmuls of a graph asks of the graph: which buffers can be aligned, which
names are free, how large a matmul is."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from loop_ir import Graph, Kernel, Matmul
from loop_ir.ir import reads, writes
from planner.matmul.ways import produced
from planner.program import kernel_nodes
from symexpr import evaluate


@dataclass(frozen=True)
class GraphFacts:
    """The facts about one graph, computed on first use."""

    graph: Graph

    @functools.cached_property
    def inputs(self) -> frozenset[str]:
        """The names of the graph's inputs."""
        return frozenset(i.name for i in self.graph.inputs)

    @functools.cached_property
    def aligned(self) -> frozenset[str]:
        """Buffers that are, or can be made, 16-byte aligned: what kernels write (the program
        allocates it), and inputs that nobody writes (a caller's odd one is copied first)."""
        written = {name for node in self.graph.nodes for name in writes(node)}
        made: set[str] = set()
        for node in self.graph.nodes:
            if isinstance(node, Kernel):
                made.update(writes(node))
            elif isinstance(node, Matmul):
                made.update(writes(node))
                made.update(ref.buffer for _, _, ref in produced(node))
        return frozenset((made | self.inputs) - (written & self.inputs))

    def ending(self, text: str) -> str:
        """`text`, or more of it, such that no name of the graph ends so: what it is added to is no
        other buffer or kernel, as `linear_1` would be."""
        while any(name.endswith(text) for name in self._names):
            text += "_"
        return text

    @functools.cached_property
    def _names(self) -> set[str]:
        """Of all buffers and kernels of the graph."""
        kernels = kernel_nodes(self.graph)
        names = {name for node in self.graph.nodes for name in (*reads(node), *writes(node))}
        names |= {node.out for node in self.graph.nodes if isinstance(node, Matmul)}
        names |= {b.name for kernel in kernels for b in kernel.buffers}
        return names | {kernel.name for kernel in kernels} | self.inputs


def bytes_of(node: Matmul, hints: Mapping[str, int]) -> int:
    """Of all the tensors of a matmul and its epilogue."""
    types = [node.a.type, node.b.type, node.type]
    if node.epilogue is not None:
        types += [b.type for b in node.epilogue.buffers]
    return sum(int(evaluate(t.extent, hints)) * t.dtype.itemsize for t in types)
