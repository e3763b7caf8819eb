"""Axes walked the other way, so that `flip(scan(flip(x)))` is a scan from the end."""

from collections.abc import Iterable
from dataclasses import replace

import sympy

from loop_ir.ir.affine import linear
from loop_ir.ir.analysis import inner_axes, is_pointwise, scans, single_direction
from loop_ir.ir.names import statements
from loop_ir.ir.nodes import Axis, Kernel, Load, Scan, Store
from loop_ir.ir.rewrite import map_statements, ranges_of, substitute_axes


def facing(first: Kernel, second: Kernel) -> Kernel:
    """A pointwise `second` with the axes reflected along which it reads what `first` scans from
    its end: `z[j] = y[9 - j] -> z[9 - j] = y[j]`, where `y[r] = scan(x[r])`."""
    if not scans(first) or not is_pointwise(second):
        return second
    stored = {s.buffer for s in statements(first) if isinstance(s, Store)}
    indices = [s.index for s in statements(second) if isinstance(s, Load) and s.buffer in stored]
    return _reflect(second, [a for a in second.axes if _falls(indices, a)])


def forward(kernel: Kernel) -> Kernel:
    """A kernel that scans what it loads from the end, and stores it so, the other way round:
    `z[9 - r] = scan(x[9 - r]) -> z[r] = scan(x[r]) reverse`."""
    axes = inner_axes(kernel) or ()
    found = [s for s in statements(kernel) if isinstance(s, Scan)]
    if not found or len(axes) != 1 or any(s.op.startswith("arg") for s in found):
        return kernel
    accesses = [s.index for s in statements(kernel) if isinstance(s, Load | Store)]
    if not _falls([e for e in accesses if axes[0].symbol in e.free_symbols], axes[0]):
        return kernel
    turned = map_statements(
        _reflect(kernel, axes),
        lambda s: replace(s, reverse=not s.reverse) if isinstance(s, Scan) else s,
    )
    return turned if single_direction(turned) else kernel


def _falls(indices: Iterable[sympy.Expr], axis: Axis) -> bool:
    """All of the indices (one at least) fall along the axis."""
    forms = [linear(e, (axis.symbol,)) for e in indices]
    return bool(forms) and all(
        f is not None and f.coefficient(axis.symbol).could_extract_minus_sign() for f in forms
    )


def _reflect(kernel: Kernel, axes: Iterable[Axis]) -> Kernel:
    turned = tuple((a.symbol, a.extent - 1 - a.symbol) for a in axes)
    return substitute_axes(kernel, turned, ranges_of(kernel)) if turned else kernel
