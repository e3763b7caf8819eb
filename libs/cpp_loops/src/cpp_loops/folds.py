"""Reductions and scans as variables that a loop changes."""

from __future__ import annotations

from dataclasses import dataclass

from cpp_loops.scalars import SMALL, number, rounded, value_type
from loop_ir import DType, Reduce, Scan, identity

_SIGNS = {"sum": "+", "prod": "*", "any": "|", "all": "&"}


def _op(stmt: Reduce | Scan, kind: DType) -> str:
    """Extremes of bools are logic."""
    return {"max": "any", "min": "all"}.get(stmt.op, stmt.op) if kind is DType.bool_ else stmt.op


def _wide(kind: DType) -> str:
    """The type in which sums and products are folded; integers wrap around in any."""
    return "double" if kind.is_float else "uint64_t"


@dataclass(frozen=True)
class Fold:
    """A reduction in the variable `name`, of the type `total`. part: the type of another variable,
    for some elements at a time, or empty."""

    stmt: Reduce
    kind: DType
    name: str

    @property
    def op(self) -> str:
        """The operation: sum, prod, any, all, max or min."""
        return _op(self.stmt, self.kind)

    @property
    def total(self) -> str:
        """The type of the variable."""
        if self.op in ("any", "all"):
            return "int32_t"
        return _wide(self.kind) if self.op in ("sum", "prod") else value_type(self.kind)

    @property
    def part(self) -> str:
        """f32 is added as such for some elements at a time."""
        return "float" if self.op == "sum" and value_type(self.kind) == "float" else ""

    @property
    def start(self) -> str:
        """What it is where there is nothing to fold."""
        if self.op in _SIGNS:
            return str(int(self.op in ("prod", "all")))
        small = DType.f32 if self.kind in SMALL else self.kind
        return number(identity(self.op, small), small)

    def clause(self, name: str) -> str:
        """What `#pragma omp simd reduction(...)` is told of a variable."""
        floats = {"max": "maximum", "min": "minimum"} if self.kind.is_float else {}
        return f"{_SIGNS.get(self.op, floats.get(self.op, self.op))}: {name}"

    def step(self, name: str, value: str) -> str:
        """Folds one more value."""
        if self.op in ("any", "all"):
            return f"{name} {_SIGNS[self.op]}= {value} != 0;"
        if self.op in _SIGNS:
            return f"{name} {_SIGNS[self.op]}= {value};"
        extreme = "maximum" if self.op == "max" else "minimum"
        return f"{name} = {extreme}({name}, {value});"

    def result(self, name: str) -> str:
        """The value of the reduction."""
        if self.op in ("any", "all"):
            return f"{name} != 0"
        return rounded(f"{value_type(self.stmt.dtype)}({name})", self.stmt.dtype)


@dataclass(frozen=True)
class Running:
    """A scan in the variable `name`, of the type `total`, and the place of its extreme."""

    stmt: Scan
    kind: DType
    name: str

    @property
    def total(self) -> str:
        """The type of the variable."""
        if self.stmt.op == "logsumexp":
            return "double"
        return _wide(self.kind) if self.stmt.op in ("sum", "prod") else value_type(self.kind)

    @property
    def start(self) -> str:
        """What it is before the first point."""
        if self.stmt.op in ("sum", "prod"):
            return str(int(self.stmt.op == "prod"))
        if self.stmt.op == "logsumexp":
            return "-inf"
        small = DType.f32 if self.kind in SMALL else self.kind
        return number(identity(self.stmt.op, small), small)

    def step(self, name: str, value: str, place: str) -> str:
        """Takes one more value; `place` is its place."""
        op = self.stmt.op
        if op in ("sum", "prod"):
            return f"{name} {_SIGNS[op]}= {value};"
        if op == "logsumexp":
            return f"{name} = log_add_exp({name}, {value});"
        if op in ("max", "min"):
            return f"{name} = {'maximum' if op == 'max' else 'minimum'}({name}, {value});"
        nan = f" || {value} != {value}" if self.kind.is_float else ""
        sign = ">=" if op == "argmax" else "<="
        at = name.replace(self.name, f"{self.name}_at", 1)
        return f"if ({value} {sign} {name}{nan}) {name} = {value}, {at} = {place};"

    def result(self, name: str) -> str:
        """The value of the scan at the last point that was taken."""
        if self.stmt.op in ("argmax", "argmin"):
            return name.replace(self.name, f"{self.name}_at", 1)
        return rounded(f"{value_type(self.stmt.dtype)}({name})", self.stmt.dtype)
