"""What kernels with inner axes share: a program does some rows, whose elements are a tile."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import sympy

import loop_ir as ir
from loop_ir.ir import statements
from symexpr import bounds, symbol
from triton_emit import schedule as schedules
from triton_emit.forms.kernel import KernelWriter, ceiling_division
from triton_emit.intervals import FITS
from triton_emit.tiles import Tile
from triton_emit.vectors import access

# Reductions that neither count their elements nor say where they are.
_PLAIN = frozenset(("sum", "prod", "max", "min", "any", "all", "softmax"))

# A number that a chunk folds to: its type, what it starts from and its text.
Total: TypeAlias = tuple[ir.DType, str, str]


class RowWriter(KernelWriter):
    """by_row: one row a program; rows are scalars and a tile has one dimension.
    apart: a program has rows or columns of one place of the outer axes.
    turned: how many elements a vector has where a row's are in reverse order; else 1.
    plane: the sizes of a row that is a tile of two dimensions (`plane_of_row`).
    looped: rows are done chunk by chunk. shares: each by a program of its own.
    piece: how many elements a program has of its row, as text; "": all.
    carries: by scan, what a loop carries from chunk to chunk.
    before: lines that come before a loop."""

    looped = False
    shares = False
    piece = ""

    def __init__(self, kernel: ir.Kernel, schedule: schedules.Schedule) -> None:
        super().__init__(kernel, schedule)
        self.steps = schedule.steps
        self.by_row = not kernel.axes or (schedule.xblock == 1 and self.steps == 1)
        self.apart = self.steps > 1 or schedules.shares_factors(kernel, schedule.xblock)
        self.apart &= ir.columns_part(kernel)
        many = len(kernel.axes) > 1 and not schedules.fills_less(kernel.axes[-1], schedule.xblock)
        self.apart |= schedule.xblock > 1 and many and schedules.shares_rows(kernel)
        self.ops.columns = not self.by_row
        self.turned = self._turned()
        whole = self.by_row and schedule.kind == "persistent" and schedule.share == 1
        self.plane = ir.plane_of_row(kernel) if whole and not schedules.walks(kernel) else ()
        self.carries: dict[ir.Scan, str] = {}
        self.before: list[str] = []
        self.dimensions = ("r",) if self.by_row else ("x", "r")
        if self.steps == self.turned == 1:
            self.across = "r" if ir.reduces_columns(kernel) else "x"

    @property
    def chunk(self) -> int:
        """Elements of a step of a loop over a row."""
        return self.schedule.rblock

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
        spread = "[None, None, :]" if self.steps > 1 else "[:, None]"
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
            self.block_of((last,), number, spread)
        else:
            self.define_x(spread)

    def inner_tile(self, number: int, space: tuple[ir.Axis, ...], name: str, block: int) -> Tile:
        """The tile of an inner space, `block` places of which are called `name`."""
        suffix = str(number or "")
        prefix = "r" * (1 + number)  # r1_2 is a run of axes of the first
        tile = Tile(f"r{number}", f"rindex{suffix}", prefix, space, self.write_sizes)
        self.add_tile(tile)
        if name not in dict(self.constants):
            self.constants.append((name, block))
        self.shapes[tile.key] = name
        for k in range(len(self.plane)):
            along = f"tl.arange(0, {self.plane[k]}){'[None, :]' if k else '[:, None]'}"
            tile.definitions[f"r{k}"] = f"tl.broadcast_to({along}, {list(self.plane)})"
            tile.extents[symbol(f"r{k}")] = sympy.Integer(self.plane[k])
            self.lines.head.append(f"r{k} = {tile.definitions[f'r{k}']}")
        return tile

    def padded(self, axes: tuple[ir.Axis, ...], body: Sequence[ir.Stmt]) -> tuple[ir.Axis, ...]:
        """Inner axes, the last one as long as the next power of two where that is an eighth more at
        most: lanes without an element cost less than a quotient and a rest for each that has one.
        Not where all that `body` reads moves in vectors, which share those, unless a step of a loop
        is one such piece, nor where some would no longer.

        x[i0*113 + r0*6328 + r1], r0 < 128, r1 < 113   ->   r1 < 128, of which 113 are read
        (64 x 128 x 56 x 113 of bf16, means over the second and the last: a quarter of the
        instructions.)
        """
        *others, last = axes
        if not self.by_row or not others or not last.extent.is_Integer:
            return axes
        extent, wide = int(last.extent), schedules.next_power_of_two(int(last.extent))
        if extent == wide or 8 * extent < 7 * wide:
            return axes
        if any(
            isinstance(s, ir.Scan) or (isinstance(s, ir.Reduce) and s.op not in _PLAIN)
            for s in body
        ):
            return axes
        found = (*others, replace(last, extent=sympy.Integer(wide)))
        high = bounds(sympy.Mul(*(a.extent for a in found)), self.ranges)[1]
        if self.bits == 32 and (high is None or high > FITS):
            return axes
        moved = [s for s in body if isinstance(s, ir.Load | ir.Store)]
        own, new = ([access(self.kernel, s, over) for s in moved] for over in (axes, found))
        lost = any(a > b for a, b in zip(own, new, strict=True))
        return axes if lost or (1 not in own and self.chunk != wide) else found

    def mask_inner(self, tile: Tile, axes: tuple[ir.Axis, ...], block: int) -> None:
        """Bounds of an inner tile of these axes, whose blocks overhang its end, and whose last axis
        may be padded."""
        name = tile.flat.replace("rindex", "rmask")
        wide, extent = (found[-1].extent for found in (tile.axes, axes))
        parts = [] if wide == extent else [f"{tile.flat} % {wide} < {extent}"]
        if not self.divides(block, tile.numel):
            parts.append(f"{tile.flat} < {self.write_sizes(tile.numel)}")
        if parts:
            text = parts[0] if len(parts) == 1 else f"({parts[0]}) & ({parts[1]})"
            self.masks[tile.key] = (name, text)

    def lanes(self, block: str) -> str:
        """The places of an inner tile. One that is scanned from its end has its vectors in reverse
        order: Triton would turn every element around, by ten shuffles."""
        v = self.turned
        if self.plane:
            return f"r0 * {self.plane[1]} + r1"
        if v == 1:
            return f"tl.arange(0, {block}){'' if self.by_row else '[None, :]'}"
        last = f"({block} // {v} - 1 - tl.arange(0, {block} // {v}))"
        return f"{last}[:, None] * {v} + tl.arange(0, {v})[None, :]"

    def _turned(self) -> int:
        ways = {s.reverse for s in statements(self.kernel) if isinstance(s, ir.Scan)}
        if ways != {True} or not self.by_row or len(self.spaces) > 1:
            return 1
        least = min(b.type.dtype.itemsize for b in self.kernel.buffers)
        return min(8, 16 // least, self.schedule.rblock)

    def turns(self, stmt: ir.Load | ir.Store) -> bool:
        """Elements of rows that lie apart (places that are data, steps of two): where Triton knows
        of no neighbours along either dimension, it lays the lanes of a warp along the first, here
        that of rows, and what is loaded goes through shared memory to be joined with what is not
        (softmax of windows with biases of a table, 1024 x 8 x 49 x 49 of bf16)."""
        if self.space < 0 or self.steps > 1 or self.dimensions != ("x", "r"):
            return False
        if ir.reduces_columns(self.kernel) or isinstance(stmt, ir.Store):
            return False
        runs = [self.run_of(stmt, self.tiles[key]) for key in ("x", self.inner)]
        return runs == [0, 0] and self.whole_mask(stmt)

    def shape(self, axes: frozenset[str]) -> str:
        """The tile over `axes`, with a dimension more where it is turned or stepped."""
        if self.plane and any(a.startswith("r") for a in axes):
            return str(list(self.plane))
        if self.turned > 1 and any(a.startswith("r") for a in axes):
            (block,) = (self.shapes[a] for a in self.shapes if a.startswith("r"))
            return f"[{block} // {self.turned}, {self.turned}]"
        if self.steps == 1:
            return super().shape(axes)
        rows = "RBLOCK // STEPS, STEPS" if any(a.startswith("r") for a in axes) else "1, 1"
        return f"[{rows}, {'XBLOCK' if 'x' in axes else '1'}]"
