"""Kernels that may run at once, as those of the parameters of an optimizer."""

from collections import Counter
from collections.abc import Mapping

from loop_ir.ir.analysis import reads, traffic, writes
from loop_ir.ir.nodes import Graph, Kernel

# So many that may run at once become one launch: they share what a launch costs, and the machine.
CROWD = 8
# Of such, chunks of a row are so few that whoever reads what they fold to may fold them itself.
FEW = 256


def beside(graph: Graph, hints: Mapping[str, int]) -> dict[int, int]:
    """For each kernel of a crowd, by its place in the graph: bytes that the others move. Where two
    kernels have as many before them, the one after the other, neither needs the other."""
    if sum(isinstance(n, Kernel) for n in graph.nodes) < CROWD:
        return {}
    level: list[int] = []
    written: dict[str, int] = {}  # the level of the last node that writes a buffer, or uses it
    used: dict[str, int] = {}
    for node in graph.nodes:
        needs = [written.get(name, -1) for name in reads(node)]
        needs += [used.get(name, -1) for name in writes(node)]
        level.append(max(needs, default=-1) + 1)
        written |= dict.fromkeys(writes(node), level[-1])
        for name in (*reads(node), *writes(node)):
            used[name] = max(level[-1], used.get(name, -1))
    kernels = {n: k for n, k in enumerate(graph.nodes) if isinstance(k, Kernel)}
    crowds = Counter(level[n] for n in kernels)
    moved = {n: traffic(k, hints).total for n, k in kernels.items() if crowds[level[n]] >= CROWD}
    of_level: Counter[int] = Counter()
    for n, size in moved.items():
        of_level[level[n]] += size
    return {n: of_level[level[n]] - size for n, size in moved.items()}
