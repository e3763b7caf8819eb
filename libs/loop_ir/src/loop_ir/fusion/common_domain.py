"""One iteration domain for two kernels, by common refinement of their axes.

    (2, 32, 768) and (64 | 768)      ->  (2, 32 | 768)
    (s0*24576,) and (s0, 32 | 768)   ->  (s0, 32 | 768)
    (2, 12, 32, 64) and (64, 768), linked by a buffer that both walk  ->  (2, 12, 32, 64)

A pointwise kernel may run its points in any order, so it takes the axes of its partner; where
the row-major orders do not fit, the strides of a buffer that both use say which axes match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import sympy

from loop_ir.ir.affine import linear, product, quotient
from loop_ir.ir.analysis import at_hints, inner_axes, is_pointwise, iterates
from loop_ir.ir.names import free_names
from loop_ir.ir.nodes import Axis, Kernel
from loop_ir.ir.renaming import fresh_symbols
from loop_ir.ir.rewrite import Substitution


@dataclass(frozen=True)
class Shape:
    """The domain of a kernel. `inner` is empty for a pointwise one. `taken`: names of its size
    and indirect symbols, which new axes must not use."""

    axes: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    pointwise: bool
    taken: frozenset[str]

    @property
    def all(self) -> tuple[Axis, ...]:
        """The parallel axes, then the inner ones."""
        return (*self.axes, *self.inner)


@dataclass(frozen=True)
class Alignment:
    """Shared axes, what the axes of each kernel become, and whether each kernel, if it is
    pointwise, now runs over the inner axes too."""

    axes: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    first: Substitution
    second: Substitution
    spread_first: bool
    spread_second: bool


@dataclass(frozen=True)
class Mismatch:
    """Why two kernels have no common domain."""

    reason: str


@dataclass(frozen=True)
class _Atom:
    """A common factor: `first`/`second` are the positions of the axes that it is part of (-1:
    none), `*_scale` what a step along it is worth on those axes."""

    extent: sympy.Expr
    first: int
    second: int
    first_scale: sympy.Expr
    second_scale: sympy.Expr

    def swapped(self) -> _Atom:
        return _Atom(self.extent, self.second, self.first, self.second_scale, self.first_scale)


def stays_apart(first: Kernel, second: Kernel) -> Mismatch | None:
    """A function of as many steps as an element asks for stands once an element of a thread in the
    text: none joins a kernel of rows, of many, or one with another (zeta's sums of rows of 512
    were 1.1 MB of instructions)."""
    for one, other in ((first, second), (second, first)):
        if iterates(one) and (iterates(other) or not is_pointwise(other)):
            return Mismatch(f"{one.name} takes as many steps as its elements ask for")
    return None


def shape_of(kernel: Kernel) -> Shape | Mismatch:
    """The domain of a kernel; no domain where its phases differ, or an axis is empty."""
    inner = inner_axes(kernel)
    if inner is None:
        return Mismatch(f"{kernel.name} has phases over different inner axes")
    axes = (*kernel.axes, *inner)
    if any(a.extent == 0 for a in axes):
        return Mismatch(f"{kernel.name} has an empty axis")
    return Shape(kernel.axes, inner, is_pointwise(kernel), frozenset(free_names(kernel)))


def refine(first: Sequence[Axis], second: Sequence[Axis]) -> list[_Atom] | None:
    """The common refinement of two lists of axes, outermost first; None if there is none.
    Axes of extent 1 take part in no atom."""
    atoms: list[_Atom] = []
    i, j = len(first), len(second)
    left: sympy.Expr = sympy.S.One
    right: sympy.Expr = sympy.S.One
    p: sympy.Expr = sympy.S.One
    q: sympy.Expr = sympy.S.One
    while True:
        while left == 1 and i > 0:
            i -= 1
            left, p = first[i].extent, sympy.S.One
        while right == 1 and j > 0:
            j -= 1
            right, q = second[j].extent, sympy.S.One
        if left == 1 and right == 1:
            return atoms[::-1]
        if left == 1 or right == 1:
            return None
        rest = quotient(right, left)
        if rest is not None:
            atoms.append(_Atom(left, i, j, p, q))
            q = q * left
            left, right = sympy.S.One, rest
            continue
        rest = quotient(left, right)
        if rest is None:
            return None
        atoms.append(_Atom(right, i, j, p, q))
        p = p * right
        left, right = rest, sympy.S.One


def align(first: Shape, second: Shape) -> Alignment | Mismatch:
    """Matches the axes in their own (row-major) order."""
    if first.pointwise and second.pointwise:
        atoms = refine(first.axes, second.axes)
        if atoms is None:
            return _differ(first.axes, second.axes)
        return _alignment(atoms, [], first, second)
    if not first.pointwise and not second.pointwise:
        outer = refine(first.axes, second.axes)
        if outer is None:
            return _differ(first.axes, second.axes)
        inner = refine(first.inner, second.inner)
        if not inner:
            return Mismatch(
                f"they reduce over different sizes: {_text(first.inner)} and {_text(second.inner)}"
            )
        n, m = len(first.axes), len(second.axes)
        shifted = [replace(a, first=a.first + n, second=a.second + m) for a in inner]
        return _alignment(outer, shifted, first, second)
    reduction, other = (second, first) if first.pointwise else (first, second)
    full = refine(reduction.all, other.axes)
    if full is not None:
        n = len(reduction.axes)
        inner = [a for a in full if a.first >= n]
        if inner:
            outer = [a for a in full if a.first < n]
            return _ordered(outer, inner, first, second)
    outer = refine(reduction.axes, other.axes)
    if outer is None:
        return _differ(reduction.all, other.axes)
    return _ordered(outer, None, first, second)


def align_by_strides(
    first: Shape,
    second: Shape,
    first_index: sympy.Expr,
    second_index: sympy.Expr,
    hints: Mapping[str, int],
) -> Alignment | Mismatch:
    """Matches the axes by their strides in a buffer that both kernels index; at least one of
    the two kernels is pointwise."""
    if not (first.pointwise or second.pointwise):
        return Mismatch("both reduce, and their rows differ")
    left = _by_stride(first.all, first_index, hints)
    right = _by_stride(second.all, second_index, hints)
    if left is None or right is None:
        return Mismatch("an index of the shared buffer does not tell all axes apart")
    atoms = refine([first.all[i] for i in left], [second.all[j] for j in right])
    if atoms is None:
        return _differ(first.all, second.all)
    placed = [replace(a, first=left[a.first], second=right[a.second]) for a in atoms]
    # Sorting is stable, so the parts of one axis of the leading kernel stay in order.
    if first.pointwise and second.pointwise:
        placed.sort(key=lambda a: a.second)
        return _alignment(placed, [], first, second)
    leads = attrgetter("first" if second.pointwise else "second")
    n = len(first.axes if second.pointwise else second.axes)
    placed.sort(key=leads)
    outer = [a for a in placed if leads(a) < n]
    inner = [a for a in placed if leads(a) >= n]
    if not inner:
        return Mismatch("the reduction runs over one element")
    return _alignment(outer, inner, first, second)


def _by_stride(
    axes: Sequence[Axis], index: sympy.Expr, hints: Mapping[str, int]
) -> list[int] | None:
    form = linear(index, tuple(a.symbol for a in axes))
    if form is None:
        return None
    strides: dict[int, int] = {}
    for position, axis in enumerate(axes):
        if axis.extent == 1:
            continue
        stride = at_hints(form.coefficient(axis.symbol), hints)
        if stride <= 0:
            return None
        strides[position] = stride
    if len(set(strides.values())) != len(strides):
        return None
    return sorted(strides, key=lambda p: -strides[p])


def _ordered(
    outer: list[_Atom], inner: list[_Atom] | None, first: Shape, second: Shape
) -> Alignment | Mismatch:
    """Atoms whose `first` counts in the reduction. `inner` None: the pointwise kernel runs over
    the parallel axes only, the reduction keeps its inner axes."""
    reduction = second if first.pointwise else first
    if inner is None:
        n = len(reduction.axes)
        inner = [
            _Atom(a.extent, n + k, -1, sympy.S.One, sympy.S.Zero)
            for k, a in enumerate(reduction.inner)
            if a.extent != 1
        ]
        if not inner:
            return Mismatch("the reduction runs over one element")
    if first.pointwise:
        outer = [a.swapped() for a in outer]
        inner = [a.swapped() for a in inner]
    return _alignment(outer, inner, first, second)


def _alignment(outer: list[_Atom], inner: list[_Atom], first: Shape, second: Shape) -> Alignment:
    taken = first.taken | second.taken
    axes = tuple(map(Axis, fresh_symbols("i", taken), (a.extent for a in outer)))
    inners = tuple(map(Axis, fresh_symbols("r", taken), (a.extent for a in inner)))
    placed = list(zip((*outer, *inner), (*axes, *inners), strict=True))
    return Alignment(
        axes,
        inners,
        _substitution(first.all, [(a.first, a.first_scale * x.symbol) for a, x in placed]),
        _substitution(second.all, [(a.second, a.second_scale * x.symbol) for a, x in placed]),
        first.pointwise and any(a.first >= 0 for a in inner),
        second.pointwise and any(a.second >= 0 for a in inner),
    )


def _substitution(axes: Sequence[Axis], terms: list[tuple[int, sympy.Expr]]) -> Substitution:
    return tuple(
        (axis.symbol, sympy.Add(*(term for at, term in terms if at == position)))
        for position, axis in enumerate(axes)
    )


def _differ(first: Sequence[Axis], second: Sequence[Axis]) -> Mismatch:
    if product(a.extent for a in first) != product(a.extent for a in second):
        return Mismatch(
            f"they run over different numbers of points: {_text(first)} and {_text(second)}"
        )
    return Mismatch(f"their axes have no common refinement: {_text(first)} and {_text(second)}")


def _text(axes: Sequence[Axis]) -> str:
    return f"({', '.join(str(a.extent) for a in axes)})"
