"""Drops what nothing uses: statements, stores to buffers nobody reads, and whole nodes."""

from dataclasses import dataclass, replace

import sympy

from loop_ir.ir import nodes as ir
from loop_ir.ir.affine import product, same, span
from loop_ir.ir.analysis import bound_by_data, mentioned, output_buffers, reads, symbols_in, writes
from loop_ir.ir.names import operands, results
from loop_ir.ir.renaming import used_buffers
from tensor_ir import contiguous_strides


@dataclass(frozen=True)
class DeadCode:
    """Valid graph in, valid graph out, with the same outputs and the same writes to inputs.

    A store is dead if its buffer is made in the graph, and no later node reads it before another
    writes all of it, or none does and it is no output;
    a launch of a user's kernel, if all that it writes is so. Extern calls go only if they mutate
    nothing and have results, of which none is used; calls with random numbers are extern calls
    whose results are used or not wanted."""

    name = "dead_code"

    def run(self, graph: ir.Graph) -> ir.Graph:
        """The graph without what nothing needs."""
        live = set(output_buffers(graph))
        given = {i.name for i in graph.inputs} | {name for name, _ in graph.constants}
        live |= given
        bound = bound_by_data(graph.nodes)
        live |= bound & symbols_in(graph.outputs)
        kept: list[ir.Node] = []
        for node in reversed(graph.nodes):
            slim = _slim(node, live)
            if slim is None:
                continue
            live -= _overwritten(slim) - given if isinstance(slim, ir.Kernel) else set()
            live.update(reads(slim))
            live |= bound & mentioned(slim) if bound else bound
            kept.append(slim)
        nodes = tuple(reversed(kept))
        return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _slim(node: ir.Node, live: set[str]) -> ir.Node | None:
    match node:
        case ir.Kernel():
            return drop_dead_statements(node, live)
        case ir.Matmul():
            node = node.map_prologues(lambda k, ref: drop_dead_statements(k, {ref.buffer}))
            if node.epilogue is not None:
                epilogue = drop_dead_statements(node.epilogue, live)
                return None if epilogue is None else replace(node, epilogue=epilogue)
            return node if node.out in live else None
        case ir.Extern():
            used = any(w in live for w in (*writes(node), *node.binds))
            return node if node.mutates or used or not node.outs else None
        case ir.UserKernel():
            return node if any(w in live for w in writes(node)) else None
        case ir.CopyBack():
            return node


def _overwritten(kernel: ir.Kernel) -> set[str]:
    """Buffers of which a kernel writes every element, at points that lie as memory does."""
    size = {b.name: span(b.type) for b in kernel.buffers}
    found: set[str] = set()
    for phase in kernel.phases:
        axes = (*kernel.axes, *phase.axes)
        extents = tuple(a.extent for a in axes)
        strides = contiguous_strides(extents)
        place = sympy.Add(*(a.symbol * s for a, s in zip(axes, strides, strict=True)))
        stores = [s for s in phase.body if isinstance(s, ir.Store) and s.mask is None]
        whole = (s for s in stores if s.mode == "set" and same(s.index, place))
        found |= {s.buffer for s in whole if same(product(extents), size[s.buffer])}
    return found


def drop_dead_statements(
    kernel: ir.Kernel, live: set[str] | frozenset[str] | None = None
) -> ir.Kernel | None:
    """The kernel without stores to buffers outside of `live` (None: any may be) and without what
    only they used; None if nothing is left."""
    needed: set[object] = set()
    phases = []
    changed = False
    for phase in reversed(kernel.phases):
        body: list[ir.Stmt] = []
        for stmt in reversed(phase.body):
            stored = isinstance(stmt, ir.Store) and (live is None or stmt.buffer in live)
            if not stored and needed.isdisjoint(results(stmt)):
                changed = True
                continue
            needed.update(operands(stmt))
            body.append(stmt)
        if body:
            phases.append(replace(phase, body=tuple(reversed(body))))
    if not phases:
        return None
    if not changed:
        return kernel
    return used_buffers(replace(kernel, phases=tuple(reversed(phases))))
