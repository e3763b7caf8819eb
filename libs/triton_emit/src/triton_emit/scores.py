"""`emit_scores`: what is computed of attention scores -> a device function for its template."""

from collections.abc import Sequence
from dataclasses import replace

import sympy

from loop_ir import Buffer, DType, Indirect, Kernel, Load, Stmt, Store
from loop_ir.ir import map_statements, ranges_of, statements
from symexpr import symbol
from triton_emit.device_function import DeviceFunctionWriter, only_store
from triton_emit.errors import BadEpilogue
from triton_emit.idioms import cheaper
from triton_emit.schedule import passes_32_bits
from triton_emit.source import ScoreSource
from triton_emit.ssa import clean
from triton_emit.tiles import Tile
from triton_emit.values import ATOM, Value

# What the axes of scores are to the function: two numbers, and two ranges of a tile.
_PLACES = ("batch", "head")


def emit_scores(
    kernel: Kernel, tiles: Sequence[str], name: str, rounded: bool = False, turned: bool = False
) -> ScoreSource:
    """The device function `name(<tiles>, batch, head, rm, rn, mask, operands)`.

    `kernel` runs over (batch, head, query, key) and stores one f32 element at each; it reads the
    f32 `tiles` there, whose parameters are their names. Other operands are loaded under masks;
    their names begin with `name`. Or it adds to memory, which is an operand; the function then
    gives the last of the tiles as it is.
    rounded: the attention's tensors have 16 bits. turned: tiles are [keys, queries].

    Raises BadEpilogue where the kernel is no such thing."""
    kernel = cheaper(clean(kernel), rounded)
    store = only_store(kernel, (4,), BadEpilogue, ("set", "add"))
    if store.mode == "set":
        nowhere = replace(store, index=sympy.S.Zero)
        kernel = map_statements(kernel, lambda s: nowhere if s is store else s)
    writer = _ScoreWriter(kernel, tiles, name, turned)
    value = writer.result(store)
    signature = ", ".join([*tiles, *_PLACES, "rm", "rn", "mask", "operands"])
    wide = [f"{place} = {place}.to(tl.int64)" for place in (*_PLACES, "rm", "rn")]
    text, operands, args = writer.function(
        f"{name}({signature})", value, wide if writer.bits == 64 else ()
    )
    return ScoreSource(name, text, operands, args)


class _ScoreWriter(DeviceFunctionWriter):
    def __init__(self, kernel: Kernel, tiles: Sequence[str], name: str, turned: bool) -> None:
        self.here = {b.name: _index(kernel, b) for b in kernel.buffers if b.name in tiles}
        loads = [s for s in statements(kernel) if isinstance(s, Load)]
        others = {s.buffer for s in loads if not self.reads_tile(s)}
        sums = [s for s in statements(kernel) if isinstance(s, Store) and s.mode == "add"]
        if others & self.here.keys():
            raise BadEpilogue(kernel.name, "it reads scores of other places")
        places = [*(s.index for s in loads if s.buffer in others), *(s.index for s in sums)]
        others |= {s.buffer for s in sums}
        places += [s.extent for s in statements(kernel) if isinstance(s, Indirect)]
        lengths = [axis.extent for axis in kernel.axes[-2:]]
        wide = passes_32_bits([*lengths, *places], dict(ranges_of(kernel)))
        super().__init__(kernel, 64 if wide else 32, tiles[0], others, f"{name}_in")
        self.params.prefix = f"{name}_"
        if sums:
            self.result_value = Value(tiles[-1], ATOM, DType.f32, frozenset("mn"))
        *outer, m, n = kernel.axes
        rows = Tile("m", "rm", "m", (m,), self.write_sizes)
        columns = Tile("n", "rn", "n", (n,), self.write_sizes)
        self.run_over((), (rows, columns), ("n", "m") if turned else ("m", "n"))
        for axis, place in zip(outer, _PLACES, strict=True):
            self.symbols[axis.symbol] = (symbol(place), frozenset())

    def reads_tile(self, stmt: Load) -> bool:
        here = self.here.get(stmt.buffer)
        return here is not None and sympy.expand(stmt.index - here) == 0

    def _combine(self, stmt: Store, index: str, value: Value, mask: str) -> None:
        """What many scores add to one place is summed first."""
        at, axes = self.index(stmt.index)
        missing = [i for i, key in enumerate(self.dimensions) if key not in axes]
        if missing:
            text = f"tl.where({mask}, {value.text}, 0.0)"
            for i in reversed(missing):
                text = f"tl.sum({text}, {i}{', keep_dims=True' * (len(missing) == 1)})"
            index, mask = at, self.mask(axes)
            value = Value(text, ATOM, value.dtype, axes)
        super()._combine(stmt, index, value, mask)

    def load(self, stmt: Load, readers: Sequence[Stmt], alone: bool) -> None:
        if self.reads_tile(stmt):
            self.env[stmt.out] = Value(stmt.buffer, ATOM, stmt.dtype, frozenset("mn"))
        else:
            super().load(stmt, readers, alone)


def _index(kernel: Kernel, scores: Buffer) -> sympy.Expr:
    steps = zip(kernel.axes, scores.type.stride, strict=True)
    return sympy.expand(sympy.Add(*(axis.symbol * step for axis, step in steps)))
