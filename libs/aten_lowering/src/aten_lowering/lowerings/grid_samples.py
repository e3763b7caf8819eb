"""Images and volumes read at places that a grid gives, and the gradients of that.

    grid_sampler_2d(x, grid)   ->   for n, c, h, w: the mean of x[n, c] around grid[n, h, w],
                                    a sum over the taps of both dimensions

A tap is an element that a coordinate reads: one of them by the nearest, two by the linear and four
by the cubic rule of ATen/native/GridSampler.h. The gradient of the image is a sum at places that
are data; that of the grid is the slope of the same sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import sympy
import torch

from aten_lowering.builder import Coords, KernelBuilder, Operand, Value
from aten_lowering.call import Call, number, opmath
from aten_lowering.errors import require
from aten_lowering.lowerings.scatters import combine
from aten_lowering.lowerings.windows import both, kind
from aten_lowering.registry import Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()

_LINEAR, _NEAREST, _CUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
_SHARPNESS = -0.75


@dataclass(frozen=True)
class Tap:
    """An element along one dimension. inside: whether it is one. weight: its part, and slope: how
    that changes with the coordinate in the grid; None: it is whole and does not."""

    at: sympy.Symbol
    inside: Value
    weight: Value | None
    slope: Value | None


@dataclass(frozen=True)
class Along:
    """One dimension of a grid: how a coordinate becomes taps. Numbers are of the type `acc`.

    vectors: elements outside count as zeros, so that an infinite coordinate gives NaN; else they do
    not count. nan: where an image with edges is read for NaN, of what is infinite or none: at the
    first element, the last, or nowhere (None).
    """

    k: KernelBuilder
    extent: sympy.Expr
    acc: DType
    interpolation: int
    padding: int
    aligned: bool
    vectors: bool
    nan: int | None

    def const(self, value: float) -> Value:
        """A number."""
        return self.k.const(value, self.acc)

    def op(self, name: str, *args: Value | float) -> Value:
        """An operation on values and numbers."""
        given = [a if isinstance(a, Value) else self.const(a) for a in args]
        return self.k.op(name, *given)

    @property
    def last(self) -> Value:
        """The coordinate of the last element."""
        return number(self.k, self.extent - 1, self.acc)

    def taps(self, x: Value) -> list[Tap]:
        """Of a coordinate in the grid, from -1 to 1 over the image."""
        size = number(self.k, self.extent, self.acc)
        if self.aligned:
            real = self.op("mul", self.op("mul", self.op("add", x, 1.0), 0.5), self.last)
            rate = self.op("mul", self.last, 0.5)
        else:
            real = self.op("sub", self.op("mul", self.op("add", x, 1.0), size), 1.0)
            real, rate = self.op("mul", real, 0.5), self.op("mul", size, 0.5)
        if self.interpolation == _CUBIC:
            return self._cubic(real, rate)
        real, rate = self._padded(real, rate)
        if self.interpolation == _NEAREST:
            return [self._tap(self.op("round", real))]
        low = self.op("floor", real)
        high = self.op("add", low, 1.0)
        below, above = self.op("sub", high, real), self.op("sub", real, low)
        down = self.op("neg", rate)
        return [self._tap(low, below, down), self._tap(high, above, rate)]

    def _cubic(self, real: Value, rate: Value) -> list[Tap]:
        """Each of the four is padded by itself."""
        low = self.op("floor", real)
        t = self.op("sub", real, low)
        taps: list[Tap] = []
        for n in (-1, 0, 1, 2):
            distance = self.op("sub", t, float(n)) if n < 1 else self.op("sub", float(n), t)
            weight, slope = self._kernel(distance, n in (0, 1))
            slope = self.op("mul", slope, rate if n < 1 else self.op("neg", rate))
            place, _ = self._padded(self.op("add", low, float(n)), rate)
            taps.append(self._tap(place, weight, slope))
        return taps

    def _kernel(self, d: Value, near: bool) -> tuple[Value, Value]:
        """Keys' cubic at a distance of at most 1 (`near`) or 2, and its derivative."""
        a = _SHARPNESS
        cubed, squared, once, rest = (
            (a + 2, -a - 3, 0.0, 1.0) if near else (a, -5 * a, 8 * a, -4 * a)
        )
        value = self.op("add", self.op("mul", d, cubed), squared)
        value = self.op("add", self.op("mul", value, d), once)
        slope = self.op("add", self.op("mul", d, 3 * cubed), 2 * squared)
        return (
            self.op("add", self.op("mul", value, d), rest),
            self.op("add", self.op("mul", slope, d), once),
        )

    def _padded(self, real: Value, rate: Value) -> tuple[Value, Value]:
        """Where a place outside of the image is read, and its rate of change there."""
        if self.padding == _ZEROS:
            return real, rate
        if self.padding == _REFLECTION:
            real, rate = self._reflected(real, rate)
        zero = self.const(0.0)
        inside = self.op("and", self.op("gt", real, zero), self.op("lt", real, self.last))
        rate = self.k.where(inside, rate, zero)
        place = self.op("minimum", self.op("maximum", real, zero), self.last)
        if self.nan is not None:
            place = self.k.where(self.op("isnan", place), self.last if self.nan else zero, place)
        return place, rate

    def _reflected(self, real: Value, rate: Value) -> tuple[Value, Value]:
        """About the middles of the first and the last element, or their outer edges. What is left
        of a whole number of spans is a difference: an exact remainder takes far longer."""
        low = 0.0 if self.aligned else -0.5
        extent = self.extent - 1 if self.aligned else self.extent
        span = number(self.k, extent, self.acc)
        off = self.op("sub", real, low)
        away = self.op("abs", off)
        flips = self.op("floor", self.op("div", away, span))
        extra = self.op("sub", away, self.op("mul", flips, span))
        pairs = self.op("floor", self.op("mul", flips, 0.5))
        even = self.op("eq", self.op("mul", pairs, 2.0), flips)
        back = self.op("sub", span, extra)
        place = self.op("add", self.k.where(even, extra, back), low)
        turned = self.op("xor", self.op("lt", off, 0.0), self.op("not", even))
        rate = self.k.where(turned, self.op("neg", rate), rate)
        point = self.op("eq", span, 0.0)
        zero = self.const(0.0)
        return self.k.where(point, zero, place), self.k.where(point, zero, rate)

    def _tap(self, place: Value, weight: Value | None = None, slope: Value | None = None) -> Tap:
        k, zero, integer = self.k, self.const(0.0), kind(self.extent)
        inside = self.op("and", self.op("ge", place, zero), self.op("le", place, self.last))
        at = k.cast(k.where(inside, place, zero), integer)
        if not self.vectors:
            weight, slope = (v and k.where(inside, v, zero) for v in (weight, slope))
        return Tap(k.indirect(at, self.extent), inside, weight, slope)


@dataclass(frozen=True)
class Sampler:
    """An image, a grid, and the arguments that both directions of a sampler have."""

    input: Operand
    grid: Operand
    interpolation: int
    padding: int
    aligned: bool
    backward: bool = False

    @property
    def dims(self) -> int:
        """How many dimensions the image has."""
        return len(self.input.size) - 2

    def taps(self, k: KernelBuilder, batch: sympy.Expr, point: Coords) -> list[list[Tap]]:
        """Of each dimension, for the point at `point` of the grid; a grid has the last first."""
        require(self.interpolation != _CUBIC or self.dims == 2, "cubic samples of a volume")
        acc = opmath(self.grid.dtype)
        on_cpu = self.grid.type.device.kind == "cpu"
        vectors = on_cpu and self.dims == 2  # as eager's kernel
        nan = 0 if vectors else None if self.backward else int(on_cpu)
        vectors |= self.interpolation == _CUBIC
        found: list[list[Tap]] = []
        for d, extent in enumerate(self.input.size[2:]):
            own = sympy.Integer(self.dims - 1 - d)
            x = k.cast(k.load(self.grid, (batch, *point, own)), acc)
            how = self.interpolation, self.padding, self.aligned, vectors, nan
            found.append(Along(k, extent, acc, *how).taps(x))
        return found


def _inside(k: KernelBuilder, corner: Sequence[Tap]) -> Value:
    mask: Value | None = None
    for tap in corner:
        mask = both(k, mask, tap.inside)
    assert mask is not None
    return mask


def _times(k: KernelBuilder, value: Value, factors: Sequence[Value | None]) -> Value:
    for factor in factors:
        value = k.op("mul", value, factor) if factor else value
    return value


@table.lowers(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(
    call: Call,
    input: Operand,
    grid: Operand,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> None:
    """The weighted mean of the elements around each point of the grid."""
    sampler = Sampler(input, grid, interpolation_mode, padding_mode, align_corners)
    k = call.kernel()
    batch, channel, *point = k.coords
    total: Value | None = None
    for corner in product(*sampler.taps(k, batch, tuple(point))):
        at = (batch, channel, *(tap.at for tap in corner))
        value = k.cast(k.load(input, at, _inside(k, corner)), opmath(input.dtype))
        value = _times(k, value, [tap.weight for tap in corner])
        total = value if total is None else k.op("add", total, value)
    assert total is not None
    call.store(k, total)


@table.lowers(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    call: Call,
    grad_output: Operand,
    input: Operand,
    grid: Operand,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> None:
    """Each point gives its gradient to the elements that it read; that of the grid is a sum over
    the channels."""
    sampler = Sampler(input, grid, interpolation_mode, padding_mode, align_corners, backward=True)
    of_input, of_grid = call.result(0), call.result(1)

    def given(k: KernelBuilder) -> list[tuple[Coords, Value, Value | None]]:
        batch, channel, *point = k.coords
        taps = sampler.taps(k, batch, tuple(point))
        value = k.cast(k.load(grad_output, k.coords), opmath(input.dtype))
        return [
            (
                (batch, channel, *(tap.at for tap in corner)),
                _times(k, value, [tap.weight for tap in corner]),
                _inside(k, corner),
            )
            for corner in product(*taps)
        ]

    if of_input is not None and output_mask[0]:
        # one program for all channels of a point computes its places once (H200: 1982 us, 2344 of
        # ours); that for 16-bit numbers rounds its places, too, to 16 bits
        fits = call.on_cpu or opmath(input.dtype) is not input.dtype
        require(fits, "CUDA's own kernel scatters the gradients of all channels of a point")
        combine(call, of_input, None, grad_output.size, given, "sum")
    if of_grid is not None and output_mask[1]:
        _slopes(call, sampler, grad_output, of_grid.operand)


def _slopes(call: Call, sampler: Sampler, gradient: Operand, out: Operand) -> None:
    """The gradient of each number of the grid: what its dimension's slopes give."""
    k = call.kernel(out.size, f"{call.node.name}_grid")
    if sampler.interpolation == _NEAREST:
        k.store(out, k.coords, k.const(0, out.dtype))
        call.emit_kernel(k)
        return
    acc = opmath(out.dtype)
    batch, *point, own = k.coords
    taps = sampler.taps(k, batch, tuple(point))
    number = [k.const(sampler.dims - 1 - d, DType.i64) for d in range(sampler.dims)]
    mine = [k.op("eq", k.index(own), n) for n in number]
    corners: list[tuple[Sequence[Tap], Value, Value]] = []
    for corner in product(*taps):
        first, *rest = (_chosen(k, m, tap) for m, tap in zip(mine, corner, strict=True))
        corners.append((corner, _times(k, first, rest), _inside(k, corner)))
    (channel,) = k.inner((sampler.input.size[1],))
    total: Value | None = None
    for taken, factor, mask in corners:
        at = (batch, channel, *(tap.at for tap in taken))
        value = k.op("mul", k.cast(k.load(sampler.input, at, mask), acc), factor)
        total = value if total is None else k.op("add", total, value)
    assert total is not None
    given = k.cast(k.load(gradient, (batch, channel, *point)), acc)
    (total,) = k.reduce("sum", k.op("mul", total, given))
    k.once()
    k.store(out, k.coords, total)
    call.emit_kernel(k)


def _chosen(k: KernelBuilder, mine: Value, tap: Tap) -> Value:
    """The slope of a tap in the dimension that is asked for, its weight in the others."""
    assert tap.weight is not None and tap.slope is not None
    return k.where(mine, tap.slope, tap.weight)
