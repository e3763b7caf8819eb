"""Results lie where a tensor lay that nothing needs any more."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from loop_ir.ir.affine import same, span
from loop_ir.ir.alike import renamed_node
from loop_ir.ir.analysis import at_hints, hints_of, reads, scans, writes
from loop_ir.ir.in_place import hazard
from loop_ir.ir.nodes import Buffer, Extern, Graph, Kernel, Matmul, Node, Stmt, Store
from loop_ir.ir.rewrite import map_statements
from loop_ir.splitting.shared_rows import programs_of_row
from tensor_ir import TensorType

LEAST = 1 << 20
"""Bytes from which on memory is worth it."""
_STILL_READ = ("_c10d_functional", "aten_lowering.fetch", "aten.unbind.")
"""Calls that read their operands after they return, or whose results lie there."""
_OF_THEIR_OWN = "aten.convolution"
"""Calls whose results lie nowhere else, not with their operands either."""


@dataclass(frozen=True)
class TakeOver:
    """The last kernel that reads a tensor writes there what has the same layout:

        k: parallel i0 < 8: g[i0] = 2 * x[i0]         k: parallel i0 < 8: x[i0] = 2 * x[i0]
        y = g @ w                                  -> y = x @ w

    where no point reads what another has written, in kernels whose rows are not held by several
    programs together. Only what a kernel or a matmul made, or an input that nobody else has
    (`owned`)."""

    owned: frozenset[str]
    name = "take_over"

    def run(self, graph: Graph) -> Graph:
        """The graph, which writes to some of these tensors."""
        hints = hints_of(graph.symbols)
        sizes = {i.name: i.type for i in graph.inputs if i.type is not None}
        every: list[Node] = [*graph.nodes, Extern("return", graph.outputs, (), ())]
        busy, aliased = set[str](), set[str]()
        for node in graph.nodes:
            if isinstance(node, Extern):
                busy |= {*reads(node)} if node.target.startswith(_STILL_READ) else set()
                known_apart = node.target.startswith(_OF_THEIR_OWN)
                aliased |= set() if known_apart else {*reads(node), *writes(node)}
        last = {name: n for n, node in enumerate(every) for name in (*reads(node), *writes(node))}
        free = {n: t for n, t in sizes.items() if n in self.owned - busy and _large(t, hints)}
        known = {*sizes, *(name for name, _ in graph.constants)}
        names: dict[str, str] = {}
        for number, node in enumerate(every):
            mentions = {*reads(node), *writes(node)}
            made = node if names.keys().isdisjoint(mentions) else renamed_node(node, names)
            for buffer in node.buffers if isinstance(node, Kernel) else ():
                if not buffer.written or buffer.name in known:
                    continue
                for name in [n for n in reads(node) if last[n] == number and n in free]:
                    place = names.get(name, name)
                    wrote = _moved(made, buffer, place, hints)
                    if wrote is not None and free[name].dtype == buffer.type.dtype:
                        made, names[buffer.name] = wrote, place
                        del free[name]
                        break
            for name, type in _types_made(node):
                if name not in known | aliased and _large(type, hints):
                    free[name] = type
            known.update(writes(node))
            every[number] = made
        *nodes, returned = every
        assert isinstance(returned, Extern)
        return replace(graph, nodes=tuple(nodes), outputs=returned.args) if names else graph


def _large(type: TensorType, hints: Mapping[str, int]) -> bool:
    return at_hints(span(type), hints) * type.dtype.itemsize >= LEAST


def _types_made(node: Node) -> Iterator[tuple[str, TensorType]]:
    """The tensors that a node may make."""
    if isinstance(node, Extern):
        yield from filter(None, node.outs)
    if isinstance(node, Matmul) and node.epilogue is None:
        yield node.out, node.type
    kernel = node.epilogue if isinstance(node, Matmul) else node
    if isinstance(kernel, Kernel):
        yield from ((b.name, b.type) for b in kernel.buffers if b.written)


def _moved(node: Node, result: Buffer, name: str, hints: Mapping[str, int]) -> Kernel | None:
    """A kernel whose result lies where `name` does, if it may."""
    assert isinstance(node, Kernel)
    (old,) = (b for b in node.buffers if b.name == name)
    alike = old.type.device == result.type.device and same(span(old.type), span(result.type))
    if not alike or scans(node) or programs_of_row(node, hints) > 1:
        return None

    def moved(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer == result.name:
            return replace(stmt, buffer=name)
        return stmt

    kept = tuple(b for b in node.buffers if b.name not in (name, result.name))
    kernel = replace(map_statements(node, moved), buffers=(*kept, replace(old, written=True)))
    return None if hazard(kernel) else kernel
