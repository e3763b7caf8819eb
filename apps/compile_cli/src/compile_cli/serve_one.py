"""Sizes that were captured as at least 2 may be 0 and 1 in the kernels and the host program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import sympy

from loop_ir import Axis, Graph, Kernel, Matmul, TensorType
from loop_ir.analysis import walk
from symexpr import CeilDiv, FloorDiv, Mod, ModularIndexing, Ranges, SymexprError, bounds, symbol


def serve_one(graph: Graph) -> Graph:
    """Sizes that were captured as at least 2 may be 0 and 1 in all that follows.

    Capturing tells a dynamic size from one, which broadcasts; the kernels and the host program
    need not: whether a model means the same at one is proven before it is called so
    (`compile_cli.proof`, or Dynamo's guards). Symbols of which some size then may be negative, or
    have no value, keep their range.
    """

    def widen(kernel: Kernel) -> Kernel:
        return replace(kernel, symbols=tuple(wide.get(s.name, s) for s in kernel.symbols))

    wide = {s.name: replace(s, low=0) for s in graph.symbols if s.low in (1, 2)}
    ranges = {symbol(s.name): (wide.get(s.name, s).low, s.high) for s in graph.symbols}
    for size, least in dict.fromkeys(_bounded(graph)):
        if size.free_symbols & ranges.keys() and not _at_least(least, size, ranges):
            for s in size.free_symbols:
                wide.pop(str(s), None)
    nodes = []
    for node in graph.nodes:
        if isinstance(node, Kernel):
            node = widen(node)
        elif isinstance(node, Matmul) and node.epilogue is not None:
            node = replace(node, epilogue=widen(node.epilogue))
        nodes.append(node)
    return replace(
        graph, nodes=tuple(nodes), symbols=tuple(wide.get(s.name, s) for s in graph.symbols)
    )


def _bounded(graph: Graph) -> Iterator[tuple[sympy.Expr, int]]:
    """Expressions and the least that they may be: sizes and strides, and divisors."""
    for item in walk((graph.inputs, graph.nodes, graph.outputs)):
        if isinstance(item, TensorType):
            yield from ((n, 0) for n in (*item.size, *item.stride, item.offset))
        elif isinstance(item, Axis):
            yield item.extent, 0
        if isinstance(item, sympy.Basic):
            for division in item.atoms(FloorDiv, CeilDiv, Mod, ModularIndexing):
                yield from ((divisor, 1) for divisor in division.args[1:])


def _at_least(least: int, e: sympy.Expr, ranges: Ranges) -> bool:
    """Whether `e` has a value, and no smaller one, all over the ranges."""
    try:
        low, _ = bounds(e, ranges)
    except SymexprError:
        return False
    return low is not None and low >= least
