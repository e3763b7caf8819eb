"""The form of all kernels, and the flat one: a program does a block of the points of all axes."""

from collections.abc import Sequence
from functools import cache, partial

import sympy

from loop_ir import Axis, Indirect, Kernel, Load, Stmt, Store
from loop_ir.ir import linear, operands, results, statements, varying
from symexpr import FloorDiv
from triton_emit.body import INDENT, Lines, Writer
from triton_emit.schedule import Schedule, index_bits, inner_spaces, streams, updates
from triton_emit.source import TritonKernel, Zeroed, module
from triton_emit.ssa import skipped
from triton_emit.tiles import Tile, divides
from triton_emit.values import ATOM
from triton_emit.vectors import neighbours

# Statements of a kernel that is written for blocks with and without a mask.
_APART = 48


class KernelWriter(Writer):
    """Writes a kernel that its schedule fits (`check`). Other forms say which tiles a program has
    (`define_tiles`) and what it does with them (`write_body`)."""

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        super().__init__(kernel, schedule.index_bits)
        if schedule.index_bits == 32 and index_bits(kernel) == 64:
            self.fits = 32  # whoever asks for 32 bits all the same has asked `size_in_32_bits`
        self.schedule = schedule
        self.constants: list[tuple[str, int]] = []
        self.spaces = inner_spaces(kernel)
        self.varying = cache(partial(varying, tuple(statements(kernel)), over=False))
        # The inner space of the phase that is being written; -1 outside of all.
        self.space = -1
        # the first letter of the dimension of a tile along which a thread has no neighbours
        self.across = ""

    def emit(self) -> TritonKernel:
        """The kernel's source and launch."""
        self.define_tiles()
        self.write_body()
        params, args = self.parameters()
        zeroed = self.zeroed()
        names = [p[0] for p in params] + ([zeroed.name] if zeroed is not None else [])
        signature = names + [f"{c}: tl.constexpr" for c, _ in self.constants]
        first = ["tl.extra.cuda.gdc_wait()"] if self.schedule.overlap else []
        lines = (*first, *self.prelude(), *self.whole_apart(self.top.text()))
        return TritonKernel(
            name=self.kernel.name,
            source=module([(f"{self.kernel.name}({', '.join(signature)})", lines)], self.kernel),
            params=tuple(params),
            args=tuple(args),
            grid=(self.programs(), sympy.S.One, sympy.S.One),
            constants=tuple(self.constants),
            num_warps=self.schedule.num_warps,
            num_stages=self.schedule.num_stages,
            schedule=self.schedule,
            zeroed=zeroed,
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

    def zeroed(self) -> Zeroed | None:
        """Memory that the kernel wants beside its buffers."""
        return None

    def prelude(self) -> list[str]:
        """Lines before the tiles."""
        return []

    def program(self) -> str:
        """The number of the program, from 0, as text."""
        return "tl.program_id(0)" + (".to(tl.int64)" if self.bits == 64 else "")

    def programs(self) -> sympy.Expr:
        """How many there are."""
        points = sympy.Mul(*(a.extent for a in self.kernel.axes))
        return ceiling_division(points, self.schedule.xblock)

    def define_tiles(self) -> None:
        """The variables that say which points a program does."""
        if self.kernel.axes:
            self.define_x()

    def define_x(self, spread: str = "") -> None:
        """The tile of a block of the points of all parallel axes. spread: subscript that gives it
        the dimensions of the other tiles."""
        self.block_of(self.kernel.axes, self.program(), spread)

    def block_of(self, axes: tuple[Axis, ...], number: str, spread: str) -> None:
        """The tile of the block of that number of the points of some axes; "": there is one."""
        self.add_tile(Tile("x", "xindex", "i", axes, self.write_sizes))
        self.constants.append(("XBLOCK", self.schedule.xblock))
        start = f"{number} * XBLOCK + " if number else ""
        xindex = self.aligned(f"{start}tl.arange(0, XBLOCK){spread}")
        self.lines.head.append(f"xindex = {xindex}")
        self.shapes["x"] = "XBLOCK"
        numel = self.tiles["x"].numel
        if not self.divides(self.schedule.xblock, numel):
            self.masks["x"] = ("xmask", f"xindex < {self.write_sizes(numel)}")

    def divides(self, block: int, numel: sympy.Expr) -> bool:
        """Whether blocks of so many points end where the points do."""
        return divides(block, numel)

    def aligned(self, xindex: str) -> str:
        """The points of a program with what Triton is to know of where they begin: it lays out a
        thread's elements by that."""
        if not self.schedule.vector:
            return xindex
        if not self.schedule.pairs:
            reason = "# neighbours in neighbouring lanes: the mask would cut wider stores"
            self.lines.head.append(reason)
        return f"tl.multiple_of({xindex}, {self.schedule.vector})"

    def whole_apart(self, lines: list[str]) -> list[str]:
        """The lines of a flat kernel whose number of points is known when it runs, for blocks that
        are whole without their mask: where that number divides no vector, the mask would make each
        access one of a single element (3001 x 4097 of f16, added, on an H100: 64 us, eager 32)."""
        (_, test), s = self.masks.get("x", ("", "")), self.schedule
        long = sum(1 for _ in statements(self.kernel)) > _APART
        alike = s.kind != "flat" or s.vector or s.pairs or long or f"xmask = {test}" not in lines
        if alike or self.tiles["x"].numel.is_Integer:
            return lines
        at = lines.index(f"xmask = {test}")
        whole = test.replace("xindex <", f"{self.program()} * XBLOCK + XBLOCK <=")
        inside = indented([f"xmask = ({test}) | (whole == 1)", *lines[at + 1 :]])
        block = indented([f"if ({whole}) == (whole == 1):", *inside])
        return [*lines[:at], "for whole in tl.static_range(2):", *block]

    def write_body(self) -> None:
        """All phases, one after the other; each keeps its own axes: an atomic add happens at each
        point of its phase."""
        for phase in self.kernel.phases:
            others = (p for p in self.kernel.phases if p is not phase)
            later = frozenset(u for p in others for stmt in p.body for u in operands(stmt))
            self.run_phase(phase.axes, phase.body, later)

    def run_phase(
        self, axes: tuple[Axis, ...], body: Sequence[Stmt], escaping: frozenset[str]
    ) -> None:
        """Writes statements over these inner axes. escaping: names that others use."""
        over = {"x", "y"} & self.shapes.keys()
        if axes:
            over.add(f"r{self.spaces.index(axes)}")
            body = shared_first(self.kernel, body)
        elif updates(self.kernel):
            body = asked_first(body)
        self.space = self.spaces.index(axes) if axes else -1
        self.run(body, frozenset(over), escaping)

    def run(
        self, body: Sequence[Stmt], tile_axes: frozenset[str], escaping: frozenset[str]
    ) -> None:
        """Writes statements; in flat kernels what is seldom chosen in a branch of its own."""
        flat = self.schedule.kind == "flat" and not self.schedule.pairs
        branches = skipped(body, escaping) if flat else {}
        inside = [s for own in branches.values() for s in own]
        part: list[Stmt] = []
        for stmt in body:
            if stmt in branches and stmt not in inside:
                self._part(part, body, tile_axes, escaping)
                self._branch(stmt, branches[stmt], tile_axes)
                part = []
            elif stmt not in inside:
                part.append(stmt)
        self._part(part, body, tile_axes, escaping)

    def _part(
        self,
        part: Sequence[Stmt],
        body: Sequence[Stmt],
        tile_axes: frozenset[str],
        escaping: frozenset[str],
    ) -> None:
        others = {*body} - {*part}
        super().run(part, tile_axes, escaping.union(*map(operands, others)))

    def _branch(self, stmt: Stmt, own: Sequence[Stmt], tile_axes: frozenset[str]) -> None:
        """`rarely`, whose second argument is what these statements compute."""
        outer, self.lines = self.lines, Lines()
        condition, value, other = operands(stmt)
        self.run(own, tile_axes, frozenset((value,)))
        inside, self.lines = self.lines, outer
        test, chosen = self.env[condition], self.env[other]
        if not test.axes or test.axes != chosen.axes:
            self.lines.body += inside.text()
            super().run((stmt,), tile_axes, frozenset())
            return
        chosen = self.assign("chosen", chosen)
        taken = f"{chosen.text} = tl.where({test.text}, {self.env[value].text}, {chosen.text})"
        self.lines.body.append(f"if tl.max({test.at(ATOM)}.to(tl.int32)) > 0:")
        self.lines.body += indented([*inside.text(), taken])
        self.env.update(dict.fromkeys(results(stmt), chosen))

    def run_of(self, stmt: Load | Store, tile: Tile) -> int | None:
        """How many neighbours in memory Triton knows of along a dimension of a tile: 1, where there
        are some that it does not know of; 0, where there are none; None, where it is one place.

        y[3969*xindex + yindex % 3969]        ->  0 along x, 1 along y
        y[3970*xindex + yindex % 3970]        ->  0 along x, 2 along y"""
        last = tile.axes[-1].symbol
        places = stmt.index.free_symbols & self.symbols.keys()
        moving = any(tile.key in self.symbols[s][1] for s in places)
        if not moving and stmt.index.free_symbols.isdisjoint(a.symbol for a in tile.axes):
            return None
        if not places.isdisjoint(self.varying(last)):
            return 0
        form = linear(stmt.index, (last,))
        beside = form is not None and form.coefficient(last) == 1
        return neighbours(stmt.index, tile.axes) if beside else 0

    def line_of(self, stmt: Load, axes: frozenset[str]) -> tuple[str, str]:
        """What each row of a tile has one of (a mean, a sum) is loaded as a line: as a tile one
        element wide, Triton would load it for each neighbour that a thread has of the row, eight
        times of a row of 16 bits."""
        over = [keys for keys in self.dimensions if any(a[0] == keys for a in axes)]
        tiled = [key for key in self.shapes if key in axes]
        if len(self.dimensions) != 2 or len(over) != 1 or over != [self.across] or len(tiled) != 1:
            return "", ""
        return self.shapes[tiled[0]], "[:, None]" if over[0] == self.dimensions[0] else "[None, :]"

    def whole_mask(self, stmt: Load | Store) -> bool:
        """An access happens everywhere in a tile, or where a tile says, which can be turned."""
        mask = self.mask_value(stmt)
        return mask is None or self.is_tile(mask.axes)

    def eviction(self, stmt: Load) -> str:
        """What `streams` takes no place of others in the caches."""
        if self.space < 0:
            return ""
        once = streams(self.kernel, stmt, self.spaces[self.space], self.schedule)
        return ', eviction_policy="evict_first"' if once else ""


def shared_first(kernel: Kernel, body: Sequence[Stmt]) -> list[Stmt]:
    """`x = load a[8*i0 + r0]; w = load b[r0]` -> `w = load b[r0]; x = load a[8*i0 + r0]`

    What all rows read is loaded first. Triton gives the sum of two tiles the layout of the one that
    is loaded last: that of a vector may lay a row across all warps, and the rows then change places
    in shared memory (rows of 128 f32 in 4 warps: 162 exchanges between lanes, 40 in this order)."""
    rows = {a.symbol for a in kernel.axes}
    places = {s.symbol for s in body if isinstance(s, Indirect)}
    written = {b.name for b in kernel.buffers if b.written}

    def shared(stmt: Stmt) -> bool:
        return (
            isinstance(stmt, Load)
            and stmt.mask is None
            and stmt.buffer not in written
            and (rows | places).isdisjoint(operands(stmt))
        )

    return sorted(body, key=lambda stmt: not shared(stmt))


def asked_first(body: Sequence[Stmt]) -> list[Stmt]:
    """`a = load x[i]; b = sqrt(a); c = load y[i]` -> `a = load x[i]; c = load y[i]; b = sqrt(a)`

    Loads at places that are no data come first, but for those of what was stored before. What is
    computed between two loads may branch (divisions, roots), past which nothing moves a load: a
    step of AdamW asked for its last operand after it had waited for the others."""
    places = {s.symbol for s in body if isinstance(s, Indirect)}
    stored: set[str] = set()
    first: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Store):
            stored.add(stmt.buffer)
        elif (
            isinstance(stmt, Load)
            and stmt.mask is None
            and stmt.buffer not in stored
            and places.isdisjoint(stmt.index.free_symbols)
        ):
            first.append(stmt)
    return [*first, *(s for s in body if s not in first)]


def ceiling_division(points: sympy.Expr, block: int) -> sympy.Expr:
    """How many blocks hold that many points."""
    return sympy.sympify(FloorDiv(points + (block - 1), block))


def indented(lines: Sequence[str]) -> list[str]:
    """Lines of a block inside of another."""
    return [INDENT + line for line in lines]
