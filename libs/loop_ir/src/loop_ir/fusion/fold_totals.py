"""Numbers that few others fold to are folded by each program that reads them."""

from dataclasses import dataclass, replace

import sympy

from loop_ir.fusion.dependencies import Dependencies
from loop_ir.ir import nodes as ir
from loop_ir.ir import renaming
from loop_ir.ir.affine import product
from loop_ir.ir.analysis import hints_of, reads, scans, writes
from loop_ir.ir.names import renamed, statements, symbol_names
from loop_ir.ir.rewrite import rename_symbols
from loop_ir.passes.dead_code import drop_dead_statements
from loop_ir.splitting.crowds import FEW, beside


@dataclass(frozen=True)
class FoldTotals:
    """A launch less for all of a crowd of kernels, each of which reads a number of its own:

        t:  over r0 < 40: reduce partial[r0]; once: store t[0]
        k:  parallel i0 < 10**6: x[i0] / t[0]
     -> k:  parallel i0 < 10**6: over r0 < 40: reduce partial[r0]; once: x[i0] / it

    Only numbers that kernels of several programs alone read, whose own rows are as long, of at most
    `FEW` others, which none of those writes; what else `t` does it still does. (Alone, a launch
    costs less than to read them everywhere.)"""

    name = "fold_totals"

    def run(self, graph: ir.Graph) -> ir.Graph:
        """The graph without the kernels of such numbers."""
        if not beside(graph, hints_of(graph.symbols)):
            return graph
        deps = Dependencies(graph)
        nodes: dict[int, ir.Node] = dict(deps.nodes)
        for number, node in deps.nodes.items():
            made = {b for b in writes(node) if b not in deps.kept and deps.writers[b] == {number}}
            total = _storing(node, made) if isinstance(node, ir.Kernel) and made else None
            if total is None or not _is_total(total):
                continue
            late = {w for b in reads(total) for w in deps.writers.get(b, ()) if w >= number}
            readers = {r: nodes[r] for b in made for r in deps.readers.get(b, ())}
            kernels = {r: k for r, k in readers.items() if isinstance(k, ir.Kernel)}
            if late or not kernels or len(kernels) < len(readers):
                continue
            if all(_takes(k, total, made) for k in kernels.values()):
                nodes |= {r: folded(k, total) for r, k in kernels.items()}
                rest = _storing(node, {*writes(node)} - made)
                nodes = {n: k for n, k in (nodes | {number: rest}).items() if k is not None}
        return replace(graph, nodes=tuple(nodes.values()))


def _storing(kernel: ir.Node, buffers: set[str]) -> ir.Kernel | None:
    """The kernel with what it stores to these buffers, and nothing else."""
    assert isinstance(kernel, ir.Kernel)

    def kept(stmt: ir.Stmt) -> bool:
        return not isinstance(stmt, ir.Store) or stmt.buffer in buffers

    phases = (replace(p, body=tuple(filter(kept, p.body))) for p in kernel.phases)
    slim = drop_dead_statements(replace(kernel, phases=tuple(phases)))
    return None if slim is None else renaming.used_buffers(slim)


def _is_total(kernel: ir.Kernel) -> bool:
    """It runs once, folds few numbers, and stores what comes of them."""
    folds = [p for p in kernel.phases if p.axes]
    if kernel.axes or not folds or scans(kernel):
        return False
    if not all(n.is_Integer and n <= FEW for n in map(_size, folds)):
        return False
    plain = all(
        isinstance(s, ir.Const | ir.Compute | ir.Index | ir.Reduce)
        or (isinstance(s, ir.Load) and s.mask is None)
        or (isinstance(s, ir.Store) and s.mode == "set" and s.mask is None and s.index == 0)
        for s in statements(kernel)
    )
    inside = any(isinstance(s, ir.Store) for p in folds for s in p.body)
    return plain and not inside and set(reads(kernel)).isdisjoint(writes(kernel))


def _size(phase: ir.Phase) -> sympy.Expr:
    return product(a.extent for a in phase.axes)


def _takes(kernel: ir.Kernel, total: ir.Kernel, made: set[str]) -> bool:
    """Whether it has several programs, or folds nothing yet, reads all of these numbers wherever it
    is, and writes nothing that the total is of; and its own rows are as long as the total."""
    least, own = max(map(_size, total.phases)), {a.symbol for a in kernel.axes}
    loads = [s for s in statements(kernel) if isinstance(s, ir.Load) and s.buffer in made]
    return (
        (any(a.extent != 1 for a in kernel.axes) or not any(p.axes for p in kernel.phases))
        and not scans(kernel)
        and all(
            (_size(p) - least).is_nonnegative or own.isdisjoint(s.index.free_symbols)
            for p in kernel.phases
            for s in p.body
            if p.axes and isinstance(s, ir.Load)
        )
        and all(s.mask is None and s.index == 0 for s in loads)
        and set(writes(kernel)).isdisjoint({*reads(total), *made})
    )


def folded(kernel: ir.Kernel, total: ir.Kernel) -> ir.Kernel:
    """The kernel, which folds by itself what it read of the total."""
    fresh = renaming.fresh_symbols("r", symbol_names(kernel) | symbol_names(total))
    own = {a.symbol: next(fresh) for p in total.phases for a in p.axes}
    apart = tuple(
        replace(p, axes=tuple(replace(a, symbol=own[a.symbol]) for a in p.axes))
        for p in rename_symbols(total, tuple(own.items())).phases
    )
    total = renaming.rename_apart(replace(total, phases=apart), kernel)
    values = {s.buffer: s.value for s in statements(total) if isinstance(s, ir.Store)}
    names = {
        s.out: values[s.buffer]
        for s in statements(kernel)
        if isinstance(s, ir.Load) and s.buffer in values
    }

    def without(phase: ir.Phase) -> ir.Phase:
        kept: list[ir.Stmt] = []
        for s in phase.body:
            if not isinstance(s, ir.Load | ir.Store) or s.buffer not in values:
                kept.append(renamed(s, names))
        return replace(phase, body=tuple(kept))

    whole = replace(
        kernel,
        buffers=renaming.union_buffers(kernel.buffers, total.buffers),
        phases=tuple(map(without, (*total.phases, *kernel.phases))),
        symbols=renaming.union_symbols(kernel.symbols, total.symbols),
        origins=renaming.union_origins(kernel.origins, total.origins),
    )
    return renaming.renumber(renaming.used_buffers(whole))
