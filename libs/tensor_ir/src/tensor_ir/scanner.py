"""Reads names, numbers, expressions, types and arguments from text, knowing where it is."""

import json
import re
from collections.abc import Iterator, Set
from contextlib import suppress
from functools import lru_cache
from keyword import kwlist
from typing import NoReturn

import sympy

import symexpr
from tensor_ir.dtypes import BY_TEXT, DType
from tensor_ir.errors import ParseError
from tensor_ir.types import Device, TensorType, contiguous_strides
from tensor_ir.values import Arg, Ref, Symbol, TorchEnum

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
TARGET = re.compile(r"[A-Za-z_][\w.:]*", re.ASCII)
INTEGER = re.compile(r"-?\d+", re.ASCII)
FLOAT = re.compile(r"-?(inf|nan|\d+\.\d*(e[+-]?\d+)?|\d+e[+-]?\d+)", re.ASCII)
_DEVICE = re.compile(r"([A-Za-z_]\w*)(?::(\d{1,9}))?", re.ASCII)
_ENUM = re.compile(r"(?!not )([A-Za-z_]\w*) ([\w.:]+)", re.ASCII)
_COMPLEX = re.compile(
    rf"complex\((?P<real>{FLOAT.pattern}), (?P<imaginary>{FLOAT.pattern})\)", re.ASCII
)
_AN_ELEMENT_TYPE = "an element type such as f32"
_A_DEVICE = "a device such as cuda:0"
# A whole type without an offset, in one line.
_TYPE = re.compile(
    r"[A-Za-z_]\w*\[[^][\"#\n]*\] [A-Za-z_]\w*(?::\d{1,9})?(?![\w:])"
    r"(?: stride \([^()\"#\n]*\))?(?! *(?:stride|offset))",
    re.ASCII,
)
_PLAIN = re.compile(r"[\w*+./%-]+", re.ASCII)  # what ends no expression and nests none
_WORDS = {"True": True, "False": False, "None": None}
_DECODER = json.JSONDecoder()
MAX_DIGITS = 1000  # of an integer
MAX_DEPTH = 50  # brackets and blocks inside of one another


class Scanner:
    """A position in `text` that moves forward up to `end`. `symbols` are the names that mean
    integers; every other name is a tensor. Whatever cannot be read raises `ParseError`."""

    def __init__(
        self, text: str, pos: int = 0, end: int | None = None, symbols: Set[str] = frozenset()
    ) -> None:
        self.text = text
        self.pos = pos
        self.end = len(text) if end is None else end
        self.symbols = symbols
        self.depth = 0

    def fail(self, expected: str, pos: int | None = None) -> NoReturn:
        """Raises `ParseError` about what is at `pos`, which is here unless given."""
        pos = self.pos if pos is None else pos
        line = self.text.count("\n", 0, pos) + 1
        column = pos - (self.text.rfind("\n", 0, pos) + 1) + 1
        rest = self.text[pos : self.end].split("\n")[0]
        raise ParseError(line, column, expected, repr(rest[:40]) if rest else "end of line")

    def skip(self) -> None:
        """Skips spaces, and line ends where the scanner spans several lines."""
        text, pos, end = self.text, self.pos, self.end
        if pos < end and text[pos] in " \n":
            while pos < end and text[pos] in " \n":
                pos += 1
            self.pos = pos

    def at_end(self) -> bool:
        """Whether nothing but space is left."""
        self.skip()
        return self.pos >= self.end

    def finish(self, expected: str) -> None:
        """Fails where something is left."""
        if not self.at_end():
            self.fail(expected)

    def here(self) -> int:
        """Where the next word starts, for errors about it."""
        self.skip()
        return self.pos

    def peek(self, literal: str) -> bool:
        """Whether `literal` comes next; a word must end where it ends."""
        self.skip()
        if not self.text.startswith(literal, self.pos, self.end):
            return False
        if not literal[-1].isalnum():
            return True
        following = self.text[(stop := self.pos + len(literal)) : stop + 1]
        return not (following.isalnum() or following == "_")

    def take(self, literal: str) -> bool:
        """Whether `literal` comes next; steps behind it if so."""
        if not self.peek(literal):
            return False
        self.pos += len(literal)
        return True

    def expect(self, literal: str) -> None:
        """Steps behind `literal`, which must come next."""
        if not self.take(literal):
            self.fail(repr(literal))

    def match(self, pattern: re.Pattern[str], expected: str) -> str:
        """The text that `pattern` matches here; `expected` says in an error what that is."""
        self.skip()
        found = pattern.match(self.text, self.pos, self.end)
        if not found:
            self.fail(expected)
        self.pos = found.end()
        return found.group()

    def name(self) -> str:
        """An identifier."""
        return self.match(NAME, "a name")

    def integer(self) -> int:
        """A decimal integer, of any sign."""
        start = self.here()
        return self.number(self.match(INTEGER, "an integer"), start)

    def number(self, text: str, start: int) -> int:
        """The digits at `start` as an integer of a sensible length."""
        if len(text) > MAX_DIGITS:
            self.fail(f"an integer of at most {MAX_DIGITS} digits", start)
        return int(text)

    def string(self) -> str:
        """A string in double quotes, escaped as in JSON."""
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
            if found := _PLAIN.match(self.text, self.pos, self.end):
                self.pos = found.end()
                continue
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
        """An integer expression up to one of `stops`."""
        start, text = self.chunk(stops)
        value = self.parse_expression(text, start)
        if not isinstance(value, sympy.Expr) or value.is_integer is False:
            self.fail("an integer expression", start)
        return value

    def condition(self, stops: str) -> sympy.logic.boolalg.Boolean:
        """A condition over symbols up to one of `stops`."""
        start, text = self.chunk(stops)
        if text in ("True", "False"):
            return sympy.true if text == "True" else sympy.false
        value = self.parse_expression(text, start)
        if not isinstance(value, sympy.logic.boolalg.Boolean) or value.is_Symbol:
            self.fail("a condition", start)
        return value

    def parse_expression(self, text: str, start: int) -> sympy.Expr:
        """The expression or condition that is written as `text` at `start`."""
        if INTEGER.fullmatch(text):
            return sympy.Integer(self.number(text, start))
        if NAME.fullmatch(text) and text not in kwlist:
            return symexpr.symbol(text)
        try:
            return symexpr.parse(text)
        except (symexpr.SymexprError, ValueError, TypeError):
            self.fail("an integer expression", start)

    def items(self, begin: str = "(", stop: str = ")") -> Iterator[None]:
        """Steps through a list in brackets, `(a, b)`, `(a,)` or `()`: once for each item, which has
        to be read then."""
        self.expect(begin)
        while not self.take(stop):
            yield
            self.skip()
            following = self.text[self.pos : min(self.pos + 1, self.end)]
            if following == ",":
                self.pos += 1
            elif following != stop:
                self.fail(f"',' or '{stop}'")

    def expressions(self) -> tuple[sympy.Expr, ...]:
        """`(a, b)`, `(a,)`, `()`."""
        return tuple(self.expression(",)") for _ in self.items())

    def names(self) -> tuple[str, ...]:
        """Identifiers: `(a, b)`, `(a,)`, `()`."""
        return tuple(self.name() for _ in self.items())

    def type(self) -> TensorType:
        """A tensor type: `bf16[s0, 768] cuda:0 stride (768, 1) offset 5`. A program repeats few of
        them many times: those are read once."""
        start = self.here()
        if found := _TYPE.match(self.text, start, self.end):
            with suppress(ParseError):
                type = _type(found.group())
                self.pos = found.end()
                return type
        return self._type(start)

    def _type(self, start: int) -> TensorType:
        dtype = self.parse_dtype(self.match(NAME, _AN_ELEMENT_TYPE), start)
        size = tuple(self.expression(",]") for _ in self.items("[", "]"))
        if sum(n.p.bit_length() for n in size if n.is_Integer) > 4 * MAX_DIGITS:
            self.fail("sizes of a smaller tensor", start)
        device = self.device()
        stride = contiguous_strides(size)
        if self.take("stride"):
            start = self.here()
            stride = self.expressions()
            if len(stride) != len(size):
                self.fail(f"{len(size)} strides", start)
        offset = self.expression(',)"#') if self.take("offset") else sympy.S.Zero
        return TensorType(dtype, size, stride, device, offset)

    def parse_dtype(self, text: str, start: int) -> DType:
        """The element type that is written as `text` at `start`."""
        if text not in BY_TEXT:
            self.fail(_AN_ELEMENT_TYPE, start)
        return BY_TEXT[text]

    def device(self) -> Device:
        """A device: `cpu`, `cuda:0`."""
        start = self.here()
        return self.parse_device(self.match(_DEVICE, _A_DEVICE), start)

    def parse_device(self, text: str, start: int) -> Device:
        """The device that is written as `text` at `start`."""
        found = _DEVICE.fullmatch(text)
        if found is None:
            self.fail(_A_DEVICE, start)
        return Device(found[1], None if found[2] is None else int(found[2]))

    def symbol(self) -> Symbol:
        """A symbol and what is known about it: `s0 in [1, 64] hint 2`."""
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

    def arg(self, stops: str = ",)") -> Arg:
        """One argument, up to a comma or the closing bracket of the list it stands in."""
        self.skip()
        if self.peek('"'):
            return self.string()
        start, text = self.chunk(stops)
        if self.depth >= MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH} brackets inside of one another", start)
        if text in _WORDS:
            return _WORDS[text]
        if (plain := self.plain(text, start)) is not None:
            return plain
        if NAME.fullmatch(text) and text not in self.symbols:
            return Ref(text)
        if text.startswith("("):
            inner = Scanner(self.text, start, start + len(text), self.symbols)
            inner.depth = self.depth + 1
            if (items := inner.tuple()) is not None:
                return items
        value = self.parse_expression(text, start)
        tensor = value.is_Symbol and value.name not in self.symbols
        return Ref(value.name) if tensor else value

    def plain(
        self, text: str, start: int
    ) -> int | float | complex | Device | DType | TorchEnum | None:
        """The number, device, element type or value of torch that is written as `text` at `start`;
        None where it is none of these, but an expression, say."""
        if INTEGER.fullmatch(text):
            return self.number(text, start)
        if FLOAT.fullmatch(text):
            return float(text)
        if found := _COMPLEX.fullmatch(text):
            return complex(float(found["real"]), float(found["imaginary"]))
        found = _ENUM.fullmatch(text)
        if found is None:
            return None
        if found[1] == "device":
            return self.parse_device(found[2], start + found.start(2))
        if found[1] == "dtype":
            return self.parse_dtype(found[2], start + found.start(2))
        return TorchEnum(found[1], found[2])

    def tuple(self) -> tuple[Arg, ...] | None:
        """`(a, b)`, `(a,)`, `()` up to the end of this scanner; None if it is an expression such
        as `(a + b)*2`, in which case nothing is taken."""
        start = self.pos
        self.expect("(")
        self.chunk(",")
        comma = self.peek(",")
        self.pos = start + 1
        empty = self.peek(")")
        self.pos = start
        if not comma and not empty:
            return None
        out = tuple(self.arg() for _ in self.items())
        if not self.at_end():
            self.pos = start
            return None
        return out


@lru_cache(1 << 12)
def _type(text: str) -> TensorType:
    scanner = Scanner(text)
    type = scanner._type(0)
    scanner.finish("end of the type")
    return type


def parse_type(text: str) -> TensorType:
    """Reads what `print_type` prints. Raises `ParseError`."""
    scanner = Scanner(text)
    type = scanner.type()
    scanner.finish("end of the type")
    return type


def parse_symbol(text: str) -> Symbol:
    """Reads what `print_symbol` prints. Raises `ParseError`."""
    scanner = Scanner(text)
    symbol = scanner.symbol()
    scanner.finish("end of the symbol")
    return symbol
