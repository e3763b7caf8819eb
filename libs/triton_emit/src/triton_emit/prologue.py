"""`emit_prologue`: what makes an operand of a matmul -> a device function for its template."""

from __future__ import annotations

import sympy

from loop_ir import Kernel, Load, Stmt, Store, TensorRef
from triton_emit.body import Writer
from triton_emit.errors import BadPrologue
from triton_emit.helpers import called, helper_text
from triton_emit.idioms import cheaper
from triton_emit.kernel import INDENT, origin_lines
from triton_emit.schedule import index_bits
from triton_emit.source import PrologueSource
from triton_emit.ssa import clean, statements
from triton_emit.tiles import Tile
from triton_emit.values import ATOM, Value, typed


def emit_prologue(kernel: Kernel, source: TensorRef, operand: str, name: str) -> PrologueSource:
    """The device function `name(tile, r_outer, rk, mask, operands)` of the operand "a" or "b".

    `kernel` runs over the operand's (row, column), stores one element at each, and reads `source`
    there: such loads become `tile`. Other operands are loaded under masks. The result is rounded as
    the store rounds it, so that fusing changes no digit.

    Raises BadPrologue where the kernel is no such thing.
    """
    kernel = cheaper(clean(kernel))
    if len(kernel.axes) != 2 or any(phase.axes for phase in kernel.phases):
        raise BadPrologue(kernel.name, f"it has {len(kernel.axes)} parallel axes, or inner ones")
    stores = [s for _, s in statements(kernel) if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].mode != "set" or stores[0].mask is not None:
        raise BadPrologue(kernel.name, f"it has {len(stores)} stores, or a masked or atomic one")
    writer = _PrologueWriter(kernel, source, operand)
    value = writer.result(stores[0])
    dtype = writer.params.dtypes[stores[0].buffer]
    return writer.source(name, value, dtype.value)


class _PrologueWriter(Writer):
    def __init__(self, kernel: Kernel, source: TensorRef, operand: str) -> None:
        super().__init__(kernel, index_bits(kernel))
        first, second = kernel.axes
        outer, inner = (first, second) if operand == "a" else (second, first)
        stride = source.type.stride
        here = source.type.offset + first.symbol * stride[0] + second.symbol * stride[1]
        self.single = {a.symbol: sympy.S.Zero for a in kernel.axes if a.extent == 1}
        self.buffer, self.here = source.buffer, sympy.expand(here.xreplace(self.single))
        others = {
            s.buffer for _, s in statements(kernel) if isinstance(s, Load) and not self.is_tile(s)
        }
        self.operands = [b.name for b in kernel.buffers if b.name in others]
        self.params.prefix = f"{operand}_"
        for number, buffer in enumerate(self.operands):
            self.params.buffers[buffer] = f"{operand}_in{number}"
        self.add_tile(Tile("o", "r_outer", "o", (outer,), self.write_sizes))
        self.add_tile(Tile("k", "rk", "k", (inner,), self.write_sizes))
        rows, columns = ("o", "k") if operand == "a" else ("k", "o")
        self.shapes = {rows: "tile.shape[0]", columns: "tile.shape[1]"}
        self.dimensions = (rows, columns)
        self.result_value: Value | None = None

    def is_tile(self, stmt: Load) -> bool:
        same = stmt.buffer == self.buffer and stmt.mask is None
        return same and sympy.expand(stmt.index.xreplace(self.single) - self.here) == 0

    def mask(self, axes: frozenset[str], extra: Value | None = None) -> str:
        """The template's mask over the whole tile, else the bounds of one axis."""
        if axes == {"o", "k"}:
            text = "mask"
        elif axes:
            (key,) = axes
            text = f"{self.tiles[key].flat} < {self.write_sizes(self.tiles[key].numel)}"
        else:
            text = ""
        if extra is None or not text:
            return text if extra is None else extra.text
        return f"({text}) & {extra.at(5)}"

    def _load(self, stmt: Load, readers: list[Stmt], alone: bool) -> None:
        if self.is_tile(stmt):
            self.env[stmt.out] = Value("tile", ATOM, stmt.dtype, frozenset({"o", "k"}))
        else:
            super()._load(stmt, readers, alone)

    def takes(self, stmt: Store, value: Value) -> bool:
        self.result_value = value
        return True

    def result(self, store: Store) -> Value:
        for phase in self.kernel.phases:
            self.run(phase.body, frozenset({"o", "k"}), frozenset())
        value = self.result_value
        assert value is not None, store
        if value.axes != {"o", "k"}:
            text = f"tl.broadcast_to({typed(value).text}, tile.shape)"
            value = Value(text, ATOM, value.dtype, frozenset({"o", "k"}))
        return value

    def source(self, name: str, value: Value, dtype: str) -> PrologueSource:
        operands = [
            (self.params.buffers[b], f"*{self.params.dtypes[b].value}") for b in self.operands
        ]
        args: list[str | sympy.Expr] = list(self.operands)
        for size, param in self.params.sizes.items():
            operands.append((param.name, f"i{self.bits}"))
            args.append(size)
        lines = [f"{param} = operands[{k}]" for k, (param, _) in enumerate(operands)]
        if self.bits == 64:
            lines += [f"{axis} = {axis}.to(tl.int64)" for axis in ("r_outer", "rk")]
        lines += [*self.top.text(), f"return {value.text}"]
        body = "\n".join(INDENT + line for line in lines)
        head = "".join(f"# {line}\n" for line in origin_lines(self.kernel.origins))
        blocks = [
            "import triton\nimport triton.language as tl",
            helper_text(called(body)),
            f"{head}@triton.jit\ndef {name}(tile, r_outer, rk, mask, operands):\n{body}\n",
        ]
        text = "\n\n\n".join(b for b in blocks if b)
        return PrologueSource(name, text, tuple(operands), tuple(args), dtype, self.bits)
