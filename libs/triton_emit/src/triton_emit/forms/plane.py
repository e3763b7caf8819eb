"""Tiles of two dimensions, for kernels that transpose or whose points need their coordinates: the
last axis by all others, or by the one before it."""

import sympy

from loop_ir import Axis, Load, Store
from triton_emit.forms.kernel import KernelWriter, ceiling_division
from triton_emit.schedule import line_axes, rows_apart, turned
from triton_emit.tiles import Tile


class PlaneWriter(KernelWriter):
    """Of the other axes the one that is contiguous elsewhere comes last; programs that follow each
    other are neighbours along the last axis. With a `yblock` of 1 a row is a scalar; where rows are
    of one place of the outer axes (`rows_apart`), that is one. The last axis
    comes first in tiles: where Triton knows of no neighbours along either dimension (steps of two,
    places that are data), it lays the lanes of a warp along the first. Rows of an odd length, of
    which it knows none either, are read and stored as tiles that are turned around."""

    def define_tiles(self) -> None:
        """A block of the points of the last axis by one of those of others."""
        line, inner = line_axes(self.kernel), turned(self.kernel)
        others = self.kernel.axes[: -len(line)]
        rows = others
        if inner is not None:
            rows = (*(a for a in others if a != inner), inner)
        self.lines.head.append(f"pid = {self.program()}")
        length = sympy.Mul(*(a.extent for a in line))
        columns = self.write_sizes(ceiling_division(length, self.schedule.xblock))
        x, y = ("0", "pid") if columns == "1" else (f"pid % ({columns})", f"pid // ({columns})")
        alone = self.schedule.yblock == 1
        self.dimensions = ("x",) if alone else ("x", "y")
        self.across, self.ops.columns = "y", not alone
        self._define("x", "i", line, x)
        if rows_apart(self.kernel, self.schedule.yblock):
            y, rows = self._define_outer(rows, y), rows[-1:]
        if alone:
            self.add_tile(Tile("y", "yindex", "j", rows, self.write_sizes))
            self.lines.head.append(f"yindex = {y}")
        else:
            self._define("y", "j", rows, y)

    def _define_outer(self, rows: tuple[Axis, ...], number: str) -> str:
        """The place of the outer axes; the number of the block of rows there."""
        *outer, last = rows
        self.add_tile(Tile("o", "oindex", "k", tuple(outer), self.write_sizes))
        blocks = self.write_sizes(ceiling_division(last.extent, self.schedule.yblock))
        one = blocks == "1"
        self.lines.head.append(f"oindex = {number}" if one else f"oindex = {number} // ({blocks})")
        return "0" if one else f"{number} % ({blocks})"

    def _define(self, key: str, prefix: str, axes: tuple[Axis, ...], first: str) -> None:
        """A block of the points of `axes`, the one of this number."""
        flat, name = f"{key}index", f"{key.upper()}BLOCK"
        block = self.schedule.xblock if key == "x" else self.schedule.yblock
        tile = Tile(key, flat, prefix, axes, self.write_sizes)
        self.add_tile(tile)
        self.constants.append((name, block))
        start = "" if first == "0" else f"{first} * {name} + "
        alone = len(self.dimensions) == 1
        spread = "" if alone else "[:, None]" if key == "x" else "[None, :]"
        index = f"{start}tl.arange(0, {name}){spread}"
        if self.schedule.vector and key == "x":
            most = self.schedule.vector
            index = f"tl.multiple_of({index}, {most if alone else [most, 1]})"
        self.lines.head.append(f"{flat} = {index}")
        self.shapes[key] = name
        if not self.divides(block, tile.numel):
            self.masks[key] = (f"{key}mask", f"{flat} < {self.write_sizes(tile.numel)}")

    def turns(self, stmt: Load | Store) -> bool:
        """The neighbours of an access are along the other axes, and Triton does not know: stores of
        single elements took three times as long on an H200 (averages of 2 x 2 of a tanh of channels
        that come last, stored first, 128 x 128 x 126 x 126 of f32: 1003 us, 366 turned; maxima of
        3 x 3 of bf16 380, 70), loads of 4 bytes a little longer (a silu of 128 x 128 x 55 x 55 of
        f32, stored last, 109 us, 100), those of 2 no longer (61, 63)."""
        if len(self.dimensions) == 1:
            return False
        if isinstance(stmt, Load) and stmt.dtype.itemsize < 4:
            return False
        runs = [self.run_of(stmt, self.tiles[key]) for key in self.dimensions]
        return runs == [0, 1] and self.whole_mask(stmt)

    def programs(self) -> sympy.Expr:
        """How many blocks there are of one by those of the other."""
        blocks = [
            (key, self.schedule.xblock if key == "x" else self.schedule.yblock) for key in "xy"
        ]
        found = (ceiling_division(self.tiles[key].numel, n) for key, n in blocks)
        outer = self.tiles["o"].numel if "o" in self.tiles else sympy.S.One
        return sympy.Mul(*found, outer)
