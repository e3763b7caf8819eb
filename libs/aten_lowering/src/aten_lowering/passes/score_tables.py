"""What functions of attention's scores compute of the distance of query and key is looked up.

    s + bias[bucket(j - i), h]    ->    t = bias[bucket(d), h] of all heads h and distances d
                                        s + t[h, j - i + queries - 1]

A kernel of attention would compute it for each score. What the bias gets, where it learns, is
summed for each distance first: few places would be added to by all scores."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from aten_lowering.torch_compat import FakeTensor, flex_attention

# Calls that take longer than a table of which neighbours read neighbours, and how many of them.
_COSTLY = """
div exp floordiv floor_divide getitem log log1p log2 pow sqrt sigmoid tanh truediv
"""
# Beside pointwise operators, what gives each element of a table what it gives one number.
_EACH = {
    torch.ops.aten.index.Tensor, torch.ops.aten._to_copy.default, torch.ops.aten.full_like.default,
    torch.ops.aten.scalar_tensor.default, torch.ops.aten.lift_fresh_copy.default,
    torch.ops.aten.unsqueeze.default, torch.ops.aten.alias.default,
    torch.ops.aten.floor_divide.default, torch.ops.prim.device.default,
}  # fmt: skip
_LEAST = 2
_SCORES = 8  # for each element of a table
_FUNCTION, _CAPTURED = 3, 7  # arguments of a call
_DISTANCE = "distance"

Depends = Mapping[fx.Node, frozenset[Any]]


def score_tables(gm: fx.GraphModule) -> None:
    """Changes calls of flex attention in Dynamo's graph, of sizes that are known."""
    for call in gm.graph.find_nodes(op="call_function", target=flex_attention):
        q, k = (n.meta.get("example_value") for n in call.args[:2])
        if not isinstance(q, FakeTensor) or not isinstance(k, FakeTensor):
            continue
        batch, heads, queries, _ = q.shape
        known = all(isinstance(n, int) for n in (*q.shape, *k.shape))
        keys = k.shape[2]
        if known and batch * queries * keys >= _SCORES * (queries + keys):
            _look_up(gm, call, heads, queries, keys)


def _look_up(gm: fx.GraphModule, call: Any, heads: int, queries: int, keys: int) -> None:
    score = copy.deepcopy(getattr(gm, call.args[_FUNCTION].target))
    places = list(score.graph.find_nodes(op="placeholder"))
    if len(places) != 5 + len(call.args[_CAPTURED]) or any(map(_writes, score.graph.nodes)):
        return
    _, _, head, query, key = places[:5]
    depends = _depends(score.graph, places[:5], (query, key))
    may = {n for n, on in depends.items() if _DISTANCE in on and on <= {head, _DISTANCE}}
    found = [n for n in score.graph.nodes if n in may and not may.issuperset(n.users)]
    known: dict[Any, Any] = dict(zip(places[5:], call.args[_CAPTURED], strict=True))
    graph, q = gm.graph, call.args[0].meta["example_value"]
    costly = _COSTLY.split()
    tables, before = list[fx.Node](), {*graph.nodes}
    with graph.inserting_before(call), q.fake_mode:
        how = {"dtype": torch.int32, "device": q.device}
        rows = _made(graph, torch.arange, (heads,), how)
        known[head] = _made(graph, torch.unsqueeze, (rows, 1), {})
        known[_DISTANCE] = _made(graph, torch.arange, (1 - queries, keys), how)
        for node in found:
            cone = [n for n in score.graph.nodes if n is node or n in _before(node)]
            if sum(n in may and _name(n) in costly for n in cone) < _LEAST:
                continue
            table = _computed(graph, cone, known, depends, (query, key))
            if table is None:
                continue
            on = depends[node]
            line = keys + queries - 1
            size = (heads, line) if head in on else (line,)
            if tuple(table.meta["example_value"].shape) != size:
                continue
            with score.graph.inserting_after(places[-1]):
                given = score.graph.placeholder(f"table{len(tables)}")
            places = [*places, given]
            with score.graph.inserting_after(node):
                off = score.graph.call_function(operator.sub, (key, query))
            with score.graph.inserting_after(off):
                at = score.graph.call_function(operator.add, (off, queries - 1))
            index = (head, at) if head in on else (at,)
            with score.graph.inserting_after(at):
                new = score.graph.call_function(operator.getitem, (given, index))
            node.replace_all_uses_with(new)
            tables.append(table)
        if tables:
            score.graph.eliminate_dead_code()
            captured = [*call.args[_CAPTURED], *tables]
            left = [pair for pair in zip(places[5:], captured, strict=True) if pair[0].users]
            for given in {*places[5:]} - {given for given, _ in left}:
                score.graph.erase_node(given)
            score.recompile()
            name = f"{call.args[_FUNCTION].target}_by_tables"
            while hasattr(gm, name):
                name += "_"
            gm.add_module(name, score)
            args = list(call.args)
            args[_FUNCTION] = graph.get_attr(name)
            args[_CAPTURED] = tuple(tensor for _, tensor in left)
            call.args = tuple(args)
    for node in reversed(graph.nodes):
        if node not in before and not node.users:
            graph.erase_node(node)
    gm.recompile()


def _depends(graph: fx.Graph, places: Sequence[fx.Node], both: tuple[fx.Node, fx.Node]) -> Depends:
    """What of the places of a score each node is a function of."""
    depends: dict[fx.Node, frozenset[Any]] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            depends[node] = frozenset({node} if node in places else ())
        elif node.target is operator.sub and {*node.args} == {*both}:
            depends[node] = frozenset({_DISTANCE})
        elif node.op in ("call_function", "call_method"):
            depends[node] = frozenset().union(*(depends[n] for n in node.all_input_nodes))
        else:  # the result, or a constant of the function's
            depends[node] = frozenset({node})
    return depends


def _before(node: fx.Node) -> set[fx.Node]:
    """What a node is computed from."""
    found, left = set[fx.Node](), [node]
    while left:
        new = {*left.pop().all_input_nodes} - found
        found |= new
        left += new
    return found


def _computed(
    graph: fx.Graph,
    cone: Sequence[fx.Node],
    known: dict[Any, Any],
    depends: Depends,
    both: tuple[fx.Node, fx.Node],
) -> fx.Node | None:
    """The last node of a cone for all heads and distances; None where a node is another function of
    many numbers than of one."""
    for node in cone:
        if node in known or node in both:
            continue
        if depends[node] == {_DISTANCE} and {*node.args} == {*both}:
            minus = node.args == both
            whole = known[_DISTANCE]
            known[node] = _made(graph, torch.neg, (whole,), {}) if minus else whole
            continue
        args, kwargs = tree_map_only(fx.Node, known.__getitem__, (node.args, node.kwargs))
        try:
            with _ElementByElement():  # type: ignore[no-untyped-call]  # of torch
                made = _made(graph, node.target, args, dict(kwargs))
        except (IndexError, RuntimeError, TypeError, ValueError):  # of shapes that it does not take
            return None
        value, one = made.meta["example_value"], node.meta.get("example_value")
        if not isinstance(value, Tensor) or not isinstance(one, Tensor):
            return None
        rank = 1 if depends[node] == {_DISTANCE} else 2 if depends[node] else one.dim()
        if value.dtype is not one.dtype or value.dim() != rank or (depends[node] and one.dim()):
            return None
        known[node] = made
    last: fx.Node = known[cone[-1]]
    return last


class _ElementByElement(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Raises `TypeError` where an operator draws, or may mix the elements of a table."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        if drawn or not (torch.Tag.pointwise in func.tags or func in _EACH):
            raise TypeError(f"{func} is not computed element by element")
        return func(*args, **(kwargs or {}))


def _made(graph: fx.Graph, target: Any, args: Any, kwargs: dict[str, Any]) -> fx.Node:
    """A call, with what it gives for fake tensors."""
    fakes = tree_map_only(fx.Node, lambda n: n.meta["example_value"], (args, kwargs))
    if isinstance(target, str):
        value = getattr(fakes[0][0], target)(*fakes[0][1:], **fakes[1])
        node = graph.call_method(target, args, kwargs)
    else:
        value = target(*fakes[0], **fakes[1])
        node = graph.call_function(target, args, kwargs)
    node.meta["example_value"] = value
    return node


def _writes(node: fx.Node) -> bool:
    """Whether it changes a tensor: what is computed of that hangs on the order."""
    name = _name(node)
    own = node.target is operator.setitem or (name[0] == "i" and hasattr(operator, f"__{name}__"))
    return node.op != "placeholder" and (own or (name[-1] == "_" and name[-2:] != "__"))


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))
