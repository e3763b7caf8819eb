"""Results lie where an input lay that nothing needs any more."""

from dataclasses import dataclass, replace

from loop_ir.ir.affine import same, span
from loop_ir.ir.alike import renamed_node
from loop_ir.ir.analysis import at_hints, hints_of, reads, scans, writes
from loop_ir.ir.in_place import hazard
from loop_ir.ir.nodes import Buffer, Extern, Graph, Kernel, Node, Stmt, Store
from loop_ir.ir.rewrite import map_statements

LEAST = 1 << 20
"""Bytes from which on memory is worth it."""
_STILL_READ = ("_c10d_functional", "aten_lowering.fetch", "aten.unbind.")
"""Calls that read their operands after they return, or whose results lie there."""


@dataclass(frozen=True)
class TakeOver:
    """The last kernel that reads an input writes there what has the same layout:

        k: parallel i0 < 8: g[i0] = 2 * x[i0]         k: parallel i0 < 8: x[i0] = 2 * x[i0]
        y = g @ w                                  -> y = x @ w

    where no point reads what another has written, in kernels that go over their rows once: several
    programs may share rows that are read again, where what they write lies elsewhere.

    owned: inputs that nobody else has."""

    owned: frozenset[str]
    name = "take_over"

    def run(self, graph: Graph) -> Graph:
        """The graph, which writes to some of these inputs."""
        hints = hints_of(graph.symbols)
        sizes = {i.name: i.type for i in graph.inputs if i.type is not None}
        calls = (n for n in graph.nodes if isinstance(n, Extern))
        busy = {name for n in calls if n.target.startswith(_STILL_READ) for name in reads(n)}
        free = {
            name: type.dtype
            for name, type in sizes.items()
            if name in self.owned - busy
            and at_hints(span(type), hints) * type.dtype.itemsize >= LEAST
        }
        if not free:
            return graph
        every: list[Node] = [*graph.nodes, Extern("return", graph.outputs, (), ())]
        last = {name: n for n, node in enumerate(every) for name in (*reads(node), *writes(node))}
        known = {*sizes, *(name for name, _ in graph.constants)}
        names: dict[str, str] = {}
        for number, node in enumerate(every):
            mentions = {*reads(node), *writes(node)}
            made = node if names.keys().isdisjoint(mentions) else renamed_node(node, names)
            for buffer in node.buffers if isinstance(node, Kernel) else ():
                if not buffer.written or buffer.name in known:
                    continue
                for name in [n for n in reads(node) if last[n] == number and n in free]:
                    wrote = _moved(made, buffer, name)
                    if wrote is not None and free[name] == buffer.type.dtype:
                        made, names[buffer.name] = wrote, name
                        del free[name]
                        break
            known.update(writes(node))
            every[number] = made
        *nodes, returned = every
        assert isinstance(returned, Extern)
        return replace(graph, nodes=tuple(nodes), outputs=returned.args)


def _moved(node: Node, result: Buffer, name: str) -> Kernel | None:
    """A kernel whose result lies where `name` does, if it may."""
    assert isinstance(node, Kernel)
    (old,) = (b for b in node.buffers if b.name == name)
    alike = old.type.device == result.type.device and same(span(old.type), span(result.type))
    once = sum(bool(p.axes) for p in node.phases) <= 1 and not scans(node)
    if not (alike and once):
        return None

    def moved(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer == result.name:
            return replace(stmt, buffer=name)
        return stmt

    kept = tuple(b for b in node.buffers if b.name not in (name, result.name))
    kernel = replace(map_statements(node, moved), buffers=(*kept, replace(old, written=True)))
    return None if hazard(kernel) else kernel
