"""Windows of images as columns of a matrix, and back: `im2col`, and `col2im`, its gradient, which
sums at each place what the windows that it belongs to give it. Nothing has to be zeroed or added
atomically, and no table of places is read."""

from collections.abc import Sequence

import sympy
import torch

from aten_lowering.builder import KernelBuilder, Operand, Value
from aten_lowering.call import Call, opmath
from aten_lowering.lowerings.windows import Window, both, store_gradient
from aten_lowering.registry import Table
from symexpr import FloorDiv

aten = torch.ops.aten
table = Table()

Ints = Sequence[int]
Sizes = Sequence[sympy.Expr]


def _windows(image: Sizes, size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> list[Window]:
    """Of the last two dimensions."""
    found = []
    for n, k, s, p, d in zip(image[-2:], size, stride, padding, dilation, strict=True):
        out = FloorDiv(n + 2 * p - d * (k - 1) - 1, sympy.Integer(s)) + 1
        found.append(Window(n, sympy.sympify(out), k, s, p, d))
    return found


def _column(windows: Sequence[Window], offsets: Sizes, at: Sizes, channel: sympy.Expr) -> Sizes:
    """Row and column of the matrix, of a window and the numbers of a place in it."""
    (_, wide), (high, low) = windows, offsets
    row = channel * windows[0].size * wide.size + high * wide.size + low
    return row, at[0] * wide.out + at[1]


@table.lowers(aten.im2col.default)
def im2col(
    call: Call, input: Operand, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints
) -> None:
    """What each window has, zeros where it lies outside of the image."""
    windows = _windows(input.size, kernel_size, dilation, padding, stride)
    sizes = (sympy.Integer(w.size) for w in windows)
    k = call.kernel((*input.size[:-2], *sizes, *(w.out for w in windows)))
    *lead, high, low, row, column = k.coords
    place, mask = [], None
    for window, number, at in zip(windows, (high, low), (row, column), strict=True):
        along = window.places(at)
        place.append(along.place(number))
        mask = both(k, mask, along.inside(k, place[-1], number))
    value = k.load(input, (*lead, *place), mask)
    value = mask.choose(value, 0) if mask else value
    to = _column(windows, (high, low), (row, column), lead[-1])
    k.store(call.out.operand, (*lead[:-1], *to), value)
    call.emit_kernel(k)


@table.lowers(aten.col2im.default)
def col2im(
    call: Call,
    input: Operand,
    output_size: Sizes,
    kernel_size: Ints,
    dilation: Ints,
    padding: Ints,
    stride: Ints,
) -> None:
    """The sum of what the windows have for a place; `output_size` shows in the result."""
    windows = _windows(call.out.size, kernel_size, dilation, padding, stride)

    def share(k: KernelBuilder, at: Sizes, inside: Value | None) -> Value:
        own = k.coords[-2:]
        numbers = [w.offset(o, place) for w, o, place in zip(windows, at, own, strict=True)]
        from_ = _column(windows, numbers, at, k.coords[-3])
        return k.load(input, (*k.coords[:-3], *from_), inside).to(opmath(input.dtype))

    store_gradient(call, [w.windows for w in windows], share)
