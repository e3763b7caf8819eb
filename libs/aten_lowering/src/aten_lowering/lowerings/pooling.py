"""Pooling over windows of images and volumes: every window is written out, a load for each place.

    max_pool2d(x, 2)   ->   for n, c, h, w: max of x[n, c, 2 h + i, 2 w + j], i and j in 0, 1

What comes before may then be computed where it is read, and what follows on the result. Large
windows are walked over. A gradient is the sum over the windows that a place belongs to: no place is
written twice, and nothing has to be zeroed."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import sympy
import torch

from aten_lowering.builder import Coords, KernelBuilder, Number, Operand, Value
from aten_lowering.call import Call, least, opmath
from aten_lowering.errors import require
from aten_lowering.lowerings.indexing import lookup
from aten_lowering.lowerings.scatters import combine
from aten_lowering.lowerings.windows import (
    MOST,
    Along,
    Share,
    Window,
    every,
    is_written_out,
    kind,
    store_gradient,
    summed,
)
from aten_lowering.pool_offsets import OFFSETS, OFFSETS_BACKWARD
from aten_lowering.registry import Table, of_ranks
from loop_ir import DType, TensorRef, TensorType, contiguous_strides
from symexpr import FloorDiv, Mod, symbol

aten = torch.ops.aten
table = Table()

# Places of one dimension of a window that are written out.
_MOST_ALONG = 64

Sizes = Sequence[sympy.Expr]
Ints = Sequence[int]
# Of a window's coordinates, how much its sum is divided by.
Count = Callable[[KernelBuilder, Sizes], list[Value | int]]


def _windows(
    call: Call,
    x: Sizes,
    out: Sizes,
    kernel_size: Ints | None = None,
    stride: Ints = (),
    padding: Ints = (),
    dilation: Ints = (1,),
    **shown: Any,
) -> list[Window] | list[Share]:
    """Of the last dimensions of `x` and `out`. As torch takes them: one number for all, and no step
    for the window's size; without a size adaptive ones, which are about as large."""
    dims = 3 if "3d" in str(call.op) or len(kernel_size or ()) == 3 else 2
    x, out = x[-dims:], out[-dims:]
    if kernel_size is None:
        return [Share(*each) for each in zip(x, out, strict=True)]
    given = (kernel_size, stride or kernel_size, padding, dilation)
    lists = (_numbers(n, dims) for n in given)
    return [Window(*each) for each in zip(x, out, *lists, strict=True)]


def _numbers(values: Ints, dims: int) -> tuple[int, ...]:
    known = [int(v) for v in values if isinstance(v, int)]
    require(len(known) == len(values) > 0, "a window of sizes that are not known")
    return tuple(known) if len(known) == dims else (known[0],) * dims


def _places(k: KernelBuilder, along: Sequence[Window | Share]) -> list[Along]:
    return [w.places(at) for w, at in zip(along, k.coords[-len(along) :], strict=True)]


# -- the largest


@table.lowers(
    *of_ranks("max_pool{}d_with_indices", 2, 3), *of_ranks("adaptive_max_pool{}d", 2, 3), OFFSETS
)
def max_pool(call: Call, input: Operand, **windows: Any) -> None:
    """NaN wins, the last one if there are several; among equals the first place does. (Where there
    is nothing but minus infinity, eager's kernel for channels-last CUDA tensors says 0.) Of
    `OFFSETS` the place of a maximum is its number within its window."""
    found = _windows(call, input.size, call.out.size, **windows)
    _max_pool(call, input, found, offsets=call.op is OFFSETS)


@table.lowers(aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default)
def fractional_max_pool(
    call: Call, input: Operand, kernel_size: Ints, output_size: Ints, random_samples: Operand
) -> None:
    """The largest element of each of `output_size` windows of one size, which start about evenly
    apart; where, the samples decide, of which an image's last dimension has the first."""
    require(
        not call.on_cpu or opmath(input.dtype) is input.dtype, "windows placed by 16-bit numbers"
    )
    dims = len(output_size)
    sizes, out = _numbers(kernel_size, dims), call.out.size[-dims:]
    acc = opmath(input.dtype)

    def along(k: KernelBuilder, d: int) -> Along:
        room, own = input.size[d - dims] - sizes[d], k.coords[d - dims]
        batch = (*(sympy.S.Zero,) * (dims + 2 - len(k.coords)), *k.coords[:-dims])
        place = sympy.Integer(1 - d if dims == 2 else d)
        sample = k.load(random_samples, (*batch, place)).to(acc)
        number_of = k.number(room, acc)
        step = number_of / k.number(out[d] - 1, acc) if out[d] != 1 else number_of
        integer = kind(input.size[d - dims], out[d])
        first = (sample * step).to(integer)
        own_number = k.index(own, integer)
        at = (own_number.to(acc) + sample) * step
        start = at.to(integer) - first
        last = own_number("eq", k.index(out[d] - 1, integer))
        start = last.choose(k.index(room, integer), start)
        where = k.indirect(start, room + 1)
        return Along(sizes[d], lambda i: where + i, lambda k, at, i: None)

    _max_pool(call, input, lambda k: [along(k, d) for d in range(dims)])


def _max_pool(
    call: Call,
    x: Operand,
    windows: Sequence[Window | Share] | Callable[[KernelBuilder], Sequence[Along]],
    offsets: bool = False,
) -> None:
    require(x.dtype is not DType.bool_, "max_pool of bool")
    k = call.kernel()
    alongs = windows(k) if callable(windows) else _places(k, windows)
    places = call.result(1)
    if not is_written_out(alongs) and places is not None:
        require(not (callable(windows) or offsets), f"places in windows of more than {MOST}")
        require(max(a.count for a in alongs) <= _MOST_ALONG, f"places of {_MOST_ALONG} and more")
        assert not callable(windows)
        return _one_by_one(call, x, windows)
    if not is_written_out(alongs):
        for at, inside in every(k, alongs):
            value = k.load(x, (*k.coords[: -len(at)], *at), inside, least(x.dtype))
            (best,) = k.reduce("max", value.to(opmath(x.dtype)))
            k.once()
    elif places is None:
        lead, lowest, acc = -len(alongs), least(x.dtype), opmath(x.dtype)
        found = (
            k.load(x, (*k.coords[:lead], *at), m, lowest).to(acc) for at, m in every(k, alongs)
        )
        best = reduce(lambda a, b: a("maximum", b), found)
    else:
        integer = DType.i32 if offsets else kind(sympy.Mul(*x.size[-len(alongs) :]))
        largest = _Largest(k, x.dtype, integer)
        for number, (at, inside) in enumerate(every(k, alongs)):
            value = k.load(x, (*k.coords[: -len(at)], *at), inside, least(x.dtype))
            place = sympy.Integer(number) if offsets else _number(at, x.size)
            largest.take(value, k.index(place, integer), inside)
        best = largest.best
        k.store(places.operand, k.coords, largest.index.to(places.dtype))
    k.store(call.out.operand, k.coords, best)
    call.emit_kernel(k)


def _one_by_one(call: Call, x: Operand, windows: Sequence[Window | Share]) -> None:
    """Large windows one dimension after the other, the last first: the largest of each row of a
    window and where it is, then the first of these rows that has the largest of all."""
    value, place, places = x, None, call.result(1)
    integer = kind(sympy.Mul(*x.size[-len(windows) :]))
    for d in reversed(range(len(windows))):
        axis = len(x.size) - len(windows) + d
        size = (*value.size[:axis], call.out.size[axis], *value.size[axis + 1 :])
        k = call.kernel(size, f"{call.node.name}_{d}") if d else call.kernel()
        along = windows[d].places(k.coords[axis])
        largest = _Largest(k, x.dtype, integer)
        for i in map(sympy.Integer, range(along.count)):
            at = along.place(i)
            inside = along.inside(k, at, i)
            coords = (*k.coords[:axis], at, *k.coords[axis + 1 :])
            own = k.index(at * sympy.Mul(*x.size[axis + 1 :]), integer)
            if place is not None:
                own = own + k.load(place, coords, inside, 0).to(integer)
            largest.take(k.load(value, coords, inside, least(x.dtype)), own, inside)
        last = d == 0
        value = call.out.operand if last else call.scratch(f"largest_{d}", x.dtype, size)
        most = sympy.Mul(*x.size[axis:])
        narrow = DType.i16 if (most < 2**15) == sympy.true else kind(most)
        assert places is not None
        place = places.operand if last else call.scratch(f"places_{d}", narrow, size)
        k.store(value, k.coords, largest.best)
        k.store(place, k.coords, largest.index.to(place.dtype))
        call.emit_kernel(k)


class _Largest:
    """The largest of what is taken one after the other, and its place."""

    def __init__(self, k: KernelBuilder, dtype: DType, integer: DType) -> None:
        self.best = k.const(least(dtype), opmath(dtype))
        self.index = k.const(-1, integer)

    def take(self, value: Value, place: Value, inside: Value | None) -> None:
        """The next in order."""
        value = value.to(self.best.dtype)
        taken = value > self.best
        if value.dtype.is_float:
            taken = taken | value("isnan")
        taken = taken | (self.index < 0)
        taken = taken & inside if inside else taken
        self.best, self.index = taken.choose(value, self.best), taken.choose(place, self.index)


def _number(at: Sizes, size: Sizes) -> sympy.Expr:
    """Of a place in its image."""
    result: sympy.Expr = sympy.S.Zero
    for place, extent in zip(at, size[-len(at) :], strict=True):
        result = result * extent + place
    return sympy.expand(result)


@table.lowers(
    *of_ranks("max_pool{}d_with_indices_backward", 2, 3),
    *of_ranks("adaptive_max_pool{}d_backward", 2, 3),
    OFFSETS_BACKWARD,
)
def max_pool_backward(call: Call, grad_output: Operand, indices: Operand, **windows: Any) -> None:
    """At each place the sum of the gradients of the windows whose largest element it is. Large
    windows of which some places belong to several add theirs there (the gradient of 32 x 200 x 75 x
    75 of bf16 to 6 x 9 on an H100: 185 us where each place asks four windows)."""
    found = _windows(call, call.out.size, grad_output.size, **windows)
    few = sympy.Mul(*grad_output.size) * MOST < sympy.Mul(*call.out.size)
    several = any(w.windows(symbol("place")).count > 1 for w in found)
    if call.op is not OFFSETS_BACKWARD and few == sympy.true and several and not call.on_cpu:
        return _add_at_places(call, grad_output, indices, len(found), few=True)

    def share(k: KernelBuilder, at: Sizes, inside: Value | None) -> Value:
        lead, own = k.coords[: -len(at)], k.coords[-len(at) :]
        if call.op is OFFSETS_BACKWARD:
            plain = [w for w in found if isinstance(w, Window)]
            offsets = [w.offset(o, place) for w, o, place in zip(plain, at, own, strict=True)]
            sizes = [sympy.Integer(w.size) for w in plain]
            place, integer = _number(offsets, sizes), DType.i32
        else:
            place = _number(own, call.out.size)
            integer = kind(sympy.Mul(*call.out.size[-len(at) :]))
        chosen = k.load(indices, (*lead, *at), inside, -1).to(integer)(
            "eq", k.index(place, integer)
        )
        value = k.load(grad_output, (*lead, *at), inside).to(opmath(grad_output.dtype))
        return chosen.choose(value, 0)

    store_gradient(call, [w.windows for w in found], share)


@table.lowers(
    aten.fractional_max_pool2d_backward.default, aten.fractional_max_pool3d_backward.default
)
def fractional_max_pool_backward(
    call: Call,
    grad_output: Operand,
    input: Operand,
    kernel_size: Ints,
    output_size: Ints,
    indices: Operand,
) -> None:
    """The gradient of each window, added to that of its largest element."""
    _add_at_places(call, grad_output, indices, len(output_size))


def _add_at_places(
    call: Call, grad_output: Operand, indices: Operand, dims: int, few: bool = False
) -> None:
    extents = call.out.size[-dims:]

    def given(k: KernelBuilder) -> list[tuple[Coords, Value, None]]:
        rest: sympy.Expr = lookup(k, indices, k.coords, sympy.Mul(*extents))
        place: list[sympy.Expr] = []
        for extent in reversed(extents):
            place.insert(0, Mod(rest, extent))
            rest = FloorDiv(rest, extent)
        return [((*k.coords[:-dims], *place), k.load(grad_output, k.coords), None)]

    combine(call, None, grad_output.size, given, "sum", few=few)


# -- means


@table.lowers(*of_ranks("avg_pool{}d", 2, 3), *of_ranks("_adaptive_avg_pool{}d", 2, 3))
def avg_pool(
    call: Call,
    input: Operand,
    count_include_pad: bool = True,
    divisor_override: Number | None = None,
    **windows: Any,
) -> None:
    """Sums in the opmath type, row by row as eager, over how many there are."""
    x = input
    along = _windows(call, x.size, call.out.size, **windows)
    require(x.dtype.is_float or x.dtype is DType.i64, f"means of {x.dtype.value}")
    k = call.kernel()
    acc = opmath(x.dtype)

    def part(at: Sizes, inside: Value | None) -> Value:
        return k.load(x, (*k.coords[: -len(at)], *at), inside).to(acc)

    total = summed(k, _places(k, along), part, k.const(0, acc))
    counts = _counting(along, count_include_pad, divisor_override)(k, k.coords[-len(along) :])
    call.store(k, _divided(total, counts))


def _divided(total: Value, counts: Sequence[Value | int]) -> Value:
    for count in counts:
        by = count.to(total.dtype) if isinstance(count, Value) else count
        total = total("div" if total.dtype.is_float else "truncdiv", by)
    return total


@table.lowers(
    *of_ranks("avg_pool{}d_backward", 2, 3), *of_ranks("_adaptive_avg_pool{}d_backward", 2, 3)
)
def avg_pool_backward(
    call: Call,
    grad_output: Operand,
    count_include_pad: bool = True,
    divisor_override: Number | None = None,
    **windows: Any,
) -> None:
    """At each place the sum of what its windows give it: their gradients over their counts, which
    are divided once, for all places of a window, where counts differ and windows overlap."""
    along = _windows(call, call.out.size, grad_output.size, **windows)
    count = _counting(along, count_include_pad, divisor_override)
    acc = opmath(grad_output.dtype)
    overlap = any(isinstance(w, Share) or w.step < w.size for w in along)
    each = call.kernel(grad_output.size, f"{call.node.name}_each") if overlap else None
    counts = count(each, each.coords[-len(along) :]) if each else []
    differ = each and any(isinstance(n, Value) and not each.is_number(n) for n in counts)
    if each and differ:
        part = _divided(each.load(grad_output, each.coords).to(acc), counts)
        grad_output = _beside(call, each.name, grad_output.size, len(along), acc)
        each.store(grad_output, each.coords, part)
        call.emit_kernel(each)

    def share(k: KernelBuilder, at: Sizes, inside: Value | None) -> Value:
        value = k.load(grad_output, (*k.coords[: -len(at)], *at), inside).to(acc)
        if differ:
            return value
        part = _divided(value, count(k, at))
        return inside.choose(part, 0) if inside else part

    store_gradient(call, [w.windows for w in along], share)


def _beside(call: Call, name: str, size: Sizes, dims: int, dtype: DType) -> Operand:
    """A buffer of this size, that lies as the result does: channels last, or in order."""
    size, channel = tuple(size), len(size) - dims - 1
    stride = contiguous_strides(size)
    if call.out.operand.type.stride[channel] == 1 and size[channel] != 1:
        last = contiguous_strides((*size[:channel], *size[channel + 1 :], size[channel]))
        stride = (*last[:channel], last[-1], *last[channel:-1])
    type = TensorType(dtype, size, stride, call.out.operand.type.device)
    return Operand(TensorRef(name, type), type)


def _counting(windows: list[Window] | list[Share], padded: bool, divisor: Number | None) -> Count:
    """Eager divides by one side of an adaptive window after the other."""

    def count(k: KernelBuilder, at: Sizes) -> list[Value | int]:
        if divisor is not None:
            return [k.number(divisor, DType.i64)]
        sides = [w.length(k, o) for w, o in zip(windows, at, strict=True) if isinstance(w, Share)]
        if sides:
            return sides
        known, rest = 1, None
        counted = kind(*(window.extent for window in windows))
        for window, o in zip(windows, at, strict=True):
            assert isinstance(window, Window)
            side = _side(k, window, o, padded, counted)
            if isinstance(side, int):
                known *= side
            else:
                rest = side if rest is None else rest * side
        if rest is None:
            return [known]
        return [rest * known]

    return count


def _side(
    k: KernelBuilder, window: Window, o: sympy.Expr, padded: bool, counted: DType
) -> Value | int:
    """How many places of a window count along a dimension: those inside of the input, or of the
    padded one."""
    start, edge = window.start(o), window.extent + window.padding
    before, behind = window.passes(0)[0], window.passes(window.size - 1)[1]
    if padded:
        room = sympy.expand(edge - window.start(window.out - 1) - window.size)
        before, behind = False, behind and not (room.is_Integer and room >= 0)
    if not (before or behind):
        return window.size
    end = k.index(start + window.size, counted)("minimum", k.index(edge, counted))
    first = k.index(start, counted)
    if not padded:
        first = first("maximum", 0)
        end = end("minimum", k.index(window.extent, counted))
    return end - first
