"""Schedules near the default: a short list for a tuner."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from loop_ir import Kernel, across, reduces_columns, row_of_pieces
from triton_emit import schedule as schedules
from triton_emit.rereading import times_read

# Candidates of a kernel at most, the default among them.
MOST_CANDIDATES = 6
# Elements of a tile that a thread may hold: fewer leave it without work, more spill.
_LEAST_HELD, _MOST_HELD = 1, 64
_MOST_WARPS = 32

# Steps from the default, as powers of two that xblock, yblock, rblock and the warps are multiplied
# by, those first that won most on an H200.
_Steps = tuple[tuple[int, int, int, int], ...]
_FLAT: _Steps = ((1, 0, 0, 1), (-1, 0, 0, -1), (0, 0, 0, 1), (0, 0, 0, -1), (1, 0, 0, 0))
_TILED: _Steps = ((0, 0, 0, 1), (1, -1, 0, 0), (-1, 1, 0, 0), (-1, 0, 0, -1), (1, 0, 0, 1))
_PICKING: _Steps = ((0, 0, 0, 1), (-1, 0, 0, -1), (1, 0, 0, 1), (0, 0, 0, -1))
_PERSISTENT: _Steps = ((0, 0, 0, -1), (0, 0, 0, 1), (1, 0, 0, 1), (-1, 0, 0, -1), (1, 0, 0, 0))
_LOOPED: _Steps = ((0, 0, -1, -1), (0, 0, 0, 1), (0, 0, 1, 1), (0, 0, 1, 0), (0, 0, -1, 0))
_BY_COLUMNS: _Steps = ((0, 0, -1, -1), (0, 0, 1, 1), (1, 0, -1, 0), (-1, 0, 0, 0), (-1, 0, 1, 0))
_LOOKBACK: _Steps = ((0, 0, -1, 0), (0, 0, 0, 1), (0, 0, -1, -1), (0, 0, 1, 1), (0, 0, 1, 0))
_STEPPING: _Steps = ((-1, 0, 0, 0), (1, 0, 0, 0), (0, 0, -1, -1), (0, 0, 1, 1))


def candidate_schedules(kernel: Kernel, hints: Mapping[str, int]) -> tuple[schedules.Schedule, ...]:
    """A short list for a tuner, at most `MOST_CANDIDATES`: the default first, then what differs
    most in kind, then neighbours of the default. All compute the same."""
    first = schedules.default_schedule(kernel, hints)
    if first.share > 1:
        return _sharing(kernel, first)
    found = dict.fromkeys((first, *_other_kinds(kernel, first), *_neighbours(kernel, first)))
    return tuple(found)[:MOST_CANDIDATES]


def _sharing(kernel: Kernel, first: schedules.Schedule) -> tuple[schedules.Schedule, ...]:
    """Of rows that programs hold together: pieces half and twice as long, and more or fewer warps.
    None of another kind takes memory for what they tell each other."""
    found = dict.fromkeys((first,))
    for power, warps in ((-1, -1), (0, 1), (0, -1), (-1, 0), (1, 1)):
        rblock, many = _times(first.rblock, power), _times(first.num_warps, warps)
        share = -(-(schedules.inner_bound(kernel) or 1) // max(1, rblock)) if power else first.share
        if share > 1 and 0 < many <= _MOST_WARPS:
            found[replace(first, share=share, rblock=rblock, num_warps=many)] = None
    return tuple(found)


def _other_kinds(kernel: Kernel, first: schedules.Schedule) -> Iterator[schedules.Schedule]:
    if first.kind == "flat":
        if first.vector:
            yield replace(first, vector=0)
    elif first.kind == "tiled":
        yield replace(first, kind="flat", xblock=1024, yblock=1, num_warps=4)
    elif (
        first.kind == "persistent"
        and first.share == 1
        and (other := _other_pieces(kernel, first)) is not None
    ):
        yield other
    if schedules.walks(kernel):
        ahead = first.xblock * first.rblock * schedules.row_bytes(kernel)
        for stages in (2, 1, 3):
            if stages != first.num_stages and (stages - 1) * ahead <= schedules.MOST_AHEAD:
                yield replace(first, num_stages=stages)
    elif first.kind == "looped" and not first.lookback:
        made = as_kind(kernel, first, "persistent")
        if made is not None and made.xblock * made.rblock <= schedules.WIDEST_ROW:
            yield made
    elif first.rblock >= (64 if reduces_columns(kernel) else 2048):
        made = as_kind(kernel, first, "looped")
        if made is not None:
            yield made


def _other_pieces(kernel: Kernel, first: schedules.Schedule) -> schedules.Schedule | None:
    """Rows in one tile for rows in pieces, or the reverse."""
    row = row_of_pieces(kernel)
    if row <= first.rblock:
        return schedules.cut_rows(kernel, first)
    rblock = schedules.next_power_of_two(row)
    warps = min(_MOST_WARPS, max(1, first.xblock * rblock // (512 if first.xblock == 1 else 1024)))
    return replace(first, rblock=rblock, num_warps=warps)


def as_kind(
    kernel: Kernel, schedule: schedules.Schedule, kind: Literal["persistent", "looped"]
) -> schedules.Schedule | None:
    """A persistent schedule for one that loops, or the reverse; None where the kernel has no such,
    and for one that has no inner axes."""
    if (
        schedule.kind == kind
        or schedule.kind not in ("persistent", "looped")
        or schedules.walks(kernel)
    ):
        return schedule if schedule.kind == kind else None
    schedule = replace(schedule, steps=1, lookback=0, share=1)
    if kind == "looped":
        if not schedules.can_loop(kernel):
            return None
        if reduces_columns(kernel):
            return replace(schedule, kind=kind, xblock=64, rblock=32, num_warps=4)
        twice = times_read(kernel) > 0  # many warps a row: those of all programs stay in the caches
        rblock = min(2048 if twice else 1024, schedule.rblock)
        warps = max(1, rblock // (128 if twice else 256))
        return replace(schedule, kind=kind, xblock=1, rblock=rblock, num_warps=warps)
    bound = schedules.inner_bound(kernel)
    if bound is None:
        return None
    rblock = schedules.next_power_of_two(bound)
    warps = min(_MOST_WARPS, max(4, schedule.xblock * rblock // 512))
    return replace(schedule, kind=kind, rblock=rblock, num_warps=warps, steps=1)


def _neighbours(kernel: Kernel, first: schedules.Schedule) -> Iterator[schedules.Schedule]:
    if first.kind == "flat":
        steps = _FLAT
    elif first.kind == "tiled":
        steps = _TILED if across(kernel) is not None else _PICKING
    elif first.kind == "persistent":
        steps = _PERSISTENT
    elif first.lookback:
        steps = _LOOKBACK
    elif first.steps > 1:
        steps = _STEPPING
    else:
        strided = reduces_columns(kernel) or schedules.shares_rows(kernel)
        steps = _LOOPED if first.xblock == 1 else _BY_COLUMNS if strided else _PERSISTENT
    bound = schedules.inner_bound(kernel)
    widest = None if bound is None else schedules.next_power_of_two(bound)
    for x, y, r, warps in steps:
        if x and not kernel.axes:
            continue
        made = replace(
            first,
            xblock=_times(first.xblock, x),
            yblock=_times(first.yblock, y),
            rblock=_times(first.rblock, r),
            num_warps=_times(first.num_warps, warps),
        )
        blocks = (made.xblock, made.yblock, made.rblock, made.num_warps)
        if 0 in blocks or made.num_warps > _MOST_WARPS:
            continue
        if first.kind == "looped" and widest is not None and made.rblock > widest:
            continue
        if _LEAST_HELD <= _held(made) <= max(_MOST_HELD, _held(first)):
            yield made


def _times(n: int, power: int) -> int:
    """`n` times two to a power; 0 where that is no whole number."""
    return n << power if power >= 0 else n >> -power if n >= 1 << -power else 0


def _held(schedule: schedules.Schedule) -> float:
    """Elements of a tile that a thread holds."""
    tile = schedule.xblock * schedule.yblock * schedule.rblock
    return tile / (32 * schedule.num_warps)
