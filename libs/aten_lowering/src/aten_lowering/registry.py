"""The table of lowerings: ATen overload -> function of a `Call`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch._ops import OpOverload

# Called with the `Call` and every argument of the op's schema by name (but for `NAMES`);
# emits nodes that write all used results of the call, or raises `CannotLower`.
Lowering = Callable[..., None]
Rule = TypeVar("Rule")

# Arguments that sizes, strides, type and device of the result show already, and a tensor of which
# nothing else is used: a lowering may take them as `**shown`.
_SHOWN = """
input size output_size image channels_last input_size ceil_mode dtype out_int32 device memory_format
"""
SHOWN = frozenset(_SHOWN.split())

# What lowerings call arguments whose names Python has another use for, or that of one product has.
NAMES = {"self": "input", "from": "low", "batch1": "mat1", "batch2": "mat2"}


def of_ranks(name: str, *ranks: int) -> list[OpOverload]:
    """The operators that a rank tells apart: `"reflection_pad{}d", 1, 2` ->
    `[aten.reflection_pad1d.default, aten.reflection_pad2d.default]`."""
    return [getattr(torch.ops.aten, name.format(rank)).default for rank in ranks]


def named(*names: str) -> list[OpOverload]:
    """Operators of ATen: `"clone scatter.src"` -> `[aten.clone.default, aten.scatter.src]`."""
    parts = (name.partition(".") for name in " ".join(names).split())
    return [getattr(getattr(torch.ops.aten, p), overload or "default") for p, _, overload in parts]


def by_rule(*rows: tuple[Rule, str]) -> dict[OpOverload, Rule]:
    """A table of operators: `(alike, "add.Tensor sub.Tensor")` -> the two, each with `alike`."""
    return {op: rule for rule, names in rows for op in named(names)}


class Table:
    """Lowerings of one family; `lowerings.TABLE` is their union.

        table = Table()

        @table.lowers(aten.relu.default)
        def relu(call: Call, input: Operand) -> None: ...

    A lowering names every argument of the schemas that it serves (but `SHOWN`), so that none is
    ignored by accident; one with a default is not in all of them."""

    def __init__(self) -> None:
        self._entries: dict[OpOverload, Lowering] = {}

    def lowers(self, *ops: OpOverload) -> Callable[[Lowering], Lowering]:
        """A decorator that enters a lowering of these overloads."""

        def register(lowering: Lowering) -> Lowering:
            for op in ops:
                self.add(op, lowering)
            return lowering

        return register

    def add(self, op: OpOverload, lowering: Lowering) -> None:
        """Enters the lowering of an overload. Raises `ValueError` where there is one."""
        if op in self._entries:
            raise ValueError(f"{op} has two lowerings")
        self._entries[op] = lowering

    def update(self, other: Table) -> None:
        """Enters all lowerings of another table."""
        for op, lowering in other:
            self.add(op, lowering)

    def get(self, op: object) -> Lowering | None:
        """The lowering of what an FX node calls; None where there is none."""
        return self._entries.get(op) if isinstance(op, OpOverload) else None

    def __iter__(self) -> Iterator[tuple[OpOverload, Lowering]]:
        return iter(self._entries.items())

    def __contains__(self, op: object) -> bool:
        return op in self._entries
