"""What no kernel and no single operator call can say runs as torch runs it: a part of the graph
becomes one call of its own nodes, interpreted in eager.

p = sum(x) > 0                                   p = sum(x) > 0
y = cond(p, f, g, (x,))                    ->    r = eager.cond(p, x); z = r[0]
z = y[0] * 2                                     w = z * 2

s = to_sparse(x); d = to_dense(s); z = d * 2  ->  r = eager.to_sparse(x); z = r[0] * 2

A part is a node that is no operator of torch (a higher-order operator) or has an argument that the
IR has no word for; and a value that the IR has no type for (sparse, quantised, a size that depends
on data), with all that uses it; or that depends on data where torch does not say so, with all that
follows from it."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from graphlib import TopologicalSorter
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from aten_lowering import meta
from aten_lowering.custom_operators import is_functionalized
from aten_lowering.errors import CannotLower
from aten_lowering.extern import bind, extern_argument, written_arguments
from aten_lowering.memory import lazy_memory, storage_key
from aten_lowering.passes.forget_blocks import MASK
from aten_lowering.symbols import hangs_on_data, sizes_without_origin
from aten_lowering.torch_compat import flex_attention_backward
from aten_lowering.user_kernels import is_launch, writes_in_place

# Their sizes depend on data, and torch makes up those of their fake tensors: it runs them on zeros.
_MADE_UP = frozenset({torch.ops.aten._unique.default})

_NUMBERS = (bool, int, float, torch.SymBool, torch.SymInt, torch.SymFloat)


@dataclass(eq=False, repr=False)
class Opaque:
    """Nodes that torch runs. Called with the tensors and integers that they take; returns a tuple
    of what the rest of the graph uses, each in memory of its own, strided as it was traced.

    An integer that hangs on data is a tensor, too: the program reads it.

    op: the node that is the cause. reason: why they are no kernels. written: which of its arguments
    it writes to. effects: it does more than to give results."""

    op: str
    module: fx.GraphModule
    reason: str
    results: InitVar[Sequence[Any]]
    written: tuple[int, ...]
    effects: bool

    def __post_init__(self, results: Sequence[Any]) -> None:
        self.__name__ = self.__qualname__ = self.op.split(".")[1] if "." in self.op else self.op
        self.__module__ = "eager"
        self._layouts = tuple(_layout(r) for r in results)
        self._read = tuple(map(hangs_on_data, results))
        self._learned = _learned(self.module.graph)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        if self._learned:
            learned = self._learned
            args = tuple(
                a.detach().requires_grad_(i in learned) if isinstance(a, Tensor) else a
                for i, a in enumerate(args)
            )
        taken = {storage_key(a) for a in args if isinstance(a, Tensor)}
        out: list[Any] = []
        with torch.no_grad():
            kinds = zip(self.module(*args), self._layouts, self._read, strict=True)
            for value, layout, read in kinds:
                if read:
                    value = torch.tensor(int(value))
                if isinstance(value, Tensor) and layout is not None:
                    value = _as_traced(value, layout, taken)
                    taken.add(storage_key(value))
                out.append(value)
        return tuple(out)


def _learned(graph: fx.Graph) -> frozenset[int]:
    """Arguments of which torch gives gradients, of attention, only where they ask for them. What
    the program computed asks for none."""
    found = set[fx.Node]()
    for call in graph.find_nodes(op="call_function", target=flex_attention_backward):
        captured: Any = call.args[MASK[flex_attention_backward] + 3]
        gradients = (item for item in call.users if item.args[1] == 3)
        found |= {captured[user.args[1]] for item in gradients for user in item.users}
    return frozenset(i for i, n in enumerate(graph.find_nodes(op="placeholder")) if n in found)


Layout = tuple[tuple[int, ...] | None, tuple[int, ...], bool, bool]


def _layout(result: Any) -> Layout | None:
    """The strides of a result, None where they depend on sizes; the order of its dimensions in
    memory, outermost first; whether it is lazily conjugated, and negated."""
    if not isinstance(result, Tensor):
        return None
    strides = result.stride()
    static = all(isinstance(n, int) for n in (*strides, *result.shape))
    hints = [n if isinstance(n, int) else n.node.hint for n in strides]
    order = sorted(range(len(hints)), key=lambda d: -(hints[d] or 0))
    steps = tuple(map(int, strides)) if static else None
    return steps, tuple(order), result.is_conj(), result.is_neg()


def _as_traced(value: Tensor, layout: Layout, taken: set[int]) -> Tensor:
    """`value`, or a copy where its memory is another tensor's or lies in another order."""
    strides, order, conj, neg = layout
    value = lazy_memory(value.detach(), conj, neg)
    if strides is None:
        places = [value.stride(d) for d in order if value.shape[d] > 1]
        same = places == sorted(places, reverse=True)
    else:
        pairs = zip(value.shape, value.stride(), strides, strict=True)
        same = all(n <= 1 or have == want for n, have, want in pairs)
    if same and storage_key(value) not in taken:
        return value
    options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
    if strides is None:
        return torch.empty_permuted(value.shape, order, **options).copy_(value)
    shape = value.shape
    for d, step in enumerate(strides):
        value = value.narrow(d, 0, 1) if step == 0 and shape[d] > 1 else value
    return torch.empty_strided(value.shape, strides, **options).copy_(value).expand(shape)


def enclose(
    root: torch.nn.Module, graph: fx.Graph, also: Mapping[str, str] | None = None
) -> fx.Graph:
    """The graph with each such part as a call of an `Opaque` and `getitem`s of its results.

    root: holds the submodules and constants that the graph names. also: names of further nodes to
    leave to torch, and why. Raises `UnsupportedGraph` for a value without a type that is a result
    of the graph."""
    parts = _Parts(root, graph, also or {})
    if not parts.groups:
        return graph
    return parts.rebuild()


class _Parts:
    """Groups of nodes, by what they have in common until nothing outside of a group lies between
    two of its nodes."""

    def __init__(self, root: torch.nn.Module, graph: fx.Graph, also: Mapping[str, str]) -> None:
        self.root = root
        self.nodes = list(graph.nodes)
        self.index = {n: i for i, n in enumerate(self.nodes)}
        self.also = also
        self.reasons: dict[fx.Node, str] = {}
        self.groups: list[set[fx.Node]] = []
        self._find()
        if self.groups:
            self.before = self._order()
            self.after: dict[fx.Node, list[fx.Node]] = {n: [] for n in self.nodes}
            for node, needs in self.before.items():
                for n in needs:
                    self.after[n].append(node)
            self._close()

    def _find(self) -> None:
        unbound = sizes_without_origin(self.nodes)
        for node in self.nodes:
            if node.op != "call_function":
                continue
            if node.target in _MADE_UP:
                self.reasons[node] = "its sizes depend on data"
                self._join(_follows(node))
                continue
            refused = self.also.get(node.name) or call_reason(node)
            untyped = unbound.get(node) or value_reason(node.meta.get("val"))
            if refused is None and untyped is None:
                continue
            self.reasons[node] = refused or str(untyped)
            members = {node} | (set(node.users) if untyped is not None else _items(node))
            if untyped is not None and any(n.op == "output" for n in members):
                raise meta.unsupported(node, untyped) from untyped
            self._join(members)

    def _join(self, members: set[fx.Node]) -> None:
        apart = []
        for group in self.groups:
            if group & members:
                members = members | group
            else:
                apart.append(group)
        self.groups = [*apart, members]

    def _order(self) -> dict[fx.Node, list[fx.Node]]:
        """What has to run before each node: its inputs, and the last node before it that does more
        than to compute, if it does so too."""
        before: dict[fx.Node, list[fx.Node]] = {}
        last: fx.Node | None = None
        for node in self.nodes:
            before[node] = list(node.all_input_nodes)
            if _acts(node) or node in self.reasons:
                if last is not None:
                    before[node].append(last)
                last = node
        return before

    def _close(self) -> None:
        """Takes in what lies between the nodes of a group."""
        changed = True
        while changed:
            changed = False
            for group in self.groups:
                between = self._between(group)
                if between:
                    self._join(group | between)
                    changed = True
                    break

    def _between(self, group: set[fx.Node]) -> set[fx.Node]:
        """Nodes that need the group and that the group needs."""
        whole = {n: g for g in self.groups for n in g}  # a group is entered and left as one

        def spread(found: set[fx.Node], next_to: dict[fx.Node, list[fx.Node]]) -> set[fx.Node]:
            todo = list(found)
            while todo:
                for n in next_to[todo.pop()]:
                    new = whole.get(n, {n}) - found
                    found |= new
                    todo += new
            return found

        return (spread(set(group), self.after) & spread(set(group), self.before)) - group

    # -- the new graph

    def rebuild(self) -> fx.Graph:
        group_of = {n: g for g, group in enumerate(self.groups) for n in group}
        out = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        for unit in self._units(group_of):
            if isinstance(unit, fx.Node):
                env[unit] = out.node_copy(unit, env.__getitem__)
            else:
                self._call(out, env, sorted(unit, key=self.index.__getitem__))
        return out

    def _units(self, group_of: dict[fx.Node, int]) -> list[Any]:
        """Nodes and groups in an order in which they can run: the old one, except that what uses a
        group comes after the last node of it."""

        def key(node: fx.Node) -> fx.Node | int:
            return group_of.get(node, node)

        units: dict[Any, set[Any]] = {}
        place: dict[Any, int] = {}
        for node in self.nodes:
            unit = key(node)
            units.setdefault(unit, set()).update(
                key(b) for b in self.before[node] if key(b) != unit
            )
            place[unit] = self.index[node]
        sorter = TopologicalSorter(units)
        sorter.prepare()
        ready: list[tuple[int, fx.Node | int]] = []
        done: list[Any] = []
        while sorter.is_active():
            for unit in sorter.get_ready():
                heapq.heappush(ready, (place[unit], unit))
            unit = heapq.heappop(ready)[1]
            done.append(unit if isinstance(unit, fx.Node) else self.groups[unit])
            sorter.done(unit)
        return done

    def _call(self, out: fx.Graph, env: dict[fx.Node, fx.Node], members: list[fx.Node]) -> None:
        inside, graph = set(members), fx.Graph()
        inner: dict[fx.Node, fx.Node] = {}
        inputs: list[fx.Node] = []
        for node in members:
            for n in node.all_input_nodes:
                if n in inside or n in inner:
                    continue
                if n.op == "get_attr" and not isinstance(attribute(self.root, n), Tensor):
                    inner[n] = graph.node_copy(n)
                else:
                    inputs.append(n)
                    inner[n] = graph.placeholder(n.name)
                    inner[n].meta["val"] = n.meta.get("val")
        sizes: dict[str, tuple[Any, fx.Node]] = {}

        def passed(value: Any) -> Any:
            """A size that stands in a call, and is no node, is passed, too."""
            if not isinstance(value, meta.SYMBOLIC):
                return value
            if str(value) not in sizes:
                sizes[str(value)] = value, graph.placeholder(f"size_{len(sizes)}")
            return sizes[str(value)][1]

        for node in members:
            copied = inner[node] = graph.node_copy(node, inner.__getitem__)
            copied.args = fx.node.map_aggregate(copied.args, passed)
            copied.kwargs = fx.node.map_aggregate(copied.kwargs, passed)
        results = [n for n in members if any(u not in inside for u in n.users)]
        graph.output(tuple(inner[n] for n in results))
        _placeholders_first(graph)
        cause = next(n for n in members if n in self.reasons)
        values = [n.meta.get("val") for n in results]
        op = meta.op_name(cause)
        if not isinstance(cause.target, OpOverload):
            op = str(getattr(cause.target, "__name__", op))
        module, acts = fx.GraphModule(self.root, graph), any(map(_acts, members))
        written = _written(members, inputs)
        target = Opaque(op, module, self.reasons[cause], values, written, acts)
        call = out.call_function(
            target, (*(env[n] for n in inputs), *(v for v, _ in sizes.values()))
        )
        call.meta.update(cause.meta)
        call.meta["val"] = tuple(values)
        for i, n in enumerate(results):
            env[n] = out.call_function(operator.getitem, (call, i))
            env[n].meta.update(n.meta)


def attribute(root: torch.nn.Module, node: fx.Node) -> object:
    """What a `get_attr` node names, or carries itself."""
    if "constant" in node.meta:
        return node.meta["constant"]
    value: object = root
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def call_reason(node: fx.Node) -> str | None:
    """Why a call is none that the IR can say; None where it can."""
    known = isinstance(node.target, OpOverload | Opaque) or node.target is operator.getitem
    if is_launch(node) or is_functionalized(node) or meta.is_control(node):
        return None
    if not known and isinstance(node.meta.get("val"), _NUMBERS):
        return None
    if not known:
        return f"`{meta.op_name(node)}` is no ATen op"
    try:
        extern_argument(
            [a for a in tree_leaves((node.args, node.kwargs)) if not isinstance(a, fx.Node)]
        )
    except CannotLower as e:
        return str(e)
    return None


def value_reason(value: Any) -> CannotLower | None:
    """Why the IR has no type for a value; None where it has."""
    try:
        for leaf in tree_leaves(value):
            if isinstance(leaf, Tensor):
                meta.tensor_type(leaf)
            elif isinstance(leaf, (*meta.SYMBOLIC, torch.SymBool)):
                meta.expr(leaf)
            elif not (leaf is None or isinstance(leaf, bool | int | float | str)):
                raise CannotLower(f"a value of type {type(leaf).__name__}")
    except CannotLower as e:
        return e
    return None


def _items(node: fx.Node) -> set[fx.Node]:
    """The `getitem`s of a call, and theirs."""
    found: set[fx.Node] = set()
    for user in node.users:
        if user.target is operator.getitem:
            found |= {user} | _items(user)
    return found


def _follows(node: fx.Node) -> set[fx.Node]:
    """The node and all that is computed from it."""
    found, todo = {node}, [node]
    while todo:
        new = {u for u in todo.pop().users if u.op != "output"} - found
        found |= new
        todo += new
    return found


def _acts(node: fx.Node) -> bool:
    """The node writes, checks or draws random numbers: it keeps its turn."""
    if isinstance(node.target, Opaque):
        return True
    if writes_in_place(node):
        return True
    if not isinstance(node.target, OpOverload):
        return False
    schema = node.target._schema
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    return bool(schema.is_mutable or not schema.returns or random)


def _written(members: list[fx.Node], inputs: list[fx.Node]) -> tuple[int, ...]:
    """Positions of the inputs whose storage a member writes to."""
    storages: set[int] = set()
    for node in members:
        if isinstance(op := node.target, OpOverload) and (names := written_arguments(op)):
            given = bind(node, op)
            for n in tree_leaves([given[name] for name in names]):
                if isinstance(n, fx.Node) and isinstance(n.meta.get("val"), Tensor):
                    storages.add(storage_key(n.meta["val"]))
    values = [n.meta.get("val") for n in inputs]
    return tuple(
        i for i, v in enumerate(values) if isinstance(v, Tensor) and storage_key(v) in storages
    )


def _placeholders_first(graph: fx.Graph) -> None:
    first = next((n for n in graph.nodes if n.op != "placeholder"), None)
    for node in list(graph.nodes):
        if node.op == "placeholder" and first is not None:
            first.prepend(node)
