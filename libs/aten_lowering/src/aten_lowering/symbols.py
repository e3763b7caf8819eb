"""What a graph mentions: its integer symbols (with torch's ranges and hints), its buffers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from aten_lowering.errors import SizeOfData
from aten_lowering.extern import bind
from aten_lowering.memory import size_hints
from aten_lowering.meta import is_unbacked
from aten_lowering.torch_compat import settle, sym_max, sym_min
from loop_ir import LEAST, Axis, Graph, Indirect, Kernel, Node, Symbol, TensorRef
from loop_ir.ir import walk
from symexpr import from_torch


def graph_symbols(graph: Graph, gm: fx.GraphModule) -> Graph:
    """Declares the size symbols that the graph and its kernels use."""
    known = _known(gm)
    if not known and all(i.type is not None for i in graph.inputs):
        return graph
    free, bound = _symbols(replace(graph, nodes=()))
    free |= {i.name for i in graph.inputs if i.type is None}
    nodes: list[Node] = []
    for node in graph.nodes:
        own, axes = _symbols(node)
        free, bound = free | own, bound | axes
        if isinstance(node, Kernel):
            node = replace(node, symbols=_declare(own - axes, known))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), symbols=_declare(free - bound, known))


def _declare(names: set[str], known: dict[str, Symbol]) -> tuple[Symbol, ...]:
    return tuple(known.get(n, Symbol(n)) for n in sorted(names))


def used_buffers(value: object) -> set[str]:
    """Names of all buffers that nodes and results refer to."""
    found: set[str] = set()
    for item in walk(value, Kernel):
        if isinstance(item, Kernel):
            found.update(b.name for b in item.buffers)
        elif isinstance(item, TensorRef):
            found.add(item.buffer)
    return found


def _symbols(value: object) -> tuple[set[str], set[str]]:
    """Free symbols of all expressions; the axes and indirect symbols of kernels among them."""
    free: set[str] = set()
    bound: set[str] = set()
    for item in walk(value):
        if isinstance(item, sympy.Basic):
            free.update(s.name for s in item.free_symbols)
        elif isinstance(item, Axis | Indirect):
            bound.add(item.symbol.name)
    return free, bound


def _known(gm: fx.GraphModule) -> dict[str, Symbol]:
    found: dict[str, Symbol] = {}
    for env in shape_envs(gm):
        hints = size_hints(env)
        for s, limits in env.var_to_range.items():
            name = str(from_torch(s))
            hint, low = hints.get(s), _finite(limits.lower)
            found[name] = Symbol(
                name,
                LEAST if low is None else low,
                _finite(limits.upper),
                int(hint) if hint is not None else None,
            )
    return found


def _finite(bound: Any) -> int | None:
    """None for infinity, and for `sys.maxsize - 1`, which torch means as infinity."""
    if not getattr(bound, "is_Integer", isinstance(bound, int)):
        return None
    value = int(bound)
    return value if abs(value) < 2**62 else None


def settle_sizes(graph: fx.Graph) -> None:
    """Gives sizes that hang on no input (those of a state of random numbers) the values that they
    were traced with, in the fake tensors of the graph's nodes. Should a call find another size,
    its host program says so."""
    given: set[Any] = set()
    for node in graph.find_nodes(op="placeholder"):
        for n in sizes_of(node.meta.get("val")):
            given |= n.node.expr.free_symbols

    def loose(value: Any) -> bool:
        free = {s for n in sizes_of(value) for s in n.node.expr.free_symbols}
        return bool(free) and not free & given and all(n.node.has_hint() for n in sizes_of(value))

    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        values, spec = tree_flatten(node.meta.get("val"))
        if any(map(loose, values)):
            values = [_as_hinted(v) if loose(v) else v for v in values]
            node.meta["val"] = tree_unflatten(values, spec)


def settle_slices(graph: fx.Graph) -> None:
    """Says what the sizes and offsets of slices are that torch leaves open, as symbols of their
    own: `x[:k]` has min(k, n) rows for a `k` of 0 or more."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor):
        given = bind(node, torch.ops.aten.slice.Tensor).values()
        x, dim, start, end, step = (v.meta["val"] if isinstance(v, fx.Node) else v for v in given)
        made, n = node.meta["val"], x.shape[dim]
        size, offset = made.shape[dim], made.storage_offset()
        known = {s for value in (x, start, end) for s in unbacked(value)}
        opened = [hangs_on_data(s) and not unbacked(s) & known for s in (size, offset)]
        if not any(opened):
            continue
        first, last = _clamped(start, n, 0), _clamped(end, n, n)
        if opened[1]:
            settle(offset, x.storage_offset() + first * x.stride(dim))
        if opened[0]:
            settle(size, (sym_max(last - first, 0) + step - 1) // step)


def _clamped(place: Any, n: Any, missing: Any) -> Any:
    """A place in a dimension of `n` elements, as slices count: from the end where negative."""
    if place is None or statically_known_true(place >= n):
        return missing if place is None else n
    if not statically_known_true(place >= 0):
        below = sym_min(sym_max(-place, 0), 1)  # 1 where it is negative, else 0
        place = sym_max(place + n * below, 0)
    return sym_min(place, n)


def _as_hinted(fake: Any) -> Any:
    if isinstance(fake, torch.SymInt):
        return fake.node.hint
    layout = ([_hint(n) for n in ns] for ns in (fake.shape, fake.stride()))
    with fake.fake_mode:
        return torch.empty_strided(*layout, dtype=fake.dtype, device=fake.device)


def _hint(n: Any) -> int:
    return int(n.node.hint) if isinstance(n, torch.SymInt) else int(n)


def hangs_on_data(value: Any) -> bool:
    """Whether it is an integer that torch knows nothing of but what a call of it says."""
    return isinstance(value, torch.SymInt) and bool(unbacked(value) and value.node.expr.is_Symbol)


def sizes_without_origin(nodes: Sequence[fx.Node]) -> dict[fx.Node, SizeOfData]:
    """The nodes with sizes that depend on data and whose symbols nothing binds: neither an input,
    nor a size of a tensor that a call gives, nor the integer that it is or reads from a tensor."""
    known: set[Any] = set()
    found: dict[fx.Node, SizeOfData] = {}
    for node in nodes:
        values = tree_leaves(node.meta.get("val")) if node.op != "output" else []
        new = {s for value in values for s in unbacked(value)} - known
        sizes = [n for v in values for n in (v.shape if isinstance(v, torch.Tensor) else (v,))]
        said = {n.node.expr for n in sizes if isinstance(n, torch.SymInt)}
        if node.op == "placeholder" or node.target is torch.ops.aten._local_scalar_dense.default:
            said = new
        known |= new & said
        if new - said:
            symbol = next(iter(new - said))
            found[node] = SizeOfData(f"a size depends on data that no result says ({symbol})")
    return found


def unbacked(value: Any) -> set[Any]:
    """The symbols of a value that have no hint."""
    return {s for n in _symbolic(value) for s in n.node.expr.free_symbols if is_unbacked(s)}


def _symbolic(value: Any) -> list[Any]:
    return [value] if isinstance(value, torch.SymBool) else list(sizes_of(value))


def shape_envs(gm: fx.GraphModule) -> list[ShapeEnv]:
    """The ShapeEnvs that the sizes of a graph's values belong to."""
    envs: list[ShapeEnv] = []
    for node in gm.graph.nodes:
        for n in _symbolic(node.meta.get("val")):
            if not any(e is n.node.shape_env for e in envs):
                envs.append(n.node.shape_env)
    return envs


def sizes_of(value: Any) -> list[torch.SymInt]:
    """The symbolic ones of a value: itself, or a tensor's sizes, strides and offset."""
    found: tuple[Any, ...] = ()
    if isinstance(value, torch.SymInt):
        found = (value,)
    elif isinstance(value, torch.Tensor) and value.layout == torch.strided:
        found = (*value.shape, *value.stride(), value.storage_offset())
    return [n for n in found if isinstance(n, torch.SymInt)]
