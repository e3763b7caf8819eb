"""Tiles of two dimensions, for kernels that transpose or resample: the last axis by all others."""

import sympy

from loop_ir import Axis, across
from triton_emit.forms.kernel import KernelWriter, ceiling_division
from triton_emit.tiles import Tile, divides


class PlaneWriter(KernelWriter):
    """Of the other axes the one that is contiguous elsewhere comes last; programs that follow each
    other are neighbours along the last axis. With a `yblock` of 1 a row is a scalar. The last axis
    comes first in tiles: where an access has no neighbours along either dimension (steps of two,
    places that are data), Triton lays the lanes of a warp along the first."""

    def define_tiles(self) -> None:
        """A block of the points of the last axis by one of those of all others."""
        *others, last = self.kernel.axes
        inner = across(self.kernel)
        rows = tuple(others)
        if inner is not None:
            rows = (*(a for a in others if a != inner), inner)
        self.lines.head.append(f"pid = {self.program()}")
        columns = self.write_sizes(ceiling_division(last.extent, self.schedule.xblock))
        x, y = ("0", "pid") if columns == "1" else (f"pid % ({columns})", f"pid // ({columns})")
        alone = self.schedule.yblock == 1
        self.dimensions = ("x",) if alone else ("x", "y")
        self._define("x", "i", (last,), x)
        if alone:
            self.add_tile(Tile("y", "yindex", "j", rows, self.write_sizes))
            self.lines.head.append(f"yindex = {y}")
        else:
            self._define("y", "j", rows, y)

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
        if not divides(block, tile.numel):
            self.masks[key] = (f"{key}mask", f"{flat} < {self.write_sizes(tile.numel)}")

    def programs(self) -> sympy.Expr:
        """How many blocks there are of one by those of the other."""
        x = ceiling_division(self.tiles["x"].numel, self.schedule.xblock)
        return x * ceiling_division(self.tiles["y"].numel, self.schedule.yblock)
