"""`emit_epilogue`: the pointwise kernel after a matmul -> a device function for its template."""

from dataclasses import replace

import sympy

from loop_ir import Axis, Kernel, Load, Stmt, contiguous_strides
from loop_ir.ir import map_statements, statements
from triton_emit.device_function import DeviceFunctionWriter, only_store
from triton_emit.errors import BadEpilogue
from triton_emit.idioms import cheaper
from triton_emit.schedule import index_bits
from triton_emit.source import EpilogueSource
from triton_emit.ssa import clean
from triton_emit.tiles import Tile
from triton_emit.values import TL_TYPES, Value


def emit_epilogue(
    kernel: Kernel,
    out_name: str,
    name: str | None = None,
    out_stride: tuple[sympy.Expr, ...] | None = None,
) -> EpilogueSource:
    """The device function `name(acc, rm, rn, mask, operands)` (`name`: the kernel's if None).

    `kernel` runs over (m, n), or (batch, m, n) with the batch number as the first of `operands`;
    reads `out_name` (a matmul's result, strides `out_stride` along these, row-major if None) there
    and writes one buffer. A read of `out_name` becomes `acc` rounded to the element type that it is
    read as, so that fusing changes no digit. Other operands are loaded under masks.

    Raises BadEpilogue where the kernel is no such thing."""
    kernel = cheaper(clean(kernel))
    store = only_store(kernel, (2, 3), BadEpilogue)
    axes = kernel.axes
    expected = out_stride or contiguous_strides(tuple(axis.extent for axis in axes))
    here = _along(axes, expected)
    # The index of an axis of one point is nowhere in the kernel; its stride may be any.
    single = {axis.symbol: sympy.S.Zero for axis in axes if axis.extent == 1}
    for s in statements(kernel):
        if isinstance(s, Load) and s.buffer == out_name:
            if sympy.expand((s.index - here).xreplace(single)) != 0:
                raise BadEpilogue(kernel.name, f"it reads {out_name}[{s.index}], not [{here}]")
        elif isinstance(s, Load) and s.buffer == store.buffer and s.index != store.index:
            raise BadEpilogue(kernel.name, f"it reads what other points write of {s.buffer}")

    def moved(s: Stmt) -> Stmt:
        return replace(s, index=here) if isinstance(s, Load) and s.buffer == out_name else s

    kernel = map_statements(kernel, moved)
    writer = _EpilogueWriter(kernel, out_name, index_bits(kernel))
    value = writer.result(store)
    index = sympy.expand(store.index).xreplace(single)
    stride: tuple[sympy.Expr, ...] = ()
    step: sympy.Expr = sympy.S.One
    for axis in reversed(axes):
        step = step if axis.extent == 1 else index.coeff(axis.symbol)
        stride = (step, *stride)
        step = step * axis.extent
    if sympy.expand(index - _along(axes, stride).xreplace(single)) != 0:
        raise BadEpilogue(kernel.name, f"it stores at [{index}], which is not linear in (m, n)")
    dtype = writer.params.dtypes[store.buffer]
    return writer.source(name or kernel.name, value, store.buffer, dtype.value, stride)


def _along(axes: tuple[Axis, ...], stride: tuple[sympy.Expr, ...]) -> sympy.Expr:
    return sympy.Add(*(axis.symbol * s for axis, s in zip(axes, stride, strict=True)))


class _EpilogueWriter(DeviceFunctionWriter):
    def __init__(self, kernel: Kernel, out_name: str, bits: int) -> None:
        loaded = {s.buffer for s in statements(kernel) if isinstance(s, Load)}
        super().__init__(kernel, bits, "acc", loaded - {out_name})
        self.out_name = out_name
        *batch, m, n = kernel.axes
        rows = Tile("m", "rm", "m", (m,), self.write_sizes)
        columns = Tile("n", "rn", "n", (n,), self.write_sizes)
        self.run_over(batch, (rows, columns), ("m", "n"))

    def load_text(self, stmt: Load, index: str, mask: str) -> str:
        if stmt.buffer == self.out_name:
            return f"acc.to({TL_TYPES[stmt.dtype]})"
        return super().load_text(stmt, index, mask)

    def source(
        self, name: str, value: Value, out: str, dtype: str, stride: tuple[sympy.Expr, ...]
    ) -> EpilogueSource:
        text, operands, args = self.function(f"{name}(acc, rm, rn, mask, operands)", value)
        return EpilogueSource(
            name, text, operands, args, out, dtype, stride, self.batched, self.bits
        )
