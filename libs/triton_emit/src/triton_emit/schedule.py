"""How a kernel is cut into programs: what a tuner may change without touching the kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal

import sympy

from loop_ir import (
    HELD_ROW,
    Axis,
    Compute,
    Const,
    DType,
    Indirect,
    Kernel,
    Load,
    Reduce,
    Scan,
    Store,
    across,
    columns_at_once,
    columns_part,
    divides_rows,
    pair_softmax,
    picks_rows,
    reduces_columns,
    shares_scans,
)
from loop_ir.ir import at_hints, expression, hints_of, ranges_of, scans, statements
from symexpr import bounds
from triton_emit.errors import UnsupportedKernel
from triton_emit.idioms import cheaper
from triton_emit.pairs import paired
from triton_emit.rereading import divides, rereads
from triton_emit.ssa import clean, loops
from triton_emit.vectors import (
    access,
    aligned,
    bends,
    combines_ones,
    moves_vectors,
    neighbours,
    reads_windows,
    slides,
    vector,
)

Kind = Literal["flat", "tiled", "persistent", "looped"]

# Where nothing but the row itself is kept: 32 elements a thread.
WIDEST_ROW = 32768
# Of an H200: multiprocessors, warps that one of them holds, and its second-level cache.
MULTIPROCESSORS = 132
_WARPS = 64
_L2_BYTES = 60 << 20
_LINE = 128
# Of tensors whose lines leave it first, where rows are held and where they are walked over.
_MOST_STREAMED, _MOST_OF_CHUNKS = 320 << 20, 255 << 20
# A tile narrower than this in one direction reads less than a sector at a time.
_NARROW = 16
# Elements of a piece of a row that is worth a step of a loop.
_PIECES = (1024, 2048)
# Of rows that a program walks over, what is read ahead, and at most.
_AHEAD_BYTES, MOST_AHEAD = 24 << 10, 64 << 10
# Warps that share the rows of a step of a scan of columns, and threads of a warp.
_STEPPING, _LANES = 8, 32
# The shortest row, in elements, that is worth a program, and that is worth several.
_ROW, _LONG = 256, 1024
# And one that is read once in steps of twice as many elements by twice as many warps (sums of
# squares of 8192 x 12288 of bf16 on an H200: 53 us, 56).
_VERY_LONG = 12288
_PERSISTENT_COLUMNS = 128
# Rows that 32 warps hold, 16 elements of each a thread.
_MOST_KEPT = 2
# Statements for each of two neighbours: more of them leave no registers. Rows of pairs share most.
_MOST_PAIRED = 48
# Folds of two numbers for each element.
_PAIRS = {Reduce: ("welford", "softmax"), Scan: ("argmax", "argmin", "logsumexp")}
INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Schedule:
    """`flat`: one tile dimension of `xblock` points. `tiled`: two, `xblock` points of the last axis
    by `yblock` of the others, for kernels that transpose or resample. `persistent`: a program
    holds `xblock` rows whole, `rblock` (a power of two, at least the inner extent) wide. `looped`:
    it walks over `xblock` rows in steps of `rblock`. `index_bits`: width of the index arithmetic.
    Block sizes are powers of two. `overlap`: launched as the kernel before it in the stream ends,
    for which it waits before it touches memory (programmatic dependent launch; Hopper and later).
    `vector`: how many neighbouring elements a thread of a flat or tiled kernel takes at most; 0: as
    many as the widest of its accesses moves at once. `steps`: of a looped kernel that scans
    columns, how many places along the scan a thread takes one after the other; 1: its tile is not
    cut so. `pairs`: a point of a flat kernel is two neighbours (`pairs.py`). `lookback`: of a
    looped kernel that scans a row, of how many chunks before its own a program reads what they fold
    to at once; 0: a program walks over all chunks of its row."""

    kind: Kind
    xblock: int
    rblock: int = 1
    num_warps: int = 4
    num_stages: int = 1
    index_bits: Literal[32, 64] = 32
    yblock: int = 1
    overlap: bool = False
    vector: int = 0
    steps: int = 1
    pairs: bool = False
    lookback: int = 0


def next_power_of_two(n: int) -> int:
    """The least power of two that is at least `n`; 1 of what is less."""
    return 1 << max(0, n - 1).bit_length()


def index_bits(kernel: Kernel) -> Literal[32, 64]:
    """64 when an index, or a count of points, can pass 2**31 - 1 within the symbols' ranges.

    A tile overhangs its last row by less than a block, hence the margin."""
    ranges = dict(ranges_of(kernel))
    all_axes = {a for phase in kernel.phases for a in [phase.axes]} | {kernel.axes}
    counts = [sympy.Mul(*(a.extent for a in axes)) for axes in all_axes]
    body = list(statements(kernel))
    extents = [s.extent for s in body if isinstance(s, Indirect)]
    exprs = (e for e in map(expression, body) if e is not None)
    for e in (*counts, *extents, *exprs):
        low, high = bounds(e, ranges)
        if low is None or high is None or high > INT32_MAX - 65536 or low < -INT32_MAX:
            return 64
    return 32


def inner_spaces(kernel: Kernel) -> list[tuple[Axis, ...]]:
    """The inner axes of phases, each once, in order."""
    return list(dict.fromkeys(phase.axes for phase in kernel.phases if phase.axes))


def _inner_extents(kernel: Kernel) -> list[sympy.Expr]:
    """Points of every inner space."""
    return [sympy.Mul(*(a.extent for a in axes)) for axes in inner_spaces(kernel)]


def inner_bound(kernel: Kernel) -> int | None:
    """The largest count of inner points, or None if it is not bounded."""
    ranges = dict(ranges_of(kernel))
    highs = [bounds(e, ranges)[1] for e in _inner_extents(kernel)]
    return None if None in highs else max((h for h in highs if h is not None), default=1)


def can_loop(kernel: Kernel) -> bool:
    """No loop would have to read what an earlier one overwrote."""
    try:
        loops(clean(kernel))
    except UnsupportedKernel:
        return False
    return True


def _element_bytes(kernel: Kernel) -> int:
    """Bytes of the widest element that a kernel keeps a full tile of."""
    sizes = [b.type.dtype.itemsize for b in kernel.buffers if len(b.type.size) > 1]
    return max(sizes, default=4)


def default_schedule(kernel: Kernel, hints: Mapping[str, int]) -> Schedule:
    """A schedule that is good on an H200 without tuning; `hints`: typical values of symbols.

    Memory-bound kernels want 16-byte vectors, 8 or 16 elements a thread in flight, and at least
    two waves of programs over the multiprocessors; neighbours in neighbouring lanes where the
    number of points is odd (`vector`).
    """
    bits = index_bits(kernel)
    hints = {**hints_of(kernel.symbols), **hints}
    rows = max(1, at_hints(sympy.Mul(*(a.extent for a in kernel.axes)), hints))
    inner = _inner_extents(kernel)
    if not inner:
        other = across(kernel)
        if other is not None:
            columns = at_hints(kernel.axes[-1].extent, hints)
            neighbours = at_hints(other.extent, hints)
            if min(columns, neighbours) >= _NARROW:
                return _tiled(columns, neighbours, rows, bits)
        elif picks_rows(kernel):
            columns = at_hints(kernel.axes[-1].extent, hints)
            if columns >= _ROW:
                return replace(_picking(columns, bits), vector=int(combines_ones(kernel)))
        if divides_rows(cheaper(kernel)):
            columns = at_hints(kernel.axes[-1].extent, hints)
            if columns >= _LONG:
                return replace(_picking(columns, bits), vector=vector(kernel))
        if (pairs := _pairs(kernel, rows, bits)) is not None:
            return pairs
        if bends(kernel) or slides(kernel):
            columns = at_hints(kernel.axes[-1].extent, hints)
            plane = _plane(kernel, columns, rows, bits)
            if plane is not None:
                return plane
        if any(isinstance(s, Store) and s.mode == "mul" for s in statements(kernel)):
            # A program tries again until all of its products are done: few wait for the slowest.
            return Schedule("flat", 128, num_warps=4, index_bits=bits)
        flat = replace(_flat(rows, bits), vector=vector(kernel))
        if any(isinstance(s, Compute) and s.op == "rarely" for s in statements(kernel)):
            # Its warps wait for each other before they branch (bessel_j0 of 2**25 f32 on an H200:
            # 79 us in blocks of four warps, 75 of two, 83 in blocks of 256 of one).
            return replace(flat, num_warps=max(1, flat.num_warps // 2))
        if reads_windows(kernel):
            return replace(flat, num_warps=2 * flat.num_warps)
        return _of_long(flat, _divides_longs(kernel))
    bound = inner_bound(kernel)
    widest = max(1, *(at_hints(e, hints) for e in inner))
    small = bound is not None and next_power_of_two(bound) <= HELD_ROW
    # a dynamic row far narrower than its bound would waste most of a persistent tile
    snug = bound is not None and bound <= 4 * widest
    columns = reduces_columns(kernel)
    if walks(kernel):
        return _walking(kernel, next_power_of_two(bound or 1), bits)
    if shares_scans(kernel, hints):
        return _looking_back(kernel, bits)
    if columns and snug and next_power_of_two(bound or 1) <= _PERSISTENT_COLUMNS:
        return _persistent_columns(next_power_of_two(bound or 1), bits)
    if columns and can_loop(kernel):
        parts = columns_part(kernel)
        beside = at_hints(kernel.axes[-1].extent, hints) if parts else rows
        return _looped_columns(kernel, widest, rows, beside, bits)
    if shares_rows(kernel) and rows >= 4 * MULTIPROCESSORS * 16 and widest >= _ROW:
        beside = at_hints(kernel.axes[-1].extent, hints)
        if beside >= 16:
            return Schedule("looped", 16, 64, 4, index_bits=bits)
    if _reads_one_row(kernel) and snug and next_power_of_two(bound or 1) <= WIDEST_ROW:
        small = True
    kept = len(_rows_read(kernel))
    twice = _read_twice(kernel, widest, rows, bits) if snug else None
    if twice is not None:
        return twice
    if (small and snug) or (bound is not None and not can_loop(kernel)):
        applies = any(isinstance(s, Store) for p in kernel.phases if p.axes for s in p.body)
        schedule = _persistent(next_power_of_two(bound or 1), rows, bits, applies, kept)
        if _scatters(kernel):
            return _of_few(schedule)
        if schedule.xblock > 1 and (_gathers(kernel) or _steps_along(kernel)):
            return _of_one_warp(schedule)
        if schedule.xblock > 1 and schedule.rblock <= 32 and _overlap(kernel):
            xblock, warps = 2 * schedule.xblock, 2 * schedule.num_warps
            return replace(schedule, xblock=xblock, num_warps=warps)
        if _splits_rows(kernel, schedule):
            return replace(
                schedule, xblock=min(schedule.xblock, 1024 // schedule.rblock), num_warps=1
            )
        return replace(schedule, num_warps=_of_wide(kernel, schedule))
    looped = _looped(pair_softmax(kernel), widest, rows, bits)
    if snug and kept <= _MOST_KEPT and next_power_of_two(bound or 1) == looped.rblock:
        return replace(looped, kind="persistent")  # one step, after which nothing is read again
    return looped


def _looking_back(kernel: Kernel, bits: Literal[32, 64]) -> Schedule:
    """Chunks of 32 elements a thread, or 16 pairs or numbers of 64 bits. Groups so large that what
    one moves takes longer than its last chunk takes to tell the next one's."""
    found = [s for s in statements(kernel) if isinstance(s, Scan)]
    wide = any(s.op in _PAIRS[Scan] or s.dtype.itemsize > 4 for s in found)
    return Schedule("looped", 1, 4096 if wide else 8192, 8, index_bits=bits, lookback=512)


def _reads_one_row(kernel: Kernel) -> bool:
    """All that is read at inner points is one buffer's row, and it is summed once: a softmax, which
    also holds its exponentials, leaves room for one program a multiprocessor."""
    found = {s.buffer for p in kernel.phases if p.axes for s in p.body if isinstance(s, Load)}
    reduces = [s.op for s in statements(kernel) if isinstance(s, Reduce)]
    return len(found) == 1 and _read_again(kernel) > 0 and reduces == ["sum"]


def _walking(kernel: Kernel, rblock: int, bits: Literal[32, 64]) -> Schedule:
    """Rows of 4096 elements, or as many shorter ones, 16 elements a thread, which holds that many
    of each sum; what comes next, two tiles of it, is on its way to shared memory meanwhile
    (gradient of layer norm, 36864 x 1024 of bf16 on an H200: 77 us, 100 with one tile on its way).
    Rows of which bytes are read beside wider elements (masks of dropout) come one at a time: tiles
    of several would change layout at each step (16384 x 1024 on an H200: 62 us, 112 of four)."""
    sizes = {s.dtype.itemsize for s in row_loads(kernel)}
    if rblock >= _LONG and 1 in sizes and len(sizes) > 1:
        warps = max(4, min(16, rblock // 256))
        return Schedule("persistent", 1, rblock, warps, num_stages=3, index_bits=bits)
    xblock = max(1, 4096 // rblock)
    warps = max(4, min(16, xblock * rblock // 512))
    ahead = xblock * rblock * row_bytes(kernel)
    stages = min(4, max(3 if 2 * ahead <= MOST_AHEAD else 2, 1 + _AHEAD_BYTES // ahead))
    return Schedule("persistent", xblock, rblock, warps, num_stages=stages, index_bits=bits)


def row_bytes(kernel: Kernel) -> int:
    """Bytes that an inner point of a kernel reads of its row."""
    return max(1, sum(s.dtype.itemsize for s in row_loads(kernel)))


def row_loads(kernel: Kernel) -> set[Load]:
    """What is read at inner points of buffers that each row has elements of its own in."""
    rows = {a.symbol for a in kernel.axes}
    loads = {s for p in kernel.phases if p.axes for s in p.body if isinstance(s, Load)}
    return {s for s in loads if rows & s.index.free_symbols}


def _flat(points: int, bits: Literal[32, 64]) -> Schedule:
    xblock, warps = 1024, 4
    while xblock > 128 and points < 2 * MULTIPROCESSORS * xblock:
        xblock //= 2
        warps = max(1, warps // 2)
    return Schedule("flat", xblock, num_warps=warps, index_bits=bits)


def _pairs(kernel: Kernel, points: int, bits: Literal[32, 64]) -> Schedule | None:
    """Four pairs of neighbours side by side a thread; two where a point is several rows of them.
    None of what would leave no registers."""
    length = sum(1 for _ in statements(kernel))
    both = paired(kernel) if length <= 4 * _MOST_PAIRED else None
    if both is None:
        return None
    stored = Counter(s.buffer for s in statements(both) if isinstance(s, Store))
    each = max(stored.values())
    if sum(1 for _ in statements(both)) > min(each, 4) * _MOST_PAIRED:
        return None
    flat = _flat(points // each, bits)
    if each == 2:
        return replace(flat, vector=4, pairs=True)
    xblock = min(256, flat.xblock)
    return replace(flat, xblock=xblock, num_warps=xblock // 64, vector=2, pairs=True)


def _tiled(columns: int, rows: int, points: int, bits: Literal[32, 64]) -> Schedule:
    """64 elements a side are a cache line or two of any type; 16 of them a thread."""
    x, y = (32 if n <= 32 or (n % 64 and n % 32 == 0) else 64 for n in (columns, rows))
    while x * y > 1024 and points < 2 * MULTIPROCESSORS * x * y:
        x, y = (x // 2, y) if x >= y else (x, y // 2)
    return Schedule("tiled", x, num_warps=max(1, x * y // 512), index_bits=bits, yblock=y)


def _divides_longs(kernel: Kernel) -> bool:
    """Integers of 64 bits are divided by others that are known only when it runs."""
    numbers = {s.out for s in statements(kernel) if isinstance(s, Const)}
    return any(
        isinstance(s, Compute)
        and s.op in ("floordiv", "truncdiv", "mod", "fmod")
        and s.dtype in (DType.i64, DType.u64)
        and s.args[1] not in numbers
        for s in statements(kernel)
    )


def _of_long(flat: Schedule, long: bool) -> Schedule:
    """Two elements a thread of what is as long as a division of 64 bits, a call of which keeps all
    others of a thread in registers (remainders of 33554432 on an H200: 189 us, 236 of eight)."""
    if not long:
        return flat
    xblock = min(512, flat.xblock)
    return replace(flat, xblock=xblock, num_warps=xblock // 64)


def _plane(kernel: Kernel, columns: int, points: int, bits: Literal[32, 64]) -> Schedule | None:
    """Rows that share what is computed or read for their columns, or the reverse: 8 elements a
    thread, 16 where no windows are read. What resamples takes neighbours in pairs: what the lanes
    of a warp read then lies in one line. None where a tile would be a fifth empty, or where there
    are too few tiles."""
    windows, pairs = reads_windows(kernel), bends(kernel)
    widths = (256, 128, 64) if pairs else (256, 128, 64, 32, 16, 8)
    snug = [x for x in widths if 5 * columns >= 4 * (-(-columns // x) * x)]
    if not snug:
        return None
    x = snug[0]
    y = 128 * (16 if pairs and not windows else 8) // x
    if points < 2 * MULTIPROCESSORS * x * y:
        return None
    taken = 2 if pairs else int(not aligned(kernel))
    return Schedule("tiled", x, num_warps=4, index_bits=bits, yblock=y, vector=taken)


def _picking(columns: int, bits: Literal[32, 64]) -> Schedule:
    """A row, or a part of it, a program, 8 elements a thread: its place is looked up once."""
    x = min(1024, next_power_of_two(columns))
    while x > _ROW and 0 < columns % x < x // 2:
        x //= 2
    return Schedule("tiled", x, num_warps=x // 256, index_bits=bits)


def _persistent_columns(rblock: int, bits: Literal[32, 64]) -> Schedule:
    """Neighbouring rows, so that each step along the reduction reads a cache line or two; 16 or
    32 elements a thread (sums of four heads of bf16 on an H200: 113 us with 128 rows of a warp, 164
    with 64)."""
    xblock = 128 if rblock <= 4 else 64 if rblock <= 32 else 32
    warps = max(1, min(4, xblock * rblock // 512))
    return Schedule("persistent", xblock, rblock, warps, index_bits=bits)


def _looped_columns(
    kernel: Kernel, width: int, rows: int, beside: int, bits: Literal[32, 64]
) -> Schedule:
    """Few rows a program where there are few: each has the whole reduction to do, with as many
    warps as keep the multiprocessors reading; 16 elements a thread, 8 where each is a load of its
    own (10007 x 3001 of bf16 on an H200: 32 us, 36 with 16). Of columns that are stored tiles of
    2048 elements, also where programs are few: their rows are read again (softmax of 64 x 768 x 784
    of bf16: 75 us, 88 with 4096). Scans keep to small tiles: each
    step waits for the one before it. beside: of the rows, how many are neighbours in memory."""
    scanning = scans(kernel)
    if may_step(kernel) and width >= 2 * _STEPPING and beside >= min(rows, _LANES):
        return _stepping(kernel, width, rows, beside, bits)
    line = 0 if scanning else _stored_line(kernel)
    xblock = 64 if scanning else line or columns_at_once(kernel)
    least = MULTIPROCESSORS * (4 if scanning else 3) // 2  # programs
    while xblock > 16 and rows < least * xblock:
        xblock //= 2
    warps, programs = 4 if scanning or line else 2, -(-rows // xblock)
    while not scanning and warps < 32 and 8 * programs * warps < 3 * MULTIPROCESSORS * _WARPS:
        warps *= 2
    if line and programs >= 2 * MULTIPROCESSORS:
        steps = max(2048 // xblock, line if _stores_rows(kernel) else 0)
        rblock = min(steps, next_power_of_two(width))
        warps = 8 if line == 32 or xblock * steps > 2048 or warps > 4 else 4
        return Schedule("looped", xblock, rblock, warps, index_bits=bits)
    rblock = min(512 * warps // xblock, next_power_of_two(width))
    elements = 512 if scanning or moves_vectors(kernel) else 256  # of a warp
    warps = min(32, max(1, xblock * rblock // elements))
    return Schedule("looped", xblock, rblock, warps, index_bits=bits)


def _stores_rows(kernel: Kernel) -> bool:
    """What is stored lies along the inner axes, across the columns that are read: squares of lines
    suit both (gradient of a norm of channels, stored as it lies where they come last, 64 x 192 x
    3136 of bf16 on an H200: 80 us with 64 x 64, 88 with 64 x 32)."""
    return any(
        isinstance(s, Store) and s.index.coeff(p.axes[-1].symbol) == 1
        for p in kernel.phases
        if p.axes
        for s in p.body
    )


def _stored_line(kernel: Kernel) -> int:
    """Columns that are a line of the widest that is read or stored for each element, where
    something is stored; else 0. Wider tiles leave fewer rows to a step (layer norm of 192 channels
    of 64 x 56 x 56 of bf16 on an H200: 51 us with 64 x 32, 63 with 128 x 32, 70 with 128 x 16)."""
    inner = {a.symbol for p in kernel.phases for a in p.axes}
    last = kernel.axes[-1].symbol
    inside = [s for p in kernel.phases if p.axes for s in p.body]
    moved = [s for s in inside if isinstance(s, Load | Store) and last in s.index.free_symbols]
    if not any(isinstance(s, Store) for s in moved):
        return 0
    types = {b.name: b.type.dtype for b in kernel.buffers}
    sizes = {types[s.buffer].itemsize for s in moved if not inner.isdisjoint(s.index.free_symbols)}
    return max(16, _LINE // max(sizes, default=4))


def may_step(kernel: Kernel) -> bool:
    """It scans, and does nothing else along its inner axes that joins elements."""
    return scans(kernel) and not any(isinstance(s, Reduce) for s in statements(kernel))


def shares_factors(kernel: Kernel) -> bool:
    """It reduces columns, those of one place of the outer axes with the same factors: `w[i0*256 +
    r0]` beside `x[i0*802816 + r0*3136 + i1]`. A program has columns of one such place, so that it
    reads each factor, and computes what hangs on it alone, once."""
    if len(kernel.axes) < 2 or not reduces_columns(kernel):
        return False
    *others, last = (a.symbol for a in kernel.axes)
    return any(
        isinstance(s, Load)
        and last not in s.index.free_symbols
        and not s.index.free_symbols.isdisjoint(others)
        for p in kernel.phases
        if p.axes
        for s in p.body
    )


def shares_rows(kernel: Kernel) -> bool:
    """What is read to be reduced is the same for neighbours along the last axis: `y[i0*6144 +
    3*r0]` beside `x[i0*6144 + 3*i1]` (distances of all pairs). Tiles of several rows of one place
    of the outer axes read it once (the gradient of nearest points, 16 x 2048 x 2048 of f32 on an
    H200: 153 us in tiles of 16 x 64, 309 a row at a time)."""
    phases = [p for p in kernel.phases if p.axes]
    if not kernel.axes or len(phases) != 1 or reduces_columns(kernel):
        return False
    (body,) = (p.body for p in phases)
    places = {s.symbol for s in body if isinstance(s, Indirect)}
    own = {kernel.axes[-1].symbol, *places}
    inner = {a.symbol for a in phases[0].axes}
    loads = [s for s in body if isinstance(s, Load)]
    read = [s for s in loads if not inner.isdisjoint(s.index.free_symbols)]
    reduces = [s.op for s in body if isinstance(s, Reduce)]
    return (
        bool(read)
        and all(own.isdisjoint(s.index.free_symbols) for s in loads)
        and all(op in ("sum", "prod", "max", "min", "any", "all") for op in reduces)
        and not any(isinstance(s, Store | Scan) for s in body)
    )


def _stepping(
    kernel: Kernel, width: int, rows: int, beside: int, bits: Literal[32, 64]
) -> Schedule:
    """Each warp reads cache lines of its own rows, as many as registers hold, and a thread scans
    its one or two columns without a word to others; then warps are joined. (4096 x 16384
    of bf16 on an H200: 74 us, 175 where neighbouring threads have neighbouring rows.)"""
    xblock = 64 if 2 * rows >= 3 * MULTIPROCESSORS * 64 and beside > _LANES else 32
    inner = {a.symbol for p in kernel.phases for a in p.axes}
    loads = sum(
        isinstance(s, Load) and not inner.isdisjoint(s.index.free_symbols)
        for s in statements(kernel)
    )
    numbers = max(1, loads) * max(1, _element_bytes(kernel) // 4)
    if any(isinstance(s, Scan) and s.op in _PAIRS[Scan] for s in statements(kernel)):
        numbers *= 2
    steps = max(4, 32 // next_power_of_two(numbers))
    steps = min(steps, next_power_of_two(width) // _STEPPING)
    return Schedule(
        "looped", xblock, _STEPPING * steps, num_warps=_STEPPING, index_bits=bits, steps=steps
    )


def _persistent(
    rblock: int, rows: int, bits: Literal[32, 64], applies: bool, kept: int
) -> Schedule:
    """Rows up to 1024 wide share a program, 32 elements a thread: what a row costs besides its
    elements is shared, and so is, by more of the shortest, what a program costs. Wider rows take
    one program each, at 16 elements a thread: two 16-byte vectors of bf16 in flight from each
    operand, and few warps to join at the end of a reduction. Several rows that are read for a
    number have a warp for themselves, which joins nothing (cosines of 1024 elements of bf16 on an
    H200: 71 us, 74 of two rows a program). applies: something is stored for each element; kept:
    rows that are read."""
    if rblock == 1024 and kept == 2 and not applies and rows >= 4 * MULTIPROCESSORS:
        return Schedule("persistent", 1, rblock, 1, index_bits=bits)
    if rblock <= 1024:
        tile = 4096 if rblock <= 128 else 2048 if rblock > 256 or not applies else 1024
        xblock = max(1, min(max(64, 1024 // rblock), tile // rblock))
        while xblock > 1 and rows < 4 * MULTIPROCESSORS * xblock:
            xblock //= 2
        warps = max(1, xblock * rblock // (1024 if xblock > 1 else 512))
        return Schedule("persistent", xblock, rblock, warps, index_bits=bits)
    most = 16 if rblock <= HELD_ROW else 32
    return Schedule("persistent", 1, rblock, min(most, rblock // 512), index_bits=bits)


def _scatters(kernel: Kernel) -> bool:
    """Inner points store at places that are data, each at its own."""
    inside = [s for p in kernel.phases if p.axes for s in p.body]
    places = {s.symbol for s in inside if isinstance(s, Indirect)}
    stores = (s for s in inside if isinstance(s, Store))
    return any(not places.isdisjoint(s.index.free_symbols) for s in stores)


def _splits_rows(kernel: Kernel, schedule: Schedule) -> bool:
    """Several warps would share short rows, of which one does not reach the end with what an access
    moves: then they are one warp's, 32 elements a thread (softmax of 262144 rows of bf16 on an
    H200: of 49 elements 27 us, 54 with four warps; of 127, 42 and 87)."""
    if schedule.num_warps == 1 or schedule.rblock > _PERSISTENT_COLUMNS:
        return False
    sizes = {b.name: b.type.dtype.itemsize for b in kernel.buffers}

    def reaches(stmt: Load | Store) -> int:
        steps = [stmt.index.coeff(a.symbol) for a in kernel.axes]
        known = [int(n) for n in (*steps, stmt.index.as_coeff_Add()[0]) if n.is_Integer]
        return _LANES * gcd(max(1, 16 // sizes[stmt.buffer]), *known)

    return any(
        isinstance(s, Load | Store)
        and s.index.coeff(p.axes[-1].symbol) == 1
        and reaches(s) < schedule.rblock
        for p in kernel.phases
        if p.axes
        for s in p.body
    )


def _gathers(kernel: Kernel) -> bool:
    """Elements of a row are read at places that are data, each at its own."""
    inside = [s for p in kernel.phases if p.axes for s in p.body]
    places = {s.symbol for s in inside if isinstance(s, Indirect)}
    return any(isinstance(s, Load) and not places.isdisjoint(s.index.free_symbols) for s in inside)


def _steps_along(kernel: Kernel) -> bool:
    """Neighbours in rows lie a few elements apart, in all that is read of them, so that each thread
    of a warp has one of them (one of three numbers for each of 64 components of a mixture, 131072
    rows of f32 on an H200: 40 us, 61 with four warps, two of which share a row)."""
    loads = row_loads(kernel)
    inner = {p.axes[-1].symbol for p in kernel.phases if p.axes}
    steps = [s.index.coeff(a) for s in loads for a in inner if a in s.index.free_symbols]
    return bool(steps) and all(step.is_Integer and 1 < abs(step) <= _NARROW for step in steps)


def _overlap(kernel: Kernel) -> bool:
    """Neighbouring rows share elements (windows of a line): programs of as many rows as others have
    would read a few lines each, and a multiprocessor holds no more of them (maxima of 16 in steps
    of four, 4096 x 4096 of f32 on an H200: 27 us with 128 rows, 44 with 64)."""
    last = kernel.axes[-1].symbol
    for phase in kernel.phases:
        for stmt in phase.body if len(phase.axes) == 1 else ():
            if isinstance(stmt, Load) and stmt.index.coeff(phase.axes[0].symbol) == 1:
                step, length = stmt.index.coeff(last), phase.axes[0].extent
                if step.is_Integer and length.is_Integer and 0 < step < length:
                    return True
    return False


def _of_one_warp(schedule: Schedule) -> Schedule:
    """As many short rows as a warp holds in 8 elements a thread: places leave few registers, and
    of several warps each pair would share a row, element by element (softmax of 49 with biases of a
    table, 1024 x 8 x 49 rows of bf16 on an H200: 74 us, 112 with four warps of as much; its
    gradient 89 and 132)."""
    rows = max(1, 8 * _LANES // schedule.rblock)
    return replace(schedule, xblock=rows, num_warps=1) if schedule.rblock <= _ROW else schedule


def _of_few(schedule: Schedule) -> Schedule:
    """At most eight elements a thread: each store of a scattered element waits for a line of its
    own, so that many warps are to wait at once."""
    least = schedule.xblock * schedule.rblock // (8 * 32)
    return replace(schedule, num_warps=min(8, max(schedule.num_warps, least)))


def _of_wide(kernel: Kernel, schedule: Schedule) -> int:
    """Warps: twice as many where long rows are summed in 64 bits, 8 elements a thread (16384 x 4096
    of i32 on an H200: 67 us, 70 with 16), and where programs have several rows of which three of 32
    bits are read for what is stored (65536 x 512: 163 us, 177 with 32 elements a thread)."""
    read = row_loads(kernel)
    stored = any(isinstance(s, Store) for p in kernel.phases if p.axes for s in p.body)
    three = len({s.buffer for s in read}) > 2 and all(s.dtype.itemsize == 4 for s in read)
    if three and stored and schedule.xblock > 1 and schedule.rblock >= _ROW:
        return 2 * schedule.num_warps
    reduces = [s for s in statements(kernel) if isinstance(s, Reduce)]
    sums = all(s.dtype in (DType.i64, DType.u64) and s.op == "sum" for s in reduces)
    wide = bool(reduces) and sums
    long = schedule.xblock == 1 and schedule.rblock >= 4096
    return min(16, 2 * schedule.num_warps) if wide and long else schedule.num_warps


def _looped(kernel: Kernel, width: int, rows: int, bits: Literal[32, 64]) -> Schedule:
    """Few warps for what is read once: programs enough wait for memory. More where rows are few,
    and where rows of all programs that run at once would not stay in L2 until they are read
    again. 16 elements a thread; 8 where two numbers are kept for each, and of what is read once and
    not stored, if that is no one tensor in vectors that few programs share: they leave registers
    for programs to run beside one another (three sums of 64 x 4 x 147456 of f32 on an H200: 113 us,
    128 with 16)."""
    read_again = _read_again(kernel) * width
    pairs = any(
        isinstance(s, Reduce | Scan) and s.op in _PAIRS[type(s)] for s in statements(kernel)
    )
    warps = 4 if not read_again else 8
    while warps < 32 and rows * warps < MULTIPROCESSORS * _WARPS // 2:
        if warps == 8 and 2 * rows >= 7 * MULTIPROCESSORS:
            break  # nearly four programs a multiprocessor: 512 rows of bf16 39 us, 40 with 16 warps
        warps *= 2
    while warps < 32 and MULTIPROCESSORS * (_WARPS // warps) * read_again > _L2_BYTES // 2:
        warps *= 2
    rblock = min((256 if pairs else 512) * warps, next_power_of_two(width))
    phases = [p for p in kernel.phases if p.axes]
    applies = any(isinstance(s, Store) for p in phases for s in p.body)
    if warps <= 8 and not (pairs or read_again or applies):
        loads = {s: p.axes for p in phases for s in p.body if isinstance(s, Load)}
        if warps == 4 or len(loads) > 1 or any(access(kernel, *s) == 1 for s in loads.items()):
            plain = width >= _VERY_LONG and all(len(p.axes) == 1 for p in phases)
            rblock, warps = (4096, 16) if plain else (min(2048, rblock), 8)
            if piece := _piece(kernel):
                rblock, warps = piece, piece // 256
    return Schedule("looped", 1, rblock, min(warps, max(4, rblock // 256)), index_bits=bits)


def _read_twice(kernel: Kernel, width: int, rows: int, bits: Literal[32, 64]) -> Schedule | None:
    """Of rows past 4096 elements, which a program reads for a number and again to apply it: their
    registers are free for other programs, one of which reads while another stores (on an H200 an
    RMS norm of 16384 x 8192 of bf16 in 128 us, 133 of rows that are held; a gradient of 8192 x 5000
    of f32 in 118, 128). 16 warps, so that the rows of all programs stay in the caches until they
    are read again; 8 where there is room for twice as many and much is computed (quotients in
    8 bits: 98 us, 107). Rows of 16 bits that end within a chunk are held: 5000 of an RMS norm took
    89 us, and Inductor's two loops 92."""
    read = _read_again(kernel) * width
    programs = MULTIPROCESSORS * _WARPS // 16
    if width <= 4096 or not rereads(kernel) or not 0 < programs * read <= _L2_BYTES // 2:
        return None
    if rows < 4 * programs or len(_rows_read(kernel)) > _MOST_KEPT:
        return None
    if width % 2048 and min(s.dtype.itemsize for s in row_loads(kernel)) < 4:
        return None
    warps = 8 if divides(kernel) and 2 * programs * read <= _L2_BYTES // 3 else 16
    rblock = 2048 if 0 < width % 4096 <= 2048 else 4096
    return Schedule("looped", 1, rblock, warps, index_bits=bits)


def _piece(kernel: Kernel) -> int:
    """The last of several inner axes, up to a power of two, if a loop can step over such pieces one
    by one: where an element is in its piece is then the same in all steps (32768 x 1000 of f32 with
    weights of columns on an H200: 76 us, 86 in steps of 2048). Else 0."""
    spaces = inner_spaces(kernel)
    last = spaces[0][-1].extent
    if len(spaces) > 1 or len(spaces[0]) < 2 or not last.is_Integer:
        return 0
    wide = next_power_of_two(int(last))
    return wide if wide in _PIECES and 8 * last >= 7 * wide else 0


def _read_again(kernel: Kernel) -> int:
    """Bytes of an inner point that loops after the first read from memory again: elements of
    buffers that each row has for itself."""
    sizes = {b.name: b.type.dtype.itemsize for b in kernel.buffers}
    phases = [p for p in kernel.phases if p.axes]
    return sum(sizes[name] for name in _rows_read(kernel)) if len(phases) > 1 else 0


def _rows_read(kernel: Kernel) -> set[str]:
    """Buffers that each row has elements of its own in, which are read at inner points."""
    return {s.buffer for s in row_loads(kernel)}


def streams(kernel: Kernel, load: Load, inner: tuple[Axis, ...], schedule: Schedule) -> bool:
    """All that a kernel reads for numbers is one tensor, each line of which one program reads
    whole, and which pushes others out of L2 without fitting into it. inner: the axes of the load's
    phase. Larger tensors, several, and kernels that store what they read take longer if their lines
    leave L2 first (H200: 134 MB 4 to 14 % faster, 268 MB of chunks 4 % slower). So do columns of
    which a program reads pieces that are no whole lines, or shorter than one, as its neighbours
    read the rest, and what is read at several places (windows)."""
    applies = any(isinstance(s, Store) for p in kernel.phases if p.axes for s in p.body)
    if applies or len(_rows_read(kernel)) != 1:
        return False
    (read,) = (b.type for b in kernel.buffers if b.name == load.buffer)
    size = read.dtype.itemsize * sympy.Mul(*read.size)
    loads = [s for p in kernel.phases if p.axes == inner for s in p.body if isinstance(s, Load)]
    if any(s.buffer == load.buffer and s.index != load.index for s in loads):
        return False
    index = sympy.expand(load.index)
    own = all(index.coeff(a.symbol) != 0 for a in (*kernel.axes, *inner) if a.extent != 1)
    columns = reduces_columns(kernel)
    along = (*inner, *kernel.axes) if columns else (*kernel.axes, *inner)
    pieces = (schedule.xblock, *(index.coeff(a.symbol) for a in inner)) if columns else ()
    if any(n * read.dtype.itemsize % _LINE for n in pieces):
        return False
    last = inner[-1]
    run = last.extent * read.dtype.itemsize
    long = (
        len(inner) > 1
        and not columns
        and index.coeff(last.symbol) == 1
        and run.is_Integer
        and run >= _LINE
    )
    if not (size.is_Integer and own and (long or neighbours(index, along) > 1)):
        return False
    return bool(
        _L2_BYTES < size <= (_MOST_STREAMED if schedule.kind == "persistent" else _MOST_OF_CHUNKS)
    )


def walks(kernel: Kernel) -> bool:
    """Programs walk over rows, of which they store sums."""
    return any(isinstance(s, Store) and s.mode == "sum" for s in statements(kernel))


def writes(kernel: Kernel) -> set[str]:
    """Buffers that the kernel stores to."""
    return {s.buffer for s in statements(kernel) if isinstance(s, Store)}
