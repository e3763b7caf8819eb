"""Facts about kernels and nodes that the passes share: what they read and write, and how much."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache

import sympy

from loop_ir.ir import nodes as ir
from loop_ir.ir.affine import product, span
from loop_ir.ir.iterated import ITERATED
from loop_ir.ir.names import Name, defined_values, operands, results, statements
from symexpr import free_symbols
from tensor_ir import TYPICAL_SIZE, DType, Ref, Symbol, once


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    """Those of a dataclass, the last one first."""
    return tuple(f.name for f in reversed(fields(kind))) if is_dataclass(kind) else ()


def walk(value: object, leaves: type | tuple[type, ...] = ()) -> Iterator[object]:
    """A value, and all that tuples and dataclasses hold, at any depth; nothing that is in one of
    the `leaves`."""
    left = [value]
    while left:
        item = left.pop()
        yield item
        if isinstance(item, tuple):
            left.extend(reversed(item))
        elif not isinstance(item, leaves):
            kind: type = type(item)
            left.extend([getattr(item, name) for name in _field_names(kind)])


_STEP_NAMES = """
eq ne lt le gt ge isinf floordiv truncdiv mod fmod floor ceil trunc round bitcast argmax argmin
"""
_STEPS = frozenset(_STEP_NAMES.split())


def reaching_steps(kernel: ir.Kernel) -> frozenset[str]:
    """The values whose small differences may become large ones: arguments of steps (comparisons,
    floors, casts to integers, places of extremes) and all that these are computed from; so are
    those from which the extremes of such values are subtracted. What is compared with an infinity
    answers the same."""
    found: set[str] = set()
    body = tuple(statements(kernel))
    consts = (s for s in body if isinstance(s, ir.Const))
    infinite = {s.out for s in consts if math.isinf(s.value)}
    for _ in range(2):
        extremes: set[str] = set()
        for stmt in body:
            of = {"max": found, "min": found, "cast": extremes}.get(getattr(stmt, "op", ""), set())
            if not of.isdisjoint(operands(stmt)):
                extremes.update(defined_values(stmt))
        for stmt in reversed(body):
            if isinstance(stmt, ir.Compute | ir.Reduce | ir.Scan) and (
                (stmt.op in _STEPS and infinite.isdisjoint(stmt.args))
                or (stmt.op == "cast" and not stmt.dtype.is_float)
                or (stmt.op == "sub" and not extremes.isdisjoint(stmt.args))
                or not found.isdisjoint(defined_values(stmt))
            ):
                found.update(stmt.args)
    return frozenset(found)


def is_pointwise(kernel: ir.Kernel) -> bool:
    """No reductions and no inner axes: it may run its points in any order."""
    return all(not p.axes for p in kernel.phases)


def iterates(kernel: ir.Kernel) -> bool:
    """Whether it has a function of as many steps as an element asks for."""
    return any(isinstance(s, ir.Compute) and s.op in ITERATED for s in statements(kernel))


def scans(kernel: ir.Kernel) -> bool:
    """Whether a statement of the kernel is a scan."""
    return any(isinstance(s, ir.Scan) for s in statements(kernel))


def single_direction(kernel: ir.Kernel) -> bool:
    """All scans go the same way, and with reverse ones there are no reductions."""
    ways = {s.reverse for s in statements(kernel) if isinstance(s, ir.Scan)}
    return ways != {True, False} and not (
        True in ways and any(isinstance(s, ir.Reduce) for s in statements(kernel))
    )


def inner_axes(kernel: ir.Kernel) -> tuple[ir.Axis, ...] | None:
    """The inner axes if all phases with inner axes share them; None where they differ."""
    found = {p.axes for p in kernel.phases if p.axes}
    if len(found) > 1:
        return None
    return next(iter(found), ())


def node_name(node: ir.Node) -> str:
    """The name of a node in reports: kernels and matmuls have one; an extern goes by its first
    result, a copy by its destination."""
    match node:
        case ir.Kernel() | ir.UserKernel():
            return node.name
        case ir.Matmul():
            return node.out
        case ir.Extern():
            for out in node.outs:
                if out is not None:
                    return out[0]
            return f"{node.target}({', '.join(node.mutates)})"
        case ir.CopyBack():
            return f"copy_to_{node.dst.buffer}"


# The operation by which two results of a reduction or scan are one.
JOINS = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}
PLACES = {"argmax": "max", "argmin": "min"}  # of which each finds the first


def identity(op: str, dtype: DType) -> int | float | bool:
    """The value that leaves a reduction or scan as it is."""
    if op in ("logsumexp", "softmax"):
        return float("-inf")
    if op in ("sum", "any", "welford", "prod", "all"):
        number = int(op in ("prod", "all"))
        return bool(number) if dtype == DType.bool_ else float(number) if dtype.is_float else number
    least = op in ("max", "argmax")
    if dtype == DType.bool_:
        return not least
    if dtype.is_float:
        return float("-inf") if least else float("inf")
    bits = 8 * dtype.itemsize
    if dtype.value.startswith("u"):
        return 0 if least else (1 << bits) - 1
    return -(1 << (bits - 1)) if least else (1 << (bits - 1)) - 1


def tensor_refs(arg: ir.GraphArg) -> Iterator[ir.TensorRef]:
    """The tensors in a (nested) argument, in order."""
    if isinstance(arg, ir.TensorRef):
        yield arg
    elif isinstance(arg, tuple):
        for item in arg:
            yield from tensor_refs(item)


def _plain_refs(arg: ir.GraphArg) -> Iterator[str]:
    if isinstance(arg, Ref):
        yield arg.name
    elif isinstance(arg, tuple):
        for item in arg:
            yield from _plain_refs(item)


@once
def reads(node: ir.Node) -> tuple[str, ...]:
    """Buffers whose content the node uses, in order, each once."""
    names: dict[str, None] = {}
    match node:
        case ir.Kernel():
            for stmt in statements(node):
                if isinstance(stmt, ir.Load) or (
                    isinstance(stmt, ir.Store) and stmt.mode in ir.ATOMICS
                ):
                    names[stmt.buffer] = None
        case ir.Extern():
            for arg in (*node.args, *(v for _, v in node.kwargs)):
                names.update((r.buffer, None) for r in tensor_refs(arg))
                names.update((r, None) for r in _plain_refs(arg))
            names.update((m, None) for m in node.mutates)
        case ir.UserKernel():
            made = {name for name, _ in node.outs}
            for _, arg in node.args:
                names.update((r.buffer, None) for r in tensor_refs(arg) if r.buffer not in made)
            names.update((m, None) for m in node.mutates)
        case ir.Matmul():
            for o in node.operands:
                inputs = (o.ref.buffer,) if o.prologue is None else reads(o.prologue)
                names.update((n, None) for n in inputs)
            names.update((ref.buffer, None) for ref in node.added)
            if node.epilogue is not None:
                names.update((n, None) for n in reads(node.epilogue) if n != node.out)
        case ir.CopyBack():
            names[node.src.buffer] = None
    return tuple(names)


@once
def writes(node: ir.Node) -> tuple[str, ...]:
    """Buffers that the node makes or changes, in order, each once."""
    match node:
        case ir.Kernel():
            return tuple(b.name for b in node.buffers if b.written)
        case ir.Extern():
            return (*(o[0] for o in node.outs if o is not None), *node.mutates)
        case ir.UserKernel():
            return (*(name for name, _ in node.outs), *node.mutates)
        case ir.Matmul():
            return (node.out,) if node.epilogue is None else writes(node.epilogue)
        case ir.CopyBack():
            return (node.dst.buffer,)


@once
def mentioned(node: ir.Node) -> frozenset[str]:
    """The symbols of a node's expressions, axes included."""
    return symbols_in(node)


def symbols_in(value: object) -> frozenset[str]:
    """Names of the symbols of all expressions that a value holds."""
    found = (item.free_symbols for item in walk(value) if isinstance(item, sympy.Basic))
    return frozenset(str(s) for symbols in found for s in symbols)


def bound_by_data(nodes: Iterable[ir.Node]) -> frozenset[str]:
    """The symbols that calls among the nodes bind."""
    return frozenset(s for n in nodes if isinstance(n, ir.Extern) for s in n.binds)


def output_buffers(graph: ir.Graph) -> frozenset[str]:
    """Names of the buffers that the graph returns, views of them included."""
    return frozenset(r.buffer for o in graph.outputs for r in tensor_refs(o))


def lows_of(symbols: Iterable[Symbol]) -> tuple[tuple[sympy.Symbol, int], ...]:
    """The least value of each symbol that is never negative."""
    lows = ((sympy.Symbol(s.name, integer=True), s.low or 0) for s in symbols)
    return tuple((s, low) for s, low in lows if low >= 0)


def hints_of(symbols: Iterable[Symbol]) -> dict[str, int]:
    """A typical value for each symbol: its hint, or one inside of its bounds."""
    return {s.name: s.typical for s in symbols}


def at_hints(expr: sympy.Expr, hints: Mapping[str, int]) -> int:
    """A size as a number; symbols that `hints` leaves out count as `TYPICAL_SIZE`."""
    if expr.is_Integer:
        return int(expr)
    values = {s: sympy.Integer(hints.get(s.name, TYPICAL_SIZE)) for s in expr.free_symbols}
    return max(0, int(expr.xreplace(values)))


@dataclass(frozen=True)
class Traffic:
    """Bytes that a node moves, by buffer."""

    read: Mapping[str, int]
    written: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes read and written together."""
        return sum(self.read.values()) + sum(self.written.values())


def traffic(node: ir.Node, hints: Mapping[str, int]) -> Traffic:
    """Each buffer read once and written once. A load through an indirect index counts the
    elements that it gathers; no load counts more than the whole buffer."""
    match node:
        case ir.Kernel():
            return _kernel_traffic(node, hints)
        case ir.Extern():
            read: dict[str, int] = {}
            for arg in (*node.args, *(v for _, v in node.kwargs)):
                for ref in tensor_refs(arg):
                    read[ref.buffer] = _bytes(ref, hints)
            written = {o[0]: _bytes(ir.TensorRef(*o), hints) for o in node.outs if o is not None}
            written.update((m, read.get(m, 0)) for m in node.mutates)
            return Traffic(read, written)
        case ir.UserKernel():
            read = {r.buffer: _bytes(r, hints) for _, a in node.args for r in tensor_refs(a)}
            written = {name: read.pop(name, 0) for name, _ in node.outs}
            written.update((m, read.get(m, 0)) for m in node.mutates)
            return Traffic(read, written)
        case ir.Matmul():
            refs = (node.a, node.b, *node.added)
            read = {r.buffer: _bytes(r, hints) for r in refs}
            for prologue in node.prologues:
                inner = _kernel_traffic(prologue, hints)
                for name in inner.written:
                    read.pop(name, None)
                read.update(inner.read)
            written = {node.out: _bytes(ir.TensorRef(node.out, node.type), hints)}
            if node.epilogue is not None:
                inner = _kernel_traffic(node.epilogue, hints)
                read.update((n, b) for n, b in inner.read.items() if n != node.out)
                written = dict(inner.written)
            return Traffic(read, written)
        case ir.CopyBack():
            src = _bytes(node.src, hints)
            return Traffic({node.src.buffer: src}, {node.dst.buffer: src})


def _bytes(ref: ir.TensorRef, hints: Mapping[str, int]) -> int:
    """Elements of a view with stride 0 are read once."""
    sizes = [n for n, s in zip(ref.type.size, ref.type.stride, strict=True) if s != 0]
    return at_hints(product(sizes), hints) * ref.type.dtype.itemsize


def _kernel_traffic(kernel: ir.Kernel, hints: Mapping[str, int]) -> Traffic:
    types = {b.name: b.type for b in kernel.buffers}
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for (name, is_store), points in _touched(kernel).items():
        type = types[name]
        count = min(sum(at_hints(p, hints) for p in points), at_hints(span(type), hints))
        (written if is_store else read)[name] = count * type.dtype.itemsize
    return Traffic(read, written)


@once
def _touched(kernel: ir.Kernel) -> dict[tuple[str, bool], tuple[sympy.Expr, ...]]:
    """Each buffer that is read, or (True) written: the points at which each index into it
    differs."""
    depends: dict[Name, frozenset[sympy.Symbol]] = {}
    touched: dict[tuple[str, bool], dict[sympy.Expr, sympy.Expr]] = {}

    def over(names: Iterable[Name]) -> frozenset[sympy.Symbol]:
        """The axes that what is named varies over."""
        return frozenset[sympy.Symbol]().union(*(depends.get(n, ()) for n in names))

    for phase in kernel.phases:
        extents = {a.symbol: a.extent for a in (*kernel.axes, *phase.axes)}
        inner = frozenset(a.symbol for a in phase.axes)
        depends.update((s, frozenset((s,))) for s in extents)
        for stmt in phase.body:
            if isinstance(stmt, (ir.Load, ir.Store)):
                axes = over(free_symbols(stmt.index))
                points = product(extent for s, extent in extents.items() if s in axes)
                key = (stmt.buffer, isinstance(stmt, ir.Store))
                touched.setdefault(key, {})[stmt.index] = points
            axes = over(operands(stmt))
            if isinstance(stmt, ir.Reduce | ir.Scan):
                axes = axes - inner if isinstance(stmt, ir.Reduce) else axes | inner
            depends.update(dict.fromkeys(results(stmt), axes))
    return {key: tuple(by_index.values()) for key, by_index in touched.items()}


def bytes_moved(graph: ir.Graph, hints: Mapping[str, int] | None = None) -> int:
    """Bytes that the nodes of the graph read and write at the given sizes (by default at the
    hints of the graph's symbols): the model that fusion minimises."""
    values = hints_of(graph.symbols) | dict(hints or {})
    return sum(traffic(node, values).total for node in graph.nodes)
