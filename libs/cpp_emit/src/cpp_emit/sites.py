"""The launches and extern calls of a program, numbered, and what each hands over to Python.

C++ passes tensors and integers; everything else an argument list holds is known beforehand. So
both sides split an argument list the same way:

    (Ref("x"), 2*s0, 0.5, (Ref("y"), 1))
      -> tensors ("x", "y"), integers (2*s0,), template (tensor 0, int 0, 0.5, (tensor 1, 1))
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
from sympy.logic.boolalg import Boolean

from wrapper_ir import CommAllocate, ExternCall, Launch, Program, Ref, print_program
from wrapper_ir.analysis import programs, walk
from wrapper_ir.collectives import as_plain


@dataclass(frozen=True)
class Slot:
    """The place of a value that C++ passes: `tensor`, `int`, `bool` or `float` (an integer of the
    bits of a double), and its position."""

    kind: str
    index: int


@dataclass(frozen=True)
class Split:
    """An argument list as tensors, integer expressions, and the template that they fill."""

    tensors: tuple[str, ...]
    ints: tuple[sympy.Basic, ...]
    template: Any

    def fill(self, tensors: Sequence[Any], ints: Sequence[int]) -> Any:
        """The argument list for the values of one call."""
        return _fill(self.template, tensors, ints)


def is_real(value: sympy.Basic) -> bool:
    """An expression whose value is a float."""
    return isinstance(value, sympy.Expr) and not value.is_Symbol and not value.is_integer


def split(values: Any) -> Split:
    """Splits a (nested) tuple of arguments."""
    tensors: list[str] = []
    ints: list[sympy.Basic] = []

    def template(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(template(v) for v in value)
        if isinstance(value, Ref):
            tensors.append(value.name)
            return Slot("tensor", len(tensors) - 1)
        if isinstance(value, sympy.Integer):
            return int(value)
        if isinstance(value, sympy.Number):
            return float(value)
        if value in (sympy.true, sympy.false) and isinstance(value, Boolean):
            return bool(value)
        # A symbol is both an expression and a boolean to sympy; ours are integers.
        if isinstance(value, sympy.Expr):
            ints.append(value)
            return Slot("float" if is_real(value) else "int", len(ints) - 1)
        if isinstance(value, Boolean):
            ints.append(value)
            return Slot("bool", len(ints) - 1)
        return value

    made = template(values)
    return Split(tuple(tensors), tuple(ints), made)


def _fill(template: Any, tensors: Sequence[Any], ints: Sequence[int]) -> Any:
    if isinstance(template, Slot):
        if template.kind == "tensor":
            return tensors[template.index]
        value = ints[template.index]
        if template.kind == "float":
            return struct.unpack("d", struct.pack("q", value))[0]
        return bool(value) if template.kind == "bool" else value
    if isinstance(template, tuple):
        return tuple(_fill(t, tensors, ints) for t in template)
    return template


def call_split(call: ExternCall) -> Split:
    """Positional arguments and keywords of an extern call: template `(args, kwargs)`."""
    return split((call.args, tuple((key, value) for key, value in call.kwargs)))


def launch_split(launch: Launch) -> Split:
    """Grid and arguments of a launch: template `(grid, args)`."""
    return split((launch.grid, launch.args))


def sites(program: Program) -> tuple[Launch | ExternCall, ...]:
    """The launches and extern calls, those of subgraphs among them; the position of each is its
    number in both languages."""
    every = (op for each in programs(program) for op in walk(each.ops))
    plain = (as_plain(op) if isinstance(op, CommAllocate) else op for op in every)
    return tuple(op for op in plain if isinstance(op, (Launch, ExternCall)))


def fingerprint(program: Program) -> str:
    """Tells whether a library was made of this very program."""
    return hashlib.sha256(print_program(program).encode()).hexdigest()[:16]
