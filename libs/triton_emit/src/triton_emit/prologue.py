"""`emit_prologue`: what makes an operand of a matmul -> a device function for its template."""

from collections.abc import Sequence
from dataclasses import replace

import sympy

from loop_ir import Compute, DType, Kernel, Load, Stmt, TensorRef
from loop_ir.ir import at_strides, statements
from symexpr import CeilDiv, FloorDiv, bounds, symbol
from triton_emit.device_function import DeviceFunctionWriter, only_store
from triton_emit.errors import BadPrologue
from triton_emit.idioms import cheaper
from triton_emit.schedule import index_bits
from triton_emit.source import PrologueSource
from triton_emit.ssa import clean
from triton_emit.tiles import Tile
from triton_emit.values import ATOM, Value


def emit_prologue(kernel: Kernel, source: TensorRef, operand: str, name: str) -> PrologueSource:
    """The device function `name(tile, r_outer, rk, first_k, mask, operands)` of operand "a" or "b".

    `kernel` runs over the operand's (row, column), or (batch, row, column) with the batch number as
    the first of `operands`; it stores one element at each, and reads `source` there: such loads
    become `tile`. Other operands are loaded under masks. The result is rounded as
    the store rounds it, so that fusing changes no digit.

    Raises BadPrologue where the kernel is no such thing."""
    kernel = cheaper(clean(kernel))
    store = only_store(kernel, (2, 3), BadPrologue)
    writer = _PrologueWriter(kernel, source, operand)
    value = writer.result(store)
    dtype = writer.params.dtypes[store.buffer]
    return writer.source(name, value, dtype.value)


class _PrologueWriter(DeviceFunctionWriter):
    def __init__(self, kernel: Kernel, source: TensorRef, operand: str) -> None:
        here = source.type.offset + at_strides(kernel.axes, source.type.stride)
        self.single = {a.symbol: sympy.S.Zero for a in kernel.axes if a.extent == 1}
        self.buffer, self.here = source.buffer, sympy.expand(here.xreplace(self.single))
        loads = [s for s in statements(kernel) if isinstance(s, Load)]
        others = {s.buffer for s in loads if not self.reads_operand(s)}
        super().__init__(kernel, index_bits(kernel), "tile", others, f"{operand}_in")
        self.params.prefix = f"{operand}_"
        *batch, first, second = kernel.axes
        outer, inner = (first, second) if operand == "a" else (second, first)
        tiles = (
            Tile("o", "r_outer", "o", (outer,), self.write_sizes),
            Tile("k", "rk", "k", (inner,), self.write_sizes),
        )
        self.run_over(batch, tiles, ("o", "k") if operand == "a" else ("k", "o"))

    def reads_operand(self, stmt: Load) -> bool:
        same = stmt.buffer == self.buffer and stmt.mask is None
        return same and sympy.expand(stmt.index.xreplace(self.single) - self.here) == 0

    def load(self, stmt: Load, readers: Sequence[Stmt], alone: bool) -> None:
        if self.reads_operand(stmt):
            self.env[stmt.out] = Value("tile", ATOM, stmt.dtype, frozenset({"o", "k"}))
        elif (group := self._group(stmt)) is not None:
            self._load_groups(stmt, group, readers, alone)
        else:
            super().load(stmt, readers, alone)

    def _group(self, stmt: Load) -> sympy.Expr | None:
        """The number of a group of places along K, such as `i1//128`, where that is all that the
        load's index has of the places: what a group shares is then loaded once."""
        (place,) = (axis.symbol for axis in self.tiles["k"].axes)
        found = [d for d in stmt.index.atoms(FloorDiv) if d.args[0] == place]
        if stmt.mask is not None or len(found) != 1 or not found[0].args[1].is_Integer:
            return None
        size = int(found[0].args[1])
        alone = place not in stmt.index.xreplace({found[0]: sympy.S.Zero}).free_symbols
        return found[0] if alone and size & (size - 1) == 0 else None

    def _load_groups(
        self, stmt: Load, group: sympy.Expr, readers: Sequence[Stmt], alone: bool
    ) -> None:
        """Loads [groups of the tile, columns], with the cast that alone reads it, and spreads it to
        the tile."""
        size, (axis,) = group.args[1], self.tiles["k"].axes
        count, name = self.shapes["k"], f"group_{size}"
        shaped = "[None, :]" if self.dimensions == ("o", "k") else "[:, None]"
        self._head("o", f"{name} = groups_of(first_k, {count}, {size}){shaped}")
        number = symbol(name)
        groups = CeilDiv(axis.extent, size)
        self.symbols[number] = (number, frozenset("k"))
        self.ranges[number] = (0, bounds(groups - 1, self.ranges)[1])
        index, axes = self.index(stmt.index.xreplace({group: number}))
        inside = [f"({name} < {self.write_sizes(groups)})"]
        if "o" in axes:
            inside.insert(0, f"({self.mask(frozenset('o'))})")
        value = Value(self.load_text(stmt, index, " & ".join(inside)), ATOM, stmt.dtype, axes)
        out, base = stmt.out, self.base_of(stmt.buffer)
        cast = readers[0] if alone and len(readers) == 1 else None
        if isinstance(cast, Compute) and cast.op == "cast" and cast.dtype is not DType.bool_:
            value, out = self.ops.cast(value, cast.dtype), cast.out
            self.env[stmt.out] = value
        text = f"along_groups({value.text}, {count})"
        if shaped == "[:, None]":
            text = f"tl.trans(along_groups(tl.trans({value.text}), {count}))"
        self.env[out] = self.assign(base, replace(value, text=text, prec=ATOM))

    def source(self, name: str, value: Value, dtype: str) -> PrologueSource:
        wide = ("r_outer", "rk", "first_k") if self.bits == 64 else ()
        places = [f"{axis} = {axis}.to(tl.int64)" for axis in wide]
        signature = f"{name}(tile, r_outer, rk, first_k, mask, operands)"
        text, operands, args = self.function(signature, value, places)
        return PrologueSource(name, text, operands, args, dtype, self.bits, self.batched)
