"""What epilogues and prologues share: a pointwise kernel as a function over a template's tile."""

from __future__ import annotations

import sympy

from loop_ir import Kernel, Store
from loop_ir.ir import statements
from triton_emit.body import Writer
from triton_emit.errors import BadEpilogue, BadPrologue
from triton_emit.values import ATOM, Value, typed


def only_store(
    kernel: Kernel, ranks: tuple[int, ...], error: type[BadEpilogue | BadPrologue]
) -> Store:
    """The one store of a pointwise kernel over one of these numbers of axes; raises `error`."""
    if len(kernel.axes) not in ranks or any(phase.axes for phase in kernel.phases):
        raise error(kernel.name, f"it has {len(kernel.axes)} parallel axes, or inner ones")
    stores = [s for s in statements(kernel) if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].mode != "set" or stores[0].mask is not None:
        raise error(kernel.name, f"it has {len(stores)} stores, or a masked or atomic one")
    return stores[0]


class DeviceFunctionWriter(Writer):
    """tile: the name of the template's tile, whose two `dimensions` the kernel runs over.
    operands: buffers that go into the tuple `operands`."""

    def __init__(self, kernel: Kernel, bits: int, tile: str) -> None:
        super().__init__(kernel, bits)
        self.tile = tile
        self.operands: list[str] = []
        self.result_value: Value | None = None

    def mask(self, axes: frozenset[str], extra: Value | None = None) -> str:
        """The template's mask over the whole tile, else the bounds of one axis."""
        if axes == frozenset(self.dimensions):
            text = "mask"
        elif axes:
            (key,) = axes
            text = f"{self.tiles[key].flat} < {self.write_sizes(self.tiles[key].numel)}"
        else:
            text = ""
        if extra is None or not text:
            return text if extra is None else extra.text
        return f"({text}) & {extra.at(5)}"

    def takes(self, stmt: Store, value: Value) -> bool:
        """The kernel's one store is what the function returns."""
        self.result_value = value
        return True

    def result(self, store: Store) -> Value:
        """The value of the kernel's store, in the shape of the tile."""
        whole = frozenset(self.dimensions)
        for phase in self.kernel.phases:
            self.run(phase.body, whole, frozenset())
        value = self.result_value
        assert value is not None, store
        if value.axes != whole:
            text = f"tl.broadcast_to({typed(value).text}, {self.tile}.shape)"
            value = Value(text, ATOM, value.dtype, whole)
        return value

    def given(self) -> tuple[list[tuple[str, str]], list[str | sympy.Expr]]:
        """(name, kind) of what is in `operands`, and what the caller knows each by."""
        operands = [
            (self.params.buffers[b], f"*{self.params.dtypes[b].value}") for b in self.operands
        ]
        args: list[str | sympy.Expr] = list(self.operands)
        for name, kind, size in self.params.scalars(self.bits):
            operands.append((name, kind))
            args.append(size)
        return operands, args
