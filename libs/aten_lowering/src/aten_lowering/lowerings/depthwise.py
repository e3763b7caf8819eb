"""Depthwise convolutions: a result is a weighted sum over a window of one image.

    convolution(x, w), w: [C, 1, 3, 3], groups C
        ->   for n, c, h, w: sum of w[c, 0, i, j] * x[n, c, h + i, w + j], i and j in 0, 1, 2

Memory bounds them, and a kernel of ours computes in it what comes before and after, in any order of
memory; the vendor's kernels copy images into another order first. Sums are in the opmath type."""

from collections.abc import Sequence
from itertools import product

import sympy
import torch

from aten_lowering.builder import Operand, Value
from aten_lowering.call import Call, opmath
from aten_lowering.convolutions import is_vendors
from aten_lowering.errors import require
from aten_lowering.lowerings.windows import Window, both
from aten_lowering.registry import Table
from symexpr import FloorDiv

table = Table()


@table.lowers(torch.ops.aten.convolution.default)
def convolution(
    call: Call,
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> None:
    """A kernel that names every place of a window; other convolutions are the vendor's."""
    require(not is_vendors(call.node), "the vendor's kernel is faster")
    require(input.dtype.is_float and input.dtype is weight.dtype, "a convolution of integers")
    out = call.out.size
    dims = len(out) - 2
    sizes = [int(n) for n in weight.size[2:]]
    lists = (stride, padding, dilation)
    each = (tuple(n) if len(n) == dims else (n[0],) * dims for n in lists)
    windows = [Window(*w) for w in zip(input.size[2:], out[2:], sizes, *each, strict=True)]
    k = call.kernel()
    acc = opmath(input.dtype)
    n, channel, *own = k.coords
    image = FloorDiv(channel, sympy.Integer(int(weight.size[0]) // groups))
    alongs = [w.places(at) for w, at in zip(windows, own, strict=True)]
    total = k.const(0.0, acc) if bias is None else k.load(bias, (channel,)).to(acc)
    for taps in product(*(map(sympy.Integer, range(size)) for size in sizes)):
        places = [along.place(tap) for along, tap in zip(alongs, taps, strict=True)]
        inside: Value | None = None
        for along, place, tap in zip(alongs, places, taps, strict=True):
            inside = both(k, inside, along.inside(k, place, tap))
        value = k.load(input, (n, image, *places), inside).to(acc)
        factor = k.load(weight, (channel, sympy.S.Zero, *taps)).to(acc)
        total = value("fma", factor, total)
    call.store(k, total)
