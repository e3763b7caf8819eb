"""Pooling over windows of images and volumes: every window is written out, a load for each place.

    max_pool2d(x, 2)   ->   for n, c, h, w: max of x[n, c, 2 h + i, 2 w + j], i and j in 0, 1

What comes before may then be computed where it is read, and what follows on the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import sympy
import torch

from aten_lowering.builder import KernelBuilder, Operand, Value
from aten_lowering.call import Call, Number, number, opmath
from aten_lowering.errors import require
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()

# Beyond that many places a kernel is too long to be written out.
_MOST = 27


@dataclass(frozen=True)
class _Window:
    """What the arguments say, a number for each dimension of the images, of which `x` are given
    and `size` pooled ones."""

    x: Operand
    out: tuple[sympy.Expr, ...]
    size: tuple[int, ...]
    step: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(
        cls, call: Call, dims: int, x: Operand, size: Sequence[int], step: Sequence[int],
        padding: Sequence[int], dilation: Sequence[int],
    ) -> _Window:  # fmt: skip
        """As torch takes them: one number for all, and no step for the window's size."""
        count = math.prod(_numbers(size, dims))
        require(count <= _MOST, f"a window of {count} places, more than {_MOST}")
        lists = (_numbers(n, dims) for n in (size, step or size, padding, dilation))
        return cls(x, tuple(call.out.size[-dims:]), *lists)

    @property
    def extents(self) -> Sequence[sympy.Expr]:
        return self.x.size[-len(self.size) :]

    def start(self, k: KernelBuilder, dim: int) -> sympy.Expr:
        """The first place of a window along a dimension, which may be negative."""
        return k.coords[dim - len(self.size)] * self.step[dim] - self.padding[dim]

    def passes(self, dim: int, offset: int) -> tuple[bool, bool]:
        """Whether the place of this offset may lie before the image, and behind it."""
        first = offset - self.padding[dim]
        last = first + (self.out[dim] - 1) * self.step[dim]
        room = sympy.expand(self.extents[dim] - 1 - last)
        return first < 0, not (room.is_Integer and room >= 0)

    def loads(
        self, k: KernelBuilder, other: float
    ) -> Iterator[tuple[Value, Value | None, sympy.Expr]]:
        """Of each place, row by row: the element, or `other` where there is none; whether it is
        there (None: always); and its number in the image."""
        kind = _kind(self)
        inside: dict[tuple[int, int], Value | None] = {}
        places: dict[tuple[int, int], sympy.Expr] = {}
        for dim, size in enumerate(self.size):
            for i in range(size):
                offset = i * self.dilation[dim]
                place = places[dim, i] = self.start(k, dim) + offset
                before, behind = self.passes(dim, offset)
                at, inside[dim, i] = k.index(place, kind), None
                if before:
                    inside[dim, i] = k.op("ge", at, k.const(0, kind))
                if behind:
                    low, end = inside[dim, i], k.index(self.extents[dim], kind)
                    high = k.op("lt", at, end)
                    inside[dim, i] = k.op("and", low, high) if low else high
        for window in product(*map(range, self.size)):
            mask: Value | None = None
            index: sympy.Expr = sympy.S.Zero
            for at_dim in enumerate(window):
                more = inside[at_dim]
                mask = k.op("and", mask, more) if mask and more else mask or more
                index = index * self.extents[at_dim[0]] + places[at_dim]
            point = (*k.coords[: -len(window)], *(places[d] for d in enumerate(window)))
            loaded = k.load(self.x, point, mask, other)
            yield k.cast(loaded, opmath(self.x.dtype)), mask, sympy.expand(index)


def _kind(window: _Window) -> DType:
    """What places are counted in: 32 bits, which are faster, where that is enough."""
    known = all(n.is_Integer and n < 2**30 for n in window.extents)
    return DType.i32 if known else DType.i64


def _numbers(values: Sequence[int], dims: int) -> tuple[int, ...]:
    known = [int(v) for v in values if isinstance(v, int)]
    require(len(known) == len(values) > 0, "a window of sizes that are not known")
    return tuple(known) if len(known) == dims else (known[0],) * dims


@table.lowers(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    call: Call, input: Operand, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool,
) -> None:  # fmt: skip
    """NaN wins, the last one if there are several; among equals the first place does. (Where there
    is nothing but minus infinity, eager's kernel for channels-last CUDA tensors says 0.)"""
    _max_pool(call, _Window.of(call, 2, input, kernel_size, stride, padding, dilation))


@table.lowers(aten.max_pool3d_with_indices.default)
def max_pool3d_with_indices(
    call: Call, input: Operand, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool,
) -> None:  # fmt: skip
    _max_pool(call, _Window.of(call, 3, input, kernel_size, stride, padding, dilation))


def _max_pool(call: Call, window: _Window) -> None:
    require(window.x.dtype.is_float, "max_pool of integers")
    k = call.kernel(call.out.size)
    best: Value | None = None
    places = call.result(1)
    index = k.const(-1, DType.i64)
    for value, inside, number_ in window.loads(k, other=float("-inf")):
        if places is None:
            best = value if best is None else k.op("maximum", best, value)
            continue
        if best is None:
            best = k.const(float("-inf"), value.dtype)
        taken = k.op("or", k.op("gt", value, best), k.op("isnan", value))
        taken = k.op("or", taken, k.op("lt", index, k.const(0, DType.i64)))
        taken = k.op("and", taken, inside) if inside else taken
        best, index = k.where(taken, value, best), k.where(taken, k.index(number_), index)
    assert best is not None
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
    window = _Window.of(call, 2, input, kernel_size, stride, padding, (1,))
    _avg_pool(call, window, count_include_pad, divisor_override)


@table.lowers(aten.avg_pool3d.default)
def avg_pool3d(
    call: Call, input: Operand, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool,
    divisor_override: Number | None,
) -> None:  # fmt: skip
    window = _Window.of(call, 3, input, kernel_size, stride, padding, (1,))
    _avg_pool(call, window, count_include_pad, divisor_override)


def _avg_pool(call: Call, window: _Window, padded: bool, divisor: Number | None) -> None:
    require(window.x.dtype.is_float, "avg_pool of integers")
    k = call.kernel(call.out.size)
    acc = opmath(window.x.dtype)
    total = k.const(0, acc)
    for value, _, _ in window.loads(k, other=0):
        total = k.op("add", total, value)
    if divisor is not None:
        count = number(k, divisor, acc)
    else:
        sides = [_side(k, window, dim, padded) for dim in range(len(window.size))]
        known = math.prod(side for side in sides if isinstance(side, int))
        count = k.const(known, acc)
        for side in sides:
            if isinstance(side, Value):
                count = k.op("mul", count, k.cast(side, acc))
    k.store(call.out.operand, k.coords, k.op("div", total, count))
    call.emit_kernel(k)


def _side(k: KernelBuilder, window: _Window, dim: int, padded: bool) -> Value | int:
    """How many places of a window count along a dimension: those inside of the input, or of the
    padded one."""
    size, padding, extent = window.size[dim], window.padding[dim], window.extents[dim]
    kind, start, edge = _kind(window), window.start(k, dim), extent + padding
    before, behind = window.passes(dim, 0)[0], window.passes(dim, size - 1)[1]
    if padded:
        room = sympy.expand(edge - window.step[dim] * (window.out[dim] - 1) + padding - size)
        before, behind = False, behind and not (room.is_Integer and room >= 0)
    if not (before or behind):
        return size
    end = k.op("minimum", k.index(start + size, kind), k.index(edge, kind))
    first = k.index(start, kind)
    if not padded:
        first = k.op("maximum", first, k.const(0, kind))
        end = k.op("minimum", end, k.index(extent, kind))
    return k.op("sub", end, first)
