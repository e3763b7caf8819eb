"""Flat kernels whose points are two neighbours each, stored together (`triton_emit.pairs`)."""

from __future__ import annotations

from dataclasses import replace

import sympy

from loop_ir import Kernel, Store
from triton_emit.forms.kernel import KernelWriter
from triton_emit.pairs import in_pairs, wide
from triton_emit.schedule import Schedule
from triton_emit.tiles import Tile
from triton_emit.values import TL_TYPES, Value, in_memory


class PairWriter(KernelWriter):
    """Has two tiles: `x` of points, and `w` of both neighbours of each."""

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        super().__init__(in_pairs(kernel), schedule)
        # Of two neighbours, by buffer: the first, until the second is known.
        self.first_of: dict[str, Value] = {}

    def define_tiles(self) -> None:
        """The tile of points, and that of both neighbours of each."""
        super().define_tiles()
        *others, last = (replace(a, symbol=wide(a.symbol)) for a in self.kernel.axes)
        axes = (*others, replace(last, extent=2 * last.extent))
        tile = Tile("w", "windex", "w", axes, self.write_sizes)
        self.add_tile(tile)
        windex = f"{self.program()} * (2 * XBLOCK) + tl.arange(0, 2 * XBLOCK)"
        self.lines.head.append(f"windex = {windex}")
        if "x" in self.masks:
            self.masks["w"] = ("wmask", f"windex < {self.write_sizes(tile.numel)}")

    def takes(self, stmt: Store, value: Value) -> bool:
        """Both neighbours are stored in turns, side by side."""
        first = self.first_of.pop(stmt.buffer, None)
        if first is None:
            self.first_of[stmt.buffer] = value
            return True
        axes = [a.symbol for a in self.kernel.axes]
        index = sympy.expand(stmt.index - axes[-1] - 1)  # 2*i + 1 + ... -> i + ...
        text, over = self.index(index.xreplace({s: wide(s) for s in axes}))
        values = ", ".join(self._whole(v) for v in (first, value))
        self.store(stmt, text, f"tl.interleave({values})", over)
        return True

    def _whole(self, value: Value) -> str:
        """A value at all points of the tile."""
        over = frozenset(self.shapes)
        if value.axes == over:
            return in_memory(value)
        if value.literal is not None:
            return f"tl.full({self.shape(over)}, {in_memory(value)}, {TL_TYPES[value.dtype]})"
        return f"tl.broadcast_to({in_memory(value)}, {self.shape(over)})"
