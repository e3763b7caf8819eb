"""`lower`: an ATen FX graph to a loop IR graph, node by node."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._ops import OpOverload

from aten_lowering.aliasing import views
from aten_lowering.associative_scans import associative_scans
from aten_lowering.attention import Attention, attention, is_attention
from aten_lowering.buffers import Buffers
from aten_lowering.builder import Operand
from aten_lowering.call import Call, Result
from aten_lowering.conditions import Conditions, assumed
from aten_lowering.custom_operators import Surroundings, is_functionalized, lower_functionalized
from aten_lowering.dispatch import fake_value, moves_device, run_lowering, used_results
from aten_lowering.elementwise import copy_kernel
from aten_lowering.errors import CannotLower, NotPlain, SizeOfData, require
from aten_lowering.extern import (
    bind,
    by_design,
    extern_argument,
    extern_call,
    returned_arguments,
    written_arguments,
)
from aten_lowering.meta import (
    SYMBOLIC,
    expr,
    is_control,
    is_unbacked,
    op_name,
    origin,
    source_line,
    tensor_type,
    unsupported,
)
from aten_lowering.opaque import Opaque, attribute, enclose
from aten_lowering.passes import PASSES, lint
from aten_lowering.passes.forget_blocks import forget_blocks
from aten_lowering.passes.purity import mutates
from aten_lowering.placement import UPDATES, Placement, is_partial
from aten_lowering.seeds import Seeds
from aten_lowering.subgraphs import Control, Subgraphs, Within, parts_of, taken_types
from aten_lowering.symbols import (
    graph_symbols,
    hangs_on_data,
    settle_sizes,
    settle_slices,
    unbacked,
    used_buffers,
)
from aten_lowering.user_kernels import KernelObject, Scope, is_launch, lower_launch
from loop_ir import (
    CopyBack,
    Device,
    DType,
    Extern,
    Graph,
    GraphArg,
    Node,
    Origin,
    TensorRef,
    TensorType,
)
from loop_ir.ir import mentioned
from symexpr import symbol
from tensor_ir import Pass, run_passes

aten = torch.ops.aten


@dataclass(frozen=True)
class Fallback:
    """Why a node stayed an extern call: `aten.cumsum.default`, `model.py:7`, `no lowering`."""

    op: str
    source: str
    reason: str


@dataclass(frozen=True)
class Lowered:
    """A graph, the tensors of its constants by name, what has no kernel of ours, the user's own
    Triton kernels, by the key that a `UserKernel` has, what was assumed of the sizes, and by its
    target what an `Extern` calls that is no operator of torch, and which of those are attention;
    the subgraphs that an `Extern` calls, by name, and how data decides on calls of those."""

    graph: Graph
    constants: dict[str, torch.Tensor]
    fallbacks: tuple[Fallback, ...]
    kernels: dict[str, KernelObject] = field(default_factory=dict)
    conditions: Conditions = field(default_factory=Conditions)
    operators: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    attentions: Mapping[str, Attention] = field(default_factory=dict)
    subgraphs: Mapping[str, Lowered] = field(default_factory=dict)
    controls: Mapping[str, Control] = field(default_factory=dict)


class _Stuck(Exception):
    """A node that cannot be lowered, not even as an extern call."""

    def __init__(self, node: fx.Node, why: CannotLower) -> None:
        self.node = node
        self.why = why


def lower(gm: fx.GraphModule, name: str = "graph") -> Graph:
    """Lowers a functional ATen graph whose nodes carry fake tensors in `meta["val"]`.

    Placeholders are tensors or SymInts. Ops without a lowering become `Extern(fallback=True)`, and
    so do higher-order operators and values without a type in the IR, with all that uses them
    (`opaque`); a `copy_` into a placeholder becomes a kernel, or `CopyBack`. `gm` itself
    is not changed. Raises `UnsupportedGraph` for inputs and results of such types: sizes that
    depend on data (`DependsOnData`), sparse tensors. Launches of the user's Triton kernels become
    `UserKernel`."""
    return lower_with_report(gm, name).graph


def lower_with_report(
    gm: fx.GraphModule,
    name: str = "graph",
    on_pass: Callable[[str, fx.Graph], None] | None = None,
    before: Sequence[Pass[fx.Graph]] = (),
    eager_random: bool = False,
    within: Within | None = None,
) -> Lowered:
    """`lower`, with the tensors of the constants and the reason of every fallback.

    before: the caller's own passes, which run first, on a copy of the graph; nodes that they add
    carry fake tensors. eager_random: random operators stay torch's own, whose numbers eager has;
    else they are kernels, of other numbers. within: of a subgraph, what calls it.
    `on_pass(name, graph)` sees the FX graph after every pass."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    settle_sizes(graph)
    settle_slices(graph)
    forget_blocks(graph)
    associative_scans(gm, graph)
    graph = enclose(gm, graph)
    graph = run_passes(graph, (*before, *PASSES), lint, on_pass, "FX graph").program
    refused: set[str] = set()
    while True:
        try:
            return _Lowerer(gm, graph, name, before, eager_random, within).run()
        except _Stuck as stuck:
            node = stuck.node
            if node.op != "call_function" or node.name in refused:
                raise unsupported(node, stuck.why) from stuck.why
            refused.add(node.name)
            graph = enclose(gm, graph, {node.name: str(stuck.why)})


class _Lowerer:
    """One run. `env` says what an FX node means: an `Operand`, an integer expression, a Python
    value, or a tuple of those."""

    def __init__(
        self,
        gm: fx.GraphModule,
        graph: fx.Graph,
        name: str,
        before: Sequence[Pass[fx.Graph]],
        eager_random: bool,
        within: Within | None,
    ) -> None:
        self.gm = gm
        self.graph = graph
        self.name = name
        self.env: dict[fx.Node, Any] = {}
        self.nodes: list[Node] = []
        self.outputs: tuple[GraphArg, ...] = ()
        self.fallbacks: list[Fallback] = []
        self.asserted: list[Any] = []
        self.kernels: dict[str, KernelObject] = {}
        self.operators: dict[str, Opaque] = {}
        self.attentions: dict[str, Attention] = {}
        self.within = within
        names = within.names if within is not None else set[str]()
        self.buffers = Buffers(gm, not mutates(graph), names)
        self.fresh, self.buffer = self.buffers.fresh, self.buffers.declare
        values = pytree.tree_leaves([n.meta.get("val") for n in graph.nodes])
        self.hangs = any(map(unbacked, values))
        self.bound: set[str] = set()
        self.seeds = None if eager_random else Seeds(graph, self.fresh)
        self.for_gpu = any(isinstance(v, torch.Tensor) and v.is_cuda for v in values)
        self.for_gpu |= within is not None and within.for_gpu

        def lower_body(body: fx.GraphModule, name: str, within: Within) -> Lowered:
            return lower_with_report(body, name, None, before, eager_random, within)

        self.subgraphs = Subgraphs(gm, self.fresh, lower_body)

    def run(self) -> Lowered:
        for node in self.graph.nodes:
            count = len(self.nodes)
            try:
                self.node(node)
                self.bind(count)
            except CannotLower as e:
                raise _Stuck(node, e) from e
        if self.seeds is not None:
            self.nodes[:0] = self.seeds.nodes()
        used = used_buffers((tuple(self.nodes), self.outputs))
        graph = Graph(
            name=self.name,
            inputs=tuple(self.buffers.inputs),
            nodes=tuple(self.nodes),
            outputs=self.outputs,
            constants=tuple((n, o.storage) for n, o in self.buffers.constants.items() if n in used),
        )
        tensors = {name: t for name, t in self.buffers.tensors.items() if name in used}
        fallbacks = tuple(self.fallbacks)
        graph = graph_symbols(graph, self.gm)
        bound = assumed(self.gm, {s.name for s in graph.symbols}, self.asserted)
        inner = self.subgraphs
        controls = {name: control for control, name in inner.controls.items()}
        besides = (self.kernels, bound, self.operators, self.attentions, inner.lowered, controls)
        return Lowered(graph, tensors, fallbacks, *besides)

    def node(self, node: fx.Node) -> None:
        match node.op:
            case "placeholder":
                self.env[node] = self.buffers.placeholder(node)
                self.bound |= {str(s) for s in unbacked(node.meta.get("val"))}
            case "get_attr" if isinstance(attribute(self.gm, node), fx.GraphModule):
                pass  # of a call, which asks for it
            case "get_attr":
                self.env[node] = self.buffers.constant(node)
            case "call_function":
                self.env[node] = self.call_function(node)
            case "output":
                self.outputs = self.output(node)
            case _:
                raise CannotLower(f"an FX node `{node.op}` is no ATen call")

    def bind(self, first: int) -> None:
        """Says of calls, from a place on, which sizes of their results hang on data and are new."""
        for i, node in enumerate(self.nodes[first:] if self.hangs else (), first):
            new = {s for s in mentioned(node) if is_unbacked(s)} - self.bound
            outs = node.outs if isinstance(node, Extern) else ()
            sizes = {str(n) for out in outs if out is not None for n in out[1].size}
            if new - sizes:
                raise SizeOfData(f"size {min(new - sizes)} depends on data that no result says")
            if isinstance(node, Extern) and new:
                self.nodes[i] = replace(node, binds=tuple(sorted(new)))
            self.bound |= new

    def copied(self, x: Operand, origin: Origin) -> Operand:
        """`x` in new memory, where its elements lie as they are: all of the memory that it spans
        is copied."""
        flat = _flat(x.type)
        seen = replace(x.ref, type=replace(flat, offset=x.type.offset))
        return self.span("aten.clone.default", (seen,), x.type, f"{x.ref.buffer}_copy", origin)

    def outside(self, node: fx.Node, source: Operand) -> Operand:
        """`as_strided` of a tensor of the caller's that reaches out of it: what is there is known
        when the model runs, and is copied then."""
        bound = bind(node, aten.as_strided.default)
        type = tensor_type(node.meta["val"])
        start = None if bound["storage_offset"] is None else expr(node.meta["val"].storage_offset())
        arguments = (source.ref, _flat(type).size, (1,), start)
        op = aten.as_strided_copy.default
        self.fallbacks.append(Fallback(str(op), source_line(node), "it reaches out of its tensor"))
        return self.span(str(op), arguments, type, node.name, origin(node))

    def span(
        self, target: str, args: tuple[GraphArg, ...], type: TensorType, name: str, origin: Origin
    ) -> Operand:
        """A tensor of this layout in a new buffer of one dimension, which the call fills."""
        flat = _flat(type)
        name = self.fresh(name)
        self.nodes.append(
            Extern(target, args, (), ((name, flat),), fallback=False, origins=(origin,))
        )
        return Operand(TensorRef(name, replace(type, offset=sympy.S.Zero)), flat)

    # -- nodes

    def call_function(self, node: fx.Node) -> Any:
        fake = node.meta.get("val")
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            return self.env[node.args[0]][node.args[1]]
        if isinstance(node.target, Opaque):
            return self.opaque(node, node.target)
        if is_control(node):
            return self.control(node)
        if is_functionalized(node):
            around = Surroundings(self.placement, self.nodes, self.value, self.buffer, self.fresh)
            self.fallbacks.append(Fallback(str(node.args[0]), source_line(node), "no lowering"))
            return lower_functionalized(node, around)
        if node.target is aten._local_scalar_dense.default and not isinstance(fake, float):
            self.read(self.value(node.args[0]), fake, origin(node))
        if isinstance(fake, bool | float | torch.SymBool):
            return fake
        if isinstance(fake, int | torch.SymInt | torch.SymFloat):
            value = expr(fake)
            return float(value) if value.is_Float else value
        if isinstance(node.target, OpOverload):
            return self.call(node, node.target)
        if is_launch(node):
            plain = functools.partial(self.plain, origin=origin(node))
            seen = self.env, self.nodes, self.placement, self.fresh, self.kernels
            return lower_launch(node, Scope(*seen, plain))
        raise CannotLower(f"`{node.target}` is no ATen op")

    def read(self, x: Operand, fake: Any, origin: Origin) -> None:
        """Binds the symbol of `fake` to the integer that a tensor holds, unless it is bound."""
        free = fake.node.expr.free_symbols if isinstance(fake, torch.SymInt | torch.SymBool) else ()
        new = {str(s) for s in free if is_unbacked(s)} - self.bound
        if new:
            item = extern_call("aten._local_scalar_dense.default", (x,), {}, (), (), origin, False)
            self.nodes.append(replace(item, binds=tuple(new)))
            self.bound |= new

    def call(self, node: fx.Node, op: OpOverload) -> Any:
        if op is aten._assert_scalar.default:
            return self.assertion(node)
        if op is aten.copy_.default and self.is_copy_back(node):
            return self.copy_back(node)
        fake = node.meta.get("val")
        several = isinstance(fake, list | tuple)
        fakes = tuple(fake) if isinstance(fake, list | tuple) else (fake,)
        if not op._schema.is_mutable:
            sources = self.sources(node)
            try:
                aliases = views(op, fakes, sources)
            except CannotLower:
                if op is not aten.as_strided.default or not sources[0][0].is_plain:
                    raise
                return self.outside(node, sources[0][0])
            if aliases is not None:
                return aliases if several else aliases[0]
        in_place = self.placement.may_overwrite(node)
        if in_place and is_partial(node):
            return self.overwrite(node)
        bound = bind(node, op)
        arguments = {name: self.value(v) for name, v in bound.items()}
        values = self.results(node, op, fakes, arguments, several)
        if in_place:
            values = (self.value(node.args[0]),)
        call = self.start(node, op, bound, arguments, fakes, values, several)
        if in_place:
            mutates = (call.out.operand.ref.buffer,)
            extern = replace(call.extern, target=str(UPDATES[op]), outs=(None,), mutates=mutates)
            call = replace(call, in_place=True, extern=extern)
        before = len(self.nodes)
        try:
            reason = run_lowering(call)
        except NotPlain as e:
            self.fallbacks.append(Fallback("aten.clone.default", source_line(node), str(e)))
            plain = {name: self.plain(v, origin(node)) for name, v in arguments.items()}
            call = replace(call, arguments=plain, nodes=[])
            reason = run_lowering(call)
        if reason is None:
            self.nodes.extend(call.nodes)
        else:
            if len(self.nodes) > before:
                del self.nodes[before:], self.fallbacks[-1]
            designed = by_design(op) or moves_device(call)
            if not designed:
                self.fallbacks.append(Fallback(str(op), source_line(node), reason))
            extern = replace(call.extern, fallback=not designed)
            self.nodes.extend(self.updating(call, extern) or (extern,))
        return values if several else values[0]

    def updating(self, call: Call, extern: Extern) -> tuple[Node, ...]:
        """A copy, which may be computed with what it copies, and the operator in place on that:
        some of eager's own copy twice. None of an operator that updates nothing."""
        if call.op not in UPDATES or call.in_place:
            return ()
        out = call.out.operand
        try:
            require(self.has_kernels(out), "CPU tensors of a program for a GPU")
            name = self.fresh(f"{call.node.name}_start")
            start = copy_kernel(name, call.arguments["self"], out, call.origin)
        except (CannotLower, NotPlain):
            return ()
        args = (out.ref, *extern.args[1:])
        target, mutates = str(UPDATES[call.op]), (out.ref.buffer,)
        return start, replace(extern, target=target, args=args, outs=(None,), mutates=mutates)

    @functools.cached_property
    def placement(self) -> Placement:
        # asked for once the placeholders have been seen, which come before all calls
        inputs = frozenset(i.name for i in self.buffers.inputs if i.type is not None)
        return Placement(self.graph, self.env, inputs, self.buffers.constants)

    def overwrite(self, node: fx.Node) -> Operand:
        """Puts a tensor in the place of a view of another."""
        base: Operand = self.value(node.args[0])
        source: Operand = self.value(node.args[1])
        part = self.placement.part(node)
        if source.ref == part.ref or 0 in part.size:
            return base
        try:
            require(self.has_kernels(base), "CPU tensors of a program for a GPU")
            require(source.type.device == base.type.device, "a copy between devices")
            self.nodes.append(copy_kernel(self.fresh(node.name), source, part, origin(node)))
        except (CannotLower, NotPlain):
            self.nodes.append(CopyBack(source.ref, part.ref))
        return base

    def opaque(self, node: fx.Node, part: Opaque) -> tuple[Any, ...]:
        """Nodes that torch runs: an extern call of the part itself."""
        arguments = [self.value(a) for a in node.args]
        values: list[Any] = []
        for i, (fake, used) in enumerate(
            zip(node.meta["val"], used_results(node, len(node.meta["val"]), True), strict=True)
        ):
            if isinstance(fake, torch.Tensor):
                values.append(self.buffer(f"{node.name}_{i}", fake) if used else None)
            elif hangs_on_data(fake):
                type = TensorType(DType.i64, (), (), Device("cpu"))
                values.append(Operand(TensorRef(self.fresh(f"{node.name}_{i}"), type), type))
            else:
                values.append(expr(fake) if isinstance(fake, torch.SymInt) else fake)
        target = f"eager.{self.fresh(node.name)}"
        self.operators[target] = part
        reason: str | None = part.reason
        if is_attention(part):
            try:
                self.attentions[target] = attention(part, arguments, values, lower)
                reason = None
            except CannotLower as why:
                reason = str(why)
        if reason is not None:
            self.fallbacks.append(Fallback(part.op, source_line(node), reason))
        written = (arguments[i] for i in part.written)
        about = Origin(part.op, source_line(node))
        self.nodes.append(
            extern_call(
                target, arguments, {}, values, written, about, several=True, fallback=bool(reason)
            )
        )
        for i, fake in enumerate(node.meta["val"]):
            if hangs_on_data(fake):
                self.read(values[i], fake, about)
                values[i] = expr(fake)
        return tuple(values)

    def control(self, node: fx.Node) -> tuple[Any, ...]:
        """A higher-order operator: a call of its subgraphs, which are lowered."""
        parts, fakes = parts_of(node), node.meta.get("val")
        if not isinstance(fakes, list | tuple):
            raise CannotLower("results of which nothing is known")
        args = [self.plain(self.value(a), origin(node)) for a in parts.args]
        tensors = [f for f in fakes if isinstance(f, torch.Tensor)]
        require(not any(f.is_conj() or f.is_neg() for f in tensors), "a lazily conjugated result")
        bodies = []
        for i, body in enumerate(parts.subgraphs):
            tests = parts.form in ("while", "trace") and i == 0
            within = Within(self.buffers.names, self.for_gpu, 0 if tests else parts.carries)
            bodies.append(self.subgraphs.body(body, within))
        taken = taken_types([body.graph for _, body in bodies], parts, args)
        args = [
            a if type is None else self.into(a, type, node)
            for a, type in zip(args, taken, strict=True)
        ]
        target, sizes = self.subgraphs.target(parts, bodies)
        values = [
            self.buffer(f"{node.name}_{i}", fake) if isinstance(fake, torch.Tensor) else fake
            for i, fake in enumerate(fakes)
        ]
        values = [expr(v) if isinstance(v, SYMBOLIC) else v for v in values]
        used = used_results(node, len(values), True)
        outs = [v if u else None for v, u in zip(values, used, strict=True)]
        given = (*map(self.value, parts.predicate), *args, *map(symbol, sizes))
        about = Origin(op_name(node), source_line(node))
        self.nodes.append(extern_call(f"subgraph.{target}", given, {}, outs, (), about, True))
        return tuple(values)

    def into(self, x: Operand, type: TensorType, node: fx.Node, own: bool = False) -> Operand:
        """`x` in the layout of `type`, copied if it lies in another, or is to have its own."""
        if not own and x.is_plain and replace(x.type, offset=type.offset) == type:
            return x
        name = self.fresh(f"{x.ref.buffer}_copy")
        out = Operand(TensorRef(name, type), type)
        if self.has_kernels(out):
            self.nodes.append(copy_kernel(name, x, out, origin(node)))
        else:
            clone = str(aten.clone.default)
            self.nodes.append(extern_call(clone, (x,), {}, (out,), (), origin(node), False))
        return out

    def sources(self, node: fx.Node) -> list[tuple[Operand, torch.Tensor]]:
        """The tensor arguments of a node, lists included, in order."""
        found: list[tuple[Operand, torch.Tensor]] = []
        for n in node.all_input_nodes:
            value, fake = self.env[n], n.meta.get("val")
            if isinstance(value, Operand) and isinstance(fake, torch.Tensor):
                found.append((value, fake))
        return found

    def results(
        self,
        node: fx.Node,
        op: OpOverload,
        fakes: tuple[Any, ...],
        arguments: dict[str, Any],
        several: bool,
    ) -> tuple[Any, ...]:
        """What the results mean: new buffers, the argument that was written in place, or a number
        that is known now (`max_q` of flash attention)."""
        returned = returned_arguments(op)
        values: list[Any] = []
        for i, fake in enumerate(fakes):
            if i in returned:
                values.append(arguments[returned[i]])
            elif isinstance(fake, torch.Tensor):
                values.append(self.buffer(f"{node.name}_{i}" if several else node.name, fake))
            elif isinstance(fake, SYMBOLIC):
                values.append(expr(fake))
            elif fake is None or isinstance(fake, int | float):
                values.append(fake)
            else:
                raise CannotLower(f"a result of type {type(fake).__name__}")
        return tuple(values)

    def start(
        self,
        node: fx.Node,
        op: OpOverload,
        bound: dict[str, Any],
        arguments: dict[str, Any],
        fakes: tuple[Any, ...],
        values: tuple[Any, ...],
        several: bool,
    ) -> Call:
        returned = returned_arguments(op)
        used = used_results(node, len(fakes), several)
        results = tuple(
            Result(v, f, u) if isinstance(v, Operand) and i not in returned else None
            for i, (v, f, u) in enumerate(zip(values, fakes, used, strict=True))
        )
        extern = extern_call(
            str(op),
            map(self.value, node.args),
            {k: self.value(v) for k, v in node.kwargs.items()},
            [r.operand if r is not None and r.used else None for r in results],
            [arguments[name] for name in written_arguments(op)],
            origin(node),
            several,
        )
        given = {name: fake_value(v) for name, v in bound.items()}
        context = self.fresh, self.for_gpu, self.seeds
        return Call(node, op, arguments, given, results, extern, *context)

    def plain(self, value: Any, origin: Origin) -> Any:
        """An argument, copied where it does not show its memory as it is."""
        if isinstance(value, tuple):
            return tuple(self.plain(v, origin) for v in value)
        if isinstance(value, Operand) and not value.is_plain:
            return self.copied(value, origin)
        return value

    def assertion(self, node: fx.Node) -> None:
        condition = self.value(node.args[0])
        if isinstance(condition, torch.SymBool):
            self.asserted.append(expr(condition))
        elif condition is not True:
            raise CannotLower("a run-time assertion that is not proven")

    def is_copy_back(self, node: fx.Node) -> bool:
        """`copy_` into a placeholder, on one device."""
        target, source = node.args[:2]
        if not (isinstance(target, fx.Node) and target.op == "placeholder"):
            return False
        return bool(self.value(source).type.device == self.env[target].type.device)

    def copy_back(self, node: fx.Node) -> Operand:
        """`copy_(placeholder, x)` as a kernel, which what makes `x` may become part of; where there
        can be none, `CopyBack`, through a copy if size or element type differ."""
        target: Operand = self.value(node.args[0])
        source: Operand = self.value(node.args[1])
        if source.ref == target.ref:  # it was written there
            return target
        if 0 in target.size:
            return target
        if self.has_kernels(target):
            try:
                self.nodes.append(copy_kernel(self.fresh(node.name), source, target, origin(node)))
                return target
            except (CannotLower, NotPlain):
                pass
        if source.size != target.size or source.dtype != target.dtype:
            value = self.buffer(f"{node.name}_value", node.meta["val"])
            self.nodes.append(copy_kernel(value.ref.buffer, source, value, origin(node)))
            source = value
        self.nodes.append(CopyBack(source.ref, target.ref))
        return target

    def has_kernels(self, x: Operand) -> bool:
        """Whether kernels run where a tensor is: not on the CPU, in a program for a GPU."""
        return not (self.for_gpu and x.type.device.kind == "cpu")

    def output(self, node: fx.Node) -> tuple[GraphArg, ...]:
        values = node.args[0]
        flat = values if isinstance(values, list | tuple) else (values,)
        results = [self.value(v) for v in flat]
        if self.within is not None:
            results = self.apart(node, results, self.within)
        else:
            results = self.again(flat, results)
        return tuple(map(extern_argument, results))

    def again(self, nodes: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """The results, of which those of different nodes are different tensors, as what a node
        makes of an input is another tensor than that."""
        given = [n for n in self.graph.nodes if n.op in ("placeholder", "get_attr")]
        known: dict[TensorRef, list[Any]] = {}
        numbered: list[Any] = []
        for node, x in (*((n, self.env.get(n)) for n in given), *zip(nodes, results, strict=True)):
            if isinstance(x, Operand):
                alike = known.setdefault(x.ref, [])
                alike += [] if node in alike else [node]
                x = replace(x, ref=replace(x.ref, again=alike.index(node)))
            numbered.append(x)
        return numbered[len(given) :]

    def apart(self, node: fx.Node, results: list[Any], within: Within) -> list[Any]:
        """The results of a subgraph, each in memory of its own and in the layout that is asked
        for."""
        given = {i.name for i in self.buffers.inputs} | set(self.buffers.constants)
        for i, x in enumerate(results):
            if not isinstance(x, Operand):
                continue
            carried = self.buffers.inputs[i].type if i < within.carries else None
            type = carried or replace(x.type, offset=sympy.S.Zero)
            results[i] = self.into(x, type, node, x.ref.buffer in given)
            given.add(results[i].ref.buffer)
        return results

    def value(self, argument: Any) -> Any:
        """An FX argument in the IR's terms."""
        if isinstance(argument, fx.Node):
            return self.env[argument]
        if isinstance(argument, list | tuple):
            return tuple(self.value(a) for a in argument)
        return expr(argument) if isinstance(argument, SYMBOLIC) else argument


def _flat(type: TensorType) -> TensorType:
    """One dimension that holds the memory which a layout spans."""
    length = type.numel if type.is_contiguous else type.extent
    return replace(type, size=(length,), stride=(sympy.S.One,), offset=sympy.S.Zero)
