"""`emit`: a loop IR kernel under a schedule -> a Triton kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy

from loop_ir import (
    Axis,
    DType,
    Kernel,
    Load,
    Origin,
    Reduce,
    Scan,
    Stmt,
    Store,
    across,
    pair_softmax,
    picks_rows,
)
from symexpr import FloorDiv, bounds, one_line
from triton_emit import scans
from triton_emit.body import Lines, Writer
from triton_emit.errors import BadSchedule
from triton_emit.helpers import called, helper_text
from triton_emit.idioms import cheaper
from triton_emit.pairs import in_pairs, wide
from triton_emit.reductions import check, finish_loop, persistent, start_loop, step_loop, working
from triton_emit.schedule import (
    Schedule,
    may_step,
    next_power_of_two,
    streams,
    symbol_ranges,
    walks,
)
from triton_emit.source import TritonKernel
from triton_emit.ssa import Scope, clean, defines, loops, statements, straight, uses
from triton_emit.tiles import Tile, divides
from triton_emit.values import TL_TYPES, Value, in_memory
from triton_emit.vectors import bends

INDENT = "    "


def emit(kernel: Kernel, schedule: Schedule) -> TritonKernel:
    """The Triton source of `kernel` cut as `schedule` says, and its launch.

    Raises BadSchedule when the two do not fit, UnsupportedDType for element types that Triton
    lacks, UnsupportedKernel when a loop would have to read what it overwrote.
    """
    kernel = cheaper(clean(kernel))
    if schedule.kind == "looped":
        kernel = pair_softmax(kernel)  # a row that is held whole is read once anyway
    if schedule.pairs:
        kernel = in_pairs(kernel)
    return KernelWriter(kernel, schedule).emit()


class KernelWriter(Writer):
    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        super().__init__(kernel, schedule.index_bits)
        self.schedule = schedule
        self.spaces = list(dict.fromkeys(p.axes for p in kernel.phases if p.axes))
        self.constants: list[tuple[str, int]] = []
        # sums over rows make each program walk over the last parallel axis
        self.walks = walks(kernel)
        self.held: list[tuple[Store, str]] = []
        self.first_of: dict[str, Value] = {}  # of two neighbours, by buffer
        self.walk_lines: Lines | None = None
        programs = kernel.axes[:-1] if self.walks else kernel.axes
        self.numel: sympy.Expr = sympy.Mul(*(a.extent for a in programs))
        self._check()
        self.looped = schedule.kind == "looped"
        self.steps = schedule.steps
        # one row a program: rows are scalars and a tile is one-dimensional
        self.by_row = bool(self.spaces) and schedule.xblock == 1 and schedule.steps == 1
        self.turned = 1
        self.loads_left: dict[str, int] = {}
        self.space = -1
        self.accumulators: dict[Reduce, list[str]] = {}
        self.carries: dict[Scan, str] = {}
        self.working_types: dict[Reduce, DType] = {}
        self.before: list[str] = []

    def _check(self) -> None:
        s, name = self.schedule, self.kernel.name
        for field in ("xblock", "yblock", "rblock", "num_warps", "steps"):
            block = getattr(s, field)
            if block < 1 or block & (block - 1):
                raise BadSchedule(name, field, block, "a power of two")
        if s.kind not in ("flat", "tiled", "persistent", "looped"):
            raise BadSchedule(name, "kind", s.kind, "flat, tiled, persistent or looped")
        if s.index_bits not in (32, 64):
            raise BadSchedule(name, "index_bits", s.index_bits, "32 or 64")
        if (s.kind in ("flat", "tiled")) != (not self.spaces):
            has = "has" if self.spaces else "has no"
            raise BadSchedule(
                name, "kind", s.kind,
                f"{'persistent or looped' if self.spaces else 'flat'}: the kernel {has} inner axes",
            )  # fmt: skip
        lanes = s.kind in ("flat", "tiled")
        if s.vector and (not lanes or s.vector < 0 or s.vector & (s.vector - 1)):
            raise BadSchedule(
                name, "vector", s.vector, "0, or a power of two in a flat or tiled schedule"
            )
        if s.pairs and s.kind != "flat":
            raise BadSchedule(name, "pairs", 1, "False in a schedule that is not flat")
        if s.steps > 1 and not (
            s.kind == "looped" and s.steps <= s.rblock and may_step(self.kernel)
        ):
            raise BadSchedule(name, "steps", s.steps, "1: no scans in steps of several rows")
        planar = across(self.kernel) is not None or picks_rows(self.kernel) or bends(self.kernel)
        if s.kind == "tiled" and not planar:
            raise BadSchedule(name, "kind", s.kind, "flat: the kernel does not transpose")
        if self.walks and s.kind != "persistent":
            raise BadSchedule(name, "kind", s.kind, "persistent: the kernel sums over rows")
        if s.kind == "persistent":
            for space in self.spaces:
                high = bounds(
                    sympy.Mul(*(a.extent for a in space)), symbol_ranges(self.kernel.symbols)
                )[1]
                if high is None or next_power_of_two(high) > s.rblock:
                    raise BadSchedule(name, "rblock", s.rblock, f"at least the inner extent {high}")

    # ---- the whole

    def emit(self) -> TritonKernel:
        self._define_x()
        if self.looped:
            scopes = loops(self.kernel)
        else:
            scopes = straight(self.kernel)
            for number, space in enumerate(self.spaces):
                self._define_inner(number, space)
        self.loads_left = self._count_loads(scopes)
        if self.walks:
            self._walk()
            return self._finish()
        for number, scope in enumerate(scopes):
            outside = [s for k, s in enumerate(scopes) if k != number]
            escaping = frozenset(u for s in outside for stmt in s.body for u in uses(stmt))
            if scope.axes:
                self._loop(scope, escaping)
            else:
                self._straight(scope, escaping)
        return self._finish()

    def _finish(self) -> TritonKernel:
        params, args = self.parameters()
        signature = [p[0] for p in params] + [f"{c}: tl.constexpr" for c, _ in self.constants]
        first = ["tl.extra.cuda.gdc_wait()"] if self.schedule.overlap else []
        lines = (*first, *self.prelude(), *self.top.text())
        body = "\n".join(INDENT + line for line in lines)
        head = "".join(f"# {line}\n" for line in origin_lines(self.kernel.origins))
        blocks = ["import triton\nimport triton.language as tl", helper_text(called(body))]
        blocks.append(
            f"{head}@triton.jit\ndef {self.kernel.name}({', '.join(signature)}):\n{body}\n"
        )
        return TritonKernel(
            self.kernel.name,
            "\n\n\n".join(b for b in blocks if b),
            tuple(params),
            tuple(args),
            (self.programs(), sympy.S.One, sympy.S.One),
            tuple(self.constants),
            self.schedule.num_warps,
            self.schedule.num_stages,
            self.schedule,
        )

    def parameters(self) -> tuple[list[tuple[str, str, bool]], list[str | sympy.Expr]]:
        """Name, kind, and whether it is written, of each run-time parameter; what to pass."""
        params = [
            (name, f"*{self.params.dtypes[buffer].value}", self.params.mutated[buffer])
            for buffer, name in self.params.buffers.items()
        ]
        args: list[str | sympy.Expr] = list(self.params.buffers)
        for name, kind, size in self.params.scalars(self.schedule.index_bits):
            params.append((name, kind, False))
            args.append(size)
        return params, args

    def prelude(self) -> list[str]:
        """Lines before the tiles."""
        return []

    def program(self) -> str:
        """The number of the program, from 0."""
        return "tl.program_id(0)" + (".to(tl.int64)" if self.bits == 64 else "")

    def programs(self) -> sympy.Expr:
        """How many there are."""
        xblock = 1 if self.by_row else self.schedule.xblock
        programs = self.numel
        if not self.walks:
            programs = _cdiv(self.tiles["x"].numel if "x" in self.tiles else self.numel, xblock)
        if "y" in self.tiles:
            programs *= _cdiv(self.tiles["y"].numel, self.schedule.yblock)
        return programs

    # ---- tiles

    def _define_x(self) -> None:
        self.by_row = self.by_row or (bool(self.spaces) and not self.kernel.axes)
        self.turned = self._turned()
        if self.spaces:
            self.dimensions = ("r",) if self.by_row else ("x", "r")
        if self.steps > 1:
            self.constants.append(("STEPS", self.steps))
        if not self.kernel.axes:
            return
        pid = self.program()
        if self.walks:
            self._define_walk(pid)
            return
        if self.by_row:
            self.add_tile(Tile("x", "row", "i", self.kernel.axes, self.write_sizes))
            self.lines.head.append(f"row = {pid}")
            return
        if self.schedule.kind == "tiled":
            self._define_plane(pid)
            return
        self.add_tile(Tile("x", "xindex", "i", self.kernel.axes, self.write_sizes))
        self.constants.append(("XBLOCK", self.schedule.xblock))
        spread = "[None, None, :]" if self.steps > 1 else "[:, None]" if self.spaces else ""
        xindex = f"{pid} * XBLOCK + tl.arange(0, XBLOCK){spread}"
        if self.steps > 1:
            self.lines.head.append("# warps by rows of each by columns, all of which a warp reads")
            each = max(1, self.schedule.xblock // 32)
            xindex = f"tl.multiple_of({xindex}, [1, 1, {each}])"
        if vector := self.schedule.vector:
            # Triton lays out a thread's elements by the multiple that it thinks they begin at
            if not self.schedule.pairs:
                self.lines.head.append(
                    "# neighbours in neighbouring lanes: the mask would cut wider stores"
                )
            xindex = f"tl.multiple_of({xindex}, {vector})"
        self.lines.head.append(f"xindex = {xindex}")
        self.shapes["x"] = "XBLOCK"
        if not divides(self.schedule.xblock, self.numel):
            self.masks["x"] = ("xmask", f"xindex < {self.write_sizes(self.numel)}")
        if self.schedule.pairs:
            self._define_pairs(pid)

    def _define_pairs(self, pid: str) -> None:
        """The tile of both neighbours of each point."""
        *others, last = (replace(a, symbol=wide(a.symbol)) for a in self.kernel.axes)
        tile = Tile("w", "windex", "w", (*others, replace(last, extent=2 * last.extent)),
                    self.write_sizes)  # fmt: skip
        self.add_tile(tile)
        self.lines.head.append(f"windex = {pid} * (2 * XBLOCK) + tl.arange(0, 2 * XBLOCK)")
        if "x" in self.masks:
            self.masks["w"] = ("wmask", f"windex < {self.write_sizes(tile.numel)}")

    def _store_pair(self, stmt: Store, first: Value, second: Value) -> None:
        """Both neighbours, which lie side by side, in turns."""
        axes = [a.symbol for a in self.kernel.axes]
        index = sympy.expand(stmt.index - axes[-1] - 1)  # 2*i + 1 + ... -> i + ...
        text, over = self.index(index.xreplace({s: wide(s) for s in axes}))
        values = ", ".join(self._whole(v) for v in (first, second))
        mask = self.mask(over)
        tail = f", {mask}" if mask else ""
        param = self.params.buffers[stmt.buffer]
        self.lines.body.append(f"tl.store({param} + {text}, tl.interleave({values}){tail})")

    def _whole(self, value: Value) -> str:
        """A value at all points of the tile."""
        over = frozenset(self.shapes)
        if value.axes == over:
            return in_memory(value)
        if value.literal is not None:
            return f"tl.full({self.shape(over)}, {in_memory(value)}, {TL_TYPES[value.dtype]})"
        return f"tl.broadcast_to({in_memory(value)}, {self.shape(over)})"

    def _define_walk(self, pid: str) -> None:
        """Each program has a part of the rows, and takes one or several of them at a time."""
        *parts, rows = self.kernel.axes
        if parts:
            self.add_tile(Tile("part", "part", "p", tuple(parts), self.write_sizes))
            self.lines.head.append(f"part = {pid}")
        tile = Tile("x", "row" if self.by_row else "xindex", "i", (rows,), self.write_sizes)
        self.add_tile(tile)
        if self.by_row:
            return
        block = self.schedule.xblock
        self.constants.append(("XBLOCK", block))
        self.lines.head.append("rows = tl.arange(0, XBLOCK)[:, None]")
        self.shapes["x"] = "XBLOCK"
        if not divides(block, rows.extent):
            self.masks["x"] = ("xmask", f"xindex < {self.write_sizes(rows.extent)}")

    def _walk(self) -> None:
        """What is the same in all rows, the loop over them, and the stores of their sums."""
        outer, end = self.lines, self.write_sizes(self.kernel.axes[-1].extent)
        varies = {self.kernel.axes[-1].symbol.name}
        phases: list[tuple[tuple[Axis, ...], list[Stmt]]] = []
        for phase in self.kernel.phases:
            same: list[Stmt] = []
            body: list[Stmt] = []
            for stmt in phase.body:
                moving = not varies.isdisjoint(uses(stmt)) or isinstance(stmt, Store | Reduce)
                varies.update(defines(stmt) if moving else ())
                (body if moving else same).append(stmt)
            self.run_phase(phase.axes, same, frozenset(d for s in same for d in defines(s)))
            phases.append((phase.axes, body))
        self.walk_lines = self.lines = Lines()
        if not self.by_row:
            self.lines.head.append("xindex = start + rows")
        for axes, body in phases:
            later = frozenset(u for a, b in phases if b is not body for s in b for u in uses(s))
            self.run_phase(axes, body, later)
        inside, self.lines = self.lines, outer
        self.walk_lines = None
        outer.body += self.before
        step, over = ("row", f"0, {end}") if self.by_row else ("start", f"0, {end}, XBLOCK")
        stages = self.schedule.num_stages
        walk = f"tl.range({over}, num_stages={stages})" if stages > 1 else f"range({over})"
        outer.body.append(f"for {step} in {walk}:")
        outer.body += [INDENT + line for line in inside.text()]
        for stmt, name in self.held:
            self._store_sum(stmt, name)

    def head_of(self, key: str) -> list[str]:
        if not self.walks:
            return super().head_of(key)
        lines = self.walk_lines if key == "x" else None
        return (lines or self.top).head

    def _store_sum(self, stmt: Store, name: str) -> None:
        if not self.by_row:
            self.lines.body.append(f"{name} = tl.sum({name}, 0)[None, :]")
        index, axes = self.index(stmt.index)
        mask = self.mask(axes)
        tail = f", {mask}" if mask else ""
        param = self.params.buffers[stmt.buffer]
        self.lines.body.append(f"tl.store({param} + {index}, {name}{tail})")

    def takes(self, stmt: Store, value: Value) -> bool:
        """A sum over rows stays in registers until the last row; the first of two neighbours
        until the second is known."""
        if self.schedule.pairs:
            if (first := self.first_of.pop(stmt.buffer, None)) is None:
                self.first_of[stmt.buffer] = value
            else:
                self._store_pair(stmt, first, value)
            return True
        if stmt.mode != "sum":
            return False
        over = frozenset(self.shapes)
        name = self.namer.fresh("column_sum")
        self.before.append(f"{name} = tl.zeros({self.shape(over)}, {TL_TYPES[value.dtype]})")
        text = value.text
        if mask := self.mask(frozenset({"x"}) & over):
            text = f"tl.where({mask}, {text}, 0.0)"
        self.lines.body.append(f"{name} += {text}")
        self.held.append((stmt, name))
        return True

    def _define_plane(self, pid: str) -> None:
        """Tiles of the last axis by all others, of which the one that is contiguous elsewhere comes
        last; programs that follow each other are neighbours along the last axis."""
        *others, last = self.kernel.axes
        inner = across(self.kernel)
        rows = tuple(others)
        if inner is not None:
            rows = (*(a for a in others if a is not inner), inner)
        self.dimensions = ("y", "x")
        self.lines.head.append(f"pid = {pid}")
        block = self.schedule.xblock
        alone = self.schedule.yblock == 1  # a row is a scalar
        if alone:
            self.dimensions = ("x",)
        columns = self.write_sizes(_cdiv(last.extent, block))
        x, y = ("0", "pid") if columns == "1" else (f"pid % ({columns})", f"pid // ({columns})")
        for key, axes, block, first, spread in (
            ("x", (last,), self.schedule.xblock, x, "[None, :]"),
            ("y", rows, self.schedule.yblock, y, "[:, None]"),
        ):
            name, flat = f"{key.upper()}BLOCK", f"{key}index"
            tile = Tile(key, flat, "i" if key == "x" else "j", axes, self.write_sizes)
            self.add_tile(tile)
            self.constants.append((name, block))
            if alone and key == "y":
                self.constants.pop()
                self.lines.head.append(f"{flat} = {first}")
                continue
            start = "" if first == "0" else f"{first} * {name} + "
            spread = "" if alone else spread
            index = f"{start}tl.arange(0, {name}){spread}"
            if self.schedule.vector and key == "x":
                most = self.schedule.vector
                index = f"tl.multiple_of({index}, {most if alone else [1, most]})"
            self.lines.head.append(f"{flat} = {index}")
            self.shapes[key] = name
            if not divides(block, tile.numel):
                self.masks[key] = (f"{key}mask", f"{flat} < {self.write_sizes(tile.numel)}")

    def _block_of(self, number: int, space_bound: int | None) -> int:
        if self.looped or (number == 0 and len(self.spaces) == 1) or space_bound is None:
            return self.schedule.rblock
        return next_power_of_two(space_bound)

    def _define_inner(self, number: int, space: tuple[Axis, ...]) -> None:
        """The tile of an inner space that is held whole."""
        tile = self._inner_tile(number, space)
        block = self._rblock_name(number, tile)
        self.lines.head.append(f"{tile.flat} = {self._lanes(block)}")
        self._mask_inner(number, tile, dict(self.constants)[block])

    def _inner_tile(self, number: int, space: tuple[Axis, ...]) -> Tile:
        suffix = "" if number == 0 else str(number)
        prefix = "r" if number == 0 else f"r{suffix}_"
        tile = Tile(f"r{number}", f"rindex{suffix}", prefix, space, self.write_sizes)
        self.add_tile(tile)
        return tile

    def _rblock_name(self, number: int, tile: Tile) -> str:
        high = bounds(tile.numel, symbol_ranges(self.kernel.symbols))[1]
        name = "RBLOCK" if number == 0 or self.looped else f"RBLOCK{number}"
        if name not in dict(self.constants):
            self.constants.append((name, self._block_of(number, high)))
        self.shapes[tile.key] = name
        return name

    def _mask_inner(self, number: int, tile: Tile, block: int) -> None:
        exact = divides(block, tile.numel) if self.looped else tile.numel == block
        if not exact:
            suffix = "" if number == 0 else str(number)
            bound = self.write_sizes(tile.numel)
            self.masks[tile.key] = (f"rmask{suffix}", f"{tile.flat} < {bound}")

    def _column(self) -> str:
        return "" if self.by_row else "[None, :]"

    def _lanes(self, block: str) -> str:
        """The places of an inner tile. One that is scanned from its end has its vectors in reverse
        order: Triton would turn every element around, by ten shuffles."""
        v = self.turned
        if v == 1:
            return f"tl.arange(0, {block}){self._column()}"
        last = f"({block} // {v} - 1 - tl.arange(0, {block} // {v}))"
        return f"{last}[:, None] * {v} + tl.arange(0, {v})[None, :]"

    def _turned(self) -> int:
        """The elements of a vector, where a row's are in reverse order; else 1."""
        backwards = any(isinstance(s, Scan) and s.reverse for _, s in statements(self.kernel))
        if not backwards or not self.by_row or len(self.spaces) > 1:
            return 1
        least = min(b.type.dtype.itemsize for b in self.kernel.buffers)
        return min(8, 16 // least, self.schedule.rblock)

    def shape(self, axes: frozenset[str]) -> str:
        if self.turned > 1 and any(a.startswith("r") for a in axes):
            (block,) = (self.shapes[a] for a in self.shapes if a.startswith("r"))
            return f"[{block} // {self.turned}, {self.turned}]"
        if self.steps == 1:
            return super().shape(axes)
        rows = "RBLOCK // STEPS, STEPS" if any(a.startswith("r") for a in axes) else "1, 1"
        return f"[{rows}, {'XBLOCK' if 'x' in axes else '1'}]"

    # ---- scopes

    def _all_axes(self) -> frozenset[str]:
        return frozenset(self.shapes)

    def _straight(self, scope: Scope, escaping: frozenset[str]) -> None:
        if not self.looped:
            # phases keep their own axes: an atomic add happens at each point of its phase
            for phase in self.kernel.phases:
                later = frozenset(
                    u
                    for other in self.kernel.phases
                    if other is not phase
                    for stmt in other.body
                    for u in uses(stmt)
                )
                self.run_phase(phase.axes, phase.body, later)
            return
        self.run_phase((), scope.body, escaping)

    def run_phase(self, axes: tuple[Axis, ...], body: Sequence[Stmt],
                  escaping: frozenset[str]) -> None:  # fmt: skip
        over = {"x", "y"} & self.shapes.keys()
        if axes:
            over.add(f"r{self.spaces.index(axes)}")
        self.space = self.spaces.index(axes) if axes else -1
        self.run(body, frozenset(over), escaping)

    def _loop(self, scope: Scope, escaping: frozenset[str]) -> None:
        number = self.spaces.index(scope.axes)
        outer, env, symbols = self.lines, dict(self.env), dict(self.symbols)
        tile = self._inner_tile(number, scope.axes)
        block = self._rblock_name(number, tile)
        backwards = any(isinstance(s, Scan) and s.reverse for s in scope.body)
        base = f"lanes = {self._lanes(block)}"
        if self.steps > 1:
            base = f"lanes = tl.arange(0, {block} // STEPS)[:, None, None] * STEPS"
            base += " + tl.arange(0, STEPS)[None, :, None]"
            if backwards:  # from the last row to the first, which the tile has in that order
                base = base.replace("= ", f"= {block} - 1 - (") + ")"
        if base not in outer.head:
            outer.head.append(base)
        self._mask_inner(number, tile, self.schedule.rblock)
        reduces = [s for s in scope.body if isinstance(s, Reduce)]
        self.space = number
        self.lines = Lines()
        self.lines.head.append(f"{tile.flat} = start + lanes")
        self.before = []
        over = frozenset({"x"} & self.shapes.keys()) | {tile.key}
        kept = {d for s in scope.body for d in defines(s)}
        self.run(scope.body, over, escaping - kept)
        inside, self.lines = self.lines, outer
        outer.body += self.before
        end = self.write_sizes(tile.numel)
        if backwards:
            width = self.schedule.rblock
            last = self.write_sizes(sympy.sympify(FloorDiv(tile.numel - 1, width) * width))
            outer.body.append(f"for step in range(0, {end}, {block}):")
            outer.body.append(f"{INDENT}start = {last} - step")
        else:
            outer.body.append(f"for start in range(0, {end}, {block}):")
        outer.body += [INDENT + line for line in inside.text()]
        results = {stmt: finish_loop(self, stmt, self.accumulators[stmt]) for stmt in reduces}
        self.env, self.symbols = env, symbols
        for stmt, values in results.items():
            self.env.update(zip(stmt.outs, values, strict=True))
        del self.shapes[tile.key]
        self.masks.pop(tile.key, None)

    # ---- reductions

    def reduce(self, stmt: Reduce) -> None:
        value = self.env[stmt.args[0]]
        check(self.kernel.name, stmt, value)
        value = working(self.ops, stmt, value)
        if self.looped:
            self.working_types[stmt] = value.dtype
            names = start_loop(self, stmt, value)
            self.accumulators[stmt] = names
            step_loop(self, stmt, value, names)
            return
        self.env.update(zip(stmt.outs, persistent(self, stmt, value), strict=True))

    @property
    def inner(self) -> str:
        """The tile dimension of the inner axes of the current phase."""
        return f"r{self.space}"

    def scan(self, stmt: Scan, body: Sequence[Stmt]) -> None:
        check(self.kernel.name, stmt, self.env[stmt.args[0]])
        scans.write(self, stmt, body)

    def _count_loads(self, scopes: tuple[Scope, ...]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for scope in scopes:
            for stmt in scope.body:
                if isinstance(stmt, Load):
                    counts[stmt.buffer] = counts.get(stmt.buffer, 0) + 1
        return counts

    def eviction(self, stmt: Load) -> str:
        """Rows that are read again by a later loop stay in L2, and leave it after the last. What
        `streams` takes no place of others."""
        if self.space < 0:
            return ""
        self.loads_left[stmt.buffer] -= 1
        if self.looped and self.loads_left[stmt.buffer] > 0:
            return ', eviction_policy="evict_last"'
        once = streams(self.kernel, stmt, self.spaces[self.space], self.schedule.kind)
        return ', eviction_policy="evict_first"' if once else ""


def _cdiv(points: sympy.Expr, block: int) -> sympy.Expr:
    return sympy.sympify(FloorDiv(points + (block - 1), block))


def origin_lines(origins: tuple[Origin, ...]) -> list[str]:
    """`aten.add, aten.native_layer_norm   encoder.py:41`: comments, a source line each."""
    by_line: dict[str, list[str]] = {}
    for origin in origins:
        ops = by_line.setdefault(origin.source, [])
        if origin.op not in ops:
            ops.append(origin.op)
    return [one_line(f"{', '.join(ops)}   {line}".rstrip()) for line, ops in by_line.items()]
