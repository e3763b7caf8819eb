"""Counters beside norms: kernels of one point that become part of a kernel that reduces."""

from dataclasses import dataclass, replace

import sympy

from loop_ir.ir import nodes as ir
from loop_ir.ir import renaming
from loop_ir.ir.affine import product
from loop_ir.ir.analysis import at_hints, hints_of, reads, writes
from loop_ir.ir.in_place import hazard
from loop_ir.ir.names import statements, value_names
from loop_ir.ir.points import place_in
from loop_ir.ir.rewrite import ranges_of
from symexpr import bounds
from tensor_ir import DType


@dataclass(frozen=True)
class JoinNumbers:
    """`n[0] = n[0] + 1` in a kernel of its own -> `n[i0] = n[i0] + 1 if i0 == 0` at the end of a
    kernel with rows i0 that reduces: a launch less. (`nn.BatchNorm2d` counts its batches.)

    Only what changes inputs of the graph that no other node reads or writes, so that its place in
    the order does not matter; the kernel with the fewest rows takes it."""

    name = "join_numbers"

    def run(self, graph: ir.Graph) -> ir.Graph:
        """The graph with each such number changed in another kernel."""
        inputs = {i.name for i in graph.inputs}
        users: dict[str, int] = {}
        for node in graph.nodes:
            for name in {*reads(node), *writes(node)}:
                users[name] = users.get(name, 0) + 1
        nodes: list[ir.Node] = list(graph.nodes)
        hints = hints_of(graph.symbols)
        for number in [n for n in graph.nodes if isinstance(n, ir.Kernel) and _is_number(n)]:
            names = {b.name for b in number.buffers}
            if not names <= inputs or any(users[name] > 1 for name in names):
                continue
            device = number.buffers[0].type.device
            hosts = [
                (at_hints(product(a.extent for a in n.axes), hints), place)
                for place, n in enumerate(nodes)
                if isinstance(n, ir.Kernel) and n.buffers[0].type.device == device and _takes(n)
            ]
            for _, place in sorted(hosts):
                host = nodes[place]
                assert isinstance(host, ir.Kernel)
                joined = join(host, number)
                if hazard(joined) is None:
                    nodes[place] = joined
                    nodes.remove(number)
                    break
        return replace(graph, nodes=tuple(nodes))


def _is_number(kernel: ir.Kernel) -> bool:
    """It runs at one point, and does nothing but change numbers."""
    plain = all(
        isinstance(s, ir.Load | ir.Const | ir.Compute)
        or (isinstance(s, ir.Store) and s.mode == "set" and s.mask is None)
        for s in statements(kernel)
    )
    return plain and all(a.extent == 1 for p in kernel.phases for a in (*kernel.axes, *p.axes))


def _takes(kernel: ir.Kernel) -> bool:
    """It reduces, by rows that are parallel, of which there always is one."""
    body = list(statements(kernel))
    sizes = dict(ranges_of(replace(kernel, axes=(), phases=())))
    walks = any(isinstance(s, ir.Store) and s.mode == "sum" for s in body)
    rows = [a for a in kernel.axes if a.extent != 1]
    least = [bounds(a.extent, sizes)[0] for a in rows]
    if not rows or any(n is None or n < 1 for n in least):
        return False
    return not walks and any(isinstance(s, ir.Reduce) for s in body)


def join(host: ir.Kernel, number: ir.Kernel) -> ir.Kernel:
    """What `number` does is done by the first row of `host`, in its last phase without inner
    axes."""
    number = renaming.rename_apart(number, host)
    taken = value_names(host, number)
    at = place_in([a for a in host.axes if a.extent != 1])
    row, zero, first = (renaming.fresh_name(n, taken) for n in ("row", "zero", "first"))
    body: list[ir.Stmt] = [
        ir.Index(row, at, DType.i64),
        ir.Const(zero, 0, DType.i64),
        ir.Compute(first, "eq", (row, zero), DType.bool_),
    ]
    for stmt in statements(number):
        if isinstance(stmt, ir.Load | ir.Store):
            stmt = replace(stmt, index=sympy.expand(stmt.index + at), mask=first)
        body.append(stmt)
    phases = list(host.phases)
    last = max((n for n, p in enumerate(phases) if not p.axes), default=len(phases))
    kept = phases[last].body if last < len(phases) else ()
    phases[last : last + 1] = [ir.Phase((), (*kept, *body))]
    joined = replace(
        host,
        buffers=renaming.union_buffers(host.buffers, number.buffers),
        phases=tuple(phases),
        symbols=renaming.union_symbols(host.symbols, number.symbols),
        origins=renaming.union_origins(host.origins, number.origins),
    )
    return renaming.renumber(joined)
