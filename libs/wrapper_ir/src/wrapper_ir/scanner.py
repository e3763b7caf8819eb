"""Reads names, numbers, expressions, types and arguments from text, knowing where it is."""

from __future__ import annotations

import json
import re
from keyword import kwlist
from typing import NoReturn

import sympy

import symexpr
from wrapper_ir.errors import ParseError
from wrapper_ir.ops import Arg, KernelParam, Ref, Symbol, TorchEnum
from wrapper_ir.types import Device, DType, TensorType, contiguous_strides

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
TARGET = re.compile(r"[A-Za-z_][\w.:]*", re.ASCII)
INTEGER = re.compile(r"-?\d+", re.ASCII)
FLOAT = re.compile(r"-?(inf|nan|\d+\.\d*(e[+-]?\d+)?|\d+e[+-]?\d+)", re.ASCII)
_DEVICE = re.compile(r"([A-Za-z_]\w*)(?::(\d{1,9}))?", re.ASCII)
_ENUM = re.compile(r"(?!not )([A-Za-z_]\w*) ([\w.:]+)", re.ASCII)
_COMPLEX = re.compile(rf"complex\(({FLOAT.pattern}), ({FLOAT.pattern})\)", re.ASCII)
_KIND = re.compile(r"\w+<\w+\[\d{1,9}(, ?\d{1,9})*\]>|\*?\w+", re.ASCII)
_DTYPES = {d.value: d for d in DType}
_DECODER = json.JSONDecoder()
MAX_DIGITS = 1000  # of an integer
MAX_DEPTH = 50  # brackets and blocks inside of one another


class Scanner:
    """A position in `text` that moves forward up to `end`. `symbols` are the names that mean
    integers; every other name is a tensor."""

    def __init__(self, text: str, pos: int, end: int, symbols: set[str]) -> None:
        self.text = text
        self.pos = pos
        self.end = end
        self.symbols = symbols
        self.depth = 0

    def fail(self, expected: str, pos: int | None = None) -> NoReturn:
        pos = self.pos if pos is None else pos
        line = self.text.count("\n", 0, pos) + 1
        column = pos - (self.text.rfind("\n", 0, pos) + 1) + 1
        rest = self.text[pos : self.end].split("\n")[0]
        raise ParseError(line, column, expected, repr(rest[:40]) if rest else "end of line")

    def skip(self) -> None:
        """Skips spaces, and line ends where the scanner spans several lines."""
        while self.pos < self.end and self.text[self.pos] in " \n":
            self.pos += 1

    def at_end(self) -> bool:
        self.skip()
        return self.pos >= self.end

    def here(self) -> int:
        """Where the next word starts, for errors about it."""
        self.skip()
        return self.pos

    def peek(self, literal: str) -> bool:
        """Whether `literal` comes next; a word must end where it ends."""
        self.skip()
        stop = self.pos + len(literal)
        if stop > self.end or not self.text.startswith(literal, self.pos):
            return False
        following = self.text[stop : stop + 1]
        return not (literal[-1].isalnum() and (following.isalnum() or following == "_"))

    def take(self, literal: str) -> bool:
        if not self.peek(literal):
            return False
        self.pos += len(literal)
        return True

    def expect(self, literal: str) -> None:
        if not self.take(literal):
            self.fail(repr(literal))

    def match(self, pattern: re.Pattern[str], expected: str) -> str:
        self.skip()
        found = pattern.match(self.text, self.pos, self.end)
        if not found:
            self.fail(expected)
        self.pos = found.end()
        return found.group()

    def name(self) -> str:
        return self.match(NAME, "a name")

    def integer(self) -> int:
        start = self.here()
        return self.number(self.match(INTEGER, "an integer"), start)

    def number(self, text: str, start: int) -> int:
        """The digits at `start` as an integer of a sensible length."""
        if len(text) > MAX_DIGITS:
            self.fail(f"an integer of at most {MAX_DIGITS} digits", start)
        return int(text)

    def string(self) -> str:
        self.skip()
        if not self.text.startswith('"', self.pos):
            self.fail("a string in double quotes")
        try:
            value, stop = _DECODER.raw_decode(self.text, self.pos)
        except json.JSONDecodeError:
            self.fail("a string in double quotes")
        self.pos = stop
        return str(value)

    def chunk(self, stops: str) -> tuple[int, str]:
        """Start and text up to one of `stops` outside of brackets and strings."""
        self.skip()
        start, depth = self.pos, 0
        while self.pos < self.end:
            char = self.text[self.pos]
            if depth == 0 and char in stops:
                break
            if char == '"':
                self.string()
                continue
            depth += (char in "([{") - (char in ")]}")
            if depth < 0:
                break
            self.pos += 1
        return start, self.text[start : self.pos].rstrip()

    def expression(self, stops: str) -> sympy.Expr:
        start, text = self.chunk(stops)
        value = self._parse_expression(text, start)
        if not isinstance(value, sympy.Expr) or value.is_integer is False:
            self.fail("an integer expression", start)
        return value

    def condition(self, stops: str) -> sympy.logic.boolalg.Boolean:
        start, text = self.chunk(stops)
        if text in ("True", "False"):
            return sympy.true if text == "True" else sympy.false
        value = self._parse_expression(text, start)
        if not isinstance(value, sympy.logic.boolalg.Boolean) or value.is_Symbol:
            self.fail("a condition", start)
        return value

    def _parse_expression(self, text: str, start: int) -> sympy.Expr:
        if INTEGER.fullmatch(text):
            return sympy.Integer(self.number(text, start))
        if NAME.fullmatch(text) and text not in kwlist:
            return symexpr.symbol(text)
        try:
            return symexpr.parse(text)
        except (symexpr.SymexprError, ValueError, TypeError):
            self.fail("an integer expression", start)

    def items(self, stop: str = ")") -> bool:
        """Whether another item of a comma separated list follows; takes `stop` if not."""
        return not self.take(stop)

    def separator(self, stop: str = ")") -> None:
        if not self.take(",") and not self.peek(stop):
            self.fail(f"',' or '{stop}'")

    def expressions(self) -> tuple[sympy.Expr, ...]:
        """`(a, b)`, `(a,)`, `()`."""
        out: list[sympy.Expr] = []
        self.expect("(")
        while self.items():
            out.append(self.expression(",)"))
            self.separator()
        return tuple(out)

    def names(self) -> tuple[str, ...]:
        out: list[str] = []
        self.expect("(")
        while self.items():
            out.append(self.name())
            self.separator()
        return tuple(out)

    def type(self) -> TensorType:
        start = self.here()
        dtype = _DTYPES.get(self.match(NAME, "an element type such as f32"))
        if dtype is None:
            self.fail("an element type such as f32", start)
        size: list[sympy.Expr] = []
        self.expect("[")
        while self.items("]"):
            size.append(self.expression(",]"))
            self.separator("]")
        if sum(n.p.bit_length() for n in size if n.is_Integer) > 4 * MAX_DIGITS:
            self.fail("sizes of a smaller tensor", start)
        device = self.device()
        stride = contiguous_strides(tuple(size))
        if self.take("stride"):
            start = self.here()
            stride = self.expressions()
            if len(stride) != len(size):
                self.fail(f"{len(size)} strides", start)
        offset = self.expression(',)"#') if self.take("offset") else sympy.S.Zero
        return TensorType(dtype, tuple(size), stride, device, offset)

    def device(self) -> Device:
        found = _DEVICE.fullmatch(self.match(_DEVICE, "a device such as cuda:0"))
        assert found  # `match` found the same pattern
        return Device(found[1], None if found[2] is None else int(found[2]))

    def symbol(self) -> Symbol:
        name, low, high = self.name(), None, None
        if self.take("in"):
            self.expect("[")
            low = self._bound()
            self.expect(",")
            high = self._bound()
            self.expect("]")
        return Symbol(name, low, high, self.integer() if self.take("hint") else None)

    def _bound(self) -> int | None:
        return None if self.take("*") else self.integer()

    def kernel_param(self) -> KernelParam:
        name = self.name()
        self.expect(":")
        kind = self.match(_KIND, "a kind such as *f32 or i32")
        mutated = self.take("mutated")
        return KernelParam(name, kind, mutated, self.take("aligned"))

    def arg(self, stops: str = ",)") -> Arg:
        """One argument, up to a comma or the closing bracket of the list it stands in."""
        self.skip()
        if self.peek('"'):
            return self.string()
        start, text = self.chunk(stops)
        inner = Scanner(self.text, start, start + len(text), self.symbols)
        inner.depth = self.depth + 1
        if inner.depth > MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH} brackets inside of one another", start)
        if text in ("True", "False", "None"):
            return {"True": True, "False": False, "None": None}[text]
        if INTEGER.fullmatch(text):
            return self.number(text, start)
        if FLOAT.fullmatch(text):
            return float(text)
        if found := _COMPLEX.fullmatch(text):
            return complex(*map(float, text[8:-1].split(", ")))
        if NAME.fullmatch(text) and text not in self.symbols:
            return Ref(text)
        if found := _ENUM.fullmatch(text):
            return self._word(found[1], found[2], start)
        if text.startswith("(") and (items := inner.tuple()) is not None:
            return items
        value = self._parse_expression(text, start)
        tensor = value.is_Symbol and value.name not in self.symbols
        return Ref(value.name) if tensor else value

    def _word(self, kind: str, value: str, start: int) -> Arg:
        if kind == "device":
            return Scanner(value, 0, len(value), set()).device()
        if kind == "dtype":
            if value not in _DTYPES:
                self.fail("an element type such as f32", start + len("dtype "))
            return _DTYPES[value]
        return TorchEnum(kind, value)

    def tuple(self) -> tuple[Arg, ...] | None:
        """`(a, b)`, `(a,)`, `()` up to the end of this scanner; None if it is an expression such
        as `(a + b)*2`, in which case nothing is taken."""
        start = self.pos
        self.expect("(")
        self.chunk(",")
        comma = self.peek(",")
        self.pos = start + 1
        self.skip()
        if not comma and not self.peek(")"):
            self.pos = start
            return None
        out: list[Arg] = []
        while self.items():
            out.append(self.arg())
            self.separator()
        if not self.at_end():
            self.pos = start
            return None
        return tuple(out)
