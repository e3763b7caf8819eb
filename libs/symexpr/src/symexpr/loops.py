"""Index expressions over loop axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from symexpr.division import FloorDiv, Mod, ModularIndexing
from symexpr.facts import End, Ranges
from symexpr.simplification import simplify

Axes = Sequence[tuple[sympy.Symbol, Any]]


@dataclass(frozen=True)
class Affine:
    """`index = sum(strides[v] * v) + rest`, strides free of the axes. `rest` holds the offset,
    and every term in which an axis occurs in another way."""

    strides: dict[sympy.Symbol, sympy.Expr]
    rest: sympy.Expr


@dataclass(frozen=True)
class MergedLoops:
    """axes: (symbol, size), outermost first. indices: in the new symbols. replacements: each old
    symbol that is gone, in the new ones."""

    axes: tuple[tuple[sympy.Symbol, sympy.Expr], ...]
    indices: tuple[sympy.Expr, ...]
    replacements: dict[sympy.Symbol, sympy.Expr]


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


def broadcast_vars(index: Any, axes: Sequence[sympy.Symbol]) -> tuple[sympy.Symbol, ...]:
    """Axes that the index does not depend on."""
    used = sympy.sympify(index).free_symbols
    return tuple(v for v in axes if v not in used)


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


def merge_loops(axes: Axes, indices: Sequence[Any], ranges: Ranges | None = None) -> MergedLoops:
    """Adjacent axes made one where no index gets harder by it.

    Axes a (outer) and b (inner, size n) become b' with `a -> b' // n`, `b -> b' % n`, if after
    `simplify` no index has more divisions than before. `b'` has the name of b. Axes of size one
    are dropped. ranges: of the other symbols.

    >>> from symexpr import parse, symbol
    >>> i, j = symbol("i"), symbol("j")
    >>> m = merge_loops([(i, 32), (j, 768)], [parse("i*768 + j"), parse("j + i*768 + 5")])
    >>> m.axes, m.indices
    (((j, 24576),), (j, j + 5))
    """
    known: dict[sympy.Symbol, tuple[End, End]] = dict(ranges or {})
    new: list[tuple[sympy.Symbol, sympy.Expr]] = []
    replacements: dict[sympy.Symbol, sympy.Expr] = {}
    sizes = [(v, sympy.sympify(n)) for v, n in axes]
    for v, n in sizes:
        known[v] = (0, n - 1)
    current = [simplify(sympy.sympify(e), known) for e in indices]
    for v, n in reversed(sizes):
        if n == 1:
            current = [e.xreplace({v: sympy.S.Zero}) for e in current]
            replacements[v] = sympy.S.Zero
            continue
        if not new:
            new.append((v, n))
            continue
        inner, size = new[-1]
        total = n * size
        step = {v: FloorDiv(inner, size), inner: Mod(inner, size)}
        merged = {**known, inner: (0, total - 1)}
        tried = [simplify(e.xreplace(step), merged) for e in current]
        if all(_divisions(t) <= _divisions(e) for t, e in zip(tried, current, strict=True)):
            replacements = {k: r.xreplace(step) for k, r in replacements.items()}
            replacements.update(step)
            current, known = tried, merged
            new[-1] = (inner, total)
        else:
            new.append((v, n))
    final = {k: simplify(r, known) for k, r in replacements.items()}
    return MergedLoops(tuple(reversed(new)), tuple(current), final)


def _divisions(e: sympy.Expr) -> int:
    return int(sum(1 for a in sympy.preorder_traversal(e) if isinstance(a, _DIVISIONS)))


_DIVISIONS = (FloorDiv, Mod, ModularIndexing)
