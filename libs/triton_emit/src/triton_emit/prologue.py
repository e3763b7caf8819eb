"""`emit_prologue`: what makes an operand of a matmul -> a device function for its template."""

from __future__ import annotations

import re
from collections.abc import Sequence

import sympy

from loop_ir import Kernel, Load, Stmt, TensorRef
from loop_ir.ir import statements
from symexpr import symbol
from triton_emit.device_function import DeviceFunctionWriter, only_store
from triton_emit.errors import BadPrologue
from triton_emit.idioms import cheaper
from triton_emit.schedule import index_bits
from triton_emit.source import PrologueSource, module
from triton_emit.ssa import clean
from triton_emit.tiles import Tile
from triton_emit.values import ATOM, Value, typed


def emit_prologue(kernel: Kernel, source: TensorRef, operand: str, name: str) -> PrologueSource:
    """The device function `name(tile, r_outer, rk, mask, operands)` of the operand "a" or "b".

    `kernel` runs over the operand's (row, column), or (batch, row, column) with the batch number as
    the first of `operands`; it stores one element at each, and reads `source` there: such loads
    become `tile`. Other operands are loaded under masks. The result is rounded as
    the store rounds it, so that fusing changes no digit.

    Raises BadPrologue where the kernel is no such thing.
    """
    kernel = cheaper(clean(kernel))
    store = only_store(kernel, (2, 3), BadPrologue)
    writer = _PrologueWriter(kernel, source, operand)
    value = writer.result(store)
    dtype = writer.params.dtypes[store.buffer]
    return writer.source(name, value, dtype.value)


class _PrologueWriter(DeviceFunctionWriter):
    def __init__(self, kernel: Kernel, source: TensorRef, operand: str) -> None:
        super().__init__(kernel, index_bits(kernel), "tile")
        *batch, first, second = kernel.axes
        outer, inner = (first, second) if operand == "a" else (second, first)
        steps = zip(kernel.axes, source.type.stride, strict=True)
        here = source.type.offset + sympy.Add(*(axis.symbol * step for axis, step in steps))
        self.single = {a.symbol: sympy.S.Zero for a in kernel.axes if a.extent == 1}
        self.buffer, self.here = source.buffer, sympy.expand(here.xreplace(self.single))
        others = {
            s.buffer
            for s in statements(kernel)
            if isinstance(s, Load) and not self.reads_operand(s)
        }
        self.operands = [b.name for b in kernel.buffers if b.name in others]
        self.params.prefix = f"{operand}_"
        for number, buffer in enumerate(self.operands):
            self.params.buffers[buffer] = f"{operand}_in{number}"
        for axis in batch:
            self.symbols[axis.symbol] = (symbol("batch"), frozenset())
        self.batched = bool(batch)
        self.add_tile(Tile("o", "r_outer", "o", (outer,), self.write_sizes))
        self.add_tile(Tile("k", "rk", "k", (inner,), self.write_sizes))
        rows, columns = ("o", "k") if operand == "a" else ("k", "o")
        self.shapes = {rows: "tile.shape[0]", columns: "tile.shape[1]"}
        self.dimensions = (rows, columns)

    def reads_operand(self, stmt: Load) -> bool:
        same = stmt.buffer == self.buffer and stmt.mask is None
        return same and sympy.expand(stmt.index.xreplace(self.single) - self.here) == 0

    def load(self, stmt: Load, readers: Sequence[Stmt], alone: bool) -> None:
        if self.reads_operand(stmt):
            self.env[stmt.out] = Value("tile", ATOM, stmt.dtype, frozenset({"o", "k"}))
        else:
            super().load(stmt, readers, alone)

    def source(self, name: str, value: Value, dtype: str) -> PrologueSource:
        operands, args = self.given()
        start = 1 if self.batched else 0
        lines = [f"{param} = operands[{k}]" for k, (param, _) in enumerate(operands, start)]
        if self.bits == 64:
            lines += [f"{axis} = {axis}.to(tl.int64)" for axis in ("r_outer", "rk")]
        lines += [*self.top.text(), f"return {typed(value).text}"]
        if self.batched and any(re.search(r"\bbatch\b", line) for line in lines):
            lines.insert(0, f"batch = operands[0].to(tl.int{self.bits})")
        text = module(f"{name}(tile, r_outer, rk, mask, operands)", lines, self.kernel)
        return PrologueSource(
            name, text, tuple(operands), tuple(args), dtype, self.bits, self.batched
        )
