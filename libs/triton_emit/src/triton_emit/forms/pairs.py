"""Flat kernels whose points are two neighbours each, stored together (`triton_emit.pairs`)."""

from collections.abc import Sequence
from dataclasses import replace

import sympy

from loop_ir import Kernel, Load, Stmt, Store
from loop_ir.ir import statements
from triton_emit.forms.kernel import KernelWriter
from triton_emit.pairs import in_pairs, wide
from triton_emit.schedule import Schedule
from triton_emit.tiles import Tile
from triton_emit.values import ATOM, TL_TYPES, Value, in_memory

# A buffer, and a place in it.
_Place = tuple[str, sympy.Expr]


class PairWriter(KernelWriter):
    """Has two tiles: `x` of points, and `w` of both neighbours of each."""

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        super().__init__(in_pairs(kernel), schedule)
        # Of two neighbours the first, by where the second will be.
        self.first_of: dict[_Place, Value] = {}
        # By name, what both neighbours read: the loads of the first and of the second.
        self.both: dict[str, tuple[Load, Load]] = {}
        loads = {
            (s.buffer, s.index): s
            for s in statements(self.kernel)
            if isinstance(s, Load) and s.mask is None
        }
        last = self.kernel.axes[-1].symbol
        for (buffer, index), first in loads.items():
            second = loads.get((buffer, sympy.expand(index + 1)))
            constant, _ = index.as_coeff_Add()
            if second is not None and index.coeff(last) == 2 and constant % 2 == 0:
                self.both[first.out] = self.both[second.out] = first, second

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
        first = self.first_of.pop((stmt.buffer, stmt.index), None)
        if first is None:
            self.first_of[stmt.buffer, sympy.expand(stmt.index + 1)] = value
            return True
        text, over = self._of_both(sympy.expand(stmt.index - 1))
        values = ", ".join(self._whole(v) for v in (first, value))
        self.store(stmt, text, f"tl.interleave({values})", over)
        return True

    def load(self, stmt: Load, readers: Sequence[Stmt], alone: bool) -> None:
        """What both neighbours read, side by side, is one load."""
        if stmt.out in self.env or stmt.out not in self.both:
            if stmt.out not in self.env:
                super().load(stmt, readers, alone)
            return
        pair = self.both[stmt.out]
        text, over = self._of_both(pair[0].index)
        loaded = self.load_text(stmt, text, self.mask(over))
        base = self.base_of(stmt.buffer)
        names = [self.namer.fresh(base) for _ in pair]
        self.lines.body.append(f"{', '.join(names)} = tl.split(tl.reshape({loaded}, [XBLOCK, 2]))")
        for name, each in zip(names, pair, strict=True):
            self.env[each.out] = Value(name, ATOM, each.dtype, frozenset("x"))

    def _of_both(self, first: sympy.Expr) -> tuple[str, frozenset[str]]:
        """Where both neighbours lie, of the place of the first: 2*i + ... -> i + ..."""
        axes = [a.symbol for a in self.kernel.axes]
        index = sympy.expand(first - axes[-1])
        return self.index(index.xreplace({s: wide(s) for s in axes}))

    def _whole(self, value: Value) -> str:
        """A value at all points of the tile."""
        over = frozenset(self.shapes)
        if value.axes == over:
            return in_memory(value)
        if value.literal is not None:
            return f"tl.full({self.shape(over)}, {in_memory(value)}, {TL_TYPES[value.dtype]})"
        return f"tl.broadcast_to({in_memory(value)}, {self.shape(over)})"
