"""Text to kernels and graphs: the inverse of `loop_ir.ir.printer`.

Every construct is a line; a block is the lines of a deeper indent. `# from` lines are origins,
other comments are skipped."""

import re
from collections.abc import Container

import sympy

import symexpr
from loop_ir.ir import nodes as ir
from loop_ir.ir.lines import Line, Lines
from tensor_ir import TARGET, DType, Symbol, TensorType

_ORIGIN = re.compile(r"(\S+)(?: at (.*))?")
# Signs of stores, the longest first.
_MODES = sorted(((sign, mode) for mode, sign in ir.STORES.items()), reverse=True)


def parse_kernel(text: str) -> ir.Kernel:
    """Reads what `print_kernel` prints. Raises `ParseError` with line and column."""
    lines = Lines(text)
    line = lines.take("a kernel")
    line.expect("kernel")
    kernel = _kernel(lines, line)
    lines.end()
    return kernel


def parse_graph(text: str) -> ir.Graph:
    """Reads what `print_graph` prints. Raises `ParseError` with line and column."""
    lines = Lines(text)
    line = lines.take("a graph")
    line.expect("graph")
    name = line.name()
    line.expect("(")
    inputs: list[ir.GraphInput] = []
    while not (line := lines.take("an input or `):`")).take("):"):
        item = line.name()
        line.expect(":")
        inputs.append(ir.GraphInput(item, None if line.take("int") else line.type()))
        line.take(",")
        line.done()
    symbols = _where(lines)
    constants: list[tuple[str, TensorType]] = []
    while item_line := lines.take_if("constant "):
        ref = item_line.tensor()
        constants.append((ref.buffer, ref.type))
    nodes: list[ir.Node] = []
    while not (line := lines.take("a node or `return`")).take("return"):
        nodes.append(_node(lines, line))
    outputs, _ = line.arguments()
    line.done()
    lines.end()
    return ir.Graph(name, tuple(inputs), tuple(nodes), outputs, symbols, tuple(constants))


def _where(lines: Lines) -> tuple[Symbol, ...]:
    out: list[Symbol] = []
    while line := lines.take_if("where "):
        out.append(line.symbol())
        line.finish("end of the symbol")
    return tuple(out)


def _origins(lines: Lines) -> tuple[ir.Origin, ...]:
    out: list[ir.Origin] = []
    while line := lines.take_if("# from "):
        found = _ORIGIN.fullmatch(line.rest)
        if found is None:
            line.fail("`# from op at source`")
        op, source = found[1], found[2] or ""
        out.append(ir.Origin(symexpr.from_one_line(op), symexpr.from_one_line(source)))
    return tuple(out)


def _kernel(lines: Lines, head: Line) -> ir.Kernel:
    """The kernel whose first line goes on with its name."""
    name = head.name()
    head.expect("(")
    head.done()
    buffers: list[ir.Buffer] = []
    while not (line := lines.take("a buffer or `):`")).take("):"):
        written, buffer = line.take("out "), line.name()
        line.expect(":")
        buffers.append(ir.Buffer(buffer, line.type(), written))
        line.take(",")
        line.done()
    symbols, origins = _where(lines), _origins(lines)
    line = lines.take("`parallel` or `single`")
    axes: tuple[ir.Axis, ...] = ()
    if line.take("parallel"):
        axes = line.axes()
    elif line.rest != "single:":
        line.fail("`parallel i0 < 2, ...:` or `single:`")
    phases: list[ir.Phase] = []
    while item := lines.block(line.indent):
        phases.append(_phase(lines, item))
    return ir.Kernel(name, tuple(buffers), axes, tuple(phases), symbols, origins)


def _phase(lines: Lines, head: Line) -> ir.Phase:
    axes: tuple[ir.Axis, ...] = ()
    if head.take("over"):
        axes = head.axes()
    elif head.rest != "once:":
        head.fail("`over r0 < 2, ...:` or `once:`")
    body: list[ir.Stmt] = []
    while line := lines.block(head.indent):
        body.append(_stmt(line))
        line.done()
    return ir.Phase(axes, tuple(body))


def _stmt(line: Line) -> ir.Stmt:
    if line.take("store "):
        buffer, index = line.name(), line.place()
        mode = next((mode for sign, mode in _MODES if line.take(sign)), None)
        if mode is None:
            line.fail(f"one of {' '.join(ir.STORES.values())}")
        value = line.name()
        return ir.Store(buffer, index, value, mode, line.name() if line.take("if") else None)
    outs = [line.name()]
    while line.take(","):
        outs.append(line.name())
    line.expect("=")
    start, op, (out, *_) = line.here(), line.name(), outs
    match op:
        case "indirect":
            value = line.name()
            line.expect("<")
            return ir.Indirect(symexpr.symbol(out), value, line.expr(""))
        case "load":
            buffer, index = line.name(), line.place()
            mask = line.name() if line.take("if") else None
            other = line.literal() if line.take("else") else 0
            return ir.Load(out, buffer, index, _dtype(line), mask, other)
        case "const":
            number = line.literal()
            return ir.Const(out, number, _dtype(line))
        case "index":
            expr = line.expr(":")
            return ir.Index(out, expr, _dtype(line))
        case "reduce":
            fold = _one_of(line, ir.REDUCTIONS, f"a reduction of {', '.join(ir.REDUCTIONS)}")
            args = line.values()
            return ir.Reduce(tuple(outs), fold, args, _dtype(line))
        case "scan":
            fold = _one_of(line, ir.SCANS, f"a scan of {', '.join(sorted(ir.SCANS))}")
            args, reverse = line.values(), line.take("reverse")
            return ir.Scan(out, fold, args, _dtype(line), reverse)
    if op not in ir.OPS:
        line.fail("an operation of the grammar", start)
    args = line.values()
    return ir.Compute(out, op, args, _dtype(line))


def _one_of(line: Line, names: Container[str], expected: str) -> str:
    start, name = line.here(), line.name()
    if name not in names:
        line.fail(expected, start)
    return name


def _dtype(line: Line) -> DType:
    line.expect(":")
    start, text = line.chunk("")
    return line.parse_dtype(text, start)


def _node(lines: Lines, line: Line) -> ir.Node:
    if line.take("kernel"):
        return _kernel(lines, line)
    if line.take("extern"):
        return _extern(lines, line)
    if line.take("matmul"):
        return _matmul(lines, line)
    if line.take("user_kernel"):
        return _user_kernel(lines, line)
    if line.take("copy"):
        at = line.text.find(" -> ", line.pos, line.end)
        if at < 0:
            line.fail("`src: type -> dst: type`")
        src = Line(line.text, line.pos, at).tensor()
        return ir.CopyBack(src, Line(line.text, at + 4, line.end).tensor())
    line.fail("kernel, extern, matmul, user_kernel, copy or return")


def _extern(lines: Lines, line: Line) -> ir.Extern:
    target = line.match(TARGET, "an operator such as aten.add.Tensor")
    args, kwargs = line.arguments()
    tuple_result, fallback = line.take("tuple"), line.take("fallback")
    line.done()
    origins = _origins(lines)
    mutates: list[str] = []
    binds: list[str] = []
    outs: list[tuple[str, TensorType] | None] = []
    while item := lines.block(line.indent):
        if item.take("mutates "):
            mutates.append(item.name())
        elif item.take("binds "):
            binds.append(item.name())
        elif item.rest == "out _":
            outs.append(None)
        else:
            outs.append(_out(item))
    lists = tuple(outs), tuple_result, tuple(mutates), fallback, origins, tuple(binds)
    return ir.Extern(target, args, kwargs, *lists)


def _out(line: Line) -> tuple[str, TensorType]:
    line.expect("out ")
    ref = line.tensor()
    return ref.buffer, ref.type


def _user_kernel(lines: Lines, line: Line) -> ir.UserKernel:
    name = line.name()
    line.expect("of")
    kernel = line.name()
    line.done()
    origins = _origins(lines)
    grids: list[tuple[sympy.Expr, sympy.Expr, sympy.Expr]] = []
    given: dict[str, list[tuple[str, ir.GraphArg]]] = {"arg ": [], "constant ": []}
    mutates: list[str] = []
    outs: list[tuple[str, TensorType]] = []
    blocks: list[tuple[str, tuple[sympy.Expr, ...]]] = []
    while item := lines.block(line.indent):
        if item.take("grid "):
            start, grid = item.here(), item.expressions()
            if len(grid) != 3:
                item.fail("a grid of three sizes", start)
            grids.append((grid[0], grid[1], grid[2]))
        elif kind := next((k for k in given if item.take(k)), None):
            parameter = item.name()
            item.expect("=")
            given[kind].append((parameter, item.argument("")))
        elif item.take("descriptor "):
            blocks.append((item.name(), item.expressions()))
        elif item.take("mutates "):
            mutates.append(item.name())
        else:
            outs.append(_out(item))
    args, constants = map(tuple, given.values())
    return ir.UserKernel(
        name,
        kernel,
        tuple(grids),
        args,
        constants,
        tuple(outs),
        tuple(mutates),
        tuple(blocks),
        origins,
    )


def _matmul(lines: Lines, line: Line) -> ir.Matmul:
    out = line.tensor()
    origins = _origins(lines)
    a, b = (_operand(lines, name) for name in "ab")
    scales = _scales(lines)
    given = lines.take_if("groups ")
    groups = given.tensor() if given else None
    given = lines.take_if("bias ")
    bias = given.tensor() if given else None
    factors: dict[str, int | float] = {}
    for name in ("alpha", "beta"):
        given = lines.take_if(f"{name} ")
        factors[name] = given.literal() if given else 1
    head = lines.take("`extern`")
    head.expect("extern")
    extern = _extern(lines, head)
    parts = [
        _kernel(lines, part) if (part := lines.take_if(f"{keyword} ")) else None
        for keyword in ir.MATMUL_PARTS
    ]
    operands = ir.Operand(a, parts[0]), ir.Operand(b, parts[1])
    last = (factors["alpha"], factors["beta"], scales, groups)
    return ir.Matmul(out.buffer, out.type, operands, bias, extern, parts[2], origins, *last)


def _scales(lines: Lines) -> ir.Scales | None:
    first = lines.take_if("scale_a ")
    if first is None:
        return None
    second = _operand(lines, "scale_b")
    fast = lines.take_if("fast")
    blocks = None
    if (given := lines.take_if("blocks ")) is not None:
        start, sizes = given.here(), given.expressions()
        if len(sizes) != 3 or not all(n.is_Integer for n in sizes):
            given.fail("three numbers", start)
        blocks = int(sizes[0]), int(sizes[1]), int(sizes[2])
    return ir.Scales(first.tensor(), second, fast is not None, blocks)


def _operand(lines: Lines, name: str) -> ir.TensorRef:
    line = lines.take(f"`{name} name: type`")
    line.expect(f"{name} ")
    return line.tensor()
