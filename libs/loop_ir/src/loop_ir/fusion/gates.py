"""Two products of one operand that meet in an epilogue as a factor times a function of the other.

matmul u = x @ w3                               gate: v = load g[m*n]; store g_gate = silu(f32(v))
matmul g = x @ w1, epilogue reads g and u:  ->  left: p = load g[m*n]: f32, which stands for
store y[m*n] = bf16(silu(f32(g)) * f32(u))      silu(x @ w1) * (x @ w3); store y = bf16(p)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from loop_ir.fusion.whole_epilogue import is_plain
from loop_ir.ir.affine import same
from loop_ir.ir.analysis import output_buffers, reads, writes
from loop_ir.ir.names import Name, operands, results, statements
from loop_ir.ir.nodes import (
    Buffer,
    Compute,
    Const,
    Graph,
    Kernel,
    Load,
    Matmul,
    Phase,
    Stmt,
    Store,
    TensorRef,
)
from loop_ir.ir.points import at_strides
from loop_ir.ir.renaming import used_buffers
from tensor_ir import DType


@dataclass(frozen=True)
class GatedPair:
    """first: a matmul whose result the epilogue of another alone reads. b, b2: the matrices of the
    product that the gate is of, and of the other factor. gate: a kernel that reads the one under
    the name of the other matmul's result, and stores f32. left: what the epilogue does to the
    product of gate and factor, which it reads under that name, too."""

    first: Matmul
    gate: Kernel
    b: TensorRef
    b2: TensorRef
    left: Kernel


def gated_pairs(graph: Graph) -> dict[str, GatedPair]:
    """Those of a graph, by the result of the matmul with the epilogue."""
    return {node.out: pair for node, pair in _pairs(graph)}


def _pairs(graph: Graph) -> Iterator[tuple[Matmul, GatedPair]]:
    kept = output_buffers(graph)
    matmuls = {n.out: (at, n) for at, n in enumerate(graph.nodes) if isinstance(n, Matmul)}
    readers: dict[str, int] = {}
    for node in graph.nodes:
        for name in reads(node):
            readers[name] = readers.get(name, 0) + 1
    for at, node in matmuls.values():
        for name in reads(node.epilogue) if node.epilogue is not None else ():
            begins, first = matmuls.get(name, (at, node))
            if first is node or name in kept or readers[name] != 1:
                continue
            between = graph.nodes[begins + 1 : at]
            if any(not set(reads(first)).isdisjoint(writes(n)) for n in between):
                continue  # what it reads is changed before the other runs
            if _alike(first, node) and (found := _split(node, first)) is not None:
                yield node, found


def _alike(one: Matmul, two: Matmul) -> bool:
    """Whether both are plain products of one matrix and of two that lie alike."""
    plain = all(
        is_plain(m) and m.bias is None and not m.prologues and len(m.type.size) == 2
        for m in (one, two)
    )
    return (
        plain
        and one.epilogue is None
        and one.a == two.a
        and one.type == two.type
        and replace(one.b.type, offset=two.b.type.offset) == two.b.type
        and one.b != two.b
    )


def _split(node: Matmul, first: Matmul) -> GatedPair | None:
    """The epilogue in two, if it multiplies one result by a function of the other alone."""
    epilogue = node.epilogue
    assert epilogue is not None
    body = tuple(statements(epilogue))
    here = at_strides(epilogue.axes, node.type.stride)
    outs = (node.out, first.out)
    loads = {s.out: s for s in body if isinstance(s, Load) and s.buffer in outs}
    if len(loads) != 2 or not all(same(s.index, here) for s in loads.values()):
        return None
    made = {name: s for s in body for name in results(s)}
    for product in body:
        if not (isinstance(product, Compute) and product.op == "mul"):
            continue
        for gated, factor in (product.args, product.args[::-1]):
            wide, inside = made[factor], _behind(gated, made)
            if not (isinstance(wide, Compute) and wide.op == "cast" and wide.args[0] in loads):
                continue
            other = loads[wide.args[0]]
            own = [s for s in inside if not isinstance(s, Compute | Const)]
            parts = {*inside, wide, other}
            alone = len(own) == 1 and own[0] in loads.values() and own[0] != other
            if alone and product.dtype is DType.f32 and _only_in(product, parts, body):
                gate = [s for s in body if s in inside]
                left = [s for s in body if s not in parts or isinstance(s, Const)]
                of_node = other.buffer == first.out
                return _pair(node, first, of_node, product, gated, gate, left)
    return None


def _behind(name: str, made: dict[Name, Stmt]) -> set[Stmt]:
    """The statements that a value is computed by."""
    found: set[Stmt] = set()
    waiting: list[Name] = [name]
    while waiting:
        stmt = made[waiting.pop()]
        if stmt not in found:
            found.add(stmt)
            waiting += [n for n in operands(stmt) if n in made]
    return found


def _only_in(product: Compute, parts: set[Stmt], body: tuple[Stmt, ...]) -> bool:
    """Whether the product alone uses what its parts make, but for numbers."""
    values = {n for s in parts if not isinstance(s, Const) for n in results(s)}
    others = (s for s in body if s not in parts and s != product)
    return all(values.isdisjoint(operands(s)) for s in others)


def _pair(
    node: Matmul,
    first: Matmul,
    of_node: bool,
    product: Compute,
    gated: str,
    gate: list[Stmt],
    left: list[Stmt],
) -> GatedPair:
    """of_node: the gate is of the node's own product, else of the first's."""
    epilogue = node.epilogue
    assert epilogue is not None
    here = at_strides(epilogue.axes, node.type.stride)
    wide = replace(node.type, dtype=DType.f32)
    made = f"{node.out}_gate"
    inside = [replace(s, buffer=node.out) if isinstance(s, Load) else s for s in gate]
    function = replace(
        epilogue,
        name=made,
        buffers=(Buffer(node.out, node.type), Buffer(made, wide, True)),
        phases=(Phase((), (*inside, Store(made, here, gated))),),
    )
    total = Load(product.out, node.out, here, DType.f32)
    rest = replace(
        epilogue,
        buffers=tuple(Buffer(b.name, wide) if b.name == node.out else b for b in epilogue.buffers),
        phases=(Phase((), tuple(total if s == product else s for s in left)),),
    )
    b, b2 = (node.b, first.b) if of_node else (first.b, node.b)
    return GatedPair(first, function, b, b2, used_buffers(rest))
