"""Simplifies indices with what is known of axes and sizes."""

from __future__ import annotations

from dataclasses import dataclass

from loop_ir.analysis import expression, statements
from loop_ir.nodes import Graph, Kernel
from loop_ir.rewrite import (
    has_functions,
    map_all_kernels,
    map_expressions,
    map_statements,
    ranges_of,
    simplify_with,
)


@dataclass(frozen=True)
class SimplifyIndices:
    """`x[64*FloorDiv(i0, 64) + Mod(i0, 64)] -> x[i0]`, and whatever else `symexpr.simplify`
    proves from the ranges of axes, sizes and indirect symbols."""

    name = "simplify_indices"

    def run(self, graph: Graph) -> Graph:
        return map_all_kernels(graph, simplify)


def simplify(kernel: Kernel) -> Kernel:
    exprs = [e for e in map(expression, statements(kernel)) if e is not None]
    if not any(map(has_functions, exprs)):
        return kernel
    ranges = ranges_of(kernel)
    return map_statements(
        kernel, lambda s: map_expressions(s, lambda e: simplify_with(e, ranges))
    )
