"""The schedule of a kernel without tuning."""

from collections.abc import Mapping
from dataclasses import replace

import sympy

import loop_ir as ir
from loop_ir.ir import at_hints, hints_of
from triton_emit.schedule import columns as by_columns
from triton_emit.schedule import loops, traits
from triton_emit.schedule.h200 import MULTIPROCESSORS, ROW
from triton_emit.schedule.held import WIDEST_ROW, held, long_rows, reads_one_row, together
from triton_emit.schedule.points import of_points
from triton_emit.schedule.record import Schedule, index_bits, next_power_of_two


def default_schedule(kernel: ir.Kernel, hints: Mapping[str, int]) -> Schedule:
    """A schedule that is good on an H200 without tuning; `hints`: typical values of symbols.

    Memory-bound kernels want 16-byte vectors, 8 or 16 elements a thread in flight, and at least
    two waves of programs over the multiprocessors; neighbours in neighbouring lanes where the
    number of points is odd (`vector`)."""
    return replace(
        _cut(kernel, {**hints_of(kernel.symbols), **hints}), index_bits=index_bits(kernel)
    )


def _cut(kernel: ir.Kernel, hints: Mapping[str, int]) -> Schedule:
    rows = max(1, at_hints(sympy.Mul(*(a.extent for a in kernel.axes)), hints))
    inner = traits.inner_extents(kernel)
    if not inner:
        return of_points(kernel, rows, hints)
    bound = traits.inner_bound(kernel)
    if traits.folds_alike(kernel) and bound is not None and bound <= ir.HELD_ROW:
        points = replace(kernel, phases=tuple(p for p in kernel.phases if not p.axes))
        schedule = of_points(points, rows, hints)
        if not schedule.pairs:
            return replace(schedule, rblock=next_power_of_two(bound))
    widest = max(1, *(at_hints(e, hints) for e in inner))
    rblock = next_power_of_two(bound or 1)
    small = bound is not None and rblock <= ir.HELD_ROW
    # a dynamic row far narrower than its bound would waste most of a persistent tile
    snug = bound is not None and bound <= 4 * widest
    columns = ir.reduces_columns(kernel)
    if ir.plane_of_row(kernel):
        return Schedule("persistent", 1, rblock, max(1, min(16, rblock // 1024)))
    if traits.walks(kernel):
        return loops.walking(kernel, rblock)
    if ir.shares_scans(kernel, hints):
        return loops.looking_back(kernel)
    if (share := ir.programs_of_row(kernel, hints)) > 1:
        return together(kernel, share)
    if (picked := by_columns.picked_columns(kernel, rows)) is not None and traits.can_loop(kernel):
        return picked
    if columns and snug and rblock <= by_columns.PERSISTENT_COLUMNS:
        return by_columns.persistent_columns(kernel, rblock)
    if columns and snug and (whole := by_columns.whole_columns(kernel, widest, rows, rblock)):
        return whole
    if columns and traits.can_loop(kernel):
        parts = ir.columns_part(kernel)
        beside = at_hints(kernel.axes[-1].extent, hints) if parts else rows
        return by_columns.looped_columns(kernel, widest, rows, beside)
    if traits.shares_rows(kernel) and rows >= 4 * MULTIPROCESSORS * 16 and widest >= ROW:
        beside = at_hints(kernel.axes[-1].extent, hints)
        if beside >= 16:
            return Schedule("looped", 16, 64, 4)
    if reads_one_row(kernel) and snug and rblock <= WIDEST_ROW:
        small = True
    kept = len(traits.rows_read(kernel))
    twice = loops.read_twice(kernel, widest, rows) if snug else None
    if twice is not None:
        return twice
    if small and snug and (chunks := loops.scanned_chunks(kernel, widest, rblock)) is not None:
        return chunks
    if (small and snug) or (bound is not None and not traits.can_loop(kernel)):
        return held(kernel, rblock, rows)
    if (held_long := long_rows(kernel)) is not None:
        return held_long
    if not snug:
        short = held(kernel, next_power_of_two(widest), rows)
        if short.xblock > 1 and traits.can_loop(kernel):
            return replace(short, kind="looped")  # one step of rows as long as the typical ones
    schedule = loops.looped(ir.pair_softmax(kernel), widest, rows)
    if snug and kept <= loops.MOST_KEPT and rblock == schedule.rblock:
        return replace(schedule, kind="persistent")  # one step, after which nothing is read again
    return schedule
