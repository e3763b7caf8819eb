"""Lets reductions of rows and sums of columns of the same points share one reading."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy

from loop_ir.fusion.common_domain import Mismatch
from loop_ir.fusion.dependencies import Dependencies
from loop_ir.fusion.mix import Columns, columns_of, finish, join, walked
from loop_ir.ir.affine import product
from loop_ir.ir.analysis import at_hints, hints_of, inner_axes, node_name, reads, traffic, writes
from loop_ir.ir.in_place import stays_outside
from loop_ir.ir.names import statements
from loop_ir.ir.nodes import Graph, Kernel, Node, Reduce, Store
from loop_ir.ir.strides import reduces_columns
from symexpr import CeilDiv

# Programs that walk over rows: two a multiprocessor of an H200, so that one reads while the other
# waits for its reductions.
_PROGRAMS = 2 * 132
# Fewer rows are not worth a program's partial sums.
_LEAST_ROWS = 4
# Elements of a row times what each thread holds of them (its sums, and about three values): what
# the registers of a multiprocessor have room for.
_REGISTERS = 48 << 10
_VALUES = 3


@dataclass(frozen=True)
class MixOrders:
    """A kernel that reduces rows, and one that sums columns of what the first reads or makes:

        k:  parallel i0 < 16384: over r0 < 4096: a; reduce; once: b; over r0 < 4096: c
        s:  parallel i0 < 4096: over r0 < 16384: d; reduce sum; once: e
     -> k:  parallel i1 < 256, i0 < 64: over r0 < 4096: a; d; reduce; store parts[i1, r0] sum= ..;
            once: b; over r0 < 4096: c
        s:  parallel i0 < 4096: over r0 < 256: reduce sum of the parts; once: e

    where rows are so narrow that a program holds their sums in registers, and fewer bytes are
    moved. Which rows a program sums depends on sizes alone."""

    name = "mix_orders"

    def run(self, graph: Graph) -> Graph:
        """The graph with kernels of columns joined to those of rows."""
        mixer = _Mixer(graph)
        found = {n for n, node in mixer.deps.nodes.items() if isinstance(node, Kernel)}
        for number in sorted(found):
            mixer.mix(number)
        return replace(graph, nodes=mixer.nodes()) if mixer.joined else graph


class _Mixer:
    """joined: of a kernel of rows what it sums, by buffer. The kernels of columns are what is left
    of them (`finish`) from then on, so that the dependencies are those of the graph to come."""

    def __init__(self, graph: Graph) -> None:
        self.deps = Dependencies(graph)
        self.hints = hints_of(graph.symbols)
        self.taken = {name for node in graph.nodes for name in (node_name(node), *writes(node))}
        self.taken |= {i.name for i in graph.inputs} | {name for name, _ in graph.constants}
        self.joined: dict[int, Mapping[str, Reduce]] = {}

    def mix(self, number: int) -> None:
        """Joins the sums of columns of node `number`, if it is such a kernel, to a kernel of
        rows."""
        node = self.deps.nodes.get(number)
        if not isinstance(node, Kernel) or not reduces_columns(node):
            return
        columns = columns_of(node, self.taken)
        if columns is None:
            return
        for other in self.deps.neighbours(number):
            rows = self.deps.nodes[other]
            if not isinstance(rows, Kernel) or not _reduces_rows(rows):
                continue
            first, second = sorted((other, number), key=lambda n: self.deps.order[n])
            if self.deps.between(first, second) is not None:
                continue
            if self.deps.needs(other, number) and not _reads_points(rows, columns):
                continue
            parts, _ = share(product(a.extent for a in rows.axes), self.hints)
            left = finish(columns, parts)
            summed = self.joined.get(other, {})
            made = {*writes(rows), *writes(node)} - {*reads(left), *writes(left)}
            dead = frozenset(n for n in made if self.deps.is_dead_after(n, (other, number)))
            fused = join(rows, columns, first == other, self.hints, dead)
            if isinstance(fused, Mismatch):
                continue
            both = {**summed, **columns.summands}
            if not (self._fits(fused, len(both)) and self._saves(rows, columns, fused)):
                continue
            self.deps.share(other, fused, number, left)
            self.joined[other] = both
            return

    def _fits(self, fused: Kernel, sums: int) -> bool:
        width = product(a.extent for a in inner_axes(fused) or ())
        if not width.is_Integer:
            return False
        held = 1 << max(0, int(width) - 1).bit_length()
        return held * (sums + _VALUES) <= _REGISTERS

    def _saves(self, rows: Kernel, columns: Columns, fused: Kernel) -> bool:
        """Whether fewer bytes are moved, partial sums included, which are written and read; and
        they have a tensor of all points in common."""
        one, two = traffic(rows, self.hints), traffic(columns.kernel, self.hints)
        points = at_hints(
            fused.axes[0].extent * product(a.extent for a in columns.kernel.axes), self.hints
        )
        seen = {*one.read, *one.written}
        if all(n < points for b, n in (*two.read.items(), *two.written.items()) if b in seen):
            return False
        moved = traffic(fused, self.hints)
        summed = sum(moved.written.get(name, 0) for name in columns.summands)
        parts, _ = share(fused.axes[0].extent, self.hints)
        partial = summed * parts // max(1, at_hints(fused.axes[0].extent, self.hints))
        return moved.total - summed + 2 * partial < one.total + two.total

    def nodes(self) -> tuple[Node, ...]:
        return tuple(
            self._walked(node, self.joined[number]) if number in self.joined else node
            for number, node in ((n, self.deps.nodes[n]) for n in self.deps.numbers())
        )

    def _walked(self, rows: Node, summands: Mapping[str, Reduce]) -> Kernel:
        assert isinstance(rows, Kernel)
        return walked(rows, *share(rows.axes[0].extent, self.hints), summands)


def _reads_points(rows: Kernel, columns: Columns) -> bool:
    """Whether the kernel of rows reads nothing that the other makes but what it stores at every
    point, and writes nothing of what it touches."""
    kernel = columns.kernel
    read = {*writes(kernel)} & {*reads(rows)}
    sums = {s.buffer for p in columns.once for s in p.body if isinstance(s, Store)}
    return bool(read) and not (read & sums or {*reads(kernel), *writes(kernel)} & {*writes(rows)})


def _reduces_rows(kernel: Kernel) -> bool:
    return (
        bool(kernel.axes and inner_axes(kernel))
        and any(isinstance(s, Reduce) for s in statements(kernel))
        and stays_outside(kernel)
        and not reduces_columns(kernel)
    )


def share(rows: sympy.Expr, hints: Mapping[str, int]) -> tuple[int, sympy.Expr]:
    """How many programs walk over how many rows each: as many as keep the machine busy, of equal
    shares where there is a number like that."""
    number = at_hints(rows, hints)
    most = max(1, min(_PROGRAMS, number // _LEAST_ROWS))
    if not rows.is_Integer:
        return most, sympy.sympify(CeilDiv(rows, most))
    for parts in range(most, most * 7 // 8, -1):
        if number % parts == 0:
            return parts, sympy.Integer(number // parts)
    length = -(-number // most)
    return -(-number // length), sympy.Integer(length)
