"""Programs as text. `wrapper_ir.parser` is the inverse."""

import json
import re
from collections.abc import Sequence
from typing import Any

import sympy

from symexpr import one_line, sstr
from tensor_ir import Arg, Ref, TensorType, print_plain, print_symbol, print_tuple, print_type
from wrapper_ir import ops as ir

LINE_LENGTH = 100


def print_program(program: ir.Program, after: str = "") -> str:
    """The program as text. `after` names the pass that made it, for the reader."""
    lines = [f"# after {after}"] if after else []
    lines += _program(program, "program", "")
    return "\n".join(lines) + "\n"


def _program(program: ir.Program, word: str, indent: str, after: str = "") -> list[str]:
    inner = indent + "  "
    lines = _head(program, f"{indent}{word}", after)
    lines += [f"{inner}where {print_symbol(s)}" for s in program.symbols]
    lines += [f"{inner}given {sstr(condition)}" for condition in program.given]
    return lines + _block(program.ops, inner)


def print_op(op: ir.Op) -> str:
    """One op; several lines for `kernel`, `subgraph` and `if`."""
    return "\n".join(_op(op, ""))


def print_arg(arg: Arg) -> str:
    """An argument of a launch or a call. `Ref`s and symbols print as their names."""
    if isinstance(arg, Ref):
        return arg.name
    if isinstance(arg, tuple):
        return print_tuple(map(print_arg, arg))
    return print_plain(arg)


def _head(program: ir.Program, word: str, after: str) -> list[str]:
    params = [print_param(p) for p in program.params]
    line = f"{word} {program.name}({', '.join(params)}){after}:"
    if len(line) <= LINE_LENGTH:
        return [line]
    indent = word[: len(word) - len(word.lstrip())]
    rows = (f"{indent}    {p}," for p in params)
    return [f"{word} {program.name}(", *rows, f"{indent}){after}:"]


def print_param(param: ir.Param) -> str:
    """`x: f32[s0] cpu`, or `s0: int`."""
    return f"{param.name}: {'int' if param.type is None else print_type(param.type)}"


def _block(ops: Sequence[ir.Op], indent: str) -> list[str]:
    return [line for op in ops for line in _op(op, indent)]


def _remark(comment: str) -> str:
    return f"  # {one_line(comment)}" if comment else ""


def _op(op: ir.Op, indent: str) -> list[str]:
    if isinstance(op, ir.Comment):
        return [f"{indent}# {one_line(op.text)}" if op.text else f"{indent}#"]
    if isinstance(op, ir.DefineKernel):
        return _kernel(op, indent)
    if isinstance(op, ir.DefineSubgraph):
        return _program(op.program, "subgraph", indent, " captured" * op.captured)
    if isinstance(op, ir.If):
        inner = indent + "  "
        lines = [f"{indent}if {sstr(op.condition)}:{_remark(op.comment)}"]
        lines += _block(op.then, inner) or [f"{inner}pass"]
        if op.orelse:
            lines += [f"{indent}else:", *_block(op.orelse, inner)]
        return lines
    return [f"{indent}{_line(op)}{_remark(op.comment)}"]


def _line(op: ir.LineOp) -> str:
    match op:
        case ir.DefineControl():
            carries = f" carries {op.carries}" if op.carries else ""
            over = f" over {op.over}" if op.over else ""
            return f"subgraph {op.name} = {op.form} {print_tuple(op.subgraphs)}{carries}{over}"
        case ir.SymbolDef():
            if op.of == "item":
                return f"symbol {op.symbol} = {op.tensor}.item()"
            less = f" less {op.plus}" if op.plus else ""
            over = f" over {op.factor}" if op.factor != 1 else ""
            return f"symbol {op.symbol} = {op.tensor}.{op.of}({op.dim}){less}{over}"
        case ir.Launch():
            grid = print_tuple(map(sstr, op.grid))
            return f"launch {op.kernel} grid {grid} {_call(op.args)}"
        case ir.ExternCall():
            return _extern(op)
        case ir.Return():
            return f"return {print_tuple(map(print_arg, op.values))}"
    return _FIELD.sub(lambda found: _field(found[1], getattr(op, found[1])), op.line)


_FIELD = re.compile(r"\{(\w+)\}")


def _field(name: str, value: Any) -> str:
    if name in ("key", "group", "message"):
        return json.dumps(value)
    match value:
        case TensorType():
            return print_type(value)
        case tuple():
            return print_tuple(map(str, value))
        case sympy.Basic():
            return sstr(value)
    return str(value)


def _call(args: Sequence[Arg], kwargs: Sequence[tuple[str, Arg]] = ()) -> str:
    texts = [print_arg(a) for a in args] + [f"{k}={print_arg(v)}" for k, v in kwargs]
    return f"({', '.join(texts)})"


def _extern(op: ir.ExternCall) -> str:
    text = f"extern {op.target}{_call(op.args, op.kwargs)}"
    if op.mutates:
        text += f" mutates {print_tuple(op.mutates)}"
    if op.alias is not None:
        text += f" alias {op.alias}"
    if op.binds:
        text += f" binds {print_tuple(op.binds)}"
    if not op.outs and not op.tuple_result:
        return text
    names = ["_" if out is None else out[0] for out in op.outs]
    types = ["_" if out is None else print_type(out[1]) for out in op.outs]
    if op.tuple_result:
        return f"{print_tuple(names)} = {text} -> {print_tuple(types)}"
    return f"{', '.join(names)} = {text} -> {', '.join(types)}"


def _kernel(op: ir.DefineKernel, indent: str) -> list[str]:
    params = ", ".join(map(_kernel_param, op.params))
    line = f"{indent}kernel {op.name}({params})"
    if op.constants:
        line += f" constants ({', '.join(f'{n}={print_arg(v)}' for n, v in op.constants)})"
    if op.language != "triton":
        line += f" {op.language}"
    else:
        line += f" warps {op.num_warps} stages {op.num_stages}"
    line += f" ctas {op.num_ctas}" if op.num_ctas != 1 else ""
    line += f" registers {op.max_registers}" if op.max_registers is not None else ""
    line += " overlap" * op.overlap + " contract" * op.contract
    line += f":{_remark(op.comment)}"
    body = op.source.removesuffix("\n").split("\n")
    end = "end" if op.source.endswith("\n") else "end without newline"
    inner = indent + "  "
    return [line, *(inner + text if text else "" for text in body), indent + end]


def _kernel_param(param: ir.KernelParam) -> str:
    flags = " mutated" * param.mutated + " aligned" * param.aligned
    return f"{param.name}: {param.kind}{flags}"
