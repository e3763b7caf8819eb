"""Text as lines, and what lines of loop IR are made of: what `loop_ir.ir.parser` reads."""

import re
from dataclasses import dataclass

import sympy

import symexpr
from loop_ir.errors import ParseError
from loop_ir.ir.nodes import Axis, GraphArg, TensorRef
from tensor_ir import MAX_DEPTH, NAME, Ref, Scanner

_LAZY = re.compile(
    r"(?P<type>.*?)(?P<conj> conj)?(?P<neg> neg)?(?: again (?P<again>[1-9][0-9]{0,8}))?"
)
_TENSOR = re.compile(r"[A-Za-z_]\w*:", re.ASCII)
_KEYWORD = re.compile(r"[A-Za-z_]\w* = ", re.ASCII)
_WORDS = {"none": None, "true": True, "false": False}


class Line(Scanner):
    """Reads one line of a text, or a part of it. Whatever cannot be read raises `ParseError`."""

    def __init__(self, text: str, pos: int, end: int, indent: int = 0) -> None:
        super().__init__(text, pos, end)
        self.indent = indent

    @property
    def rest(self) -> str:
        """What is left."""
        return self.text[self.pos : self.end]

    def done(self) -> None:
        """Fails where something is left."""
        self.finish("end of line")

    def expr(self, stops: str) -> sympy.Expr:
        """An expression of sizes and axes up to one of `stops`."""
        start, text = self.chunk(stops)
        return self.parse_expression(text, start)

    def place(self) -> sympy.Expr:
        """`[index]`."""
        self.expect("[")
        index = self.expr("]")
        self.expect("]")
        return index

    def literal(self) -> int | float | bool:
        """A number, `true` or `false`."""
        start, text = self.chunk(" :")
        if text in ("true", "false"):
            return text == "true"
        number = self.plain(text, start)
        if not isinstance(number, int | float):
            self.fail("a number, true or false", start)
        return number

    def values(self) -> tuple[str, ...]:
        """`(v0, v1)`."""
        return tuple(self.match(NAME, "the name of a value") for _ in self.items())

    def axes(self) -> tuple[Axis, ...]:
        """`i0 < 2, i1 < 8:`, to the end of the line."""
        out: list[Axis] = []
        while not out or self.take(","):
            start, name = self.here(), self.name()
            if not self.take("<"):
                self.fail("`name < extent`", start)
            out.append(Axis(symexpr.symbol(name), self.expr(",:")))
        self.expect(":")
        self.done()
        return tuple(out)

    def tensor(self) -> TensorRef:
        """`name: type[ conj][ neg][ again 1]`, all that is left."""
        name = self.name()
        self.expect(":")
        found = _LAZY.fullmatch(self.rest)
        assert found is not None
        part = Line(self.text, self.pos, self.pos + len(found["type"]))
        type = part.type()
        part.finish("end of the type")
        self.pos = self.end
        lazy = bool(found["conj"]), bool(found["neg"])
        return TensorRef(name, type, *lazy, int(found["again"] or 0))

    def argument(self, stops: str = ",)", depth: int = 0) -> GraphArg:
        """An argument of a call, or a result, up to one of `stops`."""
        start, text = self.chunk(stops)
        if text in _WORDS:
            return _WORDS[text]
        inner = Line(self.text, start, start + len(text))
        if text.startswith('"'):
            value = inner.string()
            inner.finish("',' or ')'")
            return value
        if text.startswith("["):
            if not text.endswith("]"):
                self.fail("a tuple `[a, b]`", start)
            if depth == MAX_DEPTH:
                self.fail(f"at most {MAX_DEPTH} brackets inside of one another", start)
            return tuple(inner.argument(",]", depth + 1) for _ in inner.items("[", "]"))
        if _TENSOR.match(text):
            return inner.tensor()
        if inner.take("ref "):
            return Ref(inner.rest)
        plain = self.plain(text, start)
        return self.parse_expression(text, start) if plain is None else plain

    def arguments(self) -> tuple[tuple[GraphArg, ...], tuple[tuple[str, GraphArg], ...]]:
        """`(a, b, name = c)`: those by place, and by name."""
        args: list[GraphArg] = []
        kwargs: list[tuple[str, GraphArg]] = []
        for _ in self.items():
            self.skip()
            if _KEYWORD.match(self.text, self.pos, self.end):
                name = self.name()
                self.expect("=")
                kwargs.append((name, self.argument()))
            else:
                args.append(self.argument())
        return tuple(args), tuple(kwargs)


@dataclass
class Lines:
    """The lines of a text in turn, without those that are blank or a remark."""

    text: str

    def __post_init__(self) -> None:
        self.left: list[Line] = []
        start = 0
        for raw in self.text.split("\n"):
            body, indent = raw.strip(" \t\r"), len(raw) - len(raw.lstrip(" \t\r"))
            if body and (not body.startswith("#") or body.startswith("# from ")):
                at = start + indent
                self.left.append(Line(self.text, at, at + len(body), indent))
            start += len(raw) + 1
        self.left.reverse()

    def take(self, expected: str) -> Line:
        """Steps behind the next line; `expected` says in an error what it should be."""
        if not self.left:
            raise ParseError(self.text.count("\n") + 1, 1, expected, "end of text")
        return self.left.pop()

    def take_if(self, *words: str) -> Line | None:
        """The next line, behind the one of these words that it begins with; None where it begins
        with none."""
        found = bool(self.left) and any(map(self.left[-1].take, words))
        return self.left.pop() if found else None

    def block(self, indent: int) -> Line | None:
        """The next line if it is deeper than `indent`; takes it."""
        deeper = bool(self.left) and self.left[-1].indent > indent
        return self.left.pop() if deeper else None

    def end(self) -> None:
        """Fails where a line is left."""
        if self.left:
            self.left[-1].fail("end of text")
