"""Programs as text. `wrapper_ir.parser` is the inverse."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import sympy

from symexpr import one_line, sstr
from wrapper_ir.ops import (
    Allocate,
    Arg,
    Assert,
    Comment,
    Constant,
    CopyBack,
    DefineKernel,
    Describe,
    ExternCall,
    Free,
    If,
    KernelParam,
    Launch,
    Op,
    Param,
    Program,
    Ref,
    Return,
    Reuse,
    Symbol,
    SymbolDef,
    TorchEnum,
    View,
)
from wrapper_ir.types import Device, DType, TensorType, contiguous_strides

LINE_LENGTH = 100


def print_program(program: Program, after: str = "") -> str:
    """The program as text. `after` names the pass that made it, for the reader."""
    lines = [f"# after {after}"] if after else []
    lines += _head(program)
    lines += [f"  where {print_symbol(s)}" for s in program.symbols]
    lines += [f"  given {sstr(condition)}" for condition in program.given]
    lines += _block(program.ops, "  ")
    return "\n".join(lines) + "\n"


def print_op(op: Op) -> str:
    """One op; several lines for `kernel` and `if`."""
    return "\n".join(_op(op, ""))


def print_type(type: TensorType) -> str:
    """`bf16[s0, 768] cuda:0 stride (768, 1) offset 5`, stride and offset where not the default."""
    text = f"{type.dtype.value}[{', '.join(map(sstr, type.size))}] {type.device}"
    if type.stride != contiguous_strides(type.size):
        text += f" stride {_tuple(map(sstr, type.stride))}"
    if type.offset != 0:
        text += f" offset {sstr(type.offset)}"
    return text


def print_symbol(symbol: Symbol) -> str:
    """`s0 in [1, 64] hint 2`; an open bound is `*`, and what is unknown is left out."""
    text = symbol.name
    if symbol.low is not None or symbol.high is not None:
        low, high = ("*" if b is None else str(b) for b in (symbol.low, symbol.high))
        text += f" in [{low}, {high}]"
    if symbol.hint is not None:
        text += f" hint {symbol.hint}"
    return text


def print_arg(arg: Arg) -> str:
    """An argument of a launch or a call. `Ref`s and symbols print as their names."""
    if isinstance(arg, Ref):
        return arg.name
    if isinstance(arg, TorchEnum):
        return f"{arg.kind} {arg.name}"
    if isinstance(arg, Device):
        return f"device {arg}"
    if isinstance(arg, DType):
        return f"dtype {arg.value}"
    if isinstance(arg, str):
        return json.dumps(arg)
    if isinstance(arg, complex):
        return f"complex({arg.real!r}, {arg.imag!r})"
    if isinstance(arg, tuple):
        return _tuple(map(print_arg, arg))
    if arg is sympy.true or arg is sympy.false:
        return str(bool(arg))
    if isinstance(arg, sympy.Basic):
        return str(sstr(arg))
    return repr(arg)


def _tuple(items: Iterable[str]) -> str:
    texts = list(items)
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _head(program: Program) -> list[str]:
    params = [print_param(p) for p in program.params]
    line = f"program {program.name}({', '.join(params)}):"
    if len(line) <= LINE_LENGTH:
        return [line]
    return [f"program {program.name}(", *(f"    {p}," for p in params), "):"]


def print_param(param: Param) -> str:
    return f"{param.name}: {'int' if param.type is None else print_type(param.type)}"


def _block(ops: Sequence[Op], indent: str) -> list[str]:
    return [line for op in ops for line in _op(op, indent)]


def _remark(comment: str) -> str:
    return f"  # {one_line(comment)}" if comment else ""


def _op(op: Op, indent: str) -> list[str]:
    if isinstance(op, Comment):
        return [f"{indent}# {one_line(op.text)}" if op.text else f"{indent}#"]
    if isinstance(op, DefineKernel):
        return _kernel(op, indent)
    if isinstance(op, If):
        inner = indent + "  "
        lines = [f"{indent}if {sstr(op.condition)}:{_remark(op.comment)}"]
        lines += _block(op.then, inner) or [f"{inner}pass"]
        if op.orelse:
            lines += [f"{indent}else:", *_block(op.orelse, inner)]
        return lines
    return [f"{indent}{_line(op)}{_remark(op.comment)}"]


def _line(
    op: SymbolDef | Assert | Constant | Allocate | Free | Reuse | View | Describe | Launch
    | ExternCall | CopyBack | Return,
) -> str:  # fmt: skip
    match op:
        case SymbolDef():
            less = f" less {op.plus}" if op.plus else ""
            over = f" over {op.factor}" if op.factor != 1 else ""
            return f"symbol {op.symbol} = {op.tensor}.{op.of}({op.dim}){less}{over}"
        case Assert():
            return f"assert {sstr(op.condition)} {json.dumps(op.message)}"
        case Constant():
            return f"{op.out} = constant {print_type(op.type)} {json.dumps(op.key)}"
        case Allocate():
            return f"{op.out} = alloc {print_type(op.type)}"
        case Free():
            return f"free {op.name}"
        case Reuse():
            return f"{op.out} = reuse {op.src} {print_type(op.type)}"
        case View():
            return f"{op.out} = view {op.src} {print_type(op.type)}"
        case Describe():
            return f"{op.out} = describe {op.src} block {_tuple(map(str, op.block))}"
        case Launch():
            grid = _tuple(map(sstr, op.grid))
            return f"launch {op.kernel} grid {grid} {_call(op.args)}"
        case ExternCall():
            return _extern(op)
        case CopyBack():
            return f"copy {op.src} -> {op.dst}"
        case Return():
            return f"return {_tuple(map(print_arg, op.values))}"


def _call(args: Sequence[Arg], kwargs: Sequence[tuple[str, Arg]] = ()) -> str:
    texts = [print_arg(a) for a in args] + [f"{k}={print_arg(v)}" for k, v in kwargs]
    return f"({', '.join(texts)})"


def _extern(op: ExternCall) -> str:
    text = f"extern {op.target}{_call(op.args, op.kwargs)}"
    if op.mutates:
        text += f" mutates {_tuple(op.mutates)}"
    if op.alias is not None:
        text += f" alias {op.alias}"
    if not op.outs and not op.tuple_result:
        return text
    names = ["_" if out is None else out[0] for out in op.outs]
    types = ["_" if out is None else print_type(out[1]) for out in op.outs]
    if op.tuple_result:
        return f"{_tuple(names)} = {text} -> {_tuple(types)}"
    return f"{', '.join(names)} = {text} -> {', '.join(types)}"


def _kernel(op: DefineKernel, indent: str) -> list[str]:
    params = ", ".join(map(_kernel_param, op.params))
    line = f"{indent}kernel {op.name}({params})"
    if op.constants:
        line += f" constants ({', '.join(f'{n}={print_arg(v)}' for n, v in op.constants)})"
    line += f" warps {op.num_warps} stages {op.num_stages}"
    line += f" ctas {op.num_ctas}" if op.num_ctas != 1 else ""
    line += f" registers {op.max_registers}" if op.max_registers is not None else ""
    line += " overlap" * op.overlap
    line += f":{_remark(op.comment)}"
    body = op.source.removesuffix("\n").split("\n")
    end = "end" if op.source.endswith("\n") else "end without newline"
    inner = indent + "  "
    return [line, *(inner + text if text else "" for text in body), indent + end]


def _kernel_param(param: KernelParam) -> str:
    flags = " mutated" * param.mutated + " aligned" * param.aligned
    return f"{param.name}: {param.kind}{flags}"
