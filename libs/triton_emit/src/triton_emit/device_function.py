"""What epilogues and prologues share: a pointwise kernel as a function over a template's tile."""

import re
from collections.abc import Sequence

import sympy

from loop_ir import Axis, Kernel, Store
from loop_ir.ir import statements
from symexpr import symbol
from triton_emit.body import Writer
from triton_emit.errors import BadEpilogue, BadPrologue
from triton_emit.source import module
from triton_emit.tiles import Tile
from triton_emit.values import ATOM, Value, typed


def only_store(
    kernel: Kernel,
    ranks: tuple[int, ...],
    error: type[BadEpilogue | BadPrologue],
    modes: Sequence[str] = ("set",),
) -> Store:
    """The one store of a pointwise kernel over one of these numbers of axes; raises `error`."""
    if len(kernel.axes) not in ranks or any(phase.axes for phase in kernel.phases):
        raise error(kernel.name, f"it has {len(kernel.axes)} parallel axes, or inner ones")
    stores = [s for s in statements(kernel) if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].mode not in modes or stores[0].mask is not None:
        raise error(kernel.name, f"it has {len(stores)} stores, or a masked or atomic one")
    return stores[0]


class DeviceFunctionWriter(Writer):
    """tile: the name of the template's tile. operands: buffers that go into the tuple `operands`,
    after the batch number if there is one; their parameters are `prefix` and a number."""

    def __init__(
        self, kernel: Kernel, bits: int, tile: str, operands: set[str], prefix: str = "in"
    ) -> None:
        super().__init__(kernel, bits)
        self.tile = tile
        self.operands = [b.name for b in kernel.buffers if b.name in operands]
        for number, buffer in enumerate(self.operands):
            self.params.buffers[buffer] = f"{prefix}{number}"
        self.batched = False
        self.result_value: Value | None = None

    def run_over(
        self, batch: Sequence[Axis], tiles: Sequence[Tile], dimensions: tuple[str, str]
    ) -> None:
        """The axes of the kernel: one of batches, or none, and those of the template's tile, whose
        rows and columns are `dimensions`."""
        for axis in batch:
            self.symbols[axis.symbol] = (symbol("batch"), frozenset())
        self.batched = bool(batch)
        for tile in tiles:
            self.add_tile(tile)
        self.shapes = {key: f"{self.tile}.shape[{i}]" for i, key in enumerate(dimensions)}
        self.dimensions = dimensions

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

    def function(
        self, signature: str, value: Value, places: Sequence[str] = ()
    ) -> tuple[str, tuple[tuple[str, str], ...], tuple[str | sympy.Expr, ...]]:
        """The module of a function that begins with the lines `places` and returns a value;
        (name, kind) of what is in `operands`, and what the caller knows each by."""
        operands = [
            (self.params.buffers[b], f"*{self.params.dtypes[b].value}") for b in self.operands
        ]
        args: list[str | sympy.Expr] = list(self.operands)
        for name, kind, size in self.params.scalars(self.bits):
            operands.append((name, kind))
            args.append(size)
        start = 1 if self.batched else 0
        lines = [f"{param} = operands[{k}]" for k, (param, _) in enumerate(operands, start)]
        lines += [*places, *self.top.text(), f"return {typed(value).text}"]
        if self.batched and any(re.search(r"\bbatch\b", line) for line in lines):
            lines.insert(0, f"batch = operands[0].to(tl.int{self.bits})")
        return module([(signature, lines)], self.kernel), tuple(operands), tuple(args)
