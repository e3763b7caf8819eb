"""The table of lowerings: ATen overload -> function of a `Call`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch._ops import OpOverload

# Called with the `Call` and every argument of the op's schema by name (but for `NAMES`);
# emits nodes that write all used results of the call, or raises `CannotLower`.
Lowering = Callable[..., None]

# What lowerings call arguments whose names Python has another use for.
NAMES = {"self": "input", "from": "low"}


class Table:
    """Lowerings of one family; `lowerings.TABLE` is their union.

        table = Table()

        @table.lowers(aten.relu.default)
        def relu(call: Call, input: Operand) -> None: ...

    A lowering names every argument of the schemas it serves (or the op is refused here), so that
    none is ignored by accident.
    """

    def __init__(self) -> None:
        self._entries: dict[OpOverload, Lowering] = {}

    def lowers(self, *ops: OpOverload) -> Callable[[Lowering], Lowering]:
        def register(lowering: Lowering) -> Lowering:
            for op in ops:
                self.add(op, lowering)
            return lowering

        return register

    def add(self, op: OpOverload, lowering: Lowering) -> None:
        if op in self._entries:
            raise ValueError(f"{op} has two lowerings")
        self._entries[op] = lowering

    def update(self, other: Table) -> None:
        for op, lowering in other:
            self.add(op, lowering)

    def get(self, op: object) -> Lowering | None:
        return self._entries.get(op) if isinstance(op, OpOverload) else None

    def __iter__(self) -> Iterator[tuple[OpOverload, Lowering]]:
        return iter(self._entries.items())

    def __contains__(self, op: object) -> bool:
        return op in self._entries
