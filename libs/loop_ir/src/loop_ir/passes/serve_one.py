"""Sizes that were captured as at least 2 may be 0 and 1 in the kernels and the host program."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import sympy

import symexpr
from loop_ir.ir.analysis import hints_of, walk
from loop_ir.ir.nodes import Axis, Buffer, Extern, Graph, Kernel, Matmul, TensorRef
from tensor_ir import Symbol, TensorType


def serve_one(graph: Graph) -> Graph:
    """Sizes that were captured as at least 2 may be 0 and 1 in all that follows.

    Capturing tells a dynamic size from one, which broadcasts; the kernels and the host program
    need not: who calls them with such sizes proves before that the model means the same there.
    Symbols of which some size then may be negative, or have no value, keep their range; those of
    which a view (`x[:, 0]`, `x.narrow(0, 1, 1)`) would lie outside of its storage begin where it
    lies inside."""

    def widen(kernel: Kernel) -> Kernel:
        return replace(kernel, symbols=tuple(wide.get(s.name, s) for s in kernel.symbols))

    wide = {s.name: replace(s, low=0) for s in graph.symbols if s.low in (1, 2)}
    if not wide:
        return graph
    ranges = {symexpr.symbol(s.name): (wide.get(s.name, s).low, s.high) for s in graph.symbols}
    for size, least in dict.fromkeys(_bounded(graph)):
        if size.free_symbols & ranges.keys() and not _at_least(least, size, ranges):
            for s in size.free_symbols:
                wide.pop(str(s), None)
    _keep_views_inside(graph, wide)
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
            for division in item.atoms(
                symexpr.FloorDiv, symexpr.CeilDiv, symexpr.Mod, symexpr.ModularIndexing
            ):
                yield from ((divisor, 1) for divisor in division.args[1:])


def _at_least(least: int, e: sympy.Expr, ranges: symexpr.Ranges) -> bool:
    """Whether `e` has a value, and no smaller one, all over the ranges."""
    try:
        low, _ = symexpr.bounds(e, ranges)
    except symexpr.SymexprError:
        return False
    return low is not None and low >= least


def _keep_views_inside(graph: Graph, wide: dict[str, Symbol]) -> None:
    """Raises the lower bounds of symbols in `wide` for which a view is larger than its storage:
    of each by itself, and of all that a view has together; with the others as they were at
    capture, and at their least."""
    storages = {i.name: i.type for i in graph.inputs if i.type is not None} | dict(graph.constants)
    for item in walk(graph.nodes):
        if isinstance(item, Buffer):
            storages.setdefault(item.name, item.type)
        elif isinstance(item, Extern):
            storages |= dict(out for out in item.outs if out is not None)
    captured = {s.name: max(s.low or 0, 0) for s in graph.symbols}
    hints = hints_of(graph.symbols)
    refs = (r for r in walk((graph.nodes, graph.outputs)) if isinstance(r, TensorRef))
    for ref in dict.fromkeys(refs):
        storage = storages.get(ref.buffer)
        if storage is None or storage == ref.type:
            continue
        both = (*_expressions(ref.type), *_expressions(storage))
        names = sorted({s.name for e in both for s in e.free_symbols} & wide.keys())
        for group in (*([n] for n in names), names):
            while lows := {n: wide[n].low or 0 for n in group if wide[n].low != captured[n]}:
                others = (hints, hints | captured)
                if all(_inside(ref.type, storage, {**env, **lows}) for env in others):
                    break
                for n, low in lows.items():
                    wide[n] = replace(wide[n], low=low + 1)


def _expressions(type: TensorType) -> tuple[sympy.Expr, ...]:
    return (*type.size, *type.stride, type.offset)


def _inside(view: TensorType, storage: TensorType, env: Mapping[str, int]) -> bool:
    """A view whose sizes have no value is not inside: sizes that split another one divide by it."""
    try:
        return view.storage_bytes(env) <= storage.storage_bytes(env)
    except symexpr.DivisionByZero:
        return False
