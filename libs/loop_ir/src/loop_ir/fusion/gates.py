"""Two products of one operand that meet in an epilogue as a factor times a function of the other;
they may be the halves of one matmul's columns, which a kernel reads.

matmul u = x @ w3                               gate: v = load g[m*n]; store g_gate = silu(f32(v))
matmul g = x @ w1, epilogue reads g and u:  ->  left: p = load g[m*n]: f32, which stands for
store y[m*n] = bf16(silu(f32(g)) * f32(u))      silu(x @ w1) * (x @ w3); store y = bf16(p)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import sympy

from loop_ir.fusion.whole_epilogue import is_plain
from loop_ir.ir import nodes as ir
from loop_ir.ir.affine import same
from loop_ir.ir.analysis import is_pointwise, output_buffers, reads, writes
from loop_ir.ir.in_place import is_in_place
from loop_ir.ir.names import behind, operands, results, statements
from loop_ir.ir.points import at_strides
from loop_ir.ir.renaming import used_buffers
from loop_ir.passes.merge_axes import merge
from tensor_ir import DType

# From here on templates of pairs were faster: 512 x 14336 x 4096 took 173 us with one on an H200,
# 192 with two others, and 64 rows 71.5 and 72.6; of 16 rows none was.
GATED_ROWS = 64


@dataclass(frozen=True)
class GatedPair:
    """first: a matmul whose result the epilogue of another alone reads. b, b2: the matrices of the
    product that the gate is of, and of the other factor. gate: a kernel that reads the one under
    the name of the other matmul's result, and stores f32. left: what the epilogue does to the
    product of gate and factor, which it reads under that name, too."""

    first: ir.Matmul
    gate: ir.Kernel
    b: ir.TensorRef
    b2: ir.TensorRef
    left: ir.Kernel


def gated_pairs(graph: ir.Graph) -> dict[str, GatedPair]:
    """The gated pairs of a graph, by the name of the result of the matmul with the epilogue."""
    return {node.out: pair for node, pair in _pairs(graph)}


def gated_halves(graph: ir.Graph) -> dict[str, tuple[ir.Matmul, GatedPair]]:
    """Pairs whose products are the halves of one matmul's columns, by the name of the kernel that
    alone reads these: `first` is that matmul, and the other one stands for its right half, with the
    kernel as its epilogue."""
    found: dict[str, tuple[ir.Matmul, GatedPair]] = {}
    kept = output_buffers(graph)
    makers = {n.out: n for n in graph.nodes if isinstance(n, ir.Matmul)}
    for at, kernel in enumerate(graph.nodes):
        if not isinstance(kernel, ir.Kernel):
            continue
        for name in set(reads(kernel)) & makers.keys() - kept:
            whole = makers[name]
            alone = sum(name in reads(n) for n in graph.nodes) == 1
            between = graph.nodes[graph.nodes.index(whole) + 1 : at]
            kept_as_is = all(set(reads(whole)).isdisjoint(writes(n)) for n in between)
            if alone and kept_as_is and (pair := halves_of(whole, kernel)) is not None:
                found[kernel.name] = pair
    return found


def halves_of(whole: ir.Matmul, kernel: ir.Kernel) -> tuple[ir.Matmul, GatedPair] | None:
    """The halves of a product as a pair, where a kernel multiplies them so."""
    plain = _is_product(whole) and whole.epilogue is None
    if not plain or not is_pointwise(kernel) or is_in_place(kernel):
        return None
    kernel = merge(kernel)
    if len(kernel.axes) != 2:
        return None
    (rows, columns), type = whole.type.size, whole.type
    half = kernel.axes[1].extent
    stores = [s for s in statements(kernel) if isinstance(s, ir.Store)]
    if not (
        len(stores) == 1
        and stores[0].mode == "set"
        and stores[0].mask is None
        and same(kernel.axes[0].extent, rows)
        and same(2 * half, columns)
    ):
        return None
    at = at_strides(kernel.axes, type.stride)
    outs = (f"{whole.out}_left", f"{whole.out}_right")
    places = (at, at + half * type.stride[1])
    body: list[ir.Stmt] = []
    for s in statements(kernel):
        if isinstance(s, ir.Load) and s.buffer == whole.out:
            side = next((i for i in (0, 1) if same(s.index, places[i])), None)
            if side is None or s.mask is not None:
                return None
            s = replace(s, buffer=outs[side], index=at)
        body.append(s)
    part = replace(type, size=(rows, half))
    buffers = [b for b in kernel.buffers if b.name != whole.out]
    buffers += [ir.Buffer(name, part) for name in outs]
    epilogue = replace(kernel, buffers=tuple(buffers), phases=(ir.Phase((), tuple(body)),))
    a, b = whole.operands
    inner = whole.b.type
    matmuls = []
    for name, start in zip(outs, (sympy.S.Zero, half * inner.stride[-1]), strict=True):
        columns_of = replace(inner, size=(*inner.size[:-1], half), offset=inner.offset + start)
        operands_of = (a, replace(b, ref=replace(b.ref, type=columns_of)))
        matmuls.append(replace(whole, out=name, type=part, operands=operands_of))
    left, right = matmuls[0], replace(matmuls[1], epilogue=epilogue)
    pair = _split(right, left)
    return None if pair is None else (right, replace(pair, first=whole))


def _pairs(graph: ir.Graph) -> Iterator[tuple[ir.Matmul, GatedPair]]:
    kept = output_buffers(graph)
    matmuls = {n.out: (at, n) for at, n in enumerate(graph.nodes) if isinstance(n, ir.Matmul)}
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


def _alike(one: ir.Matmul, two: ir.Matmul) -> bool:
    """Whether both are plain products of one matrix and of two that lie alike."""
    return (
        _is_product(one)
        and _is_product(two)
        and one.epilogue is None
        and one.a == two.a
        and one.groups == two.groups
        and one.type == two.type
        and replace(one.b.type, offset=two.b.type.offset) == two.b.type
        and one.b != two.b
    )


def _is_product(matmul: ir.Matmul) -> bool:
    return (
        is_plain(matmul)
        and matmul.bias is None
        and not matmul.prologues
        and len(matmul.type.size) == 2
        and matmul.jagged in (None, "M")
    )


def _split(node: ir.Matmul, first: ir.Matmul) -> GatedPair | None:
    """The epilogue in two, if it multiplies one result by a function of the other alone."""
    epilogue = node.epilogue
    assert epilogue is not None
    body = tuple(statements(epilogue))
    here = at_strides(epilogue.axes, node.type.stride)
    outs = (node.out, first.out)
    loads = {s.out: s for s in body if isinstance(s, ir.Load) and s.buffer in outs}
    if len(loads) != 2 or not all(same(s.index, here) for s in loads.values()):
        return None
    made = {name: s for s in body for name in results(s)}
    for product in body:
        if not (isinstance(product, ir.Compute) and product.op == "mul"):
            continue
        for gated, factor in (product.args, product.args[::-1]):
            wide, inside = made[factor], behind((gated,), body)
            if not (isinstance(wide, ir.Compute) and wide.op == "cast" and wide.args[0] in loads):
                continue
            other = loads[wide.args[0]]
            own = [s for s in inside if not isinstance(s, ir.Compute | ir.Const)]
            parts = {*inside, wide, other}
            alone = len(own) == 1 and own[0] in loads.values() and own[0] != other
            if alone and product.dtype is DType.f32 and _only_in(product, parts, body):
                left = [s for s in body if s not in parts or isinstance(s, ir.Const)]
                of_node = other.buffer == first.out
                return _pair(node, first, of_node, product, gated, inside, left)
    return None


def _only_in(product: ir.Compute, parts: set[ir.Stmt], body: tuple[ir.Stmt, ...]) -> bool:
    """Whether the product alone uses what its parts make, but for numbers."""
    values = {n for s in parts if not isinstance(s, ir.Const) for n in results(s)}
    others = (s for s in body if s not in parts and s != product)
    return all(values.isdisjoint(operands(s)) for s in others)


def _pair(
    node: ir.Matmul,
    first: ir.Matmul,
    of_node: bool,
    product: ir.Compute,
    gated: str,
    gate: list[ir.Stmt],
    left: list[ir.Stmt],
) -> GatedPair:
    """of_node: the gate is of the node's own product, else of the first's."""
    epilogue = node.epilogue
    assert epilogue is not None
    here = at_strides(epilogue.axes, node.type.stride)
    wide = replace(node.type, dtype=DType.f32)
    made = f"{node.out}_gate"
    inside = [replace(s, buffer=node.out) if isinstance(s, ir.Load) else s for s in gate]
    function = replace(
        epilogue,
        name=made,
        buffers=(ir.Buffer(node.out, node.type), ir.Buffer(made, wide, True)),
        phases=(ir.Phase((), (*inside, ir.Store(made, here, gated))),),
    )
    total = ir.Load(product.out, node.out, here, DType.f32)
    rest = replace(
        epilogue,
        buffers=tuple(
            ir.Buffer(b.name, wide) if b.name == node.out else b for b in epilogue.buffers
        ),
        phases=(ir.Phase((), tuple(total if s == product else s for s in left)),),
    )
    b, b2 = (node.b, first.b) if of_node else (first.b, node.b)
    return GatedPair(first, function, b, b2, used_buffers(rest))
