"""Where the points of a space lie in a buffer."""

from collections.abc import Mapping, Sequence

import sympy

from loop_ir.ir.affine import linear, product, same
from loop_ir.ir.nodes import Axis


def place_in(axes: Sequence[Axis], first: sympy.Expr = sympy.S.Zero) -> sympy.Expr:
    """The element of a contiguous buffer over `first` and the axes: the number whose digits these
    are."""
    index = first
    for axis in axes:
        index = index * axis.extent + axis.symbol
    return sympy.expand(index)


def at_strides(axes: Sequence[Axis], strides: Sequence[sympy.Expr]) -> sympy.Expr:
    """The element of a tensor of these strides, from its first one on."""
    steps = zip(axes, strides, strict=True)
    return sympy.Add(*(axis.symbol * stride for axis, stride in steps if axis.extent != 1))


def mixed_radix(
    index: sympy.Expr, extents: Mapping[sympy.Symbol, sympy.Expr]
) -> list[tuple[sympy.Symbol, sympy.Expr]] | None:
    """The axes of which an index is a mixed-radix number (each stride the one before times its
    extent), outermost first, and their strides; None if it is no such number, or does not start
    at 0."""
    form = linear(index, tuple(extents))
    if form is None or form.rest != 0:
        return None
    digits: list[tuple[sympy.Symbol, sympy.Expr]] = []
    step: sympy.Expr = sympy.S.One
    left = [s for s, extent in extents.items() if extent != 1]
    while left:
        found = [s for s in left if same(form.coefficient(s), step)]
        if len(found) != 1:
            return None
        left.remove(found[0])
        digits.insert(0, (found[0], step))
        step = product((step, extents[found[0]]))
    return digits
