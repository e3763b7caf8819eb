"""Operator schemas, read from the text that torch prints.

    aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False) -> Tensor

The stack of the stable C ABI holds every argument of the schema in order, so a call that leaves
out arguments needs their types and defaults; results need the number and kind of the returns."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cpp_emit.errors import SchemaError

# How `emit` learns schemas: operator name (`aten.add.Tensor`) -> schema text, None if unknown.
Schemas = Mapping[str, str] | Callable[[str], str | None]

NO_DEFAULT = object()


@dataclass(frozen=True)
class Type:
    """`SymInt[2]?` is Type("SymInt", modifiers=("[2]", "?")): the base, then `?` and `[n]` from the
    inside out."""

    base: str
    modifiers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.base + "".join(self.modifiers)

    @property
    def inner(self) -> Type:
        """The type under the outermost `?` or `[]`."""
        return Type(self.base, self.modifiers[:-1])

    @property
    def is_optional(self) -> bool:
        """Whether None is a value of it."""
        return bool(self.modifiers) and self.modifiers[-1] == "?"

    @property
    def is_list(self) -> bool:
        """Whether its values are lists."""
        return bool(self.modifiers) and self.modifiers[-1] != "?"

    @property
    def list_length(self) -> int | None:
        """2 of `int[2]`, for which a scalar stands for two of it; None of `int[]`."""
        digits = self.modifiers[-1][1:-1]
        return int(digits) if digits else None


@dataclass(frozen=True)
class Argument:
    """One parameter of an operator; `NO_DEFAULT` where it has none."""

    name: str
    type: Type
    default: Any = NO_DEFAULT
    kwarg_only: bool = False


@dataclass(frozen=True)
class Schema:
    """An operator as torch declares it: name and overload, parameters, types of its results."""

    name: str
    overload: str
    arguments: tuple[Argument, ...]
    returns: tuple[Type, ...]


def lookup(schemas: Schemas | None, target: str) -> Schema | None:
    """The schema of an operator, or None when nothing is known of it."""
    if schemas is None:
        return None
    text = schemas(target) if callable(schemas) else schemas.get(target)
    return None if text is None else parse_schema(text)


_TYPE = r"(?P<base>[A-Za-z_][\w.]*)(?P<mods>(?:\([^)]*\)|\[\d*\]|\?)*)"


def parse_schema(text: str) -> Schema:
    """Reads one schema.

    >>> s = parse_schema("aten::addmm(Tensor self, *, Scalar beta=1) -> Tensor")
    >>> s.name, s.overload, str(s.arguments[1].type), s.arguments[1].default
    ('aten::addmm', '', 'Scalar', 1)

    Raises SchemaError."""
    match = re.fullmatch(r"\s*([\w:]+)(?:\.(\w+))?\((.*)\)\s*->\s*(.+?)\s*", text, re.DOTALL)
    if match is None:
        raise SchemaError(f"cannot read the operator schema {text!r}: expected NAME(ARGS) -> TYPES")
    name, overload, arguments, returns = match.groups()
    out: list[Argument] = []
    kwarg_only = False
    for part in _split(arguments):
        if part == "*":
            kwarg_only = True
        else:
            out.append(_argument(part, kwarg_only, text))
    if returns.startswith("("):
        returns = returns[1:-1]
    return Schema(
        name, overload or "", tuple(out), tuple(_type(r, text)[0] for r in _split(returns))
    )


def _split(text: str) -> list[str]:
    """Splits at commas outside brackets and quotes."""
    parts, depth, quote, current, escaped = [], 0, "", "", False
    for c in text:
        if quote:
            quote = "" if c == quote and not escaped else quote
            escaped = c == "\\" and not escaped
        elif c in "\"'":
            quote = c
        elif c in "([":
            depth += 1
        elif c in ")]":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(current.strip())
            current = ""
            continue
        current += c
    return [p for p in [*parts, current.strip()] if p]


def _type(text: str, schema: str) -> tuple[Type, str]:
    match = re.match(_TYPE, text)
    if match is None:
        raise SchemaError(f"cannot read the type {text!r} in the operator schema {schema!r}")
    # `(a!)` marks aliasing, which the stack does not carry.
    modifiers = tuple(re.findall(r"\[\d*\]|\?", re.sub(r"\([^)]*\)", "", match["mods"])))
    return Type(match["base"], modifiers), text[match.end() :].strip()


def _argument(text: str, kwarg_only: bool, schema: str) -> Argument:
    type, rest = _type(text, schema)
    name, equals, default = rest.partition("=")
    if not equals:
        return Argument(name.strip(), type, NO_DEFAULT, kwarg_only)
    try:
        value = ast.literal_eval(default.strip())
    except (ValueError, SyntaxError):
        value = default.strip()  # `contiguous_format`, `Mean`
    if isinstance(value, list):
        value = tuple(value)
    return Argument(name.strip(), type, value, kwarg_only)


def bind(
    schema: Schema, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], where: str
) -> list[Any]:
    """The value of every argument, in the order of the schema, defaults filled in.

    Raises SchemaError when an argument is unknown, missing, or given twice."""
    values: dict[str, Any] = {}
    positional = [a for a in schema.arguments if not a.kwarg_only]
    if len(args) > len(positional):
        raise SchemaError(
            f"{where}: {schema.name} takes {len(positional)} positional arguments, got {len(args)}"
        )
    for argument, value in zip(positional, args, strict=False):
        values[argument.name] = value
    known = {a.name for a in schema.arguments}
    for key, value in kwargs:
        if key not in known or key in values:
            problem = "given twice" if key in values else "not in the schema"
            raise SchemaError(f"{where}: argument {key!r} of {schema.name} is {problem}")
        values[key] = value
    out = []
    for argument in schema.arguments:
        value = values.get(argument.name, argument.default)
        if value is NO_DEFAULT:
            raise SchemaError(f"{where}: argument {argument.name!r} of {schema.name} is missing")
        out.append(value)
    return out
