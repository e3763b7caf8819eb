"""A host program as C++ text: one function whose lines are the lines of the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import sympy
from sympy.logic.boolalg import Boolean

from cpp_emit.cubins import Images, images
from cpp_emit.errors import (
    SchemaError,
    UnboundSymbol,
    UndefinedName,
    UnsupportedArgument,
    UnsupportedOp,
)
from cpp_emit.extern import (
    DispatcherCall,
    NotExpressible,
    device_code,
    dispatcher_call,
    dtype_code,
    float_literal,
    is_int,
    is_number,
    shim_call,
    string_literal,
)
from cpp_emit.names import Names
from cpp_emit.schema import Schemas, lookup
from cpp_emit.sites import call_split, fingerprint, kernels, launch_split, sites, split, walk
from symexpr import sstr, to_cpp
from wrapper_ir import print_type
from wrapper_ir.ops import (
    Allocate,
    Assert,
    Comment,
    Constant,
    CopyBack,
    DefineKernel,
    ExternCall,
    Free,
    If,
    KernelParam,
    Launch,
    Op,
    Program,
    Ref,
    Return,
    Reuse,
    SymbolDef,
    View,
)
from wrapper_ir.types import Device, TensorType

Mode = Literal["lazy", "aot"]


def emit(
    program: Program,
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
    BinaryError.
    """
    fallback = mode == "lazy" if python_fallback is None else python_fallback
    return _Emitter(program, mode, schemas, binaries or {}, fallback).text()


_KERNEL_INTS = {
    "i1": "int8_t", "bool": "int8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t",
    "i64": "int64_t", "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
}  # fmt: skip
_KERNEL_FLOATS = {"f32": "float", "f64": "double"}


class _Emitter:
    """Also the `Scope` of the argument printers in `cpp_emit.extern`."""

    def __init__(
        self,
        program: Program,
        mode: Mode,
        schemas: Schemas | None,
        binaries: Mapping[str, Any],
        fallback: bool,
    ) -> None:
        self.program = program
        self.mode = mode
        self.schemas = schemas
        self.fallback = fallback
        self.names = Names()
        self.types: dict[str, TensorType] = {}
        self.roots: dict[str, str] = {}
        self.symbols: set[str] = set()
        self.site_of = {id(op): number for number, op in enumerate(sites(program))}
        self.kernels = kernels(program)
        self.constants = [op for op in walk(program.ops) if isinstance(op, Constant)]
        self.lines: list[str] = []
        self.depth = 1
        launches = [op for op in walk(program.ops) if isinstance(op, Launch)]
        self.on_cuda = {id(op): self._launch_device(op) for op in launches}
        cuda_kernels = {op.kernel for op in launches if self.on_cuda[id(op)].kind == "cuda"}
        self.images: dict[str, Images] = {}
        if mode == "aot":
            self.images = {
                name: images(kernel, binaries.get(name))
                for name, kernel in self.kernels.items()
                if name in cuda_kernels
            }
        self.uses_cuda = bool(cuda_kernels) or any(
            t.device.kind == "cuda" for t in self._all_types()
        )
        devices = {d for d in self.on_cuda.values() if d.kind == "cuda"}
        self.only_device = devices.pop() if len(devices) == 1 else None
        # Roots that a view reinterprets, whose storage may not start where torch's does.
        self.viewed = {op.src for op in walk(program.ops) if isinstance(op, (View, Reuse))} | {
            op.alias for op in walk(program.ops) if isinstance(op, ExternCall) and op.alias
        }

    # ------------------------------------------------------------ Scope

    def tensor(self, name: str) -> str:
        if name not in self.types:
            raise UndefinedName(f"program {self.program.name}: {name} is used before it is defined")
        return self.names[name]

    def type(self, name: str) -> TensorType:
        self.tensor(name)
        return self.types[name]

    def integer(self, value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        value = sympy.sympify(value)
        renamed = {}
        for symbol in value.free_symbols:
            if symbol.name not in self.symbols:
                raise UnboundSymbol(
                    f"program {self.program.name}: {symbol.name} in {sstr(value)} is bound neither "
                    "by a SymbolDef nor by an integer parameter before its use"
                )
            new = self.names[symbol.name]
            if new != symbol.name:
                renamed[symbol] = sympy.Symbol(new, integer=True)
        return to_cpp(value.xreplace(renamed))

    # ------------------------------------------------------------ text

    def text(self) -> str:
        body = self._body()
        p = self.program
        includes = ['#include "cpp_emit/runtime.h"', '#include "cpp_emit/expr.h"']
        if self.uses_cuda:
            includes.insert(1, '#include "cpp_emit/cuda.h"')
        if any("aoti_torch_cpu_" in line for line in body):
            includes.append("#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>")
        if any("aoti_torch_cuda_" in line for line in body):
            includes.append("#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>")
        params = ", ".join(
            f"{q.name}: {'int' if q.type is None else print_type(q.type)}" for q in p.params
        )
        return "\n".join(
            [
                f"// program {p.name}({params})",
                "",
                *includes,
                "",
                "namespace cpp_emit {",
                "",
                f"const int64_t num_constants = {len(self.constants)};",
                f'const char* const fingerprint = "{fingerprint(p)}";',
                *self._kernel_table(),
                "",
                "void run(Instance& self, Arguments& in, Results& out) {",
                *body,
                "}",
                "",
                "}  // namespace cpp_emit",
                *(line for kernel in self.images.values() for line in kernel.definitions),
                "",
            ]
        )

    def _kernel_table(self) -> list[str]:
        if not self.uses_cuda:
            return ["std::shared_ptr<Kernels> new_kernels() { return nullptr; }"]
        out = [""]
        rows = []
        for name, kernel in self.kernels.items():
            found = self.images.get(name)
            if found is None:
                rows.append(f"    {{{string_literal(name)}, nullptr, 0}},")
            else:
                out += found.declarations
                rows.append(f"    {{{string_literal(name)}, {found.variable}, {found.count}}},")
            params = ", ".join(f"{p.name}: {p.kind}" for p in kernel.params)
            rows[-1] += f"  // ({params})"
        out += ["static const KernelInfo kernel_table[] = {", *rows]
        out += ["    {nullptr, nullptr, 0}};" if not rows else "};"]
        out += [
            "std::shared_ptr<Kernels> new_kernels() {",
            f"  return std::make_shared<Kernels>(kernel_table, {len(rows)});",
            "}",
        ]
        return out

    def _line(self, text: str, comment: str = "") -> None:
        indent = "  " * self.depth
        for note in comment.splitlines():
            self.lines.append(f"{indent}// {note}".rstrip())
        self.lines.append(indent + text)

    def _body(self) -> list[str]:
        self._parameters()
        if self.only_device is not None:
            self._line(f"CudaScope stream({self._cuda_index(self.only_device)});")
        for op in self.program.ops:
            self._op(op)
        return self.lines

    # ------------------------------------------------------------ parameters

    def _parameters(self) -> None:
        p = self.program
        tensors = [q for q in p.params if q.type is not None]
        ints = [q for q in p.params if q.type is None]
        self._line(f"if (in.tensors.size() != {len(tensors)} || in.ints.size() != {len(ints)})")
        self._line(
            f'  fail({string_literal(p.name)}, ": expected {len(tensors)} tensors and {len(ints)} '
            'integers, got ", in.tensors.size(), " and ", in.ints.size());'
        )
        for number, q in enumerate(tensors):
            assert q.type is not None
            self._define(q.name, q.type)
            var = self.names[q.name]
            self._line(f"Tensor& {var} = in.tensors[{number}];")
            self._check_kind(q.name, f"{p.name}: parameter {q.name}", q.type)
        for number, q in enumerate(ints):
            self.symbols.add(q.name)
            self._line(f"const int64_t {self.names[q.name]} = in.ints[{number}];")
        for op in p.ops:
            if isinstance(op, SymbolDef):
                self._symbol(op)
        for symbol in p.symbols:
            if symbol.name in self.symbols and (symbol.low, symbol.high) != (None, None):
                limits = "std::numeric_limits<int64_t>::"
                low = f"{limits}min()" if symbol.low is None else symbol.low
                high = f"{limits}max()" if symbol.high is None else symbol.high
                what = string_literal(f"{p.name}: symbol {symbol.name}")
                self._line(f"check_range({self.names[symbol.name]}, {what}, {low}, {high});")
        for q in tensors:
            assert q.type is not None
            self._check_layout(q.name, f"{p.name}: parameter {q.name}", q.type)
            self._origin(q.name)

    def _symbol(self, op: SymbolDef) -> None:
        tensor = self.tensor(op.tensor)
        if op.symbol in self.symbols:
            raise UnboundSymbol(f"program {self.program.name}: symbol {op.symbol} is bound twice")
        self.symbols.add(op.symbol)
        self._line(
            f"const int64_t {self.names[op.symbol]} = {tensor}.sizes()[{op.dim}];", op.comment
        )

    def _define(self, name: str, type: TensorType, root: str | None = None) -> None:
        self.types[name] = type
        self.roots[name] = name if root is None else self.roots[root]

    def _check_kind(self, name: str, what: str, type: TensorType) -> None:
        self._line(
            f"check_kind({self.names[name]}, {string_literal(what)}, {dtype_code(type.dtype)}, "
            f"{len(type.size)}, {device_code(type.device)});"
        )

    def _check_layout(self, name: str, what: str, type: TensorType) -> None:
        self._line(
            f"check_layout({self.names[name]}, {string_literal(what)}, {self._ints(type.size)}, "
            f"{self._ints(type.stride)});"
        )

    def _origin(self, name: str) -> None:
        if name in self.viewed:
            offset = self.integer(self.types[name].offset)
            self._line(f"{self.names[name]}.origin_from_offset({offset});")

    def _ints(self, values: Sequence[sympy.Expr]) -> str:
        return "{" + ", ".join(self.integer(v) for v in values) + "}"

    def _layout(self, type: TensorType) -> str:
        return f"{dtype_code(type.dtype)}, {self._ints(type.size)}, {self._ints(type.stride)}"

    # ------------------------------------------------------------ ops

    def _op(self, op: Op) -> None:
        match op:
            case SymbolDef():
                if self.depth > 1:
                    raise UnsupportedOp(f"symbol {op.symbol} is defined inside an If block")
            case DefineKernel():
                if self.depth > 1:
                    raise UnsupportedOp(f"kernel {op.name} is defined inside an If block")
            case Comment():
                for line in op.text.splitlines():
                    self._line(f"// {line}".rstrip())
            case Assert():
                self._assert(op)
            case Constant():
                self._constant(op)
            case Allocate():
                device = device_code(op.type.device)
                self._define(op.out, op.type)
                layout = self._layout(op.type)
                self._line(f"Tensor {self.names[op.out]} = empty({layout}, {device});", op.comment)
            case Free():
                self._free(op)
            case Reuse():
                self._reuse(op)
            case View():
                source = self.tensor(op.src)
                self._define(op.out, op.type, op.src)
                call = f"view({source}, {self._layout(op.type)}, {self.integer(op.type.offset)})"
                self._line(f"Tensor {self.names[op.out]} = {call};", op.comment)
            case Launch():
                self._launch(op)
            case ExternCall():
                self._extern(op)
            case CopyBack():
                self._line(f"copy({self.tensor(op.src)}, {self.tensor(op.dst)});", op.comment)
            case If():
                self._if(op)
            case Return():
                self._return(op)
            case _:
                raise UnsupportedOp(
                    f"program {self.program.name}: {type(op).__name__} has no C++ form"
                )

    def _assert(self, op: Assert) -> None:
        values = ""
        for name in sorted(self.symbols):
            before = ", " if values else " ("
            values += f", {string_literal(f'{before}{name}=')}, {self.names[name]}"
        values += ', ")"' if values else ""
        condition = self.integer(op.condition)
        self._line(f"if (!({condition})) fail({string_literal(op.message)}{values});", op.comment)

    def _constant(self, op: Constant) -> None:
        number = next(n for n, c in enumerate(self.constants) if c is op)
        self._define(op.out, op.type)
        self._line(f"Tensor& {self.names[op.out]} = self.constants[{number}];", op.comment)
        what = f"{self.program.name}: constant {op.key}"
        self._check_kind(op.out, what, op.type)
        self._check_layout(op.out, what, op.type)
        self._origin(op.out)

    def _family(self, name: str) -> list[str]:
        """The tensors that share a storage with `name` and are visible here."""
        self.tensor(name)
        return [n for n in self.types if self.roots[n] == self.roots[name]]

    def _kill(self, name: str, keep: str | None = None) -> str:
        resets = [f"{self.names[n]}.reset();" for n in self._family(name) if n != keep]
        return " ".join(resets)

    def _free(self, op: Free) -> None:
        self._line(self._kill(op.name), op.comment)
        self._forget(op.name)

    def _forget(self, name: str) -> None:
        for dead in self._family(name):
            del self.types[dead]

    def _reuse(self, op: Reuse) -> None:
        source = self.tensor(op.src)
        call = f"reuse({source}, {self._layout(op.type)}, {self.integer(op.type.offset)})"
        self._line(f"Tensor {self.names[op.out]} = {call};", op.comment)
        others = self._kill(op.src, keep=op.src)
        if others:
            self._line(others)
        self._forget(op.src)
        self._define(op.out, op.type)

    def _if(self, op: If) -> None:
        self._line(f"if ({self.integer(op.condition)}) {{", op.comment)
        outside = dict(self.types)
        alive = self._block(op.then, outside)
        if op.orelse:
            self._line("} else {")
            alive &= self._block(op.orelse, outside)
        self._line("}")
        self.types = {name: type for name, type in outside.items() if name in alive}

    def _block(self, ops: Sequence[Op], outside: Mapping[str, TensorType]) -> set[str]:
        """Writes a block; its own names end with it. Returns the outer names still alive."""
        self.types = dict(outside)
        self.depth += 1
        for op in ops:
            self._op(op)
        self.depth -= 1
        return set(self.types)

    def _return(self, op: Return) -> None:
        if self.depth > 1:
            raise UnsupportedOp("return inside an If block")
        if op.comment:
            self._line(f"// {op.comment}")
        parts = split(op.values)
        for name in parts.tensors:
            self._line(f"out.push({self.tensor(name)});")
        for value in parts.ints:
            self._line(f"out.push(int64_t({self.integer(value)}));")

    # ------------------------------------------------------------ launches

    def _all_types(self) -> list[TensorType]:
        out = [p.type for p in self.program.params if p.type is not None]
        for op in walk(self.program.ops):
            if isinstance(op, (Constant, Allocate, Reuse, View)):
                out.append(op.type)
            elif isinstance(op, ExternCall):
                out += [o[1] for o in op.outs if o is not None]
        return out

    def _launch_device(self, op: Launch) -> Device:
        """Where the first tensor argument lives."""
        declared: dict[str, TensorType] = {
            p.name: p.type for p in self.program.params if p.type is not None
        }
        for o in walk(self.program.ops):
            if isinstance(o, (Constant, Allocate, Reuse, View)):
                declared[o.out] = o.type
            elif isinstance(o, ExternCall):
                declared.update(x for x in o.outs if x is not None)
        args: tuple[Any, ...] = op.args
        for value in args:
            if isinstance(value, Ref) and value.name in declared:
                return declared[value.name].device
        raise UnsupportedArgument(
            f"launch {op.kernel}: no tensor argument, so nothing says on which device it runs"
        )

    def _cuda_index(self, device: Device) -> int:
        return -1 if device.index is None else device.index

    def _launch(self, op: Launch) -> None:
        kernel = self.kernels.get(op.kernel)
        if kernel is None:
            raise UndefinedName(f"launch of {op.kernel}, which no DefineKernel defines")
        if len(kernel.params) != len(op.args):
            raise UnsupportedArgument(
                f"launch {op.kernel}: {len(kernel.params)} parameters, {len(op.args)} arguments"
            )
        where = string_literal(f"launch {op.kernel}")
        device = self.on_cuda[id(op)]
        if device.kind == "cpu":
            parts = launch_split(op)
            grid = "".join(
                f"({self.integer(g)}) != 0 && " for g in op.grid if not isinstance(g, sympy.Integer)
            ).removesuffix(" && ")
            if 0 in op.grid:
                self._line(f"// launch {op.kernel}: empty grid", op.comment)
                return
            guard = f"if ({grid}) " if grid else ""
            self._line(
                f"{guard}call_python(self, {self.site_of[id(op)]}, {where}, 0, "
                f"{self._tensor_list(parts.tensors)}, {self._int_list(parts.ints)});",
                op.comment,
            )
            return
        if len(kernel.params) > 64:
            raise UnsupportedArgument(f"launch {op.kernel}: more than 64 parameters")
        args = [
            self._kernel_argument(op, p, a) for p, a in zip(kernel.params, op.args, strict=True)
        ]
        at = "stream" if device == self.only_device else f"CudaScope({self._cuda_index(device)})"
        number = list(self.kernels).index(op.kernel)
        grid = ", ".join(self.integer(g) for g in op.grid)
        self._line(f"launch(self, {at}, {number}, {{{grid}}}, {where},", op.comment)
        self._line(f"       {', '.join(args)});")

    def _kernel_argument(self, op: Launch, param: KernelParam, value: Any) -> str:
        where = f"launch {op.kernel}: argument {param.name}: {param.kind}"
        if param.kind.startswith("*"):
            if not isinstance(value, Ref):
                raise UnsupportedArgument(f"{where} takes a tensor, got {value!r}")
            return f"pointer({self.tensor(value.name)})"
        if param.kind in _KERNEL_INTS:
            if not is_int(value) and not isinstance(value, (bool, Boolean)):
                raise UnsupportedArgument(f"{where} takes an integer, got {value!r}")
            kind = _KERNEL_INTS[param.kind]
            text = self.integer(value)
            if kind == "int64_t":
                return f"int64_t({text})"
            return f"narrow<{kind}>({text}, {string_literal(f'{op.kernel}.{param.name}')})"
        if param.kind in _KERNEL_FLOATS:
            if not is_number(value):
                raise UnsupportedArgument(f"{where} takes a number, got {value!r}")
            kind = _KERNEL_FLOATS[param.kind]
            known = isinstance(value, (int, float, sympy.Number))
            return f"{kind}({float_literal(float(value)) if known else self.integer(value)})"
        raise UnsupportedArgument(f"{where}: kernels take pointers, integers, f32 and f64")

    def _tensor_list(self, names: Sequence[str]) -> str:
        return "{" + ", ".join(f"&{self.tensor(n)}" for n in names) + "}"

    def _int_list(self, values: Sequence[sympy.Basic]) -> str:
        return "{" + ", ".join(f"int64_t({self.integer(v)})" for v in values) + "}"

    # ------------------------------------------------------------ extern calls

    def _extern(self, op: ExternCall) -> None:
        reasons = []
        schema = lookup(self.schemas, op.target)
        if schema is None:
            reasons.append("no schema is known of it")
        else:
            try:
                return self._dispatch(op, dispatcher_call(op, schema, self))
            except NotExpressible as reason:
                reasons.append(f"torch's dispatcher ABI cannot take {reason}")
        try:
            return self._shim(op)
        except NotExpressible as reason:
            reasons.append(str(reason))
        if not self.fallback:
            raise UnsupportedArgument(
                f"extern {op.target} needs Python: {'; '.join(reasons)}. Give its schema, write "
                "the call with tensors only, or allow python_fallback"
            )
        return self._callback(op, reasons)

    def _dispatch(self, op: ExternCall, call: DispatcherCall) -> None:
        slots = max(len(call.arguments), len(call.returns), 1)
        is_list = len(call.returns) == 1 and call.returns[0].is_list
        if not is_list and op.outs and len(op.outs) != len(call.returns):
            raise SchemaError(
                f"extern {op.target}: the program takes {len(op.outs)} results, the operator "
                f"returns {len(call.returns)}"
            )
        stack = ", ".join(call.arguments)
        where = string_literal(_where(op))
        operator = f"{string_literal(call.op)}, {string_literal(call.overload)}, {where}"
        result = self.names[f"{_first_name(op)}_results"] if call.returns else ""
        assign = f"auto {result} = " if result else ""
        self._line(f"{assign}call<{slots}>({operator}, {{{{{stack}}}}});", op.comment)
        if is_list:
            items = self.names[f"{_first_name(op)}_list"]
            self._line(f"auto {items} = take_tensors({result}[0]);")
            self._counted(op, items)
            return
        for number, type in enumerate(call.returns):
            out = op.outs[number] if op.outs else None
            if out is not None:
                if type.base != "Tensor":
                    raise SchemaError(f"extern {op.target}: result {number} is {type}, no tensor")
                self._result(op, out, f"take_tensor({result}[{number}])")
            elif type.is_list:
                self._line(f"take_tensors({result}[{number}]);")
            elif type.base == "Tensor":
                self._line(f"take_tensor({result}[{number}]);  // not used")

    def _counted(self, op: ExternCall, items: str) -> None:
        """Results out of a C++ vector of tensors, one for each of the call's."""
        self._line(
            f"if ({items}.size() != {len(op.outs)}) fail({string_literal(_where(op))}, "
            f'": expected {len(op.outs)} results, got ", {items}.size());'
        )
        for number, out in enumerate(op.outs):
            if out is not None:
                self._result(op, out, f"std::move({items}[{number}])")

    def _result(self, op: ExternCall, out: tuple[str, TensorType], value: str) -> None:
        name, type = out
        self._define(name, type, op.alias)
        self._line(f"Tensor {self.names[name]} = {value};")
        what = f"{op.target}: result {name}"
        self._check_kind(name, what, type)
        self._check_layout(name, what, type)
        if op.alias is not None:
            self._line(f"{self.names[name]}.set_origin({self.tensor(op.alias)}.origin());")
        else:
            self._origin(name)

    def _shim(self, op: ExternCall) -> None:
        function, arguments, target = shim_call(op, self)
        if op.tuple_result or len(op.outs) > 1:
            raise NotExpressible(f"the C function {function} has one result")
        out = op.outs[0] if op.outs else None
        if target is None:
            if out is None:
                raise NotExpressible(f"the C function {function} needs the type of its result")
            self._define(out[0], out[1])
            device = out[1].device
            var = self.names[out[0]]
            self._line(
                f"Tensor {var} = empty({self._layout(out[1])}, {device_code(device)});", op.comment
            )
        else:
            device = self.type(target).device
            var = self.tensor(target)
            if op.comment:
                self._line(f"// {op.comment}")
        symbol = f"aoti_torch_{device.kind}_{function}"
        callee = symbol
        if device.kind == "cuda":
            callee = f'torch_cuda<decltype(&{symbol})>("{symbol}")'
        call = f"{callee}({', '.join([f'{var}.get()', *arguments])})"
        self._line(f"shim({call}, {string_literal(_where(op))});")
        if target is not None and out is not None:
            self._define(out[0], out[1], target)
            self._line(f"Tensor {self.names[out[0]]}({var}.share());")
            self._line(f"{self.names[out[0]]}.set_origin({var}.origin());")

    def _callback(self, op: ExternCall, reasons: Sequence[str]) -> None:
        parts = call_split(op)
        # The callback gives back only the tensors that the program keeps.
        kept = [out for out in op.outs if out is not None]
        items = self.names[f"{_first_name(op)}_list"] if kept else ""
        note = f"{op.target} through Python: {'; '.join(reasons)}"
        self._line(
            f"{f'auto {items} = ' if kept else ''}call_python(self, {self.site_of[id(op)]}, "
            f"{string_literal(_where(op))}, {len(kept)}, {self._tensor_list(parts.tensors)}, "
            f"{self._int_list(parts.ints)});",
            f"{op.comment}\n{note}".strip(),
        )
        for number, out in enumerate(kept):
            self._result(op, out, f"std::move({items}[{number}])")


def _where(op: ExternCall) -> str:
    outs = ", ".join("_" if o is None else o[0] for o in op.outs)
    return f"{outs} = extern {op.target}" if outs else f"extern {op.target}"


def _first_name(op: ExternCall) -> str:
    names = [o[0] for o in op.outs if o is not None]
    return names[0] if names else op.target.split(".")[-2 if "." in op.target else 0]


__all__ = ["Mode", "emit"]
