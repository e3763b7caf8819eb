"""Text as lines, and the small things that a line is made of: what `loop_ir.parser` reads."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NoReturn

import sympy

import symexpr
from loop_ir.errors import ParseError
from wrapper_ir.errors import ParseError as WrapperParseError
from wrapper_ir.parser import parse_type
from wrapper_ir.scanner import FLOAT, INTEGER, MAX_DIGITS
from wrapper_ir.types import DType, TensorType

_DTYPES = {d.value: d for d in DType}


@dataclass(frozen=True)
class Line:
    """One line without its indent; positions in `text` count from 0."""

    number: int
    indent: int
    text: str

    def fail(self, expected: str, at: int = 0) -> NoReturn:
        rest = self.text[at : at + 40]
        raise ParseError(
            self.number, self.indent + at + 1, expected, repr(rest) if rest else "end of line"
        )

    def match(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        found = pattern.fullmatch(self.text)
        if found is None:
            self.fail(expected)
        return found

    def type(self, at: int, text: str) -> TensorType:
        try:
            return parse_type(text)
        except WrapperParseError as e:
            raise ParseError(self.number, self.indent + at + e.column, e.expected, e.got) from e

    def dtype(self, at: int, text: str) -> DType:
        if text not in _DTYPES:
            self.fail("an element type such as f32", at)
        return _DTYPES[text]

    def expr(self, at: int, text: str) -> sympy.Expr:
        try:
            return symexpr.parse(text)
        except (ValueError, TypeError, SyntaxError, symexpr.SymexprError):
            self.fail("an integer expression", at)

    def literal(self, at: int, text: str) -> int | float | bool:
        if text in ("true", "false"):
            return text == "true"
        if (number := self.numeral(at, text)) is None:
            self.fail("a number, true or false", at)
        return number

    def numeral(self, at: int, text: str) -> int | float | None:
        """The number that `text` is, if it is one."""
        if INTEGER.fullmatch(text):
            if len(text) > MAX_DIGITS:
                self.fail(f"an integer of at most {MAX_DIGITS} digits", at)
            return int(text)
        return float(text) if FLOAT.fullmatch(text) else None

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
    def __init__(self, text: str) -> None:
        self.lines: list[Line] = []
        for number, raw in enumerate(text.split("\n"), 1):
            body = raw.strip(" \t\r")
            if body and (not body.startswith("#") or body.startswith("# from ")):
                self.lines.append(Line(number, len(raw) - len(raw.lstrip(" \t")), body))
        self.last = text.count("\n") + 1
        self.pos = 0

    def peek(self) -> Line | None:
        return self.lines[self.pos] if self.pos < len(self.lines) else None

    def take(self, expected: str) -> Line:
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
        line = self.peek()
        if line is not None:
            line.fail("end of text")
