"""Text as lines, and the small things that a line is made of: what `loop_ir.ir.parser` reads."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NoReturn

import sympy

from loop_ir.errors import ParseError
from tensor_ir import Device, DType, Scanner, Symbol, TensorType, TorchEnum


@dataclass(frozen=True)
class Line:
    """One line of `source` without its indent: `text`, which starts at position `start`. Places in
    it (`at`) count from 0. Whatever cannot be read raises `ParseError`."""

    source: str
    start: int
    indent: int
    text: str

    def scanner(self, at: int, text: str | None = None) -> Scanner:
        """Reads `text`, which stands at `at`; the rest of the line unless given."""
        end = len(self.text) if text is None else at + len(text)
        return Scanner(self.source, self.start + at, self.start + end)

    def fail(self, expected: str, at: int = 0) -> NoReturn:
        """Raises `ParseError` about what stands at `at`."""
        self.scanner(at).fail(expected)

    def match(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        """The match of `pattern` with the whole line."""
        found = pattern.fullmatch(self.text)
        if found is None:
            self.fail(expected)
        return found

    def type(self, at: int, text: str) -> TensorType:
        """The tensor type that stands at `at`."""
        scanner = self.scanner(at, text)
        type = scanner.type()
        scanner.finish("end of the type")
        return type

    def symbol(self, at: int) -> Symbol:
        """The symbol, and what is known of it, that the line has from `at` on."""
        scanner = self.scanner(at)
        symbol = scanner.symbol()
        scanner.finish("end of the symbol")
        return symbol

    def dtype(self, at: int, text: str) -> DType:
        """The element type that stands at `at`."""
        return self.scanner(at).parse_dtype(text, self.start + at)

    def expr(self, at: int, text: str) -> sympy.Expr:
        """The integer expression that stands at `at`."""
        return self.scanner(at).parse_expression(text, self.start + at)

    def plain(
        self, at: int, text: str
    ) -> int | float | complex | Device | DType | TorchEnum | None:
        """The number, device, element type or value of torch that stands at `at`, if it is one."""
        return self.scanner(at).plain(text, self.start + at)

    def literal(self, at: int, text: str) -> int | float | bool:
        """The number, `true` or `false` that stands at `at`."""
        if text in ("true", "false"):
            return text == "true"
        number = self.plain(at, text)
        if not isinstance(number, int | float):
            self.fail("a number, true or false", at)
        return number

    def split(self, start: int, text: str) -> list[tuple[int, str]]:
        """Pieces between top-level commas, each with its position in the line."""
        pieces: list[tuple[int, str]] = []
        depth, begin, pos = 0, 0, 0
        while pos < len(text):
            char = text[pos]
            if char == '"':
                try:
                    _, pos = json.JSONDecoder().raw_decode(text, pos)
                except json.JSONDecodeError:
                    self.fail("a string in double quotes", start + pos)
                continue
            if char in "([":
                depth += 1
            elif char in ")]":
                depth -= 1
            elif char == "," and depth == 0:
                pieces.append((begin, text[begin:pos]))
                begin = pos + 1
            pos += 1
        if text[begin:].strip():
            pieces.append((begin, text[begin:]))
        return [(start + at + len(p) - len(p.lstrip()), p.strip()) for at, p in pieces]


class Lines:
    """The lines of a text in turn, without those that are blank or a remark."""

    def __init__(self, text: str) -> None:
        self.lines: list[Line] = []
        start = 0
        for raw in text.split("\n"):
            body, indent = raw.strip(" \t\r"), len(raw) - len(raw.lstrip(" \t\r"))
            if body and (not body.startswith("#") or body.startswith("# from ")):
                self.lines.append(Line(text, start + indent, indent, body))
            start += len(raw) + 1
        self.last = text.count("\n") + 1
        self.pos = 0

    def peek(self) -> Line | None:
        """The next line, if there is one."""
        return self.lines[self.pos] if self.pos < len(self.lines) else None

    def take(self, expected: str) -> Line:
        """Steps behind the next line; `expected` says in an error what it should be."""
        line = self.peek()
        if line is None:
            raise ParseError(self.last, 1, expected, "end of text")
        self.pos += 1
        return line

    def block(self, indent: int) -> Line | None:
        """The next line if it is deeper than `indent`; takes it."""
        line = self.peek()
        if line is None or line.indent <= indent:
            return None
        self.pos += 1
        return line

    def end(self) -> None:
        """Fails where a line is left."""
        line = self.peek()
        if line is not None:
            line.fail("end of text")
