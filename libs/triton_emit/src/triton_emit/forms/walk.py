"""Kernels that sum columns on their way over rows: a program has a part of the rows, and takes one
or several of them at a time."""

import sympy

from loop_ir import Axis, Kernel, Reduce, Stmt, Store
from loop_ir.ir import Name, operands, results
from triton_emit.body import Lines
from triton_emit.forms.kernel import indented
from triton_emit.forms.persistent import PersistentWriter
from triton_emit.schedule import Schedule
from triton_emit.tiles import Tile
from triton_emit.values import TL_TYPES, Value


class WalkWriter(PersistentWriter):
    """The last parallel axis is that of the rows; sums over it stay in registers until the last
    row (`held`: their stores, and the variables of the sums)."""

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        super().__init__(kernel, schedule)
        self.held: list[tuple[Store, str]] = []
        # What is inside of the loop over rows, while that is written.
        self.walk_lines: Lines | None = None

    def programs(self) -> sympy.Expr:
        """One for each part of the rows."""
        return sympy.Mul(*(a.extent for a in self.kernel.axes[:-1]))

    def define_rows(self) -> None:
        """The program's part of the rows, and those that it takes at a time."""
        *parts, rows = self.kernel.axes
        if parts:
            self.add_tile(Tile("part", "part", "p", tuple(parts), self.write_sizes))
            self.lines.head.append(f"part = {self.program()}")
        flat = "row" if self.by_row else "xindex"
        self.add_tile(Tile("x", flat, "i", (rows,), self.write_sizes))
        if self.by_row:
            return
        block = self.schedule.xblock
        self.constants.append(("XBLOCK", block))
        self.lines.head.append("rows = tl.arange(0, XBLOCK)[:, None]")
        self.shapes["x"] = "XBLOCK"
        if not self.divides(block, rows.extent):
            self.masks["x"] = ("xmask", f"xindex < {self.write_sizes(rows.extent)}")

    def write_body(self) -> None:
        """What is the same in all rows, the loop over them, and the stores of their sums."""
        outer, end = self.lines, self.write_sizes(self.kernel.axes[-1].extent)
        varies: set[Name] = {self.kernel.axes[-1].symbol}
        phases: list[tuple[tuple[Axis, ...], list[Stmt]]] = []
        for phase in self.kernel.phases:
            same: list[Stmt] = []
            body: list[Stmt] = []
            for stmt in phase.body:
                moving = not varies.isdisjoint(operands(stmt)) or isinstance(stmt, Store | Reduce)
                varies.update(results(stmt) if moving else ())
                (body if moving else same).append(stmt)
            self.run_phase(phase.axes, same, frozenset(d for s in same for d in results(s)))
            phases.append((phase.axes, body))
        self.walk_lines = self.lines = Lines()
        if not self.by_row:
            self.lines.head.append("xindex = start + rows")
        for axes, body in phases:
            later = frozenset(u for a, b in phases if b is not body for s in b for u in operands(s))
            self.run_phase(axes, body, later)
        inside, self.lines = self.lines, outer
        self.walk_lines = None
        step, over = ("row", f"0, {end}") if self.by_row else ("start", f"0, {end}, XBLOCK")
        stages = self.schedule.num_stages
        walk = f"tl.range({over}, num_stages={stages})" if stages > 1 else f"range({over})"
        outer.body += [*self.before, f"for {step} in {walk}:", *indented(inside.text())]
        for stmt, name in self.held:
            if not self.by_row:
                self.lines.body.append(f"{name} = tl.sum({name}, 0)[None, :]")
            index, over_axes = self.index(stmt.index)
            self.store(stmt, index, name, over_axes)

    def head_of(self, key: str) -> list[str]:
        """Rows are defined inside of the loop over them, everything else before it."""
        lines = self.walk_lines if key == "x" else None
        return (lines or self.top).head

    def takes(self, stmt: Store, value: Value) -> bool:
        """A sum over rows stays in registers."""
        if stmt.mode != "sum":
            return False
        over = frozenset(self.shapes) & {"x", self.inner}
        name = self.namer.fresh("column_sum")
        self.before.append(f"{name} = tl.zeros({self.shape(over)}, {TL_TYPES[value.dtype]})")
        text = value.text
        if mask := self.mask(frozenset({"x"}) & over):
            text = f"tl.where({mask}, {text}, 0.0)"
        self.lines.body.append(f"{name} += {text}")
        self.held.append((stmt, name))
        return True
