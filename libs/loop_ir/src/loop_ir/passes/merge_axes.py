"""Turns adjacent axes that every index walks as one into one axis."""

from dataclasses import replace

import sympy

from loop_ir.ir.affine import linear, product, same
from loop_ir.ir.analysis import inner_axes
from loop_ir.ir.names import expression, statements
from loop_ir.ir.nodes import Axis, Kernel
from loop_ir.ir.rewrite import rename_symbols


def merge(kernel: Kernel) -> Kernel:
    """`x[768*i0 + i1], i0 < 64, i1 < 768 -> x[i0], i0 < 49152`, when in every index of the kernel
    the outer axis has the coefficient of the inner one times its extent. Axes of extent 1 go.
    Inner axes merge likewise, if all phases share them. Axes are named in order."""
    out = _drop_unit_axes(kernel)
    out, axes = _merge(out, out.axes)
    out = replace(out, axes=axes)
    inner = inner_axes(out)
    if inner is not None and len(inner) > 1:
        out, axes = _merge(out, inner)
        out = replace(out, phases=tuple(replace(p, axes=axes) if p.axes else p for p in out.phases))
    return rename_axes(out, kernel)


def _merge(kernel: Kernel, axes: tuple[Axis, ...]) -> tuple[Kernel, tuple[Axis, ...]]:
    """Statements over the innermost symbol of each run of axes that merge, as the outer ones only
    scale it; an axis for each run."""
    exprs = list(dict.fromkeys(e for e in map(expression, statements(kernel)) if e is not None))
    runs: list[list[Axis]] = []  # from the outermost to the innermost
    for axis in reversed(axes):
        if runs and contiguous(exprs, axis, runs[0][0]):
            runs[0].insert(0, axis)
        else:
            runs.insert(0, [axis])
    gone = tuple((a.symbol, sympy.S.Zero) for run in runs for a in run[:-1])
    merged = tuple(Axis(run[-1].symbol, product(a.extent for a in run)) for run in runs)
    return rename_symbols(kernel, gone), merged


def contiguous(exprs: list[sympy.Expr], outer: Axis, inner: Axis) -> bool:
    """Whether one step along `outer` is as far as all of `inner`, in each of the expressions."""
    for expr in exprs:
        form = linear(expr, (outer.symbol, inner.symbol))
        if form is None or not same(
            form.coefficient(outer.symbol), form.coefficient(inner.symbol) * inner.extent
        ):
            return False
    return True


def _drop_unit_axes(kernel: Kernel) -> Kernel:
    unit = [a for a in kernel.axes if a.extent == 1]
    kept: list[Axis] = [a for a in kernel.axes if a.extent != 1]
    inner = inner_axes(kernel)
    phases = kernel.phases
    if inner is not None and len(inner) > 1:
        drop = [a for a in inner if a.extent == 1]
        if len(drop) == len(inner):
            drop = drop[1:]
        left = tuple(a for a in inner if a not in drop)
        phases = tuple(replace(p, axes=left) if p.axes else p for p in phases)
        unit += drop
    out = replace(kernel, axes=tuple(kept), phases=phases) if unit else kernel
    return rename_symbols(out, tuple((a.symbol, sympy.S.Zero) for a in unit))


def rename_axes(kernel: Kernel, old: Kernel) -> Kernel:
    """Axes that are left take the first names of the old ones, in order."""
    names = [a.symbol for a in old.axes]
    mapping = {a.symbol: n for a, n in zip(kernel.axes, names[: len(kernel.axes)], strict=True)}
    inner, old_inner = inner_axes(kernel), inner_axes(old)
    if inner and old_inner:
        names = [a.symbol for a in old_inner][: len(inner)]
        mapping.update((a.symbol, n) for a, n in zip(inner, names, strict=True))
    if all(a == b for a, b in mapping.items()):
        return kernel

    def axis(a: Axis) -> Axis:
        return Axis(mapping.get(a.symbol, a.symbol), a.extent)

    out = replace(
        kernel,
        axes=tuple(map(axis, kernel.axes)),
        phases=tuple(replace(p, axes=tuple(map(axis, p.axes))) for p in kernel.phases),
    )
    return rename_symbols(out, tuple(mapping.items()))
