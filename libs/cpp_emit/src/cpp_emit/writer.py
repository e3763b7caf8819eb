"""The C++ function under construction: its lines, and which names mean what at this point of it."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sympy

from cpp_emit.errors import UnboundSymbol, UndefinedName
from cpp_emit.extern import device_code, dtype_code, string_literal
from cpp_emit.names import Names
from cpp_emit.sites import is_real
from symexpr import free_symbols, one_line, sstr, to_cpp
from wrapper_ir import TensorType

LINE_LENGTH = 100
_text = lru_cache(maxsize=10_000, typed=True)(to_cpp)


class Writer:
    """Also the `Scope` of `cpp_emit.extern`.

    viewed: tensors whose storage is reinterpreted somewhere; of those that come from outside, the
    text notes where the storage starts."""

    def __init__(self, program: str, viewed: set[str]) -> None:
        self.program = program
        self.viewed = viewed
        self.names = Names()
        self.types: dict[str, TensorType] = {}
        self.symbols: set[str] = set()
        self.lines: list[str] = []
        self.depth = 1
        self._roots: dict[str, str] = {}
        self._described: dict[str, str] = {}

    def line(self, text: str, comment: str = "") -> None:
        """A line, under its comment, which may say anything."""
        indent = "  " * self.depth
        for note in comment.split("\n") if comment else ():
            self.lines.append(f"{indent}// {one_line(note)}".rstrip())
        if text:
            self.lines.append(indent + text)

    def call(self, head: str, args: Sequence[str], comment: str = "") -> None:
        """`head(args);`, over several lines where one would be too long."""
        whole = f"{head}({', '.join(args)});"
        if 2 * self.depth + len(whole) <= LINE_LENGTH:
            return self.line(whole, comment)
        self.line(f"{head}(", comment)
        current = ""
        for number, arg in enumerate(args):
            piece = arg + (", " if number + 1 < len(args) else ");")
            if current and 2 * self.depth + 4 + len((current + piece).rstrip()) > LINE_LENGTH:
                self.line(f"    {current}".rstrip())
                current = ""
            current += piece
        self.line(f"    {current}")

    def define(self, name: str, type: TensorType, root: str | None = None) -> str:
        """A new tensor, in the storage of `root` or one of its own; returns its variable."""
        self.types[name] = type
        self._roots[name] = name if root is None else self._roots[root]
        return self.names[name]

    def describe(self, name: str, tensor: str) -> None:
        """`name` is a descriptor of `tensor`."""
        self._described[name] = tensor

    def bare(self, name: str) -> str:
        """The tensor that a descriptor describes; the name of a tensor as it is."""
        return self._described.get(name, name)

    def tensor(self, name: str) -> str:
        """The variable of a tensor. Raises UndefinedName."""
        if name not in self.types:
            raise UndefinedName(f"program {self.program}: no tensor {name} is alive here")
        return self.names[name]

    def type(self, name: str) -> TensorType:
        """The layout of a living tensor. Raises UndefinedName."""
        self.tensor(name)
        return self.types[name]

    def family(self, name: str) -> list[str]:
        """The living tensors that share a storage with `name`."""
        self.tensor(name)
        return [n for n in self.types if self._roots[n] == self._roots[name]]

    def kill(self, name: str) -> list[str]:
        """Ends the life of a storage; returns the variables of all its tensors."""
        dead = self.family(name)
        for n in dead:
            del self.types[n]
        return [self.names[n] for n in dead]

    def integer(self, value: Any) -> str:
        """An integer or boolean expression. Raises UnboundSymbol."""
        if isinstance(value, bool):
            return "true" if value else "false"
        value = sympy.sympify(value)
        renamed = {}
        for symbol in free_symbols(value):
            if symbol.name not in self.symbols:
                raise UnboundSymbol(
                    f"program {self.program}: {symbol.name} in {sstr(value)} is bound neither by "
                    "a SymbolDef nor by an integer parameter before its use"
                )
            new = self.names[symbol.name]
            if new != symbol.name:
                renamed[symbol] = sympy.Symbol(new, integer=True)
        return _text(value.xreplace(renamed) if renamed else value)

    def ints(self, values: Sequence[sympy.Expr]) -> str:
        """Integer expressions in braces: `{s0, 4}`."""
        return "{" + ", ".join(self.integer(v) for v in values) + "}"

    def int64s(self, values: Sequence[sympy.Basic]) -> str:
        """Values that Python is given, in braces, each as an `int64_t`."""
        return "{" + ", ".join(map(self.int64, values)) + "}"

    def int64(self, value: sympy.Basic) -> str:
        """An integer that Python is given; a float as its bits."""
        text = self.integer(value)
        return f"int64_t(real({text}))" if is_real(value) else f"int64_t({text})"

    def pointers(self, names: Sequence[str]) -> str:
        """The addresses of tensors in braces: `{&x, &y}`."""
        return "{" + ", ".join(f"&{self.tensor(n)}" for n in names) + "}"

    def layout(self, type: TensorType) -> list[str]:
        """Element type, sizes and strides, as three arguments of a call."""
        return [dtype_code(type.dtype), self.ints(type.size), self.ints(type.stride)]

    def check_kind(self, name: str, what: str) -> None:
        """Element type, rank and device are the declared ones."""
        type = self.types[name]
        var, dtype = self.names[name], dtype_code(type.dtype)
        expected = [dtype, str(len(type.size)), device_code(type.device)]
        self.call("check_kind", [var, string_literal(what), *expected])

    def check_layout(self, name: str, what: str) -> None:
        """Sizes and strides are the declared ones; notes where the storage starts."""
        type = self.types[name]
        layout = [self.ints(type.size), self.ints(type.stride)]
        self.call("check_layout", [self.names[name], string_literal(what), *layout])
        self._origin(name)

    def conform(self, name: str, what: str) -> None:
        """A new tensor gets the declared layout and element type; notes where it starts."""
        type = self.types[name]
        wanted = [*self.layout(type), device_code(type.device)]
        self.call("conform", [self.names[name], string_literal(what), *wanted])
        self._origin(name)

    def _origin(self, name: str) -> None:
        if name in self.viewed and self._roots[name] == name:
            offset = self.integer(self.types[name].offset)
            self.line(f"{self.names[name]}.origin_from_offset({offset});")
