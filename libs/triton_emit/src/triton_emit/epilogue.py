"""`emit_epilogue`: the pointwise kernel after a matmul -> a device function for its template."""

from __future__ import annotations

import re
from dataclasses import replace

import sympy

from loop_ir import Axis, Kernel, Load, Store, contiguous_strides
from symexpr import symbol
from triton_emit.body import Writer
from triton_emit.errors import BadEpilogue
from triton_emit.helpers import called, helper_text
from triton_emit.idioms import cheaper
from triton_emit.kernel import INDENT, origin_lines
from triton_emit.schedule import index_bits
from triton_emit.source import EpilogueSource
from triton_emit.ssa import clean, statements
from triton_emit.tiles import Tile
from triton_emit.values import ATOM, TL_TYPES, Value, typed


def emit_epilogue(
    kernel: Kernel,
    out_name: str,
    name: str | None = None,
    out_stride: tuple[sympy.Expr, ...] | None = None,
    bits: int | None = None,
) -> EpilogueSource:
    """The device function `name(acc, rm, rn, mask, operands)` (`name`: the kernel's if None).

    `kernel` runs over (m, n), or (batch, m, n) with the batch number as the first of `operands`;
    reads `out_name` (a matmul's result, strides `out_stride` along these, row-major if None) there
    and writes one buffer. A read of `out_name` becomes `acc` rounded to the element type that it is
    read as, so that fusing changes no digit. Other operands are loaded under masks. `bits`: width
    of index arithmetic, chosen by the ranges if None.

    Raises BadEpilogue where the kernel is no such thing.
    """
    kernel = cheaper(clean(kernel))
    if len(kernel.axes) not in (2, 3) or any(phase.axes for phase in kernel.phases):
        raise BadEpilogue(kernel.name, f"it has {len(kernel.axes)} parallel axes, or inner ones")
    stores = [s for _, s in statements(kernel) if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].mode != "set" or stores[0].mask is not None:
        raise BadEpilogue(kernel.name, f"it has {len(stores)} stores, or a masked or atomic one")
    axes = kernel.axes
    expected = out_stride or contiguous_strides(tuple(axis.extent for axis in axes))
    here = _along(axes, expected)
    # The index of an axis of one point is nowhere in the kernel; its stride may be any.
    single = {axis.symbol: sympy.S.Zero for axis in axes if axis.extent == 1}
    for _, s in statements(kernel):
        if isinstance(s, Load) and s.buffer == out_name:
            if sympy.expand((s.index - here).xreplace(single)) != 0:
                raise BadEpilogue(kernel.name, f"it reads {out_name}[{s.index}], not [{here}]")
        elif isinstance(s, Load) and s.buffer == stores[0].buffer and s.index != stores[0].index:
            raise BadEpilogue(kernel.name, f"it reads what other points write of {s.buffer}")
    kernel = _reading(kernel, out_name, here)
    writer = _EpilogueWriter(kernel, out_name, bits or index_bits(kernel))
    value = writer.result(stores[0])
    index = sympy.expand(stores[0].index).xreplace(single)
    stride: tuple[sympy.Expr, ...] = ()
    step: sympy.Expr = sympy.S.One
    for axis in reversed(axes):
        step = step if axis.extent == 1 else index.coeff(axis.symbol)
        stride = (step, *stride)
        step = step * axis.extent
    if sympy.expand(index - _along(axes, stride).xreplace(single)) != 0:
        raise BadEpilogue(kernel.name, f"it stores at [{index}], which is not linear in (m, n)")
    dtype = writer.params.dtypes[stores[0].buffer]
    return writer.source(name or kernel.name, value, stores[0].buffer, dtype.value, stride)


def _along(axes: tuple[Axis, ...], stride: tuple[sympy.Expr, ...]) -> sympy.Expr:
    return sympy.Add(*(axis.symbol * s for axis, s in zip(axes, stride, strict=True)))


def _reading(kernel: Kernel, buffer: str, index: sympy.Expr) -> Kernel:
    """The kernel with all loads of a buffer at one index."""
    phases = tuple(
        replace(
            phase,
            body=tuple(
                replace(s, index=index) if isinstance(s, Load) and s.buffer == buffer else s
                for s in phase.body
            ),
        )
        for phase in kernel.phases
    )
    return replace(kernel, phases=phases)


class _EpilogueWriter(Writer):
    def __init__(self, kernel: Kernel, out_name: str, bits: int) -> None:
        super().__init__(kernel, bits)
        self.out_name = out_name
        loaded = {s.buffer for _, s in statements(kernel) if isinstance(s, Load)}
        self.operands = [b.name for b in kernel.buffers if b.name in loaded - {out_name}]
        for number, buffer in enumerate(self.operands):
            self.params.buffers[buffer] = f"in{number}"
        *batch, m, n = kernel.axes
        for axis in batch:
            self.symbols[axis.symbol] = (symbol("batch"), frozenset())
        self.batched = bool(batch)
        self.add_tile(Tile("m", "rm", "m", (m,), self.write_sizes))
        self.add_tile(Tile("n", "rn", "n", (n,), self.write_sizes))
        self.shapes = {"m": "acc.shape[0]", "n": "acc.shape[1]"}
        self.dimensions = ("m", "n")
        self.result_value: Value | None = None

    def mask(self, axes: frozenset[str], extra: Value | None = None) -> str:
        """The template's mask over the whole tile, else the bounds of one axis."""
        if axes == {"m", "n"}:
            text = "mask"
        elif axes:
            (key,) = axes
            text = f"{self.tiles[key].flat} < {self.write_sizes(self.tiles[key].numel)}"
        else:
            text = ""
        if extra is None or not text:
            return text if extra is None else extra.text
        return f"({text}) & {extra.at(5)}"

    def load_text(self, stmt: Load, index: str, mask: str) -> str:
        if stmt.buffer == self.out_name:
            return f"acc.to({TL_TYPES[stmt.dtype]})"
        return super().load_text(stmt, index, mask)

    def takes(self, stmt: Store, value: Value) -> bool:
        self.result_value = value
        return True

    def result(self, store: Store) -> Value:
        for phase in self.kernel.phases:
            self.run(phase.body, frozenset({"m", "n"}), frozenset())
        value = self.result_value
        assert value is not None, store
        if value.axes != {"m", "n"}:
            text = f"tl.broadcast_to({typed(value).text}, acc.shape)"
            value = Value(text, ATOM, value.dtype, frozenset({"m", "n"}))
        return value

    def source(
        self, name: str, value: Value, out: str, dtype: str,
        stride: tuple[sympy.Expr, ...],
    ) -> EpilogueSource:  # fmt: skip
        operands = [
            (self.params.buffers[b], f"*{self.params.dtypes[b].value}") for b in self.operands
        ]
        args: list[str | sympy.Expr] = list(self.operands)
        for size, param in self.params.sizes.items():
            operands.append((param.name, f"i{self.bits}"))
            args.append(size)
        start = 1 if self.batched else 0
        lines = [f"{param} = operands[{k}]" for k, (param, _) in enumerate(operands, start)]
        lines += [*self.top.text(), f"return {value.text}"]
        if self.batched and any(re.search(r"\bbatch\b", line) for line in lines):
            lines.insert(0, f"batch = operands[0].to(tl.int{self.bits})")
        body = "\n".join(INDENT + line for line in lines)
        head = "".join(f"# {line}\n" for line in origin_lines(self.kernel.origins))
        blocks = [
            "import triton\nimport triton.language as tl",
            helper_text(called(body)),
            f"{head}@triton.jit\ndef {name}(acc, rm, rn, mask, operands):\n{body}\n",
        ]
        return EpilogueSource(
            name, "\n\n\n".join(b for b in blocks if b), tuple(operands), tuple(args), out, dtype,
            stride, self.batched, self.bits,
        )  # fmt: skip
