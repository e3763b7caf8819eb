"""Index expressions over loop axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy

Axes = Sequence[tuple[sympy.Symbol, Any]]


@dataclass(frozen=True)
class Affine:
    """`index = sum(strides[v] * v) + rest`, strides free of the axes. `rest` holds the offset,
    and every term in which an axis occurs in another way."""

    strides: dict[sympy.Symbol, sympy.Expr]
    rest: sympy.Expr


def split(index: Any, axes: Sequence[sympy.Symbol]) -> Affine:
    """The affine part of an index, and the rest.

    >>> from symexpr import parse, symbol
    >>> i, j = symbol("i"), symbol("j")
    >>> split(parse("i*768 + j + i//4 + 5"), [i, j])
    Affine(strides={i: 768, j: 1}, rest=FloorDiv(i, 4) + 5)
    """
    index = sympy.expand_mul(sympy.sympify(index))
    of = set(axes)
    strides: dict[sympy.Symbol, list[sympy.Expr]] = {v: [] for v in axes}
    rest = []
    for t in sympy.Add.make_args(index):
        used = t.free_symbols & of
        if len(used) == 1:
            (v,) = used
            c = t / v
            if not c.free_symbols & of and c.is_integer:
                strides[v].append(c)
                continue
        rest.append(t)
    return Affine({v: sympy.Add(*c) for v, c in strides.items()}, sympy.Add(*rest))


def strides(index: Any, axes: Sequence[sympy.Symbol]) -> dict[sympy.Symbol, sympy.Expr] | None:
    """Coefficient of each axis (0 where it does not occur); None if the index is not affine.

    >>> from symexpr import parse, symbol
    >>> strides(parse("i*s0 + j + 5"), [symbol("i"), symbol("j")])
    {i: s0, j: 1}
    """
    parts = split(index, axes)
    return None if parts.rest.free_symbols & set(axes) else parts.strides


def is_contiguous(index: Any, axes: Axes) -> bool:
    """Whether the axes, outermost first, walk consecutive elements (from any offset); axes of
    size one do not count."""
    found = strides(index, [v for v, _ in axes])
    if found is None:
        return False
    step: sympy.Expr = sympy.S.One
    for v, size in reversed(list(axes)):
        if size != 1 and sympy.expand_mul(found[v] - step) != 0:
            return False
        step = step * size
    return True
