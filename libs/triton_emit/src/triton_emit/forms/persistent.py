"""Rows that a program holds whole."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from loop_ir import Reduce, Scan, Stmt
from symexpr import bounds
from triton_emit.forms import reductions, scans
from triton_emit.forms.rows import RowWriter
from triton_emit.schedule import next_power_of_two


class PersistentWriter(RowWriter):
    """An inner space is a tile as wide as the schedule says; of several, each is as wide as it
    must be."""

    def define_tiles(self) -> None:
        """The tile of rows, and one for each inner space."""
        super().define_tiles()
        for number, space in enumerate(self.spaces):
            name, block = f"RBLOCK{number or ''}", self.schedule.rblock
            numel = sympy.Mul(*(a.extent for a in space))
            high = bounds(numel, self.ranges)[1]
            if len(self.spaces) > 1 and high is not None:
                block = next_power_of_two(high)
            tile = self.inner_tile(number, space, name, block)
            self.lines.head.append(f"{tile.flat} = {self.lanes(name)}")
            if tile.numel != block:
                self.mask_inner(tile)

    def reduce(self, stmt: Reduce) -> None:
        """Folds rows at once."""
        value = reductions.argument(self, stmt)
        results = reductions.persistent(self, stmt, value)
        self.env.update(zip(stmt.outs, results, strict=True))

    def scan(self, stmt: Scan, body: Sequence[Stmt]) -> None:
        """Scans rows at once."""
        scans.write(self, stmt, body)
