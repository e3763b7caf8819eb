"""What kernels with inner axes share: a program does some rows, whose elements are a tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import sympy

from loop_ir import Axis, DType, Kernel, Scan, columns_part
from loop_ir.ir import statements
from triton_emit.forms.kernel import KernelWriter, ceiling_division
from triton_emit.schedule import Schedule
from triton_emit.tiles import Tile

# A number that a chunk folds to: its type, what it starts from and its text.
Total: TypeAlias = tuple[DType, str, str]


class RowWriter(KernelWriter):
    """by_row: one row a program; rows are scalars and a tile has one dimension.
    apart: a program has columns of one place of the outer axes.
    turned: how many elements a vector has where a row's are in reverse order; else 1.
    looped: rows are done chunk by chunk. shares: each by a program of its own.
    carries: by scan, what a loop carries from chunk to chunk.
    before: lines that come before a loop."""

    looped = False
    shares = False

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        super().__init__(kernel, schedule)
        self.steps = schedule.steps
        self.by_row = not kernel.axes or (schedule.xblock == 1 and self.steps == 1)
        self.apart = self.steps > 1 and columns_part(kernel)
        self.turned = self._turned()
        self.carries: dict[Scan, str] = {}
        self.before: list[str] = []
        self.dimensions = ("r",) if self.by_row else ("x", "r")

    @property
    def inner(self) -> str:
        """The tile dimension of the inner axes of the current phase."""
        return f"r{self.space}"

    def programs(self) -> sympy.Expr:
        """One a row, or one a block of rows."""
        if self.by_row:
            return sympy.Mul(*(a.extent for a in self.kernel.axes))
        if self.apart:
            *others, last = (a.extent for a in self.kernel.axes)
            return sympy.Mul(ceiling_division(last, self.schedule.xblock), *others)
        return super().programs()

    def before_chunk(
        self, join: str, totals: Sequence[Total], meanwhile: Sequence[str]
    ) -> list[str]:
        """Where programs share rows, names of what the chunks before this one fold to. join: the
        helper that folds two; meanwhile: lines that need not wait for it."""
        raise TypeError("a loop carries what its chunks fold to")

    def define_tiles(self) -> None:
        """The tile of rows; forms add those of inner axes."""
        if self.kernel.axes:
            self.define_rows()

    def define_rows(self) -> None:
        """The tile of the program's rows."""
        if self.by_row:
            self.add_tile(Tile("x", "row", "i", self.kernel.axes, self.write_sizes))
            self.lines.head.append(f"row = {self.program()}")
        elif self.apart:
            *others, last = self.kernel.axes
            self.add_tile(Tile("o", "row", "i", tuple(others), self.write_sizes))
            blocks = self.write_sizes(ceiling_division(last.extent, self.schedule.xblock))
            blocks = blocks if blocks.isalnum() else f"({blocks})"
            alone = blocks == "1"  # Triton would drop what it is told of a sum with 0
            self.lines.head.append(f"row = {self.program()}{'' if alone else f' // {blocks}'}")
            number = "" if alone else f"{self.program()} % {blocks}"
            self.block_of((last,), number, "[None, None, :]")
        else:
            self.define_x("[None, None, :]" if self.steps > 1 else "[:, None]")

    def inner_tile(self, number: int, space: tuple[Axis, ...], name: str, block: int) -> Tile:
        """The tile of an inner space, `block` places of which are called `name`."""
        suffix = str(number or "")
        prefix = f"r{suffix}_" if number else "r"
        tile = Tile(f"r{number}", f"rindex{suffix}", prefix, space, self.write_sizes)
        self.add_tile(tile)
        if name not in dict(self.constants):
            self.constants.append((name, block))
        self.shapes[tile.key] = name
        return tile

    def mask_inner(self, tile: Tile) -> None:
        """Bounds of an inner tile, whose blocks overhang its end."""
        name = tile.flat.replace("rindex", "rmask")
        self.masks[tile.key] = (name, f"{tile.flat} < {self.write_sizes(tile.numel)}")

    def lanes(self, block: str) -> str:
        """The places of an inner tile. One that is scanned from its end has its vectors in reverse
        order: Triton would turn every element around, by ten shuffles."""
        v = self.turned
        if v == 1:
            return f"tl.arange(0, {block}){'' if self.by_row else '[None, :]'}"
        last = f"({block} // {v} - 1 - tl.arange(0, {block} // {v}))"
        return f"{last}[:, None] * {v} + tl.arange(0, {v})[None, :]"

    def _turned(self) -> int:
        ways = {s.reverse for s in statements(self.kernel) if isinstance(s, Scan)}
        if ways != {True} or not self.by_row or len(self.spaces) > 1:
            return 1
        least = min(b.type.dtype.itemsize for b in self.kernel.buffers)
        return min(8, 16 // least, self.schedule.rblock)

    def shape(self, axes: frozenset[str]) -> str:
        """The tile over `axes`, with a dimension more where it is turned or stepped."""
        if self.turned > 1 and any(a.startswith("r") for a in axes):
            (block,) = (self.shapes[a] for a in self.shapes if a.startswith("r"))
            return f"[{block} // {self.turned}, {self.turned}]"
        if self.steps == 1:
            return super().shape(axes)
        rows = "RBLOCK // STEPS, STEPS" if any(a.startswith("r") for a in axes) else "1, 1"
        return f"[{rows}, {'XBLOCK' if 'x' in axes else '1'}]"
