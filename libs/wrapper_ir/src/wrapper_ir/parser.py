"""Text to programs: the inverse of `wrapper_ir.printer`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, get_args

import sympy

from symexpr import from_one_line
from tensor_ir import MAX_DEPTH, TARGET, Arg, Scanner, Symbol, TensorType
from wrapper_ir import ops as ir

_DEFINITION = re.compile(r"(\([\w, ]*\)|\w+(, \w+)*) = ", re.ASCII)
_NAMED = re.compile(r"\w+=(?!=)")
_KIND = re.compile(r"\w+<\w+\[\d{1,9}(, ?\d{1,9})*\]>|\*?\w+", re.ASCII)
_LINES = [
    (op, *op.line.rpartition(" = ")[::2]) for op in get_args(ir.LineOp) if hasattr(op, "line")
]
_STATEMENTS = {line.split(" ")[0]: (op, line) for op, out, line in _LINES if not out}
_DEFINITIONS = {line.split(" ")[0]: (op, line) for op, out, line in _LINES if out}
_READ: dict[str, Callable[[Scanner], Any]] = {
    **dict.fromkeys(("{name}", "{src}", "{dst}"), Scanner.name),
    **dict.fromkeys(("{key}", "{group}", "{message}"), Scanner.string),
    "{type}": Scanner.type,
    "{device}": Scanner.device,
    "{stream}": Scanner.integer,
    "{condition}": lambda line: line.condition('"'),
    "{block}": lambda line: tuple(line.integer() for _ in line.items()),
}
_HEAD_COMMENT = re.compile(r"\s*(#.*)?", re.ASCII)


def parse_program(text: str) -> ir.Program:
    """Reads what `print_program` prints. Raises `ParseError` with line and column."""
    return _Parser(text).program()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.symbols: set[str] = set()

    def program(self) -> ir.Program:
        while self.pos < len(self.text) and _HEAD_COMMENT.fullmatch(self._peek_line()):
            self._next_line()
        scanner = self._scanner(self.pos, len(self.text))
        scanner.expect("program")
        program, _ = self._program(scanner, 2)
        if self.pos < len(self.text):
            self._next_line().fail("an op indented by 2 spaces")
        return program

    def _program(self, scanner: Scanner, indent: int) -> tuple[ir.Program, bool]:
        """From its name on, and whether it is captured. indent: of its ops."""
        name = scanner.name()
        params = tuple(self._param(scanner) for _ in scanner.items())
        captured = indent > 2 and scanner.take("captured")
        scanner.expect(":")
        self.pos = scanner.pos
        rest = self._next_line()
        if not rest.at_end() and not rest.peek("#"):
            rest.fail("end of line")
        declared: list[Symbol] = []
        while self._says("where", indent):
            line = self._next_line()
            line.expect("where")
            declared.append(line.symbol())
            line.finish("end of line")
        self.symbols |= {s.name for s in declared}
        given: list[sympy.logic.boolalg.Boolean] = []
        while self._says("given", indent):
            line = self._next_line()
            line.expect("given")
            given.append(line.condition(""))
            line.finish("end of line")
        ops = self._block(indent)
        return ir.Program(name, params, ops, tuple(declared), tuple(given)), captured

    def _param(self, scanner: Scanner) -> ir.Param:
        name = scanner.name()
        scanner.expect(":")
        if scanner.take("int"):
            self.symbols.add(name)
            return ir.Param(name, None)
        return ir.Param(name, scanner.type())

    def _says(self, keyword: str, indent: int) -> bool:
        """A line of the head: the keyword, and what is not the `=` of an op."""
        return re.match(rf" {{{indent}}}{keyword} +[^ =]", self._peek_line()) is not None

    # Lines

    def _scanner(self, pos: int, end: int) -> Scanner:
        return Scanner(self.text, pos, end, self.symbols)

    def _line_end(self) -> int:
        end = self.text.find("\n", self.pos)
        return len(self.text) if end < 0 else end

    def _peek_line(self) -> str:
        return self.text[self.pos : self._line_end()]

    def _next_line(self) -> Scanner:
        end = self._line_end()
        scanner = self._scanner(self.pos, end)
        self.pos = min(end + 1, len(self.text))
        return scanner

    def _block(self, indent: int) -> tuple[ir.Op, ...]:
        """Lines indented by exactly `indent`; blank lines do not count."""
        ops: list[ir.Op] = []
        while self.pos < len(self.text):
            line = self._peek_line()
            depth = len(line) - len(line.lstrip(" "))
            if depth == len(line):
                self._next_line()
                continue
            if depth < indent:
                break
            scanner = self._next_line()
            scanner.skip()
            if depth > indent:
                scanner.fail(f"an op indented by {indent} spaces")
            if scanner.peek("pass") and len(line.strip()) == 4:
                continue
            ops.append(self._op(scanner, indent))
        return tuple(ops)

    # Ops

    def _op(self, line: Scanner, indent: int) -> ir.Op:
        if line.take("#"):
            return ir.Comment(self._comment_text(line))
        if _DEFINITION.match(line.text, line.pos, line.end):
            return self._definition(line)
        start = line.here()
        word = line.name()
        match word:
            case "kernel":
                return self._kernel(line, indent)
            case "if":
                return self._if(line, indent)
            case "subgraph":
                return self._subgraph(line, indent)
            case "symbol":
                return self._symbol_def(line)
            case "launch":
                return self._launch(line)
            case "extern":
                return self._extern(line, (), False)
            case "return":
                line.skip()
                values, _ = self._call(line, named=False)
                return ir.Return(values, self._remark(line))
        if word not in _STATEMENTS:
            line.fail("an op", start)
        return self._plain(line, *_STATEMENTS[word])

    def _plain(self, line: Scanner, op: Any, text: str, **fields: Any) -> ir.Op:
        """An op after its word, as `text` has it."""
        for part in text.split(" ")[1:]:
            if part in _READ:
                fields[part[1:-1]] = _READ[part](line)
            else:
                line.expect(part)
        made: ir.Op = op(**fields, comment=self._remark(line))
        return made

    def _remark(self, line: Scanner) -> str:
        if line.at_end():
            return ""
        line.expect("#")
        return self._comment_text(line)

    def _comment_text(self, line: Scanner) -> str:
        text = line.text[line.pos : line.end]
        line.pos = line.end
        return from_one_line(text.removeprefix(" "))

    def _definition(self, line: Scanner) -> ir.Op:
        tuple_result = line.peek("(")
        if tuple_result:
            names = line.names()
        else:
            names = (line.name(),)
            while line.take(","):
                names = (*names, line.name())
        line.expect("=")
        start = line.here()
        word = line.name()
        if word == "extern":
            return self._extern(line, names, tuple_result)
        if tuple_result or len(names) != 1:
            line.fail("'extern'", start)
        if word not in _DEFINITIONS:
            line.fail(f"{', '.join(_DEFINITIONS)} or extern", start)
        return self._plain(line, *_DEFINITIONS[word], out=names[0])

    def _symbol_def(self, line: Scanner) -> ir.SymbolDef:
        symbol = line.name()
        line.expect("=")
        tensor = line.name()
        of = next((of for of in ("stride", "item") if line.take(f".{of}")), "size")
        if of == "size":
            line.expect(".size")
        line.expect("(")
        dim = line.integer() if of != "item" else 0
        line.expect(")")
        plus = line.integer() if line.take("less") else 0
        factor = line.integer() if line.take("over") else 1
        self.symbols.add(symbol)
        return ir.SymbolDef(symbol, tensor, dim, self._remark(line), of, factor, plus)

    def _launch(self, line: Scanner) -> ir.Launch:
        kernel = line.name()
        line.expect("grid")
        start = line.here()
        grid = line.expressions()
        if len(grid) != 3:
            line.fail("three grid sizes", start)
        args, _ = self._call(line, named=False)
        return ir.Launch(kernel, (grid[0], grid[1], grid[2]), args, self._remark(line))

    def _call(
        self, line: Scanner, named: bool
    ) -> tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]:
        args: list[Arg] = []
        kwargs: list[tuple[str, Arg]] = []
        for _ in line.items():
            if named and _NAMED.match(line.text, line.pos, line.end):
                name = line.name()
                line.expect("=")
                kwargs.append((name, line.arg()))
            elif kwargs:
                line.fail("a named argument")
            else:
                args.append(line.arg())
        return tuple(args), tuple(kwargs)

    def _extern(self, line: Scanner, names: tuple[str, ...], tuple_result: bool) -> ir.ExternCall:
        target = line.match(TARGET, "an operator such as aten.add.Tensor")
        args, kwargs = self._call(line, named=True)
        mutates = line.names() if line.take("mutates") else ()
        alias = line.name() if line.take("alias") else None
        binds = line.names() if line.take("binds") else ()
        types: list[TensorType | None] = []
        if names or tuple_result:
            line.expect("->")
            types = self._result_types(line, tuple_result)
        if len(types) != len(names):
            line.fail(f"{len(names)} result types")
        outs: list[tuple[str, TensorType] | None] = []
        for name, type in zip(names, types, strict=True):
            if (name == "_") != (type is None):
                line.fail("'_' as name and type of an unused result")
            outs.append(None if type is None else (name, type))
        comment = self._remark(line)
        return ir.ExternCall(
            target, args, kwargs, tuple(outs), tuple_result, mutates, alias, comment, binds
        )

    def _result_types(self, line: Scanner, tuple_result: bool) -> list[TensorType | None]:
        def type_() -> TensorType | None:
            return None if line.take("_") else line.type()

        if tuple_result:
            return [type_() for _ in line.items()]
        types = [type_()]
        while line.take(","):
            types.append(type_())
        return types

    def _if(self, line: Scanner, indent: int) -> ir.If:
        if indent > 2 * MAX_DEPTH:
            line.fail(f"at most {MAX_DEPTH} blocks inside of one another")
        condition = line.condition(":")
        line.expect(":")
        comment = self._remark(line)
        then = self._block(indent + 2)
        orelse: tuple[ir.Op, ...] = ()
        if self._peek_line().rstrip() == " " * indent + "else:":
            self._next_line()
            orelse = self._block(indent + 2)
        return ir.If(condition, then, orelse, comment)

    def _subgraph(self, line: Scanner, indent: int) -> ir.Op:
        start = line.pos
        name = line.name()
        if not line.take("="):
            if indent > 2 * MAX_DEPTH:
                line.fail(f"at most {MAX_DEPTH} blocks inside of one another")
            outside, self.symbols = self.symbols, set()
            made = self._program(self._scanner(start, len(self.text)), indent + 2)
            self.symbols = outside
            return ir.DefineSubgraph(*made)
        form, subgraphs = line.name(), line.names()
        carries = line.integer() if line.take("carries") else 0
        over = line.integer() if line.take("over") else 0
        return ir.DefineControl(name, form, subgraphs, carries, over, self._remark(line))

    def _kernel(self, line: Scanner, indent: int) -> ir.DefineKernel:
        name = line.name()
        params = tuple(self._kernel_param(line) for _ in line.items())
        constants: list[tuple[str, int | float | bool | str | None]] = []
        if line.take("constants"):
            for _ in line.items():
                key = line.name()
                line.expect("=")
                start = line.here()
                value = line.arg()
                if not isinstance(value, int | float | bool | str | None):
                    line.fail("a number, a string, True, False or None", start)
                constants.append((key, value))
        language = "cpp" if line.take("cpp") else "triton"
        warps, stages = ir.DefineKernel.num_warps, ir.DefineKernel.num_stages
        if language == "triton":
            line.expect("warps")
            warps = line.integer()
            line.expect("stages")
            stages = line.integer()
        ctas = line.integer() if line.take("ctas") else 1
        registers = line.integer() if line.take("registers") else None
        overlap = line.take("overlap")
        contract = line.take("contract")
        line.expect(":")
        comment = self._remark(line)
        source = self._source(indent)
        shape = warps, stages, comment, ctas, registers, overlap, language, contract
        return ir.DefineKernel(name, source, params, tuple(constants), *shape)

    def _kernel_param(self, line: Scanner) -> ir.KernelParam:
        name = line.name()
        line.expect(":")
        kind = line.match(_KIND, "a kind such as *f32 or i32")
        mutated = line.take("mutated")
        return ir.KernelParam(name, kind, mutated, line.take("aligned"))

    def _source(self, indent: int) -> str:
        margin, lines = " " * (indent + 2), list[str]()
        end = re.compile(rf"^ {{{indent}}}end( without newline)? *$", re.MULTILINE)
        found = end.search(self.text, self.pos)
        for text in self.text[self.pos : found and found.start()].split("\n"):
            if text.startswith(margin):
                lines.append(text[len(margin) :])
            elif text.strip(" "):
                scanner = self._scanner(self.pos, self.pos + len(text))
                scanner.fail(f"kernel source indented by {indent + 2} spaces, or 'end'")
            else:
                lines.append("")
            self.pos += len(text) + 1
        if found is None:
            self._scanner(len(self.text), len(self.text)).fail("'end' of the kernel source")
        self.pos = min(found.end() + 1, len(self.text))
        return "\n".join(lines[:-1]) + ("" if found[1] else "\n")
