"""Lets reductions of rows, and those of all that the rows hold, share one reading."""

from dataclasses import dataclass, field, replace

from loop_ir.fusion.dependencies import Dependencies
from loop_ir.fusion.fuse_kernels import FuseKernels
from loop_ir.fusion.options import FuseOptions
from loop_ir.ir.affine import product, same
from loop_ir.ir.analysis import bytes_moved, hints_of, inner_axes, node_name, reads, writes
from loop_ir.ir.body import fresh_values
from loop_ir.ir.in_place import can_share
from loop_ir.ir.names import statements, used_values
from loop_ir.ir.nodes import Graph, Kernel, Load, Phase, Reduce, Scan, Store
from loop_ir.splitting.split_reductions import LAUNCH_BYTES
from loop_ir.splitting.stages import Pieces, reduces, without_stores
from tensor_ir import Decided

# Those that rows, and then their results, may be folded by.
_FOLDS = frozenset(("sum", "prod", "max", "min", "any", "all"))


@dataclass(frozen=True)
class NestTotals:
    """A kernel that reduces all, beside one that reduces the rows of what it reads, or needs what
    that makes of them:

        rows:  parallel i0 < 256: over r0 < 32768: a; reduce
        total: over r0 < 256, r1 < 32768: b; reduce sum; once: c
     -> rows:  parallel i0 < 256: over r0 < 32768: a; reduce; b; reduce sum; store part[i0]
        total: over r0 < 256: reduce sum of the parts; once: c

    where that saves more bytes than could be moved in the time of a launch."""

    options: FuseOptions = field(default_factory=FuseOptions)
    name = "nest_totals"

    def run(self, graph: Graph) -> Decided[Graph]:
        """The graph with totals of rows' totals, and each `Fusion` that follows."""
        decisions: tuple[object, ...] = ()
        hints = hints_of(graph.symbols)
        refused: set[object] = set()  # what was tried once need not be for each of a hundred
        for kernel in [n for n in graph.nodes if isinstance(n, Kernel) and _is_total(n)]:
            alike = inner_axes(kernel), tuple((type(s), used_values(s)) for s in statements(kernel))
            nested = None if alike in refused else _nested(graph, kernel.name)
            if nested is None:
                continue
            fused = FuseKernels(self.options).run(nested)
            saved = bytes_moved(graph, hints) - bytes_moved(fused.program, hints)
            if saved > LAUNCH_BYTES:
                graph, decisions = fused.program, (*decisions, *fused.decisions)
            else:
                refused.add(alike)
        return Decided(graph, decisions)


def _nested(graph: Graph, name: str) -> Graph | None:
    """The graph with a kernel of that name as one of rows and one of their results, if another
    kernel reduces just such rows."""
    deps = Dependencies(graph)
    found = {node_name(node): number for number, node in deps.nodes.items()}
    total = deps.nodes[found[name]] if name in found else None
    if not isinstance(total, Kernel) or not _is_total(total):
        return None  # another one was fused with it
    inner = inner_axes(total) or ()
    others = (deps.nodes[n] for n in deps.neighbours(found[name]))
    shapes = {
        (product(a.extent for a in n.axes), product(a.extent for a in inner_axes(n) or ()))
        for n in others
        if isinstance(n, Kernel) and n.axes and any(map(reduces, n.phases))
    }
    for outer in range(1, len(inner)):
        rows, row = (product(a.extent for a in axes) for axes in (inner[:outer], inner[outer:]))
        if any(same(rows, count) and same(row, each) for count, each in shapes):
            taken = {node_name(n) for n in graph.nodes}
            taken |= {b for n in graph.nodes for b in (*reads(n), *writes(n))}
            nodes = list(graph.nodes)
            at = nodes.index(total)
            nodes[at : at + 1] = _Nest(total, taken).run(outer)
            return replace(graph, nodes=tuple(nodes))
    return None


def _is_total(kernel: Kernel) -> bool:
    """It reduces all of its points at once, and stores numbers only."""
    body = list(statements(kernel))
    inner = [p for p in kernel.phases if p.axes]
    return (
        not kernel.axes
        and len(inner_axes(kernel) or ()) > 1
        and sum(map(reduces, kernel.phases)) == 1
        and reduces(inner[-1])
        and all(s.op in _FOLDS for s in body if isinstance(s, Reduce))
        and not any(isinstance(s, Scan) for s in body)
        and not any(isinstance(s, Store) for p in inner for s in p.body)
        and can_share(kernel)
    )


class _Nest(Pieces):
    def run(self, outer: int) -> list[Kernel]:
        """The kernel of rows, one for each point of so many outer axes, and that of the total."""
        inner = inner_axes(self.kernel) or ()
        rows, row = inner[:outer], inner[outer:]
        by_row = replace(self.kernel, axes=rows)
        body = next(p.body for p in self.kernel.phases if reduces(p))
        found = [s for s in body if isinstance(s, Reduce)]
        stores = [self.store(s.outs[0], rows) for s in found]
        parts = [p if p.axes else without_stores(p) for p in self.kernel.phases]
        phases = [replace(p, axes=row) if p.axes else p for p in parts]
        self.add("rows", replace(by_row, phases=(*phases, Phase((), tuple(stores)))))
        values = fresh_values(self.kernel)
        finish = []
        for stmt, stored in zip(found, stores, strict=True):
            value = next(values)
            load = Load(value, stored.buffer, stored.index, stmt.dtype)
            finish.append(Phase(rows, (load, replace(stmt, args=(value,)))))
        once = (p for p in self.kernel.phases if not p.axes)
        self.add("", (*finish, *once))
        return self.out
