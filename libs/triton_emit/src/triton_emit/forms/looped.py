"""Rows that a program walks over chunk by chunk, once for each phase that needs them."""

from collections.abc import Sequence

import sympy

from loop_ir import DType, Kernel, Load, Reduce, Scan, Stmt
from loop_ir.ir import operands, results
from symexpr import FloorDiv
from triton_emit.body import Lines
from triton_emit.forms import reductions, scans
from triton_emit.forms.kernel import indented
from triton_emit.forms.rows import RowWriter
from triton_emit.schedule import Schedule
from triton_emit.ssa import Scope, loops
from triton_emit.tiles import Tile


class LoopedWriter(RowWriter):
    """accumulators: by reduction, the variables that a loop folds into, and their type.
    earlier, later: the buffers that loops before and after the current one read."""

    looped = True

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        super().__init__(kernel, schedule)
        self.scopes = loops(kernel)
        self.accumulators: dict[Reduce, tuple[list[str], DType]] = {}
        self.earlier: set[str] = set()
        self.later: set[str] = set()

    def define_tiles(self) -> None:
        """The tile of rows; each loop defines that of its own inner axes."""
        if self.steps > 1:
            self.constants.append(("STEPS", self.steps))
        super().define_tiles()

    def aligned(self, xindex: str) -> str:
        """Where scans step over rows, a warp reads all columns of a tile."""
        if self.steps == 1:
            return xindex
        self.lines.head.append("# warps by rows of each by columns, all of which a warp reads")
        return f"tl.multiple_of({xindex}, [1, 1, {max(1, self.schedule.xblock // 32)}])"

    def write_body(self) -> None:
        """Straight code and loops, in the order of the phases."""
        for number, scope in enumerate(self.scopes):
            others = (s for k, s in enumerate(self.scopes) if k != number)
            escaping = frozenset(u for s in others for stmt in s.body for u in operands(stmt))
            if scope.axes:
                self.earlier = _loaded(self.scopes[:number])
                self.later = _loaded(self.scopes[number + 1 :])
                self._loop(scope, escaping)
            else:
                self.run_phase((), scope.body, escaping)

    def _loop(self, scope: Scope, escaping: frozenset[str]) -> None:
        number, block = self.spaces.index(scope.axes), self.chunk
        outer, env, symbols = self.lines, dict(self.env), dict(self.symbols)
        tile = self.inner_tile(number, self.padded(scope.axes, scope.body), "RBLOCK", block)
        backwards = any(isinstance(s, Scan) and s.reverse for s in scope.body)
        lanes = f"lanes = {self._chunk(backwards)}"
        if lanes not in outer.head:
            outer.head.append(lanes)
        self.mask_inner(tile, scope.axes, block)
        self.lines = Lines()
        self.lines.head.append(f"{tile.flat} = start + lanes")
        self.before = []
        kept = {d for s in scope.body for d in results(s)}
        self.run_phase(scope.axes, scope.body, escaping - kept)
        inside, self.lines = self.lines, outer
        outer.body += [*self.before, *self.walk(tile, backwards, inside.text())]
        found = [s for s in scope.body if isinstance(s, Reduce)]
        finished = {s: reductions.finish_loop(self, s, *self.accumulators[s]) for s in found}
        self.env, self.symbols = env, symbols
        for stmt, values in finished.items():
            self.env.update(zip(stmt.outs, values, strict=True))
        del self.shapes[tile.key]
        self.masks.pop(tile.key, None)

    def _chunk(self, backwards: bool) -> str:
        """The places of a chunk, from its start on."""
        if self.steps == 1:
            return self.lanes("RBLOCK")
        warps, steps = "tl.arange(0, RBLOCK // STEPS)", "tl.arange(0, STEPS)"
        if backwards:  # the rows of a thread at fixed distances from one, as forward
            warps, steps = f"(RBLOCK // STEPS - 1 - {warps})", f"(STEPS - 1 - {steps})"
        return f"{warps}[:, None, None] * STEPS + {steps}[None, :, None]"

    def walk(self, tile: Tile, backwards: bool, inside: list[str]) -> list[str]:
        """The loop over chunks, which defines `start`, with these lines inside."""
        end = self.write_sizes(tile.numel)
        if not backwards:
            steps = f"0, {end}, RBLOCK"
            if self.chunk == 1:  # loads of several steps on their way at once
                steps = f"tl.range({steps}, loop_unroll_factor={_together(tile.numel)})"
            else:
                steps = f"range({steps})"
            return [f"for start in {steps}:", *indented(inside)]
        start = f"start = {self.last_start(tile)} - step"
        return [f"for step in range(0, {end}, RBLOCK):", *indented([start, *inside])]

    def last_start(self, tile: Tile) -> str:
        """Where the last chunk begins."""
        width = self.chunk
        return self.write_sizes(sympy.sympify(FloorDiv(tile.numel - 1, width) * width))

    def reduce(self, stmt: Reduce) -> None:
        """Folds a chunk into the accumulators of the reduction."""
        value = reductions.argument(self, stmt)
        names = reductions.start_loop(self, stmt, value)
        self.accumulators[stmt] = names, value.dtype
        reductions.step_loop(self, stmt, value, names)

    def scan(self, stmt: Scan, body: Sequence[Stmt]) -> None:
        """Scans a chunk, with what the chunks before it carry."""
        scans.write(self, stmt, body)

    def eviction(self, stmt: Load) -> str:
        """Rows that are read again by a later loop stay in L2, and leave it after the last: first
        of all lines where they are the program's own."""
        if self.space < 0:
            return super().eviction(stmt)
        if stmt.buffer in self.later:
            return ', eviction_policy="evict_last"'
        rows = {a.symbol for a in self.kernel.axes if a.extent != 1}
        own = self.by_row and bool(rows) and rows <= stmt.index.free_symbols
        if own and stmt.buffer in self.earlier:
            return ', eviction_policy="evict_first"'
        return super().eviction(stmt)


def _together(count: sympy.Expr) -> int:
    """Steps of a loop that are one: of a number that divides it there is no rest."""
    return max((n for n in range(5, 11) if count % n == 0), default=8)


def _loaded(scopes: Sequence[Scope]) -> set[str]:
    """The buffers that loops read."""
    return {s.buffer for scope in scopes if scope.axes for s in scope.body if isinstance(s, Load)}
