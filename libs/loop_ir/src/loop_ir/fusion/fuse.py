"""Fusion of a whole graph, and its report."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from loop_ir.fusion.fold_totals import FoldTotals
from loop_ir.fusion.fuse_kernels import FuseKernels, FuseMatmuls
from loop_ir.fusion.join_numbers import JoinNumbers
from loop_ir.fusion.mix_orders import MixOrders
from loop_ir.fusion.naming import fused_name
from loop_ir.fusion.nest_totals import NestTotals
from loop_ir.fusion.options import FuseOptions
from loop_ir.fusion.scheduler import Fusion
from loop_ir.fusion.store_parts import StoreParts
from loop_ir.ir.analysis import bytes_moved, node_name
from loop_ir.ir.nodes import Graph, Kernel, Matmul, Node
from loop_ir.ir.renaming import renumber
from loop_ir.passes import sum_one_hot, unroll_short_axes
from loop_ir.passes.base import EachKernel, Pass, run_and_report
from loop_ir.passes.cse import eliminate
from loop_ir.passes.cut_axes import cut
from loop_ir.passes.dead_code import DeadCode
from loop_ir.passes.drop_round_casts import drop
from loop_ir.passes.fold_choices import fold_choices
from loop_ir.passes.fold_tests import fold
from loop_ir.passes.merge_axes import merge
from loop_ir.passes.narrow_scans import narrow
from loop_ir.passes.order_axes import order
from loop_ir.passes.read_written import ReadWritten
from loop_ir.passes.simplify_indices import simplify
from loop_ir.passes.unroll_short_rows import UnrollShortRows
from loop_ir.splitting.separable_windows import SeparableWindows
from loop_ir.splitting.split_reductions import SplitReductions


@dataclass(frozen=True)
class FusionReport:
    """What was fused, in order, and the graphs before and after: of layers that are alike, some
    may stand for all in `fusions`."""

    fusions: tuple[Fusion, ...]
    before: Graph
    after: Graph

    @cached_property
    def bytes_before(self) -> int:
        """Bytes that kernels move before it, at the hints."""
        return bytes_moved(self.before)

    @cached_property
    def bytes_after(self) -> int:
        """Bytes that kernels move after it, at the hints."""
        return bytes_moved(self.after)

    @property
    def kernels_before(self) -> int:
        """The number of kernels before it."""
        return _kernels(self.before)

    @property
    def kernels_after(self) -> int:
        """The number of kernels after it."""
        return _kernels(self.after)

    def __str__(self) -> str:
        lines = [
            f"{self.kernels_before} kernels -> {self.kernels_after}, "
            f"{self.bytes_before} bytes moved -> {self.bytes_after}"
        ]
        for f in self.fusions:
            ops = ", ".join(dict.fromkeys(o.op for o in f.origins))
            lines.append(f"  {f.kind} {f.first} + {f.second}: {f.saved} bytes saved ({ops})")
        return "\n".join(lines)


def fuse(
    graph: Graph,
    options: FuseOptions = FuseOptions(),  # noqa: B008  # frozen
) -> Graph:
    """The graph with its kernels fused: same inputs, outputs and extern calls."""
    return fuse_with_report(graph, options)[0]


def fuse_with_report(
    graph: Graph,
    options: FuseOptions = FuseOptions(),  # noqa: B008  # frozen
    on_pass: Callable[[str, Graph], None] | None = None,
    check: bool = True,
) -> tuple[Graph, FusionReport]:
    """`fuse`, and what was fused, with the bytes moved before and after.

    `on_pass(name, graph)` sees the graph after every pass; `check` verifies it there."""
    simplified, once = EachKernel(simplify, "all"), EachKernel(eliminate, "all")
    before: list[Pass] = [DeadCode(), UnrollShortRows(1), simplified, once]
    middle: list[Pass] = [FuseKernels(options)]
    if options.horizontal:
        middle.append(NestTotals(options))
    if options.epilogue:
        middle.append(FuseMatmuls("epilogues", options))
    if options.prologue:
        middle.append(FuseMatmuls("prologues", options))
    if options.drop_round_casts:
        middle.append(EachKernel(drop, "all"))
    if options.split:
        middle.append(SeparableWindows())
    after: list[Pass] = [
        EachKernel(fold),
        EachKernel(fold_choices),
        UnrollShortRows(picked=32),
        simplified,
        once,
        EachKernel(sum_one_hot.rewrite),
        EachKernel(narrow),
        ReadWritten(),
        DeadCode(),
        StoreParts(),
        UnrollShortRows(stores=True),
        EachKernel(cut, "none"),
        EachKernel(order),
        EachKernel(unroll_short_axes.rewrite, "none"),
        EachKernel(merge),
        Rename(),
    ]
    if options.split:
        after.append(MixOrders())
        after.append(SplitReductions())
        after.append(FoldTotals())
    if options.horizontal:
        after.append(JoinNumbers())
    fused, decisions = run_and_report(graph, [*before, *middle, *after], on_pass, check)
    fusions = tuple(d for d in decisions if isinstance(d, Fusion))
    return fused, FusionReport(fusions, graph, fused)


def _kernels(graph: Graph) -> int:
    return sum(isinstance(n, Kernel) for n in graph.nodes)


@dataclass(frozen=True)
class Rename:
    """Fused kernels get names from their operations, and numbered values."""

    name = "rename"

    def run(self, graph: Graph) -> Graph:
        """The graph with its kernels renamed."""
        taken = {b for n in graph.nodes if not isinstance(n, Kernel) for b in (node_name(n),)}
        nodes: list[Node] = []
        for number, node in enumerate(graph.nodes):
            if isinstance(node, Kernel):
                node = renumber(node)
                if len(node.origins) > 1:
                    node = replace(node, name=fused_name(node.origins, taken, number))
                taken.add(node.name)
            elif isinstance(node, Matmul):
                node = node.map_prologues(lambda kernel, _: renumber(kernel))
                node = replace(node, epilogue=node.epilogue and renumber(node.epilogue))
            nodes.append(node)
        return replace(graph, nodes=tuple(nodes))
