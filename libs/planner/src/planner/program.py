"""Loop IR with a launch plan for each node -> the host program.

kernel k1 ...                         kernel k1 <triton source>
buffers and nodes, in order     ->    b1 = alloc ...; launch k1 ...; b2 = extern ...; return
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from loop_ir import LEAST, CopyBack, Extern, Graph, GraphArg, Kernel, Matmul, Origin, TensorRef
from loop_ir.ir import bound_by_data
from planner.errors import UnboundSize
from planner.plan import Blocks, Choice, Choices, Key, LaunchArg, LaunchPlan, NodePlan, Zeroed
from symexpr import Max, known, sstr, symbol
from wrapper_ir import Arg, Launch, Op, Program, Ref, TensorType, ops
from wrapper_ir.analysis import free_symbols
from wrapper_ir.collectives import SHARED
from wrapper_ir.devices import guarded

# What uses of one workspace have in common: its key, and the symbols of data in its size.
Shared: TypeAlias = tuple[Key, frozenset[str]]

# Operators whose results lie in their first argument.
_VIEWS = frozenset({"aten.unbind.int", "aten_lowering.fetched.default"})


@dataclass
class _Builder:
    graph: Graph
    roots: dict[str, TensorType]
    workspaces: Mapping[Shared, TensorType] = field(default_factory=dict)
    zeroed: dict[Shared, str] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    views: dict[TensorRef, str] = field(default_factory=dict)
    descriptors: dict[tuple[str, tuple[int, ...]], str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    of_data: frozenset[str] = frozenset()
    unbound: set[str] = field(default_factory=set)
    checked: list[Any] = field(default_factory=list)

    def fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def descriptor(self, value: Blocks) -> Ref:
        """Made once for the same tensor and block."""
        tensor = self.tensor(value.tensor).name
        key = (tensor, value.block)
        if key not in self.descriptors:
            number = sum(1 for described, _ in self.descriptors if described == tensor)
            self.descriptors[key] = self.fresh(f"{tensor}_blocks{number}")
            self.ops.append(ops.Describe(self.descriptors[key], *key))
        return Ref(self.descriptors[key])

    def tensor(self, ref: TensorRef) -> Ref:
        """A buffer by its name, or a view of it, made once."""
        if ref == TensorRef(ref.buffer, self.roots[ref.buffer]):
            return Ref(ref.buffer)
        if ref not in self.views:
            number = sum(1 for known in self.views if known.buffer == ref.buffer)
            name = self.fresh(f"{ref.buffer}_view{number}")
            if ref.neg:
                self.lazy("aten._neg_view.default", replace(ref, neg=False), name)
            elif ref.conj:
                self.lazy("aten._conj.default", replace(ref, conj=False), name)
            else:
                self.ops.append(ops.View(name, ref.buffer, ref.type))
            self.views[ref] = name
        return Ref(self.views[ref])

    def lazy(self, target: str, ref: TensorRef, name: str) -> None:
        """Names a view that torch negates or conjugates where it is read."""
        source = self.tensor(ref)
        out = (name, ref.type)
        self.ops.append(ops.ExternCall(target, (source,), outs=(out,), alias=source.name))

    def arg(self, value: GraphArg) -> Arg:
        if isinstance(value, TensorRef):
            return self.tensor(value)
        if isinstance(value, tuple):
            return tuple(self.arg(item) for item in value)
        return value

    def extern(self, node: Extern) -> None:
        args = tuple(self.arg(a) for a in node.args)
        kwargs = tuple((k, self.arg(a)) for k, a in node.kwargs)
        mutated: list[str] = []
        for value in (*node.args, *(v for _, v in node.kwargs)):
            for ref in _refs(value):
                if ref.buffer in node.mutates:
                    mutated.append(self.tensor(ref).name)
        for out in node.outs:
            if out is not None:
                self.roots[out[0]] = out[1]
        writes, comment = tuple(dict.fromkeys(mutated)), _comment(node.origins)
        if node.binds and not node.outs:
            (name,), (held,) = node.binds, _refs(node.args)
            self.ops.append(ops.SymbolDef(name, self.tensor(held).name, 0, comment, "item"))
        elif node.target == SHARED:
            (out,), group = node.outs, str(args[-1])
            assert out is not None
            self.ops.append(ops.CommAllocate(*out, group, comment))
        else:
            call = ops.ExternCall(node.target, args, kwargs, node.outs, node.tuple_result, writes)
            alias = args[0].name if node.target in _VIEWS and isinstance(args[0], Ref) else None
            self.ops.append(replace(call, comment=comment, binds=node.binds, alias=alias))
        if node.binds:
            self.check(set(node.binds))

    def check(self, new: set[str]) -> None:
        """Asserts the ranges of symbols that are bound now, and what is known of them and others
        once all are bound."""
        self.unbound -= new
        symbols = [s for s in self.graph.symbols if s.name not in self.unbound]
        ranges = {symbol(s.name): (None if s.low == LEAST else s.low, s.high) for s in symbols}
        ends = [s >= low for s, (low, _) in ranges.items() if str(s) in new and low is not None]
        ends += [s <= high for s, (_, high) in ranges.items() if str(s) in new and high is not None]
        ready = [c for c in self.checked if c.free_symbols <= ranges.keys()]
        self.checked = [c for c in self.checked if c not in ready]
        kept = dict.fromkeys((*ends, *(c for c in ready if known(c, ranges) is None)))
        self.ops += [ops.Assert(c, f"of a size that depends on data: {sstr(c)}") for c in kept]

    def launch(self, plan: LaunchPlan, comment: str) -> Launch:
        args = tuple(self.launch_arg(a) for a in plan.args)
        return Launch(plan.define.name, plan.grid, args, comment)

    def launch_arg(self, value: LaunchArg) -> Arg:
        """Kernels take pointers: a view that starts its buffer is the buffer."""
        if isinstance(value, Blocks):
            return self.descriptor(value)
        if isinstance(value, Zeroed):
            return Ref(self.zeroed[_shared(value, self.of_data)])
        if isinstance(value, TensorRef):
            root = self.roots[value.buffer]
            starts = root.offset == value.type.offset and root.dtype == value.type.dtype
            return Ref(value.buffer) if starts else self.tensor(value)
        if isinstance(value, str) and self.roots[value].dtype.is_complex:
            return self.tensor(TensorRef(value, self.roots[value].parts))
        return Ref(value) if isinstance(value, str) else value

    def node(self, plan: NodePlan) -> None:
        self.ops.extend(plan.checks)
        for name, type_ in plan.allocate:
            self.roots[name] = type_
            self.ops.append(ops.Allocate(name, type_))
        if plan.extern is not None:
            self.extern(plan.extern)
        if not plan.choices:
            return
        for key in (_shared(use, self.of_data) for use in plan.zeroed):
            if key not in self.zeroed:  # before the branches that use it
                name = self.zeroed[key] = self.fresh(key[0][0])
                self.ops.append(ops.Workspace(name, self.workspaces[key]))
        comment = _comment(plan.origins)
        if len(plan.choices) == 1:
            self.run(plan.choices[0][1], comment)
        else:
            self.ops.extend(self.branches(plan.choices, comment, plan.nested))

    def run(self, choice: Choice, comment: str) -> None:
        if isinstance(choice, LaunchPlan):
            self.ops.append(self.launch(choice, comment))
            return
        for name, type_ in choice.allocate:
            self.roots[name] = type_
            self.ops.append(ops.Allocate(name, type_))
        for step in choice.steps:
            if isinstance(step, Extern):
                self.extern(step)
            else:
                self.ops.append(self.launch(step, comment))

    def branches(self, choices: Choices, comment: str, nested: bool) -> tuple[Op, ...]:
        """A chain of comparisons; a tree of them where conditions are nested."""
        if len(choices) == 1:
            return self.block(choices[0][1])
        at = (len(choices) - 1) // 2 if nested else 0
        condition = choices[at][0]
        assert condition is not None
        then = self.branches(choices[: at + 1], comment, nested)
        orelse = self.branches(choices[at + 1 :], comment, nested)
        return (ops.If(condition, then, orelse, comment),)

    def block(self, choice: Choice) -> tuple[Op, ...]:
        """The ops of a choice; the views and descriptors that it makes end with the block."""
        outside = self.ops, dict(self.views), dict(self.descriptors)
        self.ops = []
        self.run(choice, "")
        made = tuple(self.ops)
        self.ops, self.views, self.descriptors = outside
        return made


def _shared(use: Zeroed, of_data: frozenset[str]) -> Shared:
    return use.key, frozenset(of_data & free_symbols(use.type.size))


def workspaces(
    uses: Iterable[Zeroed], of_data: frozenset[str] = frozenset()
) -> dict[Shared, TensorType]:
    """What uses share whose sizes are known when the first begins: as large as the largest wants
    it. of_data: the symbols that calls bind."""
    types: dict[Shared, list[TensorType]] = {}
    for use in uses:
        types.setdefault(_shared(use, of_data), []).append(use.type)
    return {
        key: replace(each[0], size=(Max(*(type.size[0] for type in each)),))
        for key, each in types.items()
    }


def assemble(
    graph: Graph,
    plans: tuple[NodePlan | CopyBack, ...],
    given: tuple[Any, ...] = (),
    checked: tuple[Any, ...] = (),
) -> Program:
    """The host program of a graph whose nodes have plans, for sizes that meet the conditions
    `given`, and those `checked`, as it finds out. Frees come later, in a pass."""
    roots = {i.name: i.type for i in graph.inputs if i.type is not None}
    nodes = [plan for plan in plans if isinstance(plan, NodePlan)]
    of_data = bound_by_data(graph.nodes)
    shared = workspaces((use for plan in nodes for use in plan.zeroed), of_data)
    builder = _Builder(graph, roots, shared, of_data=of_data)
    builder.taken = set(roots) | {s.name for s in graph.symbols}
    builder.unbound, builder.checked = set(of_data), list(checked)
    builder.ops.extend(_symbol_defs(graph))
    builder.check(set())
    defines = [launch.define for plan in nodes for launch in plan.launches]
    builder.ops.extend(dict.fromkeys(defines))  # launches may share one
    for plan in plans:
        if isinstance(plan, NodePlan):
            builder.taken.update(plan.names)
    for name, type_ in graph.constants:
        builder.roots[name] = type_
        builder.taken.add(name)
        builder.ops.append(ops.Constant(name, type_, name))
    for plan in plans:
        if isinstance(plan, CopyBack):
            src, dst = builder.tensor(plan.src), builder.tensor(plan.dst)
            builder.ops.append(ops.CopyBack(src.name, dst.name))
        else:
            builder.node(plan)
    values = tuple(builder.arg(value) for value in graph.outputs)
    builder.ops.append(ops.Return(values))
    params = tuple(ops.Param(i.name, i.type) for i in graph.inputs)
    symbols = tuple(replace(s, low=None) if s.low == LEAST else s for s in graph.symbols)
    return guarded(Program(graph.name, params, tuple(builder.ops), symbols, given))


def _symbol_defs(graph: Graph) -> list[Op]:
    """Binds each symbol that no integer input binds to the first input size that it is."""
    bound = {i.name for i in graph.inputs if i.type is None} | bound_by_data(graph.nodes)
    out: list[Op] = []
    for each in graph.symbols:
        if each.name in bound:
            continue
        place = min(_places(graph, each.name), default=None)
        if place is None:
            raise UnboundSize(
                f"the size {each.name} does not follow from a size or stride of an input\n"
                f"  inputs: {', '.join(_sizes(graph))}\n"
                "  to do: mark a dimension dynamic that the model does not compute with first"
            )
        out.append(place[1])
    return out


def _places(graph: Graph, name: str) -> Iterator[tuple[tuple[bool, bool, int], ops.SymbolDef]]:
    """What may bind a symbol, each with its rank: itself before a multiple, sizes before strides,
    in order of the inputs."""
    s = symbol(name)
    for number, i in enumerate(graph.inputs):
        if i.type is None:
            continue
        for of, expressions in (("size", i.type.size), ("stride", i.type.stride)):
            for dim, e in enumerate(expressions):
                if e.free_symbols != {s}:
                    continue
                factor, plus = e.coeff(s), e.subs(s, 0)
                if factor.is_Integer and factor > 0 and e == factor * s + plus:
                    rank = (e != s, of == "stride", number * 64 + dim)
                    yield rank, ops.SymbolDef(name, i.name, dim, "", of, int(factor), int(plus))


def _sizes(graph: Graph) -> list[str]:
    return [
        f"{i.name}[{', '.join(sstr(n) for n in i.type.size)}]"
        for i in graph.inputs
        if i.type is not None
    ]


def _refs(value: GraphArg) -> list[TensorRef]:
    if isinstance(value, TensorRef):
        return [value]
    if isinstance(value, tuple):
        return [ref for item in value for ref in _refs(item)]
    return []


def _comment(origins: tuple[Origin, ...]) -> str:
    """`aten.add.Tensor, aten.native_layer_norm.default  encoder.py:41`."""
    names = list(dict.fromkeys(o.op for o in origins))
    lines = list(dict.fromkeys(o.source for o in origins if o.source))
    return "  ".join(filter(None, (", ".join(names), ", ".join(lines))))


def kernel_nodes(graph: Graph) -> list[Kernel]:
    """Every loop kernel of a graph, prologues and epilogues included, in order."""
    out: list[Kernel] = []
    for node in graph.nodes:
        if isinstance(node, Kernel):
            out.append(node)
        elif isinstance(node, Matmul):
            out += node.prologues
            if node.epilogue is not None:
                out.append(node.epilogue)
    return out
