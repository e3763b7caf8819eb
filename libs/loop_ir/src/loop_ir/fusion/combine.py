"""Two kernels into one: on a shared domain, or by computing a producer where it is loaded."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import sympy

from loop_ir.fusion import common_domain
from loop_ir.ir import analysis, renaming
from loop_ir.ir.affine import linear, same
from loop_ir.ir.in_place import hazard
from loop_ir.ir.names import renamed, statements, value_names
from loop_ir.ir.nodes import Axis, Compute, Const, Kernel, Load, Scan, Stmt, Store
from loop_ir.ir.rewrite import map_statements, ranges_of, substitute_axes
from loop_ir.ir.staging import Item, Unstageable, items_of, stage
from loop_ir.ir.strides import holds_rows, plane_of_row, reads_across, turns_rows
from loop_ir.passes import cse

_APART = common_domain.Mismatch("they read the same buffer at other points")
_ACROSS = common_domain.Mismatch("one reads along memory what the other reads across it")
# Bytes that are not worth a launch of their own.
_FEW_BYTES = 8 << 20


def combine(
    first: Kernel, second: Kernel, hints: Mapping[str, int], dead: frozenset[str] = frozenset()
) -> Kernel | common_domain.Mismatch:
    """`first; second -> fused` over one domain, values stored by `first` handed to the loads of
    `second` at the same point. `dead`: buffers that need not be stored afterwards.

    One of them, or what comes of them, may read a buffer and write it, where each point reads only
    what it alone writes, first (`hazard`). Tries the row-major match of axes, then the match by the
    strides of each buffer that both use. Where `first` hands nothing over, both must read something
    at the same point. Where none fits, gives the reason of the last attempt."""
    if apart := common_domain.stays_apart(first, second):
        return apart
    both = set(analysis.writes(first)) & set(analysis.writes(second))
    if both:
        return common_domain.Mismatch(f"both write {', '.join(sorted(both))}")
    if _cross(first, second, hints):
        return _ACROSS
    second = facing(first, second)
    left, right = common_domain.shape_of(first), common_domain.shape_of(second)
    if isinstance(left, common_domain.Mismatch):
        return left
    if isinstance(right, common_domain.Mismatch):
        return right
    feeds = not set(analysis.writes(first)).isdisjoint(analysis.reads(second))
    plain = common_domain.align(left, right)
    reason = plain
    if isinstance(plain, common_domain.Alignment):
        fused = _fuse(first, second, plain, dead, hints)
        if isinstance(fused, Kernel) and (feeds or _shares_a_load(first, second, fused)):
            return fused
        reason = fused if isinstance(fused, common_domain.Mismatch) else _APART
    for one, two in _links(first, second):
        linked = common_domain.align_by_strides(left, right, one, two, hints)
        if isinstance(linked, common_domain.Mismatch) or linked == plain:
            continue
        fused = _fuse(first, second, linked, dead, hints)
        if isinstance(fused, Kernel) and (feeds or _shares_a_load(first, second, fused)):
            return fused
        reason = fused if isinstance(fused, common_domain.Mismatch) else _APART
    assert isinstance(reason, common_domain.Mismatch)
    return reason


def _cross(first: Kernel, second: Kernel, hints: Mapping[str, int]) -> bool:
    """One reads rows along memory and the other across it, much of both: a tile suits one."""
    one, two = reads_across(first), reads_across(second)
    if not one or not two or one & two:
        return False
    return all(sum(analysis.traffic(k, hints).read.values()) > _FEW_BYTES for k in (first, second))


def _links(first: Kernel, second: Kernel) -> list[tuple[sympy.Expr, sympy.Expr]]:
    """Pairs of indices of buffers that both kernels use: stores of `first` with loads of
    `second` before loads of both."""
    used: dict[str, list[sympy.Expr]] = {}
    for stmt in statements(first):
        if isinstance(stmt, Store):
            used.setdefault(stmt.buffer, []).insert(0, stmt.index)
        elif isinstance(stmt, Load):
            used.setdefault(stmt.buffer, []).append(stmt.index)
    stored = set(analysis.writes(first))
    pairs: list[tuple[bool, sympy.Expr, sympy.Expr]] = []
    for stmt in statements(second):
        if isinstance(stmt, Load) and stmt.buffer in used:
            for index in used[stmt.buffer]:
                pairs.append((stmt.buffer not in stored, index, stmt.index))
    pairs.sort(key=lambda p: p[0])
    return list(dict.fromkeys((a, b) for _, a, b in pairs))


def _fuse(
    first: Kernel,
    second: Kernel,
    alignment: common_domain.Alignment,
    dead: frozenset[str],
    hints: Mapping[str, int],
) -> Kernel | common_domain.Mismatch:
    symbols = renaming.union_symbols(first.symbols, second.symbols)
    axes = (*alignment.axes, *alignment.inner)
    second = renaming.rename_apart(second, first)
    one = substitute_axes(first, alignment.first, ranges_of(replace(first, axes=axes)))
    two = substitute_axes(second, alignment.second, ranges_of(replace(second, axes=axes)))
    stored = {s.buffer: s for s in statements(one) if isinstance(s, Store)}
    items = items_of(one, alignment.spread_first)
    taken = value_names(one, two)
    names: dict[str, str] = {}
    for item in items_of(two, alignment.spread_second):
        stmt = renamed(item.stmt, names)
        if isinstance(stmt, Load) and stmt.buffer in stored:
            store = stored[stmt.buffer]
            parts = sum(isinstance(s, Store) and s.buffer == stmt.buffer for s in statements(one))
            if store.mode != "set" or store.mask is not None or parts > 1:
                return common_domain.Mismatch(f"{stmt.buffer} is written in part or added to")
            if not same(store.index, stmt.index):
                return common_domain.Mismatch(
                    f"{second.name} reads {stmt.buffer} at another point than {first.name} "
                    f"writes it: [{stmt.index}] and [{store.index}]"
                )
            items += [Item(s) for s in _forward(stmt, store.value, names, taken)]
            continue
        items.append(replace(item, stmt=stmt))
    items = [i for i in items if not (isinstance(i.stmt, Store) and i.stmt.buffer in dead)]
    try:
        phases = stage(items, alignment.inner)
    except Unstageable as e:
        return common_domain.Mismatch(str(e))
    kernel = Kernel(
        second.name,
        renaming.union_buffers(first.buffers, second.buffers),
        alignment.axes,
        phases,
        symbols,
        renaming.union_origins(first.origins, second.origins),
    )
    if not (analysis.single_direction(kernel) or holds_rows(kernel)):
        return common_domain.Mismatch("they walk over the inner axes in opposite directions")
    kernel = renaming.used_buffers(forward(cse.eliminate(kernel)))
    apart = turns_rows(kernel) and not (turns_rows(first) or plane_of_row(kernel))
    if apart and sum(analysis.traffic(kernel, hints).written.values()) > _FEW_BYTES:
        return common_domain.Mismatch("rows would be stored across memory")
    why = hazard(kernel)
    return (
        kernel
        if why is None
        else common_domain.Mismatch(f"in {first.name} with {second.name}, {why}")
    )


def _forward(load: Load, value: str, names: dict[str, str], taken: set[str]) -> list[Stmt]:
    """The load gives the stored value, or under a mask `where(mask, value, other)`."""
    if load.mask is None:
        names[load.out] = value
        return []
    other = renaming.fresh_name(f"{load.out}_other", taken)
    return [
        Const(other, load.other, load.dtype),
        Compute(load.out, "where", (load.mask, value, other), load.dtype),
    ]


def _shares_a_load(first: Kernel, second: Kernel, fused: Kernel) -> bool:
    """Whether the fused kernel loads less often than both did."""

    def count(kernel: Kernel) -> int:
        return len({(s.buffer, s.index) for s in statements(kernel) if isinstance(s, Load)})

    return count(fused) < count(first) + count(second)


def facing(first: Kernel, second: Kernel) -> Kernel:
    """A pointwise `second` with the axes reflected along which it reads what `first` scans from
    its end: `z[j] = y[9 - j] -> z[9 - j] = y[j]`, where `y[r] = scan(x[r])`."""
    if not analysis.scans(first) or not analysis.is_pointwise(second):
        return second
    stored = {s.buffer for s in statements(first) if isinstance(s, Store)}
    indices = [s.index for s in statements(second) if isinstance(s, Load) and s.buffer in stored]
    return _reflect(second, [a for a in second.axes if _falls(indices, a)])


def forward(kernel: Kernel) -> Kernel:
    """A kernel that scans what it loads from the end, and stores it so, the other way round:
    `z[9 - r] = scan(x[9 - r]) -> z[r] = scan(x[r]) reverse`."""
    axes = analysis.inner_axes(kernel) or ()
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
    return turned if analysis.single_direction(turned) else kernel


def _falls(indices: Iterable[sympy.Expr], axis: Axis) -> bool:
    """All of the indices (one at least) fall along the axis."""
    forms = [linear(e, (axis.symbol,)) for e in indices]
    return bool(forms) and all(
        f is not None and f.coefficient(axis.symbol).could_extract_minus_sign() for f in forms
    )


def _reflect(kernel: Kernel, axes: Iterable[Axis]) -> Kernel:
    turned = tuple((a.symbol, a.extent - 1 - a.symbol) for a in axes)
    return substitute_axes(kernel, turned, ranges_of(kernel)) if turned else kernel
