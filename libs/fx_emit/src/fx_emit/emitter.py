"""The graph module of a program: one node an op."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fx_emit import hop, host
from fx_emit.builder import Shared
from fx_emit.convolutions import cudnn_convolution, is_cudnns
from fx_emit.errors import UndeclaredAlias, UnknownLaunch
from fx_emit.facts import chain, exposed
from fx_emit.head import Head
from fx_emit.torch_compat import (
    FUNCTIONS,
    FakeTensorMode,
    LazyGraphModule,
    allocator,
    new_mode,
    symbolic,
)
from fx_emit.torch_types import TORCH_DTYPE, may_alias, operator_of, torch_device
from wrapper_ir import Device, Ref, TensorType, analysis, print_type
from wrapper_ir import ops as ir
from wrapper_ir.collectives import as_plain
from wrapper_ir.errors import MissingConstant
from wrapper_ir.memory import hint_env
from wrapper_ir.passes import FRESH

LAUNCHES = ("hop", "direct")


def emit(
    program: ir.Program,
    launch: str = "hop",
    *,
    load_kernel: Callable[[ir.DefineKernel], Any],
    describe: Callable[[torch.Tensor, tuple[int, ...]], Any] | None = host.describe,
    constants: Mapping[str, torch.Tensor] | None = None,
    operators: Mapping[str, Callable[..., Any]] | None = None,
    checks: bool = True,
    check_inputs: bool | host.SameTensors = True,
    fake_mode: FakeTensorMode | None = None,
    values: bool = True,
) -> GraphModule:
    """A graph module that runs `program`, a valid one.

    launch: "hop" calls kernels through `torch.ops.higher_order.triton_kernel_wrapper_mutation`,
    and `load_kernel` gives the `@triton.jit` function; "direct" calls the launcher
    `launcher(grid, *args)` that `load_kernel` gives. It is asked once a kernel.
    describe: what the "direct" form calls for a tensor descriptor, with the tensor and the block:
    what it gives is what launchers get. With None they get the tensor, and know the block by their
    parameter. (The "hop" form describes a tensor at each launch.)
    constants: tensors of the program by key. operators: extern calls that are not in `torch.ops`.
    checks: inputs, symbol ranges and results of operators are compared with their declarations
    on every call (errors: `wrapper_ir.errors`); without them a wrong input is undefined.
    check_inputs: off where the caller has compared dtypes, sizes and strides of the inputs with
    the program's already; ranges of symbols and results of operators are checked all the same. A
    function (`triton_rt.same_tensors`) is asked in the "direct" form whether inputs are like those
    that were right before; without it each is looked at on every call.

    values: off where the module is run and not looked at: no fake tensor is made, for which torch
    imports Dynamo.

    Parameters are placeholders, in order. `meta["val"]` of a node is a fake tensor (None without
    `values`) or a number, of symbolic sizes with the program's hints, in a new mode, or in
    `fake_mode`: of the hints themselves where that has no `shape_env`;
    `meta["comment"]` the comment of its op. Raises MissingConstant,
    UnknownOperator, UnknownTorchEnum, UnknownLaunch, UndeclaredAlias, GluonDescriptor."""
    if launch not in LAUNCHES:
        raise UnknownLaunch(launch)
    mode = (fake_mode or new_mode()) if values else None
    shared = Shared(
        launch,
        load_kernel,
        describe,
        constants or {},
        operators or {},
        checks,
        checks and check_inputs is not False,
        symbolic(hint_env(program), mode),
        mode,
        exposed(program),
        None if isinstance(check_inputs, bool) else check_inputs,
    )
    gm = _module(program, shared)
    gm.meta["kernels"] = dict(shared.kernels)
    gm.meta["device"] = None if launch == "direct" else analysis.first_device(program)
    return gm


def _module(program: ir.Program, shared: Shared) -> GraphModule:
    emitter = _Emitter(shared, program.name)
    emitter.head(program)
    emitter.device = analysis.first_device(program)
    if emitter.device is not None and any(isinstance(op, ir.DeviceGuard) for op in program.ops):
        emitter.callers = emitter.call(torch.cuda.current_device, name="callers_device")
        emitter.call(host.switch_device, (emitter.device.index,))
    emitter.block(program.ops)
    return emitter.module()


class _Emitter(Head):
    """The nodes of each op, in order. device: the GPU that ops run on; callers: that of the call,
    where a program has several. streams: of the device; current: the one that ops run on."""

    device: Device | None = None
    callers: Node | None = None
    streams: Node | None = None
    current = 0

    def block(self, ops: Sequence[ir.Op]) -> None:
        for op in ops:
            self.op(op)

    def op(self, op: ir.Op) -> None:
        match op:
            case ir.Comment():
                self.headings += op.text.split("\n")
            case ir.SymbolDef():
                if op.of == "item":  # others are bound in the head, before the inputs are checked
                    self.bind(op)
            case ir.DefineKernel():
                self.shared.kernels[op.name] = op
            case ir.DefineSubgraph():
                self.subgraph(op.program)
            case ir.DefineControl():
                bodies = tuple(self.shared.subgraphs[name] for name in op.subgraphs)
                self.shared.subgraphs[op.name] = host.Subgraph(op, bodies)
            case ir.Assert():
                symbols = {
                    s: self.symbols[s] for s in sorted(analysis.free_symbols([op.condition]))
                }
                condition = self.number(op.condition)
                self.call(host.assert_that, (condition, op.message), symbols, comment=op.comment)
            case ir.Constant():
                self.constant(op)
            case ir.Allocate():
                self.allocate(op)
            case ir.Workspace():
                self.workspace(op)
            case ir.CommAllocate():
                self.op(as_plain(op))
            case ir.DeviceGuard() if self.device is not None:
                self.device, self.streams = op.device, None
                self.call(host.switch_device, (op.device.index,), comment=op.comment)
            case ir.StreamSwitch() | ir.StreamWait():
                self.stream(op)
            case ir.Free() | ir.CommFree():
                node = self.address(op.name)
                self.call(host.free, (node,), name=f"free_{op.name}", comment=op.comment)
            case ir.Reuse():
                self.starts[op.out] = 0
                self.roots[op.out] = op.out
                before = self.roots[op.src]
                self.owners[op.out] = (*self.owners.get(before, ()), before)
                self.restride(op.out, op.type, self.owners[op.out], op.comment)
            case ir.View():
                root = self.roots[op.out] = self.roots[op.src]
                self.restride(op.out, op.type, (*self.owners.get(root, ()), root), op.comment)
            case ir.Describe():
                self.describe(op)
            case ir.Launch():
                self.run_kernel(op)
            case ir.ExternCall():
                self.extern(op)
            case ir.CopyBack():
                dst, src = self.tensor(op.dst), self.tensor(op.src)
                value = self.fake(self.types[op.dst])
                self.call(torch.ops.aten.copy_.default, (dst, src), value=value, comment=op.comment)
            case ir.If():
                self.branch(op)
            case ir.Return():
                if self.shared.launch != "direct":
                    self.detach(op)
                if self.callers is not None:
                    self.call(host.switch_device, (self.callers,))
                values = self.value(op.values)
                self.note(self.graph.output(values), _values(values), op.comment)

    def detach(self, op: ir.Return) -> None:
        """Views of what is no argument are returned as tensors of their own."""
        for name in analysis.uses(op):
            root = self.roots.get(name, name)
            if root != name and not self.outside(root):
                source, value = self.tensor(name), self.fake(self.types[name])
                self.nodes[name] = self.call(torch.ops.aten.detach.default, (source,), value=value)

    def subgraph(self, program: ir.Program) -> None:
        env = symbolic(hint_env(program), self.shared.mode)
        inside = replace(self.shared, env=env, exposed=exposed(program), subgraphs={})
        body = host.Subgraph(None, (_module(program, inside),))
        self.shared.subgraphs[program.name] = body

    def constant(self, op: ir.Constant) -> None:
        if op.key not in self.shared.constants:
            raise MissingConstant(op.out, op.key)
        tensor = self.shared.constants[op.key]
        self.root.register_buffer(op.out, tensor, persistent=False)
        node = self.graph.create_node("get_attr", op.out, name=op.out)
        self.define(op.out, op.type, self.note(node, self.fake(op.type), op.comment), None)
        declared = f"{op.out}: {print_type(op.type)}"
        if not analysis.free_symbols(analysis.type_expressions(op.type)):
            size, stride, _ = analysis.evaluate_type(op.type, {})
            host.check_input(tensor, declared, TORCH_DTYPE[op.type.dtype], size, stride)
        elif self.shared.checks:
            self.call(host.check_input, (node, declared, *self.layout(op.type)))

    def stream(self, op: ir.StreamSwitch | ir.StreamWait) -> None:
        if self.device is None:
            return
        if self.streams is None:
            self.streams = self.call(host.side_streams, (self.device.index,), name="streams")
        if isinstance(op, ir.StreamSwitch):
            self.current = op.stream
            self.call(host.switch_stream, (self.streams, op.stream), comment=op.comment)
        else:
            args = self.streams, self.current, op.stream
            self.call(host.wait_stream, args, comment=op.comment)

    def allocate(self, op: ir.Allocate) -> None:
        self.define(op.out, op.type, self.memory(op.type, op.out, op.comment), None)
        self.starts[op.out] = 0

    def workspace(self, op: ir.Workspace) -> None:
        """Kept by launchers; a backend that takes the graph gets what anyone understands."""
        (dtype, size, _), device = self.layout(op.type), torch_device(op.type.device)
        value = self.fake(op.type)
        if self.shared.launch == "direct" and op.type.device.kind == "cuda":
            kept = host.Workspace(dtype, device)
            count = (self.number(op.type.numel),)
            node = self.call(kept, count, name=op.out, value=value, comment=op.comment)
        else:
            named = {"dtype": dtype, "device": device}
            node = self.call(torch.zeros, (size,), named, name=op.out, value=value)
            self.note(node, value, op.comment)
        self.define(op.out, op.type, node, None)
        self.starts[op.out] = 0

    def memory(self, type: TensorType, name: str | None = None, comment: str = "") -> Node:
        dtype, size, stride = self.layout(type)
        device = torch_device(type.device)
        fast = allocator(device) if self.shared.launch == "direct" else None
        return self.call(
            fast or torch.empty_strided,
            (size, stride, dtype) if fast else (size, stride),
            {} if fast else {"dtype": dtype, "device": device},
            name=name,
            value=self.fake(type),
            comment=comment,
        )

    def describe(self, op: ir.Describe) -> None:
        self.described[op.out] = op
        if self.shared.launch == "direct":
            node = self.tensor(op.src)
            if self.shared.describe is not None:
                args = (node, op.block)
                node = self.call(self.shared.describe, args, name=op.out, comment=op.comment)
            self.define(op.out, self.types[op.src], node, self.roots[op.src])

    def bare(self, name: str) -> str:
        """In the hop form a launch takes the tensor, and says beside it how to describe it."""
        if self.shared.launch == "hop" and name in self.described:
            return self.described[name].src
        return name

    def run_kernel(self, op: ir.Launch) -> None:
        kernel = self.shared.kernels[op.kernel]
        if op.kernel not in self.shared.loaded:
            self.shared.loaded[op.kernel] = self.load(kernel)
        loaded = self.shared.loaded[op.kernel]
        grid = self.numbers(op.grid)
        args = tuple(
            self.address(self.bare(a.name)) if isinstance(a, Ref) else self.value(a)
            for a in op.args
        )
        if self.shared.launch == "direct":
            self.call(loaded, (grid, *args), name=f"launch_{op.kernel}", comment=op.comment)
            return
        kernel_idx, constant_args_idx = loaded
        self.call(
            hop.LAUNCH,
            (),
            {
                "kernel_idx": kernel_idx,
                "constant_args_idx": constant_args_idx,
                "grid": [grid],
                "tma_descriptor_metadata": {
                    p.name: hop.descriptor(self.described[a.name].block)
                    for p, a in zip(kernel.params, op.args, strict=True)
                    if isinstance(a, Ref) and a.name in self.described
                },
                "kwargs": {p.name: a for p, a in zip(kernel.params, args, strict=True)},
            },
            name=f"launch_{op.kernel}",
            comment=op.comment,
        )

    def load(self, kernel: ir.DefineKernel) -> Any:
        loaded = self.shared.load_kernel(kernel)
        if self.shared.launch == "direct":
            return host.KernelCall(loaded, kernel.name)
        return hop.register(kernel, loaded)

    def extern(self, op: ir.ExternCall) -> None:
        args = tuple(self.value(a) for a in op.args)
        kwargs = {k: self.value(v) for k, v in op.kwargs}
        fakes = [None if out is None else self.fake(out[1]) for out in op.outs]
        if (subgraph := analysis.subgraph_of(op)) is not None:
            child = f"subgraph_{subgraph}"
            self.root.add_module(child, self.shared.subgraphs[subgraph])
            node = self.note(self.graph.call_module(child, args), tuple(fakes), op.comment)
            self.results(op, self.items(node, op, fakes), fakes)
            return
        target = called = operator_of(op.target, self.shared.operators)
        if self.shared.launch == "direct" and op.target not in self.shared.operators:
            called = FUNCTIONS.get(op.target, getattr(target, "direct", target))
            if (out := op.outs[0] if op.outs else None) and is_cudnns(op, self.types):
                x, weight, _, stride, padding, dilation, *_ = args
                called, args = cudnn_convolution, (x, weight, padding, stride, dilation)
                kwargs = {"out": self.memory(out[1])}
        if not op.tuple_result:
            name = op.outs[0][0] if op.outs and op.outs[0] else None
            value = fakes[0] if fakes else None
            node = self.call(called, args, kwargs, name=name, value=value, comment=op.comment)
            results = [node] * len(op.outs)
        else:
            node = self.call(called, args, kwargs, value=tuple(fakes), comment=op.comment)
            results = self.items(node, op, fakes)
        for i, out in enumerate(op.outs):
            if out is not None and op.alias is None and may_alias(target, i):
                raise UndeclaredAlias(op.target, out[0])
        self.results(op, results, fakes)

    def items(self, node: Node, op: ir.ExternCall, fakes: Sequence[Any]) -> list[Node]:
        """The results of a call that gives a tuple."""
        return [
            node if out is None else self.call(operator.getitem, (node, i), name=out[0], value=fake)
            for i, (out, fake) in enumerate(zip(op.outs, fakes, strict=True))
        ]

    def results(self, op: ir.ExternCall, results: Sequence[Node], fakes: Sequence[Any]) -> None:
        """Names the results of a call, as they are declared, and what their sizes bind."""
        for symbol, (i, dim) in op.places().items():
            size, args = torch.ops.aten.sym_size.int, (results[i], dim)
            node = self.graph.create_node("call_function", size, args, {}, symbol)
            self.symbols[symbol] = self.note(node, self.shared.env[symbol])
        for i, (out, result) in enumerate(zip(op.outs, results, strict=True)):
            if out is None:
                continue
            # What a program of ours gives is as it is declared.
            own = isinstance(self.shared.operators.get(op.target), host.KernelCall)
            fresh = (op.target in FRESH or own) and out[1].offset == 0
            if self.shared.checks and not fresh:
                declared = f"{out[0]}: {print_type(out[1])}"
                given = (result, op.target, declared, *self.layout(out[1]))
                if op.alias is None:
                    name = f"{out[0]}_as_declared"
                    result = self.call(host.conform_result, given, name=name, value=fakes[i])
                else:
                    self.call(host.check_result, given)
            self.define(*out, result, None if op.alias is None else self.roots[op.alias])
            if fresh:
                self.starts[out[0]] = 0

    def branch(self, op: ir.If) -> None:
        conditions, arms = chain(op)
        inner = [*analysis.walk(op.then), *analysis.walk(op.orelse)]
        symbols = [
            s
            for s in self.symbols
            if s in analysis.free_symbols([e for i in inner for e in analysis.expressions(i)])
        ]
        used = [n for n in dict.fromkeys(map(self.bare, analysis.uses(op))) if n in self.roots]
        tensors = list(dict.fromkeys([*(self.roots[n] for n in used), *used]))
        blocks = []
        for number, ops in enumerate(arms):
            label = "then" if number < len(conditions) else "orelse"
            block = _Emitter(self.shared, f"{self.name}_{label}")
            block.described |= self.described
            for s in symbols:
                node = block.graph.placeholder(s)
                block.symbols[s] = block.note(node, self.shared.env[s])
            for n in tensors:
                node = block.note(block.graph.placeholder(n), self.tensor(n).meta["val"])
                block.define(n, self.types[n], node, self.roots[n])
                if self.starts.get(n, 1) == 0:
                    block.starts[n] = 0
            block.block(ops)
            block.note(block.graph.output(()), ())
            # Few arms are taken at the sizes that a process meets.
            blocks.append(self.submodule(label, block.module(LazyGraphModule)))
        operands = (*(self.symbols[s] for s in symbols), *(self.nodes[n] for n in tensors))
        tests = tuple(self.number(c) for c in conditions)
        self.call(host.branch, (tests, tuple(blocks), operands), comment=op.comment)


def _values(values: Any) -> Any:
    return torch.fx.node.map_arg(values, lambda node: node.meta["val"])
