"""Text to kernels and graphs: the inverse of `loop_ir.ir.printer`.

Every construct is a line, so the parser reads lines with regular expressions; a block is the
lines of a deeper indent. `# from` lines are origins, other comments are skipped.
"""

from __future__ import annotations

import json
import re

import sympy

import symexpr
from loop_ir.ir import nodes as ir
from loop_ir.ir.lines import Line, Lines
from tensor_ir import MAX_DEPTH, Ref, Symbol, TensorType

_MODES = {sign: mode for mode, sign in ir.STORES.items()}
_SIGN = "|".join(map(re.escape, _MODES))
_NAME = r"(?a:[A-Za-z_]\w*)"
_LOAD = re.compile(rf"({_NAME}) = load ({_NAME})\[(.*)\](?: if ({_NAME}))?(?: else (\S+))?")
_STORE = re.compile(rf"store ({_NAME})\[(.*)\] ({_SIGN}) ({_NAME})(?: if ({_NAME}))?")
_INDEX = re.compile(rf"({_NAME}) = index (.*)")
_CONST = re.compile(rf"({_NAME}) = const (\S+)")
_INDIRECT = re.compile(rf"({_NAME}) = indirect ({_NAME}) < (.*)")
_REDUCE = re.compile(rf"({_NAME}(?:, {_NAME})*) = reduce (\w+)\((.*)\)")
_SCAN = re.compile(rf"({_NAME}) = scan (\w+)\((.*)\)( reverse)?")
_COMPUTE = re.compile(rf"({_NAME}) = (\w+)\((.*)\)")
_TYPED = re.compile(r"(.*?)\s* : (\w+)")
_ORIGIN = re.compile(r"# from (\S+)(?: at (.*))?")
_TENSOR = re.compile(rf"({_NAME}): (.*)")
_REF = re.compile(r"ref ([\w.:]+)", re.ASCII)


def parse_kernel(text: str) -> ir.Kernel:
    """Reads what `print_kernel` prints. Raises `ParseError` with line and column."""
    lines = Lines(text)
    kernel = _kernel(lines, lines.take("a kernel"), "kernel")
    lines.end()
    return kernel


def parse_graph(text: str) -> ir.Graph:
    """Reads what `print_graph` prints. Raises `ParseError` with line and column."""
    lines = Lines(text)
    head = lines.take("a graph")
    name = head.match(re.compile(rf"graph ({_NAME})\("), "`graph name(`")[1]
    inputs: list[ir.GraphInput] = []
    while (line := lines.take("an input or `):`")).text != "):":
        found = line.match(re.compile(rf"({_NAME}): (.*?),?"), "`name: type,`")
        kind = found[2]
        inputs.append(
            ir.GraphInput(found[1], None if kind == "int" else line.type(found.start(2), kind))
        )
    symbols = _where(lines)
    constants: list[tuple[str, TensorType]] = []
    while (item := lines.peek()) is not None and item.text.startswith("constant "):
        found = lines.take("").match(re.compile(rf"constant ({_NAME}): (.*)"), "`name: type`")
        constants.append((found[1], item.type(found.start(2), found[2])))
    nodes: list[ir.Node] = []
    while True:
        line = lines.take("a node or `return`")
        if line.text.startswith("return"):
            break
        nodes.append(_node(lines, line))
    found = line.match(re.compile(r"return \((.*)\)"), "`return (...)`")
    outputs = tuple(_arg(line, at, text) for at, text in line.split(found.start(1), found[1]))
    lines.end()
    return ir.Graph(name, tuple(inputs), tuple(nodes), outputs, symbols, tuple(constants))


def _where(lines: Lines) -> tuple[Symbol, ...]:
    out: list[Symbol] = []
    while (line := lines.peek()) is not None and line.text.startswith("where "):
        lines.take("")
        out.append(line.symbol(6))
    return tuple(out)


def _origins(lines: Lines) -> tuple[ir.Origin, ...]:
    out: list[ir.Origin] = []
    while (line := lines.peek()) is not None and line.text.startswith("# from "):
        found = lines.take("").match(_ORIGIN, "`# from op at source`")
        out.append(
            ir.Origin(symexpr.from_one_line(found[1]), symexpr.from_one_line(found[2] or ""))
        )
    return tuple(out)


def _kernel(lines: Lines, head: Line, keyword: str) -> ir.Kernel:
    name = head.match(re.compile(rf"{keyword} ({_NAME})\("), f"`{keyword} name(`")[1]
    buffers: list[ir.Buffer] = []
    while (line := lines.take("a buffer or `):`")).text != "):":
        found = line.match(re.compile(rf"(out )?({_NAME}): (.*?),?"), "`[out] name: type,`")
        buffers.append(ir.Buffer(found[2], line.type(found.start(3), found[3]), bool(found[1])))
    symbols = _where(lines)
    origins = _origins(lines)
    line = lines.take("`parallel` or `single`")
    axes: tuple[ir.Axis, ...] = ()
    if line.text != "single:":
        found = line.match(re.compile(r"parallel (.*):"), "`parallel i0 < 2, ...:` or `single:`")
        axes = _axes(line, found.start(1), found[1])
    phases: list[ir.Phase] = []
    while (item := lines.block(line.indent)) is not None:
        phases.append(_phase(lines, item))
    return ir.Kernel(name, tuple(buffers), axes, tuple(phases), symbols, origins)


def _axes(line: Line, start: int, text: str) -> tuple[ir.Axis, ...]:
    axes: list[ir.Axis] = []
    for at, piece in line.split(start, text):
        found = re.fullmatch(rf"({_NAME}) < (.*)", piece)
        if found is None:
            line.fail("`name < extent`", at)
        extent = line.expr(at + found.start(2), found[2])
        axes.append(ir.Axis(symexpr.symbol(found[1]), extent))
    return tuple(axes)


def _phase(lines: Lines, head: Line) -> ir.Phase:
    axes: tuple[ir.Axis, ...] = ()
    if head.text != "once:":
        found = head.match(re.compile(r"over (.*):"), "`over r0 < 2, ...:` or `once:`")
        axes = _axes(head, found.start(1), found[1])
    body: list[ir.Stmt] = []
    while (line := lines.block(head.indent)) is not None:
        body.append(_stmt(line))
    return ir.Phase(axes, tuple(body))


def parse_stmt(text: str) -> ir.Stmt:
    """Reads what `print_stmt` prints."""
    return _stmt(Lines(text).take("a statement"))


def _stmt(line: Line) -> ir.Stmt:
    if found := _STORE.fullmatch(line.text):
        index = line.expr(found.start(2), found[2])
        return ir.Store(found[1], index, found[4], _MODES[found[3]], found[5])
    if found := _INDIRECT.fullmatch(line.text):
        extent = line.expr(found.start(3), found[3])
        return ir.Indirect(symexpr.symbol(found[1]), found[2], extent)
    typed = line.match(_TYPED, "a statement: `store b[i] = v`, or `v = ... : dtype`")
    text, dtype = typed[1], line.dtype(typed.start(2), typed[2])
    if found := _LOAD.fullmatch(text):
        other = found[5] if found[5] is not None else "0"
        index = line.expr(found.start(3), found[3])
        value = line.literal(found.start(5), other)
        return ir.Load(found[1], found[2], index, dtype, found[4], value)
    if found := _CONST.fullmatch(text):
        return ir.Const(found[1], line.literal(found.start(2), found[2]), dtype)
    if found := _INDEX.fullmatch(text):
        return ir.Index(found[1], line.expr(found.start(2), found[2]), dtype)
    if found := _REDUCE.fullmatch(text):
        if found[2] not in ir.REDUCTIONS:
            line.fail(f"a reduction of {', '.join(ir.REDUCTIONS)}", found.start(2))
        outs = tuple(found[1].split(", "))
        return ir.Reduce(outs, found[2], _names(line, found.start(3), found[3]), dtype)
    if found := _SCAN.fullmatch(text):
        if found[2] not in ir.SCANS:
            line.fail(f"a scan of {', '.join(sorted(ir.SCANS))}", found.start(2))
        args = _names(line, found.start(3), found[3])
        return ir.Scan(found[1], found[2], args, dtype, bool(found[4]))
    if found := _COMPUTE.fullmatch(text):
        if found[2] not in ir.OPS:
            line.fail("an operation of the grammar", found.start(2))
        return ir.Compute(found[1], found[2], _names(line, found.start(3), found[3]), dtype)
    line.fail("a statement: load, index, const, reduce, scan or op(args)")


def _names(line: Line, start: int, text: str) -> tuple[str, ...]:
    names = []
    for at, piece in line.split(start, text):
        if re.fullmatch(_NAME, piece) is None:
            line.fail("the name of a value", at)
        names.append(piece)
    return tuple(names)


def _arg(line: Line, at: int, text: str, depth: int = 0) -> ir.GraphArg:
    if text in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text]
    if text.startswith('"'):
        try:
            value, stop = json.JSONDecoder().raw_decode(text)
        except json.JSONDecodeError:
            line.fail("a string in double quotes", at)
        if stop != len(text):
            line.fail("',' or ')'", at + stop)
        return str(value)
    if text.startswith("["):
        if not text.endswith("]"):
            line.fail("a tuple `[a, b]`", at)
        if depth == MAX_DEPTH:
            line.fail(f"at most {MAX_DEPTH} brackets inside of one another", at)
        return tuple(_arg(line, a, t, depth + 1) for a, t in line.split(at + 1, text[1:-1]))
    if found := _TENSOR.fullmatch(text):
        return _reference(line, found, at)
    if found := _REF.fullmatch(text):
        return Ref(found[1])
    if (plain := line.plain(at, text)) is not None:
        return plain
    return line.expr(at, text)


def _tensor(line: Line, keyword: str) -> ir.TensorRef:
    found = line.match(re.compile(rf"{keyword} ({_NAME}): (.*)"), f"`{keyword} name: type`")
    return _reference(line, found, 0)


def _reference(line: Line, found: re.Match[str], at: int) -> ir.TensorRef:
    """`name: type[ conj][ neg]`, matched as the groups of name and the rest."""
    parts = re.fullmatch(r"(.*?)( conj)?( neg)?", found[2])
    assert parts is not None
    type = line.type(at + found.start(2), parts[1])
    return ir.TensorRef(found[1], type, bool(parts[2]), bool(parts[3]))


def _node(lines: Lines, line: Line) -> ir.Node:
    word = line.text.split(" ", 1)[0]
    if word == "kernel":
        return _kernel(lines, line, "kernel")
    if word == "extern":
        return _extern(lines, line)
    if word == "matmul":
        return _matmul(lines, line)
    if word == "user_kernel":
        return _user_kernel(lines, line)
    if word == "copy":
        found = line.match(re.compile(r"copy (.*?) -> (.*)"), "`copy src: type -> dst: type`")
        src = _arg(line, found.start(1), found[1])
        dst = _arg(line, found.start(2), found[2])
        if not isinstance(src, ir.TensorRef) or not isinstance(dst, ir.TensorRef):
            line.fail("`copy src: type -> dst: type`")
        return ir.CopyBack(src, dst)
    line.fail("kernel, extern, matmul, user_kernel, copy or return")


def _extern(lines: Lines, line: Line) -> ir.Extern:
    pattern = re.compile(r"extern ([\w.:]+)\((.*)\)( tuple)?( fallback)?")
    found = line.match(pattern, "`extern target(args)[ tuple][ fallback]`")
    args: list[ir.GraphArg] = []
    kwargs: list[tuple[str, ir.GraphArg]] = []
    for at, piece in line.split(found.start(2), found[2]):
        keyword = re.match(rf"({_NAME}) = ", piece)
        if keyword is None:
            args.append(_arg(line, at, piece))
        else:
            stop = keyword.end()
            kwargs.append((keyword[1], _arg(line, at + stop, piece[stop:])))
    origins = _origins(lines)
    mutates: list[str] = []
    outs: list[tuple[str, TensorType] | None] = []
    while (item := lines.peek()) is not None and item.indent > line.indent:
        if item.text.startswith("mutates "):
            mutates.append(item.match(re.compile(rf"mutates ({_NAME})"), "`mutates name`")[1])
        elif item.text == "out _":
            outs.append(None)
        else:
            ref = _tensor(item, "out")
            outs.append((ref.buffer, ref.type))
        lines.take("")
    return ir.Extern(
        found[1],
        tuple(args),
        tuple(kwargs),
        tuple(outs),
        bool(found[3]),
        tuple(mutates),
        bool(found[4]),
        origins,
    )


def _user_kernel(lines: Lines, line: Line) -> ir.UserKernel:
    head = line.match(
        re.compile(rf"user_kernel ({_NAME}) of ({_NAME})"), "`user_kernel name of key`"
    )
    origins = _origins(lines)
    grids: list[tuple[sympy.Expr, sympy.Expr, sympy.Expr]] = []
    args: list[tuple[str, ir.GraphArg]] = []
    constants: list[tuple[str, ir.GraphArg]] = []
    mutates: list[str] = []
    outs: list[tuple[str, TensorType]] = []
    blocks: list[tuple[str, tuple[sympy.Expr, ...]]] = []
    while (item := lines.block(line.indent)) is not None:
        word = item.text.split(" ", 1)[0]
        if word == "grid":
            found = item.match(re.compile(r"grid \((.*)\)"), "`grid (x, y, z)`")
            grid = _exprs(item, found.start(1), found[1])
            if len(grid) != 3:
                item.fail("a grid of three sizes", found.start(1))
            grids.append((grid[0], grid[1], grid[2]))
        elif word in ("arg", "constant"):
            found = item.match(re.compile(rf"{word} ({_NAME}) = (.*)"), f"`{word} name = value`")
            pair = (found[1], _arg(item, found.start(2), found[2]))
            (args if word == "arg" else constants).append(pair)
        elif word == "descriptor":
            found = item.match(re.compile(rf"descriptor ({_NAME}) \((.*)\)"), "`descriptor x (n)`")
            blocks.append((found[1], _exprs(item, found.start(2), found[2])))
        elif word == "mutates":
            mutates.append(item.match(re.compile(rf"mutates ({_NAME})"), "`mutates name`")[1])
        else:
            ref = _tensor(item, "out")
            outs.append((ref.buffer, ref.type))
    return ir.UserKernel(
        head[1],
        head[2],
        tuple(grids),
        tuple(args),
        tuple(constants),
        tuple(outs),
        tuple(mutates),
        tuple(blocks),
        origins,
    )


def _exprs(line: Line, start: int, text: str) -> tuple[sympy.Expr, ...]:
    return tuple(line.expr(at, piece) for at, piece in line.split(start, text))


def _matmul(lines: Lines, line: Line) -> ir.Matmul:
    head = _tensor(line, "matmul")
    origins = _origins(lines)
    a = _tensor(lines.take("`a name: type`"), "a")
    b = _tensor(lines.take("`b name: type`"), "b")
    bias = None
    item = lines.take("`bias` or `extern`")
    if item.text.startswith("bias "):
        bias = _tensor(item, "bias")
        item = lines.take("`alpha`, `beta` or `extern`")
    factors: dict[str, int | float] = {"alpha": 1, "beta": 1}
    for name in factors:
        if item.text.startswith(f"{name} "):
            factors[name] = item.literal(len(name) + 1, item.text[len(name) + 1 :])
            item = lines.take("`extern`")
    extern = _extern(lines, item)
    kernels: dict[str, ir.Kernel] = {}
    for keyword in ir.MATMUL_PARTS:
        following = lines.peek()
        if following is None or following.indent <= line.indent:
            break
        if following.text.startswith(f"{keyword} ") or keyword == "epilogue":
            kernels[keyword] = _kernel(lines, lines.take(""), keyword)
    operands = ir.Operand(a, kernels.get("prologue_a")), ir.Operand(b, kernels.get("prologue_b"))
    epilogue = kernels.get("epilogue")
    return ir.Matmul(head.buffer, head.type, operands, bias, extern, epilogue, origins, **factors)
