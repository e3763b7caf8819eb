"""How a kernel is cut into programs: what a tuner may change without touching the kernel.

`record` is a schedule as data, `default` that of a kernel without tuning, which asks `points`,
`columns`, `held` and `loops` after what the kernel's `traits` are."""

from triton_emit.schedule.columns import fills_less, may_step, shares_factors
from triton_emit.schedule.default import default_schedule
from triton_emit.schedule.h200 import MULTIPROCESSORS
from triton_emit.schedule.held import WIDEST_ROW, cut_rows
from triton_emit.schedule.loops import MOST_AHEAD
from triton_emit.schedule.points import line_axes, rows_apart, turned
from triton_emit.schedule.record import (
    Kind,
    Schedule,
    index_bits,
    next_power_of_two,
    passes_32_bits,
    piece_of,
    size_in_32_bits,
)
from triton_emit.schedule.traits import (
    can_loop,
    folds_alike,
    inner_bound,
    inner_spaces,
    row_bytes,
    shares_rows,
    streams,
    updates,
    walks,
)
