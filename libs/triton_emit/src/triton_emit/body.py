"""Statements of one kernel as lines of Triton: values, indices, masks, loads and stores."""

from collections import Counter
from collections.abc import Sequence

import sympy

import loop_ir as ir
from loop_ir.ir import operands, ranges_of, results, statements
from symexpr import bounds, symbol, to_triton
from triton_emit.errors import UnsupportedDType
from triton_emit.host_parts import host_parts
from triton_emit.intervals import held_places
from triton_emit.names import Namer
from triton_emit.scalar_ops import ScalarOps
from triton_emit.tiles import Tile, rewritten
from triton_emit.values import ATOM, BIT_AND, COMPARE, TL_TYPES, Value, in_memory, literal, typed

INDENT = "    "
INLINE_LIMIT = 48


class Params:
    """Parameters of a kernel: buffers by role and order, sizes (and numbers that the host computes
    of them) by first use. `prefix` starts the names of sizes."""

    prefix = ""

    def __init__(self, kernel: ir.Kernel) -> None:
        loaded = {s.buffer for s in statements(kernel) if isinstance(s, ir.Load)}
        stores = [s for s in statements(kernel) if isinstance(s, ir.Store)]
        stored = {s.buffer for s in stores}
        added = {s.buffer for s in stores if s.mode in ir.ATOMICS}
        self.buffers: dict[str, str] = {}
        self.dtypes: dict[str, ir.DType] = {}
        self.mutated: dict[str, bool] = {}
        self.sizes: dict[sympy.Expr, sympy.Symbol] = {}
        counts: Counter[str] = Counter()
        for buffer in kernel.buffers:
            if buffer.name not in loaded and buffer.name not in stored:
                continue
            if buffer.type.dtype not in TL_TYPES:
                dtype = buffer.type.dtype.value
                raise UnsupportedDType(kernel.name, dtype, f"buffer {buffer.name}")
            role = "in" if buffer.name not in stored else "out"
            if buffer.name in added or (buffer.name in loaded and buffer.name in stored):
                role = "inout"
            self.buffers[buffer.name] = f"{role}{counts[role]}"
            self.dtypes[buffer.name] = buffer.type.dtype
            self.mutated[buffer.name] = buffer.name in stored
            counts[role] += 1

    def size(self, e: sympy.Expr) -> sympy.Symbol:
        """The parameter that stands for a size symbol, or for what the host computes of sizes."""
        return self.sizes.setdefault(e, symbol(f"{self.prefix}s{len(self.sizes)}"))

    def scalars(self, bits: int) -> list[tuple[str, str, sympy.Expr]]:
        """Name, kind and value of each parameter that is no tensor."""
        return [
            (param.name, f"i{bits}" if e.is_integer else "f64", e)
            for e, param in self.sizes.items()
        ]


class Lines:
    """Lines of one block: `head` (tile variables, parts of indices, masks) comes first, in the
    order it was needed."""

    def __init__(self) -> None:
        self.head: list[str] = []
        self.body: list[str] = []

    def text(self) -> list[str]:
        """All lines, in order."""
        return self.head + self.body


class Writer:
    """Writes statements with the tiles that are in scope.

    `tiles` maps a tile dimension ("x", "r0") to its Tile; `mask_of` gives the name and definition
    of its bounds mask, or is empty where it is proven to hold."""

    def __init__(self, kernel: ir.Kernel, bits: int) -> None:
        self.kernel = kernel
        self.bits = bits
        self.fits = 64  # bits of which it is known that no expression needs more
        self.params = Params(kernel)
        inner = any(p.axes for p in kernel.phases)
        quotients = sum(isinstance(s, ir.Compute) and s.op == "div" for s in statements(kernel))
        self.ops = ScalarOps(
            kernel.name, frozenset("ox" if inner else "oy"), quotients > (0 if inner else 1)
        )
        self.namer = Namer()
        self.ranges = dict(ranges_of(kernel))
        self.tiles: dict[str, Tile] = {}
        self.masks: dict[str, tuple[str, str]] = {}
        self.joint_masks: dict[str, str] = {}
        self.shapes: dict[str, str] = {}
        # first letters of the tile dimensions along each axis of a Triton tensor
        self.dimensions: tuple[str, ...] = ("x",)
        self.env: dict[str, Value] = {}
        self.symbols: dict[sympy.Symbol, tuple[sympy.Symbol, frozenset[str]]] = {}
        # whether a place that is data lies inside of its tensor, where that is not known
        self.inside: dict[sympy.Symbol, Value] = {}
        self.held_places = held_places(kernel, bits == 32)
        self.top = Lines()
        self.lines = self.top
        self.stored: set[str] = set()
        self._axis_tile: dict[sympy.Symbol, str] = {}
        # of the load that is being written, what `line_of` says
        self.line = "", ""

    def add_tile(self, tile: Tile) -> None:
        """From here on, indices over the axes of `tile` are written with its variables."""
        self.tiles[tile.key] = tile
        for axis in tile.axes:
            self._axis_tile[axis.symbol] = tile.key

    def write_sizes(self, e: sympy.Expr) -> str:
        """An expression of sizes only. Tensors of such sizes exist, so they fit in 64 bits; so do
        their places, which `index` writes."""
        names, ranges = self._sizes(e)
        return to_triton(e.xreplace(names), self.bits, ranges, self.fits)

    def _sizes(
        self, e: sympy.Expr, known: frozenset[sympy.Symbol] = frozenset()
    ) -> tuple[dict[sympy.Expr, sympy.Symbol], dict[sympy.Symbol, tuple[int | None, int | None]]]:
        """Parameters for the size symbols of an expression, and for those parts of it that the
        host computes; their ranges. known: symbols that are no sizes."""
        parts = host_parts(e, self.ranges, known)
        part = sympy.Dummy(integer=True)
        rest = e.xreplace(dict.fromkeys(parts, part)).free_symbols - known - {part}
        names: dict[sympy.Expr, sympy.Symbol] = {}
        ranges: dict[sympy.Symbol, tuple[int | None, int | None]] = {}
        for size in (*parts, *sorted(rest, key=lambda s: s.name)):
            names[size] = self.params.size(size)
            if size.is_Symbol:
                ranges[names[size]] = self.ranges.get(size, (0, None))
            elif size.is_integer:
                ranges[names[size]] = bounds(size, self.ranges)
        return names, ranges

    def index(self, e: sympy.Expr) -> tuple[str, frozenset[str]]:
        """Text of an index, and the tile dimensions that it varies over."""
        axes: set[str] = set()
        names: dict[sympy.Expr, sympy.Symbol] = {}
        ranges: dict[sympy.Symbol, tuple[int | None, int | None]] = {}
        touched: list[Tile] = []
        for s in sorted(e.free_symbols, key=lambda s: s.name):
            if s in self.symbols:
                names[s], over = self.symbols[s]
                ranges[names[s]] = self.ranges.get(s, (0, None))
                axes |= over
            elif s in self._axis_tile:
                key = self._axis_tile[s]
                axes.add(key)
                if self.tiles[key] not in touched:
                    touched.append(self.tiles[key])
        # rewrite first: parts of tiles bring size symbols of their own
        e = rewritten(e, touched)
        for tile in touched:
            for part, extent in tile.extents.items():
                high = bounds(extent, self.ranges)[1]
                ranges[part] = (0, None if high is None else max(high - 1, 0))
            self._define_parts(tile)
        own, more = self._sizes(e, frozenset(names) | frozenset(ranges))
        text = to_triton(e.xreplace(names | own), self.bits, ranges | more, self.fits)
        return text, frozenset(axes)

    def _define_parts(self, tile: Tile) -> None:
        for name, text in tile.definitions.items():
            self._head(tile.key, f"{name} = {text}")

    def _head(self, key: str, line: str) -> None:
        """Defines something of a tile, once, where the tile is defined."""
        head = self.head_of(key)
        if line not in head:
            head.append(line)

    def head_of(self, key: str) -> list[str]:
        """Where the variables of a tile are defined."""
        return (self.top if key in ("o", "x") else self.lines).head

    def mask(self, axes: frozenset[str], extra: Value | None = None) -> str:
        """The bounds mask over some tile dimensions and a value, or "" when nothing can be out of
        bounds."""
        parts: list[str] = []
        for key in sorted(axes, key=lambda k: (k != "x", k)):
            if key in self.masks:
                name, definition = self.masks[key]
                self._head(key, f"{name} = {definition}")
                parts.append(name)
        if len(parts) > 1:
            both = " & ".join(parts)
            name = self.joint_masks.setdefault(both, f"mask{len(self.joint_masks) or ''}")
            if f"{name} = {both}" not in self.lines.head:
                self.lines.head.append(f"{name} = {both}")
            parts = [name]
        if extra is not None:
            parts.append(extra.at(5) if parts else extra.text)
        return " & ".join(parts)

    def shape(self, axes: frozenset[str]) -> str:
        """The tile over `axes` as a list of block sizes, 1 along the others."""
        sizes = []
        for keys in self.dimensions:
            inside = [self.shapes[k] for k in self.shapes if k in axes and k.startswith(keys)]
            sizes.append(inside[0] if inside else "1")
        return "[" + ", ".join(sizes) + "]"

    def is_tile(self, axes: frozenset[str]) -> bool:
        """What varies over these dimensions is a Triton tensor, not a scalar."""
        return not axes.isdisjoint(self.shapes)

    def spread(self, index: str, axes: frozenset[str], over: frozenset[str]) -> str:
        """An index that varies over `axes` as a tile over more of them. Where one row is a program,
        rows are scalars, and so is what varies over them only."""
        if not self.is_tile(over):
            return index
        if axes:
            return f"tl.broadcast_to({index}, {self.shape(over)})"
        return f"tl.full({self.shape(over)}, {index}, tl.int{self.bits})"

    def assign(self, base: str, value: Value) -> Value:
        """Names a value on a line of its own."""
        name = self.namer.fresh(base)
        self.lines.body.append(f"{name} = {value.text}")
        return Value(name, ATOM, value.dtype, value.axes, None, value.narrow, value.normal)

    def run(
        self, body: Sequence[ir.Stmt], tile_axes: frozenset[str], escaping: frozenset[str]
    ) -> None:
        """Writes statements. `escaping`: names that are used in other scopes."""
        used = [operands(stmt) for stmt in body]
        count: Counter[str] = Counter(u for names in used for u in names)
        readers: dict[str, list[ir.Stmt]] = {}
        for stmt, names in zip(body, used, strict=True):
            for u in names:
                readers.setdefault(u, []).append(stmt)
        for stmt in body:
            if all(d in self.env for d in results(stmt)) and results(stmt):
                continue
            alone = not escaping.intersection(results(stmt))
            if isinstance(stmt, ir.Load):
                self.load(stmt, readers.get(stmt.out, []), alone)
            elif isinstance(stmt, ir.Const):
                self.env[stmt.out] = literal(stmt.value, stmt.dtype)
            elif isinstance(stmt, ir.Index):
                self._index_value(stmt)
            elif isinstance(stmt, ir.Compute):
                args = [self.env[a] for a in stmt.args]
                value = self.ops.compute(stmt, args)
                self._keep(stmt, value, alone and count[stmt.out] == 1)
            elif isinstance(stmt, ir.Indirect):
                self._indirect(stmt)
            elif isinstance(stmt, ir.Store):
                self._store(stmt, tile_axes)
            elif isinstance(stmt, ir.Scan):
                self.scan(stmt, body)
            else:
                self.reduce(stmt)

    def reduce(self, stmt: ir.Reduce) -> None:
        """Writes a reduction over the inner axes."""
        raise TypeError(f"{stmt.op} stands in a phase without inner axes")

    def scan(self, stmt: ir.Scan, body: Sequence[ir.Stmt]) -> None:
        """Writes a scan; `body`: the statements that it is one of."""
        raise TypeError(f"a scan of {stmt.op} stands in a phase without inner axes")

    def _keep(self, stmt: ir.Compute, value: Value, once: bool) -> None:
        short = len(value.text) <= INLINE_LIMIT
        if value.literal is not None or value.text.isidentifier() or (once and short):
            self.env[stmt.out] = value
            return
        self.env[stmt.out] = self.assign(self.namer.base_of(stmt.op), value)

    def load(self, stmt: ir.Load, readers: Sequence[ir.Stmt], alone: bool) -> None:
        """Writes a load, with the cast that alone reads it."""
        index, axes = self.index(stmt.index)
        mask_value = self.mask_value(stmt)
        if mask_value is not None and not mask_value.axes <= axes:
            index = self.spread(index, axes, axes | mask_value.axes)
            axes |= mask_value.axes
        whole = mask_value is None or mask_value.axes == axes
        self.line = self.line_of(stmt, axes) if whole else ("", "")
        text = self.load_text(stmt, index, self.mask(axes, mask_value))
        if stmt.buffer in self.stored:
            # another thread of this program may have written what is read here
            self.lines.body.append("tl.debug_barrier()")
        value = Value(text, ATOM, stmt.dtype, axes)
        base = self.base_of(stmt.buffer)
        if alone and len(readers) == 1:
            cast = readers[0]
            if (
                isinstance(cast, ir.Compute)
                and cast.op == "cast"
                and cast.dtype is not ir.DType.bool_
            ):
                self.env[cast.out] = self.assign(base, self.ops.cast(value, cast.dtype))
                self.env[stmt.out] = value
                return
        self.env[stmt.out] = self.assign(base, value)

    def base_of(self, buffer: str) -> str:
        """How names of what is loaded of a buffer begin."""
        param = self.params.buffers[buffer]
        return param.replace("inout", "old").replace("in", "x").replace("out", "y")

    def mask_value(self, stmt: ir.Load | ir.Store) -> Value | None:
        """Where a load or store happens at all, by its own mask and because its places that are
        data lie inside of their tensor."""
        parts = [] if stmt.mask is None else [typed(self.env[stmt.mask])]
        symbols = sorted(self.inside.keys() & stmt.index.free_symbols, key=lambda s: s.name)
        parts += dict.fromkeys(self.inside[s] for s in symbols)
        if len(parts) < 2:
            return parts[0] if parts else None
        axes = frozenset[str]().union(*(p.axes for p in parts))
        return Value(" & ".join(p.at(5) for p in parts), BIT_AND, ir.DType.bool_, axes)

    def load_text(self, stmt: ir.Load, index: str, mask: str) -> str:
        """The call that loads `stmt`."""
        block, subscript = self.line
        turned = "tl.trans({})".format if self.turns(stmt) else str
        if block:
            turned = f"tl.reshape({{}}, {block})".format
        text = f"tl.load({turned(_at(self.params.buffers[stmt.buffer], index))}"
        if mask:
            text += f", {turned(mask)}"
        if stmt.mask is not None:
            text += f", other={in_memory(literal(stmt.other, stmt.dtype))}"
        elif self.inside.keys() & stmt.index.free_symbols:
            text += ', other=float("nan")' if stmt.dtype.is_float else ", other=0"
        text += self.eviction(stmt) + ")"
        return text + subscript if block else turned(text)

    def line_of(self, stmt: ir.Load, axes: frozenset[str]) -> tuple[str, str]:
        """The block of the one dimension of a tile that is loaded as a line, and the subscript that
        makes it one of the tile again; empty where it is loaded as it is."""
        return "", ""

    def turns(self, stmt: ir.Load | ir.Store) -> bool:
        """Whether an access is of the tile with its dimensions exchanged."""
        return False

    def eviction(self, stmt: ir.Load) -> str:
        """A cache hint, as a further argument of the load."""
        return ""

    def _index_value(self, stmt: ir.Index) -> None:
        text, axes = self.index(stmt.expr)
        if not stmt.expr.is_integer:
            self.env[stmt.out] = Value(text, ATOM, stmt.dtype, axes)
            return
        if stmt.expr.is_Integer:
            self.env[stmt.out] = literal(int(stmt.expr), stmt.dtype)
            return
        narrow = Value(text, 0, stmt.dtype, axes, narrow=True)
        if not text.isidentifier():
            narrow = self.assign("position", narrow)
        else:
            narrow = Value(text, ATOM, stmt.dtype, axes, narrow=True)
        if stmt.dtype.is_float or stmt.dtype is ir.DType.bool_:
            place = Value(narrow.text, ATOM, ir.DType.i64, axes, narrow=True)
            narrow = self.ops.cast(place, stmt.dtype)
        elif stmt.dtype is ir.DType.i32 and axes and self.bits == 32:
            narrow = Value(narrow.text, ATOM, stmt.dtype, axes)
        self.env[stmt.out] = narrow

    def _indirect(self, stmt: ir.Indirect) -> None:
        value = self.ops.held(self.env[stmt.value])
        extent = self.write_sizes(stmt.extent)
        if value.dtype.itemsize * 8 < self.bits or value.dtype.itemsize < 4:
            wide = ir.DType.i64 if self.bits == 64 else ir.DType.i32
            value = self.ops.cast(value, wide)
        if value.literal is not None:
            value = typed(value)
        held = self.held_places.get(stmt.symbol)
        if held is not None:
            narrow = ir.DType.i32 if self.bits == 32 else value.dtype
            value = self.ops.cast(value, narrow)
        elif value.dtype.value.startswith("i"):
            if not value.text.isidentifier():
                value = self.assign("at", value)
            wrapped = f"tl.where({value.text} < 0, {value.text} + {extent}, {value.text})"
            value = Value(wrapped, ATOM, value.dtype, value.axes)
        named = (
            value if held is not None and value.text.isidentifier() else self.assign("idx", value)
        )
        if held is None:
            self.inside[stmt.symbol] = self._inside(named, extent)
        elif not held:
            text = f"{extent} > 0"
            self.inside[stmt.symbol] = Value(text, COMPARE, ir.DType.bool_, frozenset())
        self.symbols[stmt.symbol] = (symbol(named.text), value.axes)
        self.env[stmt.symbol.name] = named

    def _inside(self, at: Value, extent: str) -> Value:
        """Whether a place that is data is one of the first `extent`."""
        text = f"({at.text} >= 0) & ({at.text} < {extent})"
        return self.assign("inside", Value(text, BIT_AND, ir.DType.bool_, at.axes))

    def _store(self, stmt: ir.Store, tile_axes: frozenset[str]) -> None:
        index, axes = self.index(stmt.index)
        value = self.ops.held(self.env[stmt.value])
        dtype = self.params.dtypes[stmt.buffer]
        if value.dtype is not dtype or value.literal is not None:
            value = self.ops.cast(value, dtype)
        mask_value = self.mask_value(stmt)
        atomic = stmt.mode in ir.ATOMICS
        if not atomic and (mask_value is None or stmt.mode == "sum") and self.takes(stmt, value):
            return
        over = axes | value.axes | (mask_value.axes if mask_value else frozenset())
        if atomic:
            over |= tile_axes
        if over != axes:
            index = self.spread(index, axes, over)
        mask = self.mask(over, mask_value)
        if atomic:
            if not over <= value.axes and self.is_tile(over):
                everywhere = f"tl.broadcast_to({typed(value).text}, {self.shape(over)})"
                value = Value(everywhere, ATOM, dtype, over)
            self._combine(stmt, index, value, mask)
        else:
            turned = "tl.trans({})".format if value.axes and self.turns(stmt) else str
            tail = f", {turned(mask)}" if mask else ""
            pointer = turned(_at(self.params.buffers[stmt.buffer], index))
            self.lines.body.append(f"tl.store({pointer}, {turned(in_memory(value))}{tail})")
        self.stored.add(stmt.buffer)

    def _combine(self, stmt: ir.Store, index: str, value: Value, mask: str) -> None:
        """Writes an atomic store of one tile."""
        param = self.params.buffers[stmt.buffer]
        pointer = _at(param, index)
        if stmt.mode == "add" or (stmt.mode != "mul" and value.dtype.is_int):
            tail = f", mask={mask}" if mask else ""
            text = f'tl.atomic_{stmt.mode}({pointer}, {value.text}{tail}, sem="relaxed")'
        else:
            place = f"{param}, {index}" if stmt.mode == "mul" else pointer
            helper = f"atomic_{stmt.mode}_{value.dtype.value}"
            text = f"{helper}({place}, {value.text}, {mask or True})"
        self.lines.body.append(text)

    def store(self, stmt: ir.Store, index: str, value: str, axes: frozenset[str]) -> None:
        """Writes the line that stores a value at an index over these tile dimensions."""
        mask = self.mask(axes, self.mask_value(stmt))
        tail = f", {mask}" if mask else ""
        param = self.params.buffers[stmt.buffer]
        self.lines.body.append(f"tl.store({param} + {index}, {value}{tail})")

    def takes(self, stmt: ir.Store, value: Value) -> bool:
        """Handles a store in another way than `tl.store`; True if it did."""
        return False


def _at(param: str, index: str) -> str:
    return param if index == "0" else f"{param} + {index}"
