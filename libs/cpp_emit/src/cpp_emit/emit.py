"""A host program as C++ text: one function whose lines are the lines of the program, and one for
each of its subgraphs."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import sympy

from cpp_emit.calls import write_call
from cpp_emit.control import Callee, write_subgraph_call
from cpp_emit.cubins import Images, images
from cpp_emit.errors import UnboundSymbol, UndefinedName, UnsupportedOp
from cpp_emit.extern import device_code, dtype_code, string_literal
from cpp_emit.launches import cuda_index, is_on_gpu, write_launch
from cpp_emit.names import Names
from cpp_emit.schema import Schemas
from cpp_emit.sites import fingerprint, sites, split
from cpp_emit.writer import Writer
from symexpr import one_line
from wrapper_ir import TensorType, analysis, print_type
from wrapper_ir import ops as ir
from wrapper_ir.collectives import as_plain

Mode = Literal["lazy", "aot"]
_ON_GPU = ir.Workspace | ir.DeviceGuard | ir.StreamSwitch


def emit(
    program: ir.Program,
    mode: Mode = "lazy",
    *,
    schemas: Schemas | None = None,
    binaries: Mapping[str, Any] | None = None,
    python_fallback: bool | None = None,
) -> str:
    """C++ text of a program.

    mode "lazy": kernels for CUDA are asked for through a callback at their first launch.
    mode "aot": they are in the text: `binaries` maps each kernel's name to a binary, or to several
    (one for each promise of alignment); see `cpp_emit.cubins`.
    Kernels for the CPU go through a callback in both modes.

    schemas: operator name (`aten.mm.default`) -> schema text, as `torch_schema` finds it. Operators
    without one, and calls that the C ABI cannot express, go through a Python callback.
    python_fallback: whether that is allowed; by default in mode "lazy" only.

    Raises UnsupportedOp, UnsupportedArgument, SchemaError, UnboundSymbol, UndefinedName,
    BinaryError."""
    fallback = mode == "lazy" if python_fallback is None else python_fallback
    return _Library(program, mode, schemas, binaries or {}, fallback).text()


class _Library:
    """The text of a program: a function for it and one for each of its subgraphs, which share
    kernels, constants, and the numbers of what is called in Python."""

    def __init__(
        self,
        program: ir.Program,
        mode: Mode,
        schemas: Schemas | None,
        binaries: Mapping[str, Any],
        fallback: bool,
    ) -> None:
        self.program = program
        self.schemas = schemas
        self.fallback = fallback
        ops = [op for each in analysis.programs(program) for op in analysis.walk(each.ops)]
        self.site_of = {id(op): number for number, op in enumerate(sites(program))}
        self.kernels = analysis.kernels(program)
        self.constants = [op for op in ops if isinstance(op, ir.Constant)]
        self.uses_cuda = analysis.uses_cuda(program)
        self.on_gpu: set[int] = set()
        for each in analysis.programs(program):
            types = analysis.types_of(each)
            launches = (op for op in analysis.walk(each.ops) if isinstance(op, ir.Launch))
            self.on_gpu |= {id(op) for op in launches if is_on_gpu(op, types)}
        on_gpu = {op.kernel for op in ops if isinstance(op, ir.Launch) and id(op) in self.on_gpu}
        self.images: dict[str, Images] = {}
        if mode == "aot":
            self.images = {
                name: images(kernel, binaries.get(name))
                for name, kernel in self.kernels.items()
                if name in on_gpu
            }
        self.names = Names()
        self.functions: list[str] = []
        self.workspaces = 0

    def text(self) -> str:
        """The whole of it."""
        body = _Function(self, self.program).lines()
        text = "\n".join([*self.functions, *body])
        p = self.program
        includes = ['#include "cpp_emit/runtime.h"', '#include "cpp_emit/expr.h"']
        if self.uses_cuda:
            includes.append('#include "cpp_emit/cuda.h"')
        for kind in ("cpu", "cuda"):
            if f"aoti_torch_{kind}_" in text:
                folder = "torch/csrc/inductor/aoti_torch/generated"
                includes.append(f"#include <{folder}/c_shim_{kind}.h>")
        return "\n".join(
            [
                _head(p, "program"),
                "",
                *includes,
                "",
                "namespace cpp_emit {",
                "",
                f"const int64_t num_constants = {len(self.constants)};",
                f'const char* const fingerprint = "{fingerprint(p)}";',
                *self._kernel_table(),
                *self.functions,
                "",
                "void run(Instance& self, Arguments& in, Results& out) {",
                *body,
                "}",
                *(line for kernel in self.images.values() for line in kernel.definitions),
                "",
                "}  // namespace cpp_emit",
                "",
            ]
        )

    def subgraph(self, program: ir.Program) -> str:
        """Writes the function of a subgraph; what calls call it."""
        name = self.names.fresh(program.name)
        body = _Function(self, program).lines()
        self.functions += [
            "",
            _head(program, "subgraph"),
            "namespace subgraphs {",
            f"static void {name}(Instance& self, Arguments& in, Results& out) {{",
            *body,
            "}",
            "}  // namespace subgraphs",
        ]
        return f"subgraphs::{name}"

    def _kernel_table(self) -> list[str]:
        if not self.uses_cuda:
            return ["std::shared_ptr<Kernels> new_kernels() { return nullptr; }"]
        out = [""]
        rows = []
        for name, kernel in self.kernels.items():
            params = one_line(", ".join(f"{p.name}: {p.kind}" for p in kernel.params))
            array, count = "nullptr", 0
            if name in self.images:
                found = self.images[name]
                array, count = found.variable, found.count
                out += found.declarations
            rows.append(f"    {{{string_literal(name)}, {array}, {count}}},  // ({params})")
        return [
            *out,
            "static const KernelInfo kernel_table[] = {",
            *rows,
            "    {nullptr, nullptr, 0},",
            "};",
            "std::shared_ptr<Kernels> new_kernels() {",
            f"  return std::make_shared<Kernels>(kernel_table, {len(rows)});",
            "}",
        ]


class _Function:
    """The lines of one program, within its library."""

    def __init__(self, library: _Library, program: ir.Program) -> None:
        self.library = library
        self.program = program
        ops = list(analysis.walk(program.ops))
        self.device = analysis.first_device(program)
        self.begins = any(isinstance(op, _ON_GPU) or id(op) in library.on_gpu for op in ops)
        viewed = {op.src for op in ops if isinstance(op, (ir.View, ir.Reuse))}
        viewed |= {op.alias for op in ops if isinstance(op, ir.ExternCall) and op.alias}
        self.w = Writer(program.name, viewed)
        self.subgraphs: dict[str, Callee] = {}

    def lines(self) -> list[str]:
        """What is between the braces of the function."""
        self._parameters()
        if self.device is not None and self.begins:
            self.w.line(f"CudaScope stream({cuda_index(self.device)});")
        for op in self.program.ops:
            self._op(op)
        return self.w.lines

    def _parameters(self) -> None:
        w, p = self.w, self.program
        tensors = [(q.name, q.type) for q in p.params if q.type is not None]
        ints = [q.name for q in p.params if q.type is None]
        w.line(f"check_arguments(in, {string_literal(p.name)}, {len(tensors)}, {len(ints)});")
        for number, (name, type) in enumerate(tensors):
            w.line(f"Tensor& {w.define(name, type)} = in.tensors[{number}];")
            w.check_kind(name, f"{p.name}: parameter {name}")
        for number, name in enumerate(ints):
            w.symbols.add(name)
            w.line(f"const int64_t {w.names[name]} = in.ints[{number}];")
        for op in analysis.sizes_of_params(p):
            self._symbol(op)
        for symbol in p.symbols:
            if symbol.name in w.symbols and (symbol.low, symbol.high) != (None, None):
                low = "INT64_MIN" if symbol.low is None else symbol.low
                high = "INT64_MAX" if symbol.high is None else symbol.high
                what = string_literal(f"{p.name}: symbol {symbol.name}")
                w.line(f"check_range({w.names[symbol.name]}, {what}, {low}, {high});")
        for name, _ in tensors:
            w.check_layout(name, f"{p.name}: parameter {name}")

    def _symbol(self, op: ir.SymbolDef) -> None:
        tensor = self.w.tensor(op.tensor)
        if op.symbol in self.w.symbols:
            raise UnboundSymbol(f"program {self.program.name}: symbol {op.symbol} is bound twice")
        self.w.symbols.add(op.symbol)
        variable = self.w.names[op.symbol]
        text = f"{tensor}.{op.of}s()[{op.dim}]" if op.of != "item" else f"item({tensor})"
        if op.plus:
            text = f"({text} - {op.plus})"
        if op.factor != 1:
            text += f" / {op.factor}"
        self.w.line(f"const int64_t {variable} = {text};", op.comment)

    def _op(self, op: ir.Op) -> None:
        w = self.w
        match op:
            case ir.SymbolDef() | ir.DefineKernel():
                if w.depth > 1:
                    raise UnsupportedOp(f"{type(op).__name__} inside an If block: {op}")
                if isinstance(op, ir.SymbolDef) and op.of == "item":
                    self._symbol(op)
            case ir.Comment():
                w.line("", op.text or " ")
            case ir.Assert():
                self._assert(op)
            case ir.Constant():
                self._constant(op)
            case ir.Allocate():
                args = [*w.layout(op.type), device_code(op.type.device)]
                w.call(f"Tensor {w.define(op.out, op.type)} = empty", args, op.comment)
            case ir.Workspace():
                self._workspace(op)
            case ir.CommAllocate():
                self._op(as_plain(op))
            case ir.DeviceGuard() | ir.StreamSwitch() | ir.StreamWait():
                self._place(op)
            case ir.Free() | ir.CommFree():
                w.line(" ".join(f"{var}.reset();" for var in w.kill(op.name)), op.comment)
            case ir.Reuse():
                self._reuse(op)
            case ir.View():
                args = [w.tensor(op.src), *w.layout(op.type), w.integer(op.type.offset)]
                w.call(f"Tensor {w.define(op.out, op.type, op.src)} = view", args, op.comment)
            case ir.Describe():
                self._describe(op)
            case ir.Launch():
                self._launch(op)
            case ir.DefineSubgraph():
                function = self.library.subgraph(op.program)
                self.subgraphs[op.program.name] = Callee((function,), op.program)
            case ir.DefineControl():
                bodies = [self.subgraphs[name] for name in op.subgraphs]
                functions = tuple(body.functions[0] for body in bodies)
                self.subgraphs[op.name] = Callee(functions, bodies[-1].program, op)
            case ir.ExternCall() if (subgraph := analysis.subgraph_of(op)) is not None:
                write_subgraph_call(w, op, self.subgraphs[subgraph])
            case ir.ExternCall():
                site = self.library.site_of[id(op)]
                write_call(w, op, site, self.library.schemas, self.library.fallback)
            case ir.CopyBack():
                w.line(f"copy({w.tensor(op.src)}, {w.tensor(op.dst)});", op.comment)
            case ir.If():
                self._if(op)
            case ir.Return():
                self._return(op)
            case _:
                raise UnsupportedOp(
                    f"program {self.program.name}: {type(op).__name__} has no C++ form"
                )

    def _place(self, op: ir.DeviceGuard | ir.StreamSwitch | ir.StreamWait) -> None:
        if self.device is None:
            return
        match op:
            case ir.DeviceGuard():
                call = f"on({cuda_index(op.device)})"
            case ir.StreamSwitch():
                call = f"to({op.stream})"
            case ir.StreamWait():
                call = f"wait({op.stream})"
        self.w.line(f"stream.{call};", op.comment)

    def _workspace(self, op: ir.Workspace) -> None:
        variable, numel = self.w.define(op.out, op.type), self.w.integer(op.type.numel)
        args = [dtype_code(op.type.dtype), numel]
        if op.type.device.kind == "cpu":
            self.w.call(f"Tensor {variable} = zeros", args, op.comment)
        else:
            number = str(self.library.workspaces)
            self.library.workspaces += 1
            self.w.call(f"Tensor {variable} = workspace", ["self", "stream", number, *args])

    def _assert(self, op: ir.Assert) -> None:
        values = ""
        for name in sorted(self.w.symbols):
            before = ", " if values else " ("
            values += f", {string_literal(f'{before}{name}=')}, {self.w.names[name]}"
        values += ', ")"' if values else ""
        condition = self.w.integer(op.condition)
        self.w.line(f"if (!({condition})) fail({string_literal(op.message)}{values});", op.comment)

    def _constant(self, op: ir.Constant) -> None:
        number = next(n for n, c in enumerate(self.library.constants) if c is op)
        variable = self.w.define(op.out, op.type)
        self.w.line(f"Tensor& {variable} = self.constants[{number}];", op.comment)
        self.w.check_kind(op.out, f"{self.program.name}: constant {op.key}")
        self.w.check_layout(op.out, f"{self.program.name}: constant {op.key}")

    def _reuse(self, op: ir.Reuse) -> None:
        source = self.w.tensor(op.src)
        args = [source, *self.w.layout(op.type), self.w.integer(op.type.offset)]
        others = [var for var in self.w.kill(op.src) if var != source]
        self.w.call(f"Tensor {self.w.define(op.out, op.type)} = reuse", args, op.comment)
        if others:
            self.w.line(" ".join(f"{var}.reset();" for var in others))

    def _describe(self, op: ir.Describe) -> None:
        """On the CPU, Python describes the tensors of a launch that it is called for."""
        source, type = self.w.tensor(op.src), self.w.type(op.src)
        self.w.describe(op.out, op.src)
        if type.device.kind == "cuda":
            variable = self.w.define(op.out, type, op.src)
            self.w.line(f"Descriptor {variable}({source});", op.comment)

    def _launch(self, op: ir.Launch) -> None:
        kernel = self.library.kernels.get(op.kernel)
        if kernel is None:
            raise UndefinedName(f"launch of {op.kernel}, which no DefineKernel defines")
        on_gpu = id(op) in self.library.on_gpu
        number = list(self.library.kernels).index(op.kernel)
        write_launch(self.w, op, kernel, number, self.library.site_of[id(op)], on_gpu)

    def _if(self, op: ir.If) -> None:
        self.w.line(f"if ({self.w.integer(op.condition)}) {{", op.comment)
        outside = dict(self.w.types)
        alive = self._block(op.then, outside)
        if op.orelse:
            self.w.line("} else {")
            alive &= self._block(op.orelse, outside)
        self.w.line("}")
        self.w.types = {name: type for name, type in outside.items() if name in alive}

    def _block(self, ops: Sequence[ir.Op], outside: Mapping[str, TensorType]) -> set[str]:
        """Writes a block; its own names end with it. Returns the outer names still alive."""
        self.w.types = dict(outside)
        self.w.depth += 1
        for op in ops:
            self._op(op)
        self.w.depth -= 1
        return set(self.w.types)

    def _return(self, op: ir.Return) -> None:
        if self.w.depth > 1:
            raise UnsupportedOp("Return inside an If block")
        self.w.line("", op.comment)
        parts, ints = split(op.values), [v for v in op.values if isinstance(v, (int, sympy.Basic))]
        for name in parts.tensors:
            self.w.line(f"out.push({self.w.tensor(name)});")
        # The caller of a whole program knows the numbers that are the same in each call.
        for value in parts.ints if self.program is self.library.program else ints:
            self.w.line(f"out.push({self.w.int64(value)});")


def _head(program: ir.Program, kind: str) -> str:
    params = ", ".join(
        f"{q.name}: {'int' if q.type is None else print_type(q.type)}" for q in program.params
    )
    return f"// {one_line(f'{kind} {program.name}({params})')}"
