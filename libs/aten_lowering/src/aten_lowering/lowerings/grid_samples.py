"""Images and volumes read at places that a grid gives, and the gradients of that.

    grid_sampler_2d(x, grid)   ->   for n, c, h, w: the mean of x[n, c] around grid[n, h, w],
                                    a sum over the taps of both dimensions

A tap is an element that a coordinate reads: one of them by the nearest, two by the linear and four
by the cubic rule of ATen/native/GridSampler.h. The gradient of the image is a sum at places that
are data; that of the grid is the slope of the same sum."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import add, and_, mul

import sympy
import torch

from aten_lowering.builder import Coords, KernelBuilder, Operand, Value
from aten_lowering.call import Call, opmath
from aten_lowering.errors import require
from aten_lowering.lowerings.scatters import combine
from aten_lowering.lowerings.windows import kind
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
    first element, the last, or nowhere (None)."""

    k: KernelBuilder
    extent: sympy.Expr
    acc: DType
    interpolation: int
    padding: int
    aligned: bool
    vectors: bool
    nan: int | None

    @property
    def last(self) -> Value:
        """The coordinate of the last element."""
        return self.k.number(self.extent - 1, self.acc)

    def taps(self, x: Value) -> list[Tap]:
        """Of a coordinate in the grid, from -1 to 1 over the image."""
        size = self.k.number(self.extent, self.acc)
        if self.aligned:
            real = (x + 1.0) * 0.5 * self.last
            rate = self.last * 0.5
        else:
            real = (x + 1.0) * size - 1.0
            real, rate = real * 0.5, size * 0.5
        if self.interpolation == _CUBIC:
            return self._cubic(real, rate)
        real, rate = self._padded(real, rate)
        if self.interpolation == _NEAREST:
            return [self._tap(real("round"))]
        low = real("floor")
        high = low + 1.0
        return [self._tap(low, high - real, -rate), self._tap(high, real - low, rate)]

    def _cubic(self, real: Value, rate: Value) -> list[Tap]:
        """Each of the four is padded by itself."""
        low = real("floor")
        t = real - low
        taps: list[Tap] = []
        for n in (-1, 0, 1, 2):
            distance = t - float(n) if n < 1 else float(n) - t
            weight, slope = self._kernel(distance, n in (0, 1))
            slope = slope * (rate if n < 1 else -rate)
            place, _ = self._padded(low + float(n), rate)
            taps.append(self._tap(place, weight, slope))
        return taps

    def _kernel(self, d: Value, near: bool) -> tuple[Value, Value]:
        """Keys' cubic at a distance of at most 1 (`near`) or 2, and its derivative."""
        a = _SHARPNESS
        cubed, squared, once, rest = (
            (a + 2, -a - 3, 0.0, 1.0) if near else (a, -5 * a, 8 * a, -4 * a)
        )
        value = d * cubed + squared
        value = value * d + once
        slope = d * (3 * cubed) + 2 * squared
        return value * d + rest, slope * d + once

    def _padded(self, real: Value, rate: Value) -> tuple[Value, Value]:
        """Where a place outside of the image is read, and its rate of change there."""
        if self.padding == _ZEROS:
            return real, rate
        if self.padding == _REFLECTION:
            real, rate = self._reflected(real, rate)
        rate = ((real > 0.0) & (real < self.last)).choose(rate, 0.0)
        place = real("maximum", 0.0)("minimum", self.last)
        if self.nan is not None:
            place = place("isnan").choose(self.last if self.nan else 0.0, place)
        return place, rate

    def _reflected(self, real: Value, rate: Value) -> tuple[Value, Value]:
        """About the middles of the first and the last element, or their outer edges. What is left
        of a whole number of spans is a difference: an exact remainder takes far longer."""
        low = 0.0 if self.aligned else -0.5
        extent = self.extent - 1 if self.aligned else self.extent
        span = self.k.number(extent, self.acc)
        off = real - low
        away = abs(off)
        flips = (away / span)("floor")
        extra = away - flips * span
        even = ((flips * 0.5)("floor") * 2.0)("eq", flips)
        place = even.choose(extra, span - extra) + low
        turned = (off < 0.0) ^ ~even
        rate = turned.choose(-rate, rate)
        point = span("eq", 0.0)
        return point.choose(0.0, place), point.choose(0.0, rate)

    def _tap(self, place: Value, weight: Value | None = None, slope: Value | None = None) -> Tap:
        inside = (place >= 0.0) & (place <= self.last)
        at = inside.choose(place, 0.0).to(kind(self.extent))
        if not self.vectors:
            weight, slope = (v and inside.choose(v, 0.0) for v in (weight, slope))
        return Tap(self.k.indirect(at, self.extent), inside, weight, slope)


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
            x = k.load(self.grid, (batch, *point, own)).to(acc)
            how = self.interpolation, self.padding, self.aligned, vectors, nan
            found.append(Along(k, extent, acc, *how).taps(x))
        return found


def _inside(corner: Sequence[Tap]) -> Value:
    return reduce(and_, (tap.inside for tap in corner))


def _times(value: Value, factors: Sequence[Value | None]) -> Value:
    return reduce(mul, filter(None, factors), value)


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

    def part(corner: Sequence[Tap]) -> Value:
        at = (batch, channel, *(tap.at for tap in corner))
        value = k.load(input, at, _inside(corner)).to(opmath(input.dtype))
        return _times(value, [tap.weight for tap in corner])

    call.store(k, reduce(add, map(part, product(*sampler.taps(k, batch, tuple(point))))))


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
        value = k.load(grad_output, k.coords).to(opmath(input.dtype))
        return [
            (
                (batch, channel, *(tap.at for tap in corner)),
                _times(value, [tap.weight for tap in corner]),
                _inside(corner),
            )
            for corner in product(*taps)
        ]

    if of_input is not None and output_mask[0]:
        # one program for all channels of a point computes its places once (H200: 1982 us, 2344 of
        # ours); that for 16-bit numbers rounds its places, too, to 16 bits
        fits = call.on_cpu or opmath(input.dtype) is not input.dtype
        require(fits, "CUDA's own kernel scatters the gradients of all channels of a point")
        combine(call, None, grad_output.size, given, "sum", result=of_input)
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
    mine = [k.index(own)("eq", sampler.dims - 1 - d) for d in range(sampler.dims)]
    corners: list[tuple[Sequence[Tap], Value, Value]] = []
    for corner in product(*taps):
        first, *rest = (_chosen(m, tap) for m, tap in zip(mine, corner, strict=True))
        corners.append((corner, _times(first, rest), _inside(corner)))
    (channel,) = k.inner((sampler.input.size[1],))
    loads = (
        k.load(sampler.input, (batch, channel, *(tap.at for tap in taken)), mask).to(acc) * factor
        for taken, factor, mask in corners
    )
    total = reduce(add, loads)
    given = k.load(gradient, (batch, channel, *point)).to(acc)
    (total,) = k.reduce("sum", total * given)
    k.once()
    k.store(out, k.coords, total)
    call.emit_kernel(k)


def _chosen(mine: Value, tap: Tap) -> Value:
    """The slope of a tap in the dimension that is asked for, its weight in the others."""
    assert tap.weight is not None and tap.slope is not None
    return mine.choose(tap.slope, tap.weight)
