"""Rows that a program holds whole."""

from collections.abc import Sequence
from dataclasses import replace

import sympy

from loop_ir import Kernel, Load, Phase, Reduce, Scan, Stmt, Store
from loop_ir.ir import statements
from symexpr import bounds
from triton_emit.forms import reductions, scans
from triton_emit.forms.rows import RowWriter
from triton_emit.schedule import MULTIPROCESSORS, Schedule, next_power_of_two

_REGISTERS = 1 << 16  # of a multiprocessor


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
            body = [s for p in self.kernel.phases if p.axes == space for s in p.body]
            padded = self.padded(space, body)
            fits = bounds(sympy.Mul(*(a.extent for a in padded)), self.ranges)[1]
            if fits is None or fits > block:
                padded = space
            tile = self.inner_tile(number, padded, name, block)
            self.lines.head.append(f"{tile.flat} = {self.lanes(name)}")
            self.mask_inner(tile, space, block)

    def reduce(self, stmt: Reduce) -> None:
        """Folds rows at once."""
        value = reductions.argument(self, stmt)
        results = reductions.persistent(self, stmt, value)
        self.env.update(zip(stmt.outs, results, strict=True))

    def scan(self, stmt: Scan, body: Sequence[Stmt]) -> None:
        """Scans rows at once."""
        scans.write(self, stmt, body)


def read_first(kernel: Kernel, schedule: Schedule) -> Kernel:
    """The kernel with what it reads of a row after the first reduction (weights) read before it,
    where programs are so few that each runs alone, and half of its registers hold all of it: no
    load is moved over the barriers of a reduction, and another program would fill the time that
    memory takes."""
    places = [n for n, p in enumerate(kernel.phases) if p.axes]
    count = sympy.Mul(*(a.extent for a in kernel.axes))
    if not places or not count.is_Integer or count > MULTIPROCESSORS * schedule.xblock:
        return kernel
    at = places[0]
    axes = kernel.phases[at].axes
    plain = {a.symbol for a in (*kernel.axes, *axes)}
    written = {s.buffer for s in statements(kernel) if isinstance(s, Store)}

    def goes(stmt: Stmt) -> bool:
        return (
            isinstance(stmt, Load)
            and stmt.mask is None
            and stmt.buffer not in written
            and stmt.index.free_symbols <= plain
        )

    moved = [s for n in places[1:] for s in kernel.phases[n].body if goes(s)]
    if not moved or any(kernel.phases[n].axes != axes for n in places):
        return kernel
    body = list(kernel.phases[at].body)
    tiles = len(moved) + sum(isinstance(s, Load) for s in body)
    if tiles * schedule.xblock * schedule.rblock > _REGISTERS // 2:
        return kernel
    where = next((n for n, s in enumerate(body) if isinstance(s, Reduce | Scan)), len(body))
    phases = [
        replace(p, body=tuple(s for s in p.body if s not in moved)) if n in places[1:] else p
        for n, p in enumerate(kernel.phases)
    ]
    phases[at] = Phase(axes, (*body[:where], *moved, *body[where:]))
    return replace(kernel, phases=tuple(phases))
