"""Points that all want the same few numbers: a block of them, or a tile, before which a program
folds those.

rindex = tl.arange(0, RBLOCK)
row_sum = tl.sum(tl.load(in0 + rindex), 0)
xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
tl.store(out0 + xindex, tl.load(in1 + xindex) / row_sum)"""

from collections.abc import Sequence

import sympy

from loop_ir import Axis, Kernel, Load, Stmt, Store
from triton_emit.forms.persistent import PersistentWriter
from triton_emit.forms.plane import PlaneWriter
from triton_emit.forms.rows import RowWriter
from triton_emit.schedule import Schedule


class TotalsWriter(PersistentWriter):
    """A flat kernel with inner spaces, which are tiles of one dimension. What is said of points is
    what the form after `RowWriter` says."""

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        super().__init__(kernel, schedule)
        self.by_row, self.apart, self.plane = True, False, ()
        self.dimensions, self.across = ("x",), ""

    def programs(self) -> sympy.Expr:
        """One a block of points."""
        return super(RowWriter, self).programs()

    def define_rows(self) -> None:
        """The tile of the program's points."""
        super(RowWriter, self).define_tiles()
        self.points = self.dimensions, self.across

    def turns(self, stmt: Load | Store) -> bool:
        """Of points, as their tile says."""
        return self.space < 0 and super(RowWriter, self).turns(stmt)

    def run_phase(
        self, axes: tuple[Axis, ...], body: Sequence[Stmt], escaping: frozenset[str]
    ) -> None:
        """One after the other along their own dimensions."""
        self.dimensions, self.across = (("r",), "") if axes else self.points
        super().run_phase(axes, body, escaping)


class PlaneTotalsWriter(TotalsWriter, PlaneWriter):
    """Tiles of two dimensions, each of which folds the numbers first."""
