"""The nodes of an FX graph as nodes of loop IR, one after the other."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._ops import OpOverload

import loop_ir as ir
from aten_lowering.aliasing import views
from aten_lowering.attention import Attention, Lower, attention, is_attention
from aten_lowering.builder import Operand
from aten_lowering.call import Call, Result
from aten_lowering.conditions import assumed
from aten_lowering.custom_operators import Surroundings, is_functionalized, lower_functionalized
from aten_lowering.dispatch import fake_value, moves_device, run_lowering, used_results
from aten_lowering.drawn import SEED
from aten_lowering.elementwise import copy_kernel
from aten_lowering.errors import CannotLower, NotPlain, SizeOfData, require
from aten_lowering.extern import (
    Fallback,
    bind,
    by_design,
    extern_call,
    returned_arguments,
    written_arguments,
)
from aten_lowering.lowered import Lowered
from aten_lowering.meta import (
    SYMBOLIC,
    expr,
    is_control,
    is_unbacked,
    op_name,
    origin,
    source_line,
)
from aten_lowering.opaque import Opaque, attribute
from aten_lowering.passes.purity import mutates
from aten_lowering.placement import UPDATES, Placement, is_partial
from aten_lowering.seeds import Seeds, draw, seed_name
from aten_lowering.subgraphs import Subgraphs, Within, parts_of, taken_types
from aten_lowering.symbols import graph_symbols, hangs_on_data, unbacked, used_buffers
from aten_lowering.tensors import Tensors
from aten_lowering.user_kernels import KernelObject, Scope, is_launch, lower_launch
from loop_ir.ir import mentioned, writes
from symexpr import symbol

aten = torch.ops.aten


class Stuck(Exception):
    """A node that cannot be lowered, not even as an extern call."""

    def __init__(self, node: fx.Node, why: CannotLower) -> None:
        self.node = node
        self.why = why


class Lowerer(Tensors):
    """One run over a graph. `lower_body` lowers the body of a subgraph, `lower_scores` what a user
    computes of attention's scores. Raises `Stuck`."""

    def __init__(
        self,
        gm: fx.GraphModule,
        graph: fx.Graph,
        name: str,
        within: Within | None,
        eager_random: bool,
        lower_body: Callable[[fx.GraphModule, str, Within], Lowered],
        lower_scores: Lower,
        layers: tuple[ir.Layers, frozenset[str]] | None = None,
    ) -> None:
        values = pytree.tree_leaves([n.meta.get("val") for n in graph.nodes])
        for_gpu = any(isinstance(v, torch.Tensor) and v.is_cuda for v in values)
        for_gpu |= within is not None and within.for_gpu
        super().__init__(gm, graph, not mutates(graph), for_gpu, within)
        self.name = name
        self.outputs: tuple[ir.GraphArg, ...] = ()
        self.asserted: list[Any] = []
        self.kernels: dict[str, KernelObject] = {}
        self.operators: dict[str, Opaque] = {}
        self.attentions: dict[str, Attention] = {}
        self.hangs = any(map(unbacked, values))
        self.bound: set[str] = set()
        self.seeds = None if eager_random else Seeds(self.fresh)
        self.layers = layers
        self.lower_scores = lower_scores
        self.subgraphs = Subgraphs(gm, self.fresh, lower_body)

    def run(self) -> Lowered:
        """Lowers all nodes, in order. Raises `Stuck` for the first that cannot be lowered."""
        made: set[str] = set()
        for node in self.graph.nodes:
            count = len(self.nodes)
            try:
                self.node(node)
                self.bind(count)
            except CannotLower as e:
                raise Stuck(node, e) from e
            if self.layers is not None and node.name in self.layers[1]:
                made.update(*map(writes, self.nodes[count:]))
        seeds = {} if self.seeds is None else self.seeds.drawn
        used = used_buffers((tuple(self.nodes), self.outputs))
        graph = ir.Graph(
            name=self.name,
            inputs=(*self.buffers.inputs, *seeds.values()),
            nodes=tuple(self.nodes),
            outputs=self.outputs,
            constants=tuple((n, o.storage) for n, o in self.buffers.constants.items() if n in used),
        )
        tensors = {name: t for name, t in self.buffers.tensors.items() if name in used}
        fallbacks = tuple(self.fallbacks)
        graph = graph_symbols(graph, self.gm)
        layers: ir.Layers | None = None
        if self.layers is None:
            graph = draw(graph, len(self.buffers.inputs))
        else:
            given = self.graph.find_nodes(op="placeholder"), self.buffers.inputs
            known = {node.name: i.name for node, i in zip(*given, strict=True)}
            known |= {seed_name(node): i.name for node, i in seeds.items()}
            layers = self.layers[0].named(lambda n: known.get(n) or self.fresh(n), made)
        bound = assumed(self.gm, {s.name for s in graph.symbols}, self.asserted)
        inner = self.subgraphs
        controls = {name: control for control, name in inner.controls.items()}
        found = (self.kernels, bound, self.operators, self.attentions, inner.lowered, controls)
        return Lowered(graph, tensors, fallbacks, *found, layers)

    def node(self, node: fx.Node) -> None:
        """Lowers one node, of any kind. Raises `CannotLower`."""
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
            outs = node.outs if isinstance(node, ir.Extern) else ()
            sizes = {str(n) for out in outs if out is not None for n in out[1].size}
            if new - sizes:
                raise SizeOfData(f"size {min(new - sizes)} depends on data that no result says")
            if isinstance(node, ir.Extern) and new:
                self.nodes[i] = replace(node, binds=tuple(sorted(new)))
            self.bound |= new

    def call_function(self, node: fx.Node) -> Any:
        """What a call's result stands for; its nodes are appended. Raises `CannotLower`."""
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

    def read(self, x: Operand, fake: Any, origin: ir.Origin) -> None:
        """Binds the symbol of `fake` to the integer that a tensor holds, unless it is bound."""
        free = fake.node.expr.free_symbols if isinstance(fake, torch.SymInt | torch.SymBool) else ()
        new = {str(s) for s in free if is_unbacked(s)} - self.bound
        if new:
            item = extern_call("aten._local_scalar_dense.default", (x,), {}, (), (), origin, False)
            self.nodes.append(replace(item, binds=tuple(new)))
            self.bound |= new

    def call(self, node: fx.Node, op: OpOverload) -> Any:
        """A call of an operator: a view, kernels by its lowering, or an extern call."""
        if op is aten._assert_scalar.default:
            return self.assertion(node)
        if op is SEED and self.seeds is not None:
            return self.seeds.of(node)
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
            if len(self.nodes) > before:  # what was copied for a lowering that there is not
                del self.nodes[before:], self.fallbacks[-1]
                call = replace(call, arguments=arguments)
            designed = by_design(op) or moves_device(call)
            if not designed:
                self.fallbacks.append(Fallback(str(op), source_line(node), reason))
            extern = replace(call.extern, fallback=not designed)
            self.nodes.extend(self.updating(call, extern) or (extern,))
        return values if several else values[0]

    def updating(self, call: Call, extern: ir.Extern) -> tuple[ir.Node, ...]:
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
        """Which calls may write in the memory of an argument."""
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
            self.nodes.append(ir.CopyBack(source.ref, part.ref))
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
                type = ir.TensorType(ir.DType.i64, (), (), ir.Device("cpu"))
                values.append(Operand(ir.TensorRef(self.fresh(f"{node.name}_{i}"), type), type))
            else:
                values.append(expr(fake) if isinstance(fake, torch.SymInt) else fake)
        target = f"eager.{self.fresh(node.name)}"
        self.operators[target] = part
        reason: str | None = part.reason
        if is_attention(part):
            try:
                self.attentions[target] = attention(part, arguments, values, self.lower_scores)
                reason = None
            except CannotLower as why:
                reason = str(why)
        if reason is not None:
            self.fallbacks.append(Fallback(part.op, source_line(node), reason))
        written = (arguments[i] for i in part.written)
        about = ir.Origin(part.op, source_line(node))
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
        about = ir.Origin(op_name(node), source_line(node))
        self.nodes.append(extern_call(f"subgraph.{target}", given, {}, outs, (), about, True))
        return tuple(values)

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
        """The call as its lowering sees it, with the exact extern call that may stand for it."""
        returned = returned_arguments(op)
        used = used_results(node, len(fakes), several)
        results = tuple(
            Result(v, f, u) if isinstance(v, Operand) and i not in returned else None
            for i, (v, f, u) in enumerate(zip(values, fakes, used, strict=True))
        )
        made = [r.operand if r is not None and r.used else None for r in results]
        extern = extern_call(
            str(op),
            map(self.value, node.args),
            {k: self.value(v) for k, v in node.kwargs.items()},
            made if op._schema.returns else (),
            [arguments[name] for name in written_arguments(op)],
            origin(node),
            several,
        )
        given = {name: fake_value(v) for name, v in bound.items()}
        context = self.fresh, self.for_gpu, self.seeds
        return Call(node, op, arguments, given, results, extern, *context)

    def assertion(self, node: fx.Node) -> None:
        """A condition on sizes becomes one of the graph's. Raises `CannotLower` for others."""
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
