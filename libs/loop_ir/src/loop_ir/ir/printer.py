"""Kernels and graphs as text. `loop_ir.ir.parser` is the inverse."""

from collections.abc import Sequence

import sympy

from loop_ir.errors import Unprintable
from loop_ir.ir import nodes as ir
from symexpr import one_line, sstr
from tensor_ir import DType, Ref, Symbol, TensorType, print_plain, print_symbol, print_type

TYPE_COLUMN = 56
SPACE = r"\x20"  # of a name that is one word of its line


def print_kernel(kernel: ir.Kernel) -> str:
    """The kernel as text; ends with a newline."""
    return "\n".join(_kernel(kernel, "")) + "\n"


def print_graph(graph: ir.Graph) -> str:
    """The graph as text; ends with a newline."""
    lines = [f"graph {graph.name}(", *(f"    {_input(i)}," for i in graph.inputs), "):"]
    lines += _where(graph.symbols, "  ")
    lines += [f"  constant {name}: {print_type(t)}" for name, t in graph.constants]
    for node in graph.nodes:
        lines += _node(node, "  ")
    lines.append(f"  return ({', '.join(map(print_graph_arg, graph.outputs))})")
    return "\n".join(lines) + "\n"


def print_stmt(stmt: ir.Stmt) -> str:
    """One statement on one line."""
    left, dtype = _stmt(stmt)
    return f"{left} : {dtype.value}" if dtype else left


def _input(item: ir.GraphInput) -> str:
    return f"{item.name}: {'int' if item.type is None else print_type(item.type)}"


def _where(symbols: Sequence[Symbol], indent: str) -> list[str]:
    return [f"{indent}where {print_symbol(s)}" for s in symbols]


def _origins(origins: Sequence[ir.Origin], indent: str) -> list[str]:
    lines = []
    for origin in origins:
        if not origin.op:
            raise Unprintable("origin", origin.op)
        at = f" at {one_line(origin.source)}" if origin.source else ""
        lines.append(f"{indent}# from {one_line(origin.op).replace(' ', SPACE)}{at}")
    return lines


def _kernel(kernel: ir.Kernel, indent: str, keyword: str = "kernel") -> list[str]:
    lines = [f"{indent}{keyword} {kernel.name}("]
    for buffer in kernel.buffers:
        out = "out " if buffer.written else ""
        lines.append(f"{indent}    {out}{buffer.name}: {print_type(buffer.type)},")
    lines.append(f"{indent}):")
    inner = indent + "  "
    lines += _where(kernel.symbols, inner) + _origins(kernel.origins, inner)
    if kernel.axes:
        lines.append(f"{inner}parallel {_axes(kernel.axes)}:")
    else:
        lines.append(f"{inner}single:")
    for phase in kernel.phases:
        lines += _phase(phase, inner + "  ")
    return lines


def _axes(axes: Sequence[ir.Axis]) -> str:
    return ", ".join(f"{a.symbol.name} < {sstr(a.extent)}" for a in axes)


def _phase(phase: ir.Phase, indent: str) -> list[str]:
    head = f"over {_axes(phase.axes)}:" if phase.axes else "once:"
    lines = [indent + head]
    for stmt in phase.body:
        left, dtype = _stmt(stmt)
        text = f"{indent}  {left}"
        lines.append(f"{text:<{TYPE_COLUMN}} : {dtype.value}" if dtype else text)
    return lines


def _stmt(stmt: ir.Stmt) -> tuple[str, DType | None]:
    match stmt:
        case ir.Load():
            text = f"{stmt.out} = load {stmt.buffer}[{sstr(stmt.index)}]"
            if stmt.mask is not None:
                text += f" if {stmt.mask} else {_literal(stmt.other)}"
            elif stmt.other != 0 or isinstance(stmt.other, bool):
                text += f" else {_literal(stmt.other)}"
            return text, stmt.dtype
        case ir.Index():
            return f"{stmt.out} = index {sstr(stmt.expr)}", stmt.dtype
        case ir.Const():
            return f"{stmt.out} = const {_literal(stmt.value)}", stmt.dtype
        case ir.Compute():
            return f"{stmt.out} = {stmt.op}({', '.join(stmt.args)})", stmt.dtype
        case ir.Indirect():
            return f"{stmt.symbol.name} = indirect {stmt.value} < {sstr(stmt.extent)}", None
        case ir.Reduce():
            call = f"{stmt.op}({', '.join(stmt.args)})"
            return f"{', '.join(stmt.outs)} = reduce {call}", stmt.dtype
        case ir.Scan():
            text = f"{stmt.out} = scan {stmt.op}({', '.join(stmt.args)})"
            return text + " reverse" * stmt.reverse, stmt.dtype
        case ir.Store():
            if stmt.mode not in ir.STORES:
                raise Unprintable("store mode", stmt.mode)
            sign = ir.STORES[stmt.mode]
            text = f"store {stmt.buffer}[{sstr(stmt.index)}] {sign} {stmt.value}"
            return text + (f" if {stmt.mask}" if stmt.mask is not None else ""), None


def _literal(value: int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def print_graph_arg(arg: ir.GraphArg) -> str:
    """An argument of an extern call, or a result of the graph. Tuples print as `[a, b]`."""
    if isinstance(arg, ir.TensorRef):
        text = f"{arg.buffer}: {print_type(arg.type)}" + " conj" * arg.conj + " neg" * arg.neg
        return text + (f" again {arg.again}" if arg.again else "")
    if isinstance(arg, tuple):
        return f"[{', '.join(map(print_graph_arg, arg))}]"
    if arg is None:
        return "none"
    if isinstance(arg, bool):
        return _literal(arg)
    if arg is sympy.true or arg is sympy.false:
        return _literal(bool(arg))
    if isinstance(arg, Ref):
        return f"ref {arg.name}"
    return print_plain(arg)


def _node(node: ir.Node, indent: str) -> list[str]:
    match node:
        case ir.Kernel():
            return _kernel(node, indent)
        case ir.Extern():
            return _extern(node, indent)
        case ir.Matmul():
            return _matmul(node, indent)
        case ir.UserKernel():
            return _user_kernel(node, indent)
        case ir.CopyBack():
            src, dst = print_graph_arg(node.src), print_graph_arg(node.dst)
            return [f"{indent}copy {src} -> {dst}"]


def _extern(node: ir.Extern, indent: str) -> list[str]:
    texts = [print_graph_arg(a) for a in node.args]
    texts += [f"{k} = {print_graph_arg(v)}" for k, v in node.kwargs]
    flags = " tuple" * node.tuple_result + " fallback" * node.fallback
    line = f"{indent}extern {node.target}({', '.join(texts)}){flags}"
    inner = indent + "  "
    lines = [line, *_origins(node.origins, inner)]
    lines += [f"{inner}mutates {name}" for name in node.mutates]
    lines += [f"{inner}binds {name}" for name in node.binds]
    for out in node.outs:
        lines.append(f"{inner}out _" if out is None else f"{inner}out {out[0]}: {_type(out)}")
    return lines


def _user_kernel(node: ir.UserKernel, indent: str) -> list[str]:
    inner = indent + "  "
    lines = [f"{indent}user_kernel {node.name} of {node.kernel}", *_origins(node.origins, inner)]
    lines += [f"{inner}grid ({', '.join(map(sstr, grid))})" for grid in node.grids]
    blocks = dict(node.descriptors)
    for name, value in node.args:
        lines.append(f"{inner}arg {name} = {print_graph_arg(value)}")
        if name in blocks:
            lines.append(f"{inner}descriptor {name} ({', '.join(map(sstr, blocks[name]))})")
    lines += [f"{inner}constant {k} = {print_graph_arg(v)}" for k, v in node.constants]
    lines += [f"{inner}mutates {name}" for name in node.mutates]
    return [*lines, *(f"{inner}out {out[0]}: {_type(out)}" for out in node.outs)]


def _type(out: tuple[str, TensorType]) -> str:
    return print_type(out[1])


def _matmul(node: ir.Matmul, indent: str) -> list[str]:
    inner = indent + "  "
    lines = [f"{indent}matmul {node.out}: {print_type(node.type)}"]
    lines += _origins(node.origins, inner)
    lines += [f"{inner}a {print_graph_arg(node.a)}", f"{inner}b {print_graph_arg(node.b)}"]
    if node.scales is not None:
        for name, ref in (("a", node.scales.a), ("b", node.scales.b)):
            lines.append(f"{inner}scale_{name} {print_graph_arg(ref)}")
        lines += [f"{inner}fast"] * node.scales.fast
        if node.scales.blocks is not None:
            lines.append(f"{inner}blocks ({', '.join(map(str, node.scales.blocks))})")
    if node.groups is not None:
        lines.append(f"{inner}groups {print_graph_arg(node.groups)}")
    if node.bias is not None:
        lines.append(f"{inner}bias {print_graph_arg(node.bias)}")
    for name, factor in (("alpha", node.alpha), ("beta", node.beta)):
        if factor != 1:
            lines.append(f"{inner}{name} {_literal(factor)}")
    lines += _extern(node.extern, inner)
    parts = zip(ir.MATMUL_PARTS, (*(o.prologue for o in node.operands), node.epilogue), strict=True)
    for keyword, kernel in parts:
        if kernel is not None:
            lines += _kernel(kernel, inner, keyword)
    return lines
