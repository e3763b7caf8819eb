"""What stands in the arguments of calls: references to tensors, symbols, values of torch."""

from dataclasses import dataclass
from typing import TypeAlias

import sympy

from tensor_ir.dtypes import DType
from tensor_ir.types import Device


@dataclass(frozen=True)
class Ref:
    """Use of a tensor by name."""

    name: str


@dataclass(frozen=True)
class TorchEnum:
    """A value of torch that an extern call takes and the IR does not interpret:
    `layout strided`, `memory_format contiguous_format`."""

    kind: str
    name: str


# What a size of which nothing is known is taken to be, where decisions need a number.
TYPICAL_SIZE = 8


@dataclass(frozen=True)
class Symbol:
    """An integer of the program: inclusive bounds (`None` is open) and a typical value."""

    name: str
    low: int | None = None
    high: int | None = None
    hint: int | None = None

    @property
    def typical(self) -> int:
        """The hint; without one `TYPICAL_SIZE`, or the value nearest to it inside of the bounds."""
        if self.hint is not None:
            return self.hint
        value = TYPICAL_SIZE if self.low is None else max(TYPICAL_SIZE, self.low)
        return value if self.high is None else min(value, self.high)


# An argument that names no tensor and holds no other arguments.
Plain: TypeAlias = (
    sympy.Expr
    | sympy.logic.boolalg.Boolean
    | int
    | float
    | bool
    | str
    | complex
    | Device
    | DType
    | TorchEnum
    | None
)

# An argument of an extern call or a launch: a tensor, an integer expression (sympy; plain ints
# are allowed), a Python scalar, a device, an element type, or a (nested) tuple of those.
Arg: TypeAlias = Ref | Plain | tuple["Arg", ...]
