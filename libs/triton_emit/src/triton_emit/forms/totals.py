"""Points that all want the same few numbers: a block of them, before which a program folds those.

rindex = tl.arange(0, RBLOCK)
row_sum = tl.sum(tl.load(in0 + rindex), 0)
xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
tl.store(out0 + xindex, tl.load(in1 + xindex) / row_sum)"""

from collections.abc import Sequence

import sympy

from loop_ir import Axis, Kernel, Stmt
from triton_emit.forms.kernel import KernelWriter
from triton_emit.forms.persistent import PersistentWriter
from triton_emit.schedule import Schedule


class TotalsWriter(PersistentWriter):
    """A flat kernel with inner spaces, which are tiles of one dimension as its points are."""

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        super().__init__(kernel, schedule)
        self.by_row, self.apart, self.plane = True, False, ()
        self.dimensions, self.across = ("x",), ""

    def programs(self) -> sympy.Expr:
        """One a block of points."""
        return KernelWriter.programs(self)

    def define_rows(self) -> None:
        """The tile of the program's points."""
        self.define_x()

    def run_phase(
        self, axes: tuple[Axis, ...], body: Sequence[Stmt], escaping: frozenset[str]
    ) -> None:
        """One after the other along their own dimension."""
        self.dimensions = ("r",) if axes else ("x",)
        super().run_phase(axes, body, escaping)
