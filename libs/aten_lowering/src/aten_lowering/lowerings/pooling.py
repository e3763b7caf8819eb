"""Pooling over windows in two dimensions: every window is written out, a load for each place.

    max_pool2d(x, 2)   ->   for n, c, h, w: max of x[n, c, 2 h + i, 2 w + j], i and j in 0, 1

What comes before may then be computed where it is read, and what follows on the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sympy
import torch

from aten_lowering.builder import Coords, KernelBuilder, Operand, Value
from aten_lowering.call import Call, Number, number, opmath
from aten_lowering.errors import require
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()

# Beyond that many places a kernel is too long to be written out.
_MOST = 25


@dataclass(frozen=True)
class _Window:
    """What the arguments say: pairs, for rows and columns. `clips`: whether places may lie outside
    of the input."""

    size: tuple[int, int]
    step: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    ceil: bool

    @classmethod
    def of(
        cls, size: Sequence[int], step: Sequence[int], padding: Sequence[int],
        dilation: Sequence[int], ceil: bool,
    ) -> _Window:  # fmt: skip
        """As torch takes them: one number for both, and no step for the window's size."""
        window = cls(_pair(size), _pair(step or size), _pair(padding), _pair(dilation), ceil)
        count = window.size[0] * window.size[1]
        require(count <= _MOST, f"a window of {count} places, more than {_MOST}")
        return window

    def clips(self, dim: int) -> bool:
        return self.ceil or self.padding[dim] > 0

    def start(self, coords: Coords, dim: int) -> sympy.Expr:
        """The first place of a window along rows (0) or columns (1), which may be negative."""
        return coords[len(coords) - 2 + dim] * self.step[dim] - self.padding[dim]

    def loads(
        self, k: KernelBuilder, x: Operand
    ) -> Iterator[tuple[Value, Value | None, sympy.Expr]]:
        """Of each place, row by row: the element, whether it is there (None: always), and its
        number in the image."""
        height, width = x.size[-2:]
        kind = _kind(x)
        for i in range(self.size[0]):
            row = self.start(k.coords, 0) + i * self.dilation[0]
            for j in range(self.size[1]):
                column = self.start(k.coords, 1) + j * self.dilation[1]
                inside: Value | None = None
                for dim, (place, extent) in enumerate(((row, height), (column, width))):
                    if self.clips(dim):
                        at = k.index(place, kind)
                        low = k.op("ge", at, k.const(0, kind))
                        both = k.op("and", low, k.op("lt", at, k.index(extent, kind)))
                        inside = both if inside is None else k.op("and", inside, both)
                loaded = k.load(x, (*k.coords[:-2], row, column), mask=inside)
                yield k.cast(loaded, opmath(x.dtype)), inside, row * width + column


def _kind(x: Operand) -> DType:
    """What rows and columns are counted in: 32 bits, which are faster, where that is enough."""
    known = all(n.is_Integer and n < 2**30 for n in x.size[-2:])
    return DType.i32 if known else DType.i64


def _pair(values: Sequence[int]) -> tuple[int, int]:
    known = [int(v) for v in values if isinstance(v, int)]
    require(len(known) == len(values) > 0, "a window of sizes that are not known")
    return known[0], known[-1]


@table.lowers(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    call: Call, input: Operand, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool,
) -> None:  # fmt: skip
    """NaN wins, the last one if there are several; among equals the first place does. (Where there
    is nothing but minus infinity, eager's kernel for channels-last CUDA tensors says 0.)"""
    require(input.dtype.is_float, "max_pool2d of integers")
    window = _Window.of(kernel_size, stride, padding, dilation, ceil_mode)
    k = call.kernel(call.out.size)
    lowest = k.const(float("-inf"), opmath(input.dtype))
    places = call.result(1)
    best, index = lowest, k.const(-1, DType.i64)
    for value, inside, number_ in window.loads(k, input):
        if places is None:
            best = k.op("maximum", best, k.where(inside, value, lowest) if inside else value)
            continue
        taken = k.op("or", k.op("gt", value, best), k.op("isnan", value))
        taken = k.op("or", taken, k.op("lt", index, k.const(0, DType.i64)))
        taken = k.op("and", taken, inside) if inside else taken
        best, index = k.where(taken, value, best), k.where(taken, k.index(number_), index)
    k.store(call.out.operand, k.coords, best)
    if places is not None:
        k.store(places.operand, k.coords, index)
    call.emit_kernel(k)


@table.lowers(aten.avg_pool2d.default)
def avg_pool2d(
    call: Call, input: Operand, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool,
    divisor_override: Number | None,
) -> None:  # fmt: skip
    """Sums in the opmath type, row by row as eager."""
    require(input.dtype.is_float, "avg_pool2d of integers")
    window = _Window.of(kernel_size, stride, padding, (1, 1), ceil_mode)
    k = call.kernel(call.out.size)
    acc = opmath(input.dtype)
    total = zero = k.const(0, acc)
    for value, inside, _ in window.loads(k, input):
        total = k.op("add", total, k.where(inside, value, zero) if inside else value)
    if divisor_override is not None:
        count = number(k, divisor_override, acc)
    else:
        sides = [_side(k, window, dim, input, count_include_pad) for dim in range(2)]
        count = k.cast(k.op("mul", *sides), acc)
    k.store(call.out.operand, k.coords, k.op("div", total, count))
    call.emit_kernel(k)


def _side(k: KernelBuilder, window: _Window, dim: int, x: Operand, padded: bool) -> Value:
    """How many places of a window count along rows or columns: those inside of the input, or of
    the padded one."""
    kind = _kind(x)
    if not window.clips(dim):
        return k.const(window.size[dim], kind)
    extent, start = x.size[len(x.size) - 2 + dim], window.start(k.coords, dim)
    last, edge = start + window.size[dim], extent + window.padding[dim]
    end = k.op("minimum", k.index(last, kind), k.index(edge, kind))
    first = k.index(start, kind)
    if not padded:
        first = k.op("maximum", first, k.const(0, kind))
        end = k.op("minimum", end, k.index(extent, kind))
    return k.op("sub", end, first)
