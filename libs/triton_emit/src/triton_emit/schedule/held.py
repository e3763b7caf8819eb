"""Rows that a program holds whole."""

from dataclasses import replace
from math import gcd

from loop_ir import (
    HELD_ROW,
    DType,
    Indirect,
    Kernel,
    Load,
    Reduce,
    Store,
    reduces_columns,
    row_of_pieces,
)
from loop_ir.ir import at_hints, hints_of, once, scans, statements
from triton_emit.rereading import computes_again
from triton_emit.schedule import traits
from triton_emit.schedule.h200 import LANES, MULTIPROCESSORS, NARROW, ROW
from triton_emit.schedule.record import Schedule, next_power_of_two, piece_of

_SHORT = 128
# The shortest rows that are cut into pieces.
_LEAST_SHORT = 13
# The shortest tile that is worth cutting, and numbers that a thread has room for meanwhile.
_LEAST_CUT, _MOST_NUMBERS = 4096, 64
# Loads of a thread: windows of a row are many.
_MOST_LOADS = 1024
# Rows that are too many for 32 elements of each a thread, as the numbers that scans take along.
_MANY = 4
# Where nothing but the row itself is kept: 32 elements a thread.
WIDEST_ROW = 32768


def held(kernel: Kernel, rblock: int, rows: int) -> Schedule:
    """As `_persistent` says, but for what a kernel does with short rows or with wide numbers."""
    applies = any(isinstance(s, Store) for p in kernel.phases if p.axes for s in p.body)
    wide = any(s.dtype.itemsize > 2 for s in traits.row_loads(kernel))
    kept = _MANY if scans(kernel) else len(traits.rows_read(kernel))
    if (short := short_pieces(kernel, rows)) is not None:
        return short
    schedule = _persistent(rblock, rows, applies, kept, wide)
    if (cut := cut_rows(kernel, schedule)) is not None:
        return cut
    if _scatters(kernel):
        return _of_few(schedule)
    if schedule.xblock > 1 and (_gathers(kernel) or _steps_along(kernel)):
        return _of_one_warp(schedule)
    if schedule.xblock > 1 and schedule.rblock <= 32 and _overlap(kernel):
        xblock, warps = 2 * schedule.xblock, 2 * schedule.num_warps
        return replace(schedule, xblock=xblock, num_warps=warps)
    if _splits_rows(kernel, schedule):
        return replace(schedule, xblock=min(schedule.xblock, 1024 // schedule.rblock), num_warps=1)
    if schedule.xblock > 1 and schedule.rblock <= LANES and _moved_at_once(kernel) == 1:
        # one of 15 chosen by its place, 3 M of f32 on an H100: 233 us, 448 of twice as many
        warps = schedule.xblock * schedule.rblock // (_of_thread(kernel) * LANES)
        schedule = replace(schedule, num_warps=max(schedule.num_warps, warps))
    return _of_windows(kernel, _of_wide(kernel, schedule))


def _persistent(rblock: int, rows: int, applies: bool, kept: int, wide: bool) -> Schedule:
    """Rows up to 1024 wide share a program, 32 elements a thread: what a row costs besides its
    elements is shared, and so is, by more of the shortest, what a program costs. Wider rows take
    one program each, at 16 elements a thread, two 16-byte vectors of bf16 in flight from each
    operand, or by 8 warps: few to join at the end of a reduction (losses of soft targets of 8192 in
    bf16 on an H100: 213 us, 235 of 16). Rows past 256 elements of which more
    is moved than read for one number have a warp for themselves, which joins nothing (on an H100,
    layer norm of 144000 x 320 of bf16: 69 us, 79 of two warps with four rows; gradients of cosines
    of 90000 x 500: 142 us, 152 of two warps), those of wider elements, or three rows over 512, two
    (gradient of a masked softmax with dropout: 424 us, 583 of one). As few a thread of short rows
    that are stored, wide ones or of 64 (softmax of 17 of f32: 131 us, 201 of 32).
    applies: something is stored for each element; kept: rows that are read."""
    if ROW < rblock <= 1024 and (applies or kept > 1) and rows >= 4 * MULTIPROCESSORS:
        each = 512 if wide or (rblock > 512 and kept > 2) else 1024  # elements of a warp
        xblock, warps = max(1, each // rblock), max(1, rblock // each)
        return Schedule("persistent", xblock, rblock, warps)
    if rblock <= 1024:
        tile = 4096 if rblock <= 128 else 2048 if rblock > 256 or not applies else 1024
        xblock = max(1, min(max(64, 1024 // rblock), tile // rblock))
        while xblock > 1 and rows < 4 * MULTIPROCESSORS * xblock:
            xblock //= 2
        few = applies and (xblock == rblock == 64 or (wide and rblock <= 32))
        each = 512 if xblock == 1 or few else 1024
        warps = max(1, xblock * rblock // each)
        return Schedule("persistent", xblock, rblock, warps)
    most = 32 if rblock > HELD_ROW else 16 if kept >= _MANY else 8
    return Schedule("persistent", 1, rblock, min(most, rblock // 512))


def short_pieces(kernel: Kernel, rows: int) -> Schedule | None:
    """Rows of up to 512 elements that begin at odd places, and shorter ones that would leave much
    of a tile empty, in about eight pieces, which a few lanes of a warp hold: a warp has several
    rows, whose lanes tell each other of them three times, not five, and hardly one is idle. 8
    elements a thread where each is stored by itself, else 32 bytes, or 16 where none is (on an
    H100, layer norm of 33 of f32: 143 us, 187 in tiles 64 wide, 163 of 16 elements; a masked
    softmax of 45 of f16: 138, 515). None of other rows, and of those that share elements or whose
    elements lie apart."""
    row, moved = row_of_pieces(kernel), _moved_at_once(kernel)
    if not _LEAST_SHORT <= row <= (2 * ROW if moved == 1 else ROW if moved else 0):
        return None
    apart = _scatters(kernel) or _gathers(kernel) or _steps_along(kernel)
    if apart or reduces_columns(kernel) or _overlap(kernel):
        return None
    width = max(8, moved)
    while row > 8 * width and width < LANES * moved:
        width *= 2
    count, whole = -(-row // width), next_power_of_two(row)
    if count < 2 or (moved > 1 and 8 * width * count > 7 * whole):
        return None
    # of those that walk over rows, a multiprocessor has two programs
    warps = 4 if not traits.walks(kernel) else 16 if moved == 1 else 8
    elements = _of_thread(kernel) * warps * LANES
    xblock = max(1 << (elements // (width * count)).bit_length() - 1, warps * LANES // width)
    while min(xblock, warps) > 1 and rows < 4 * MULTIPROCESSORS * xblock:
        xblock, warps = xblock // 2, warps // 2
    return Schedule("persistent", xblock, width, warps)


@once
def _of_thread(kernel: Kernel) -> int:
    """Elements of a thread that has some of several short rows."""
    if not any(isinstance(s, Store) for p in kernel.phases if p.axes for s in p.body):
        return 16
    if _moved_at_once(kernel) == 1:
        return 8
    widest = max((s.dtype.itemsize for s in traits.row_loads(kernel)), default=4)
    return 16 if traits.walks(kernel) else 32 // widest


def together(kernel: Kernel, share: int) -> Schedule:
    """Of a row that `share` programs hold, at most 64 numbers of it a thread, 32 of bytes (on an
    H100, logarithms of probabilities of 128256 in 213 us, 247 of 32 a thread, cosines of 32768 in
    940 and 1234; 499500 bytes in 124, 142 of 64)."""
    piece = piece_of(int(traits.inner_bound(kernel) or 1), share)
    rblock = next_power_of_two(piece)
    each = 32 if traits.row_bytes(kernel) == 1 else 64
    numbers = max(traits.held_numbers(kernel), len(traits.rows_read(kernel)))
    warps = max(1, rblock * next_power_of_two(numbers) // (each * LANES))
    return Schedule("persistent", 1, rblock, min(32, warps), share=share)


def long_rows(kernel: Kernel) -> Schedule | None:
    """Rows of twice as many elements that loops would compute functions of again, by 16 warps: in
    pieces for one reduction (an RMS norm of gated rows, 4096 x 12800 of bf16 on an H200: 80 us, 111
    in two loops), in one tile for several, each of which would wait for all pieces, if they are of
    16 bits and it is not half empty (softmax of 4096 x 12800: 63 us, 73 in three loops, 86 in
    pieces). None of others."""
    row = row_of_pieces(kernel)
    room = traits.held_numbers(kernel) * row <= _MOST_NUMBERS * LANES * 16
    readings = computes_again(kernel) if HELD_ROW < row <= 2 * HELD_ROW and room else 0
    if readings == 2:
        return Schedule("persistent", 1, HELD_ROW, 16)
    if readings > 2 and 3 * row >= 4 * HELD_ROW and traits.read_again(kernel) * row < 4 * HELD_ROW:
        return Schedule("persistent", 1, 2 * HELD_ROW, 16)
    return None


def reads_one_row(kernel: Kernel) -> bool:
    """All that is read at inner points is one buffer's row, and it is summed once: a softmax, which
    also holds its exponentials, leaves room for one program a multiprocessor."""
    found = {s.buffer for p in kernel.phases if p.axes for s in p.body if isinstance(s, Load)}
    reduces = [s.op for s in statements(kernel) if isinstance(s, Reduce)]
    return len(found) == 1 and traits.read_again(kernel) > 0 and reduces == ["sum"]


def cut_rows(kernel: Kernel, schedule: Schedule) -> Schedule | None:
    """Long rows that leave much of a tile empty in pieces, with half as many warps: what a thread
    holds more costs less than lanes that compute for nothing (on an H200, 8192 x 5000 of f32: a
    divergence of softmaxes in 243 us, 374 of one tile; its gradient, which holds four numbers for
    each element, in 411, 487 of one tile, 459 with half the warps; 8192 x 5120 of bf16 in 8 bits in
    38, 52 of one tile). None of other rows."""
    row = row_of_pieces(kernel)
    if schedule.rblock < _LEAST_CUT or not 0 < 5 * row <= 4 * schedule.rblock:
        return None
    warps = max(schedule.num_warps // 2, schedule.rblock // 1024)
    if (
        not traits.walks(kernel)
        and traits.held_numbers(kernel) * row > _MOST_NUMBERS * LANES * warps
    ):
        warps *= 2
    return replace(schedule, rblock=schedule.rblock // 2, num_warps=warps)


@once
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
    if schedule.num_warps == 1 or schedule.rblock > _SHORT:
        return False
    return any(
        isinstance(s, Load | Store)
        and s.index.coeff(p.axes[-1].symbol) == 1
        and LANES * _moved(kernel, s) < schedule.rblock
        for p in kernel.phases
        if p.axes
        for s in p.body
    )


def _moved(kernel: Kernel, stmt: Load | Store) -> int:
    """How many elements of a row one access moves, wherever the row begins. Of sizes that are not
    known Triton knows whether 16 divides them."""
    (size,) = (b.type.dtype.itemsize for b in kernel.buffers if b.name == stmt.buffer)
    steps = [stmt.index.coeff(a.symbol) for a in kernel.axes]
    found, hints = [max(1, 16 // size)], hints_of(kernel.symbols)
    for n in (*steps, stmt.index.as_coeff_Add()[0]):
        found.append(int(n) if n.is_Integer else 16 if at_hints(n, hints) % 16 == 0 else 1)
    return gcd(*found)


@once
def _moved_at_once(kernel: Kernel) -> int:
    """The same of all that is read or stored of rows; 0 where nothing is."""
    own = {a.symbol for a in kernel.axes}
    inside = [s for p in kernel.phases if p.axes for s in p.body if isinstance(s, Load | Store)]
    return min((_moved(kernel, s) for s in inside if own & s.index.free_symbols), default=0)


@once
def _gathers(kernel: Kernel) -> bool:
    """Elements of a row are read at places that are data, each at its own."""
    inside = [s for p in kernel.phases if p.axes for s in p.body]
    places = {s.symbol for s in inside if isinstance(s, Indirect)}
    return any(isinstance(s, Load) and not places.isdisjoint(s.index.free_symbols) for s in inside)


@once
def _steps_along(kernel: Kernel) -> bool:
    """Neighbours in rows lie a few elements apart, in all that is read of them, so that each thread
    of a warp has one of them (one of three numbers for each of 64 components of a mixture, 131072
    rows of f32 on an H200: 40 us, 61 with four warps, two of which share a row)."""
    loads = traits.row_loads(kernel)
    inner = {p.axes[-1].symbol for p in kernel.phases if p.axes}
    steps = [s.index.coeff(a) for s in loads for a in inner if a in s.index.free_symbols]
    return bool(steps) and all(step.is_Integer and 1 < abs(step) <= NARROW for step in steps)


@once
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
    rows = max(1, 8 * LANES // schedule.rblock)
    return replace(schedule, xblock=rows, num_warps=1) if schedule.rblock <= ROW else schedule


def _of_few(schedule: Schedule) -> Schedule:
    """At most eight elements a thread: each store of a scattered element waits for a line of its
    own, so that many warps are to wait at once."""
    least = schedule.xblock * schedule.rblock // (8 * 32)
    return replace(schedule, num_warps=min(8, max(schedule.num_warps, least)))


def _of_windows(kernel: Kernel, schedule: Schedule) -> Schedule:
    """As few elements a thread as let instruction caches hold its loads (sums of 64 channels of
    maxima of 6 x 6 x 6, compiled: 777 KB of 32 elements a thread, 98 of four)."""
    most = max(1, _MOST_LOADS // max(1, len(traits.row_loads(kernel))))
    xblock, warps = schedule.xblock, schedule.num_warps
    while xblock * schedule.rblock > 32 * warps * most and (warps < 4 or xblock > 1):
        xblock, warps = (xblock, 2 * warps) if warps < 4 else (xblock // 2, warps)
    loads = len(traits.row_loads(kernel)) if xblock == 1 else 0  # of rows that are a program each
    while loads > 4 and warps < 32 and loads * schedule.rblock > _MOST_NUMBERS * LANES * warps:
        warps *= 2
    return replace(schedule, xblock=xblock, num_warps=warps)


def _of_wide(kernel: Kernel, schedule: Schedule) -> Schedule:
    """Twice as many warps where long rows are summed in 64 bits, 8 elements a thread (16384 x 4096
    of i32 on an H200: 67 us, 70 with 16). Half the rows where several of 32 bits are read for what
    is stored, 16 elements a thread (two of 65536 x 256: 52 us, 57 with 32; a gradient that reads
    three of 65536 x 512: 160, 177), or long ones of 16 (gradients of cosines of 65536 x 768 of
    bf16 on an H100: 154 us, 181)."""
    read = traits.row_loads(kernel)
    stored = any(isinstance(s, Store) for p in kernel.phases if p.axes for s in p.body)
    wide = all(s.dtype.itemsize == 4 for s in read)
    several = len({s.buffer for s in read}) > 1 and wide
    if several and stored and schedule.xblock > 1:
        return replace(schedule, xblock=schedule.xblock // 2)
    reduces = [s for s in statements(kernel) if isinstance(s, Reduce)]
    sums = all(s.dtype in (DType.i64, DType.u64) and s.op == "sum" for s in reduces)
    if reduces and sums and schedule.xblock == 1 and schedule.rblock >= 4096:
        return replace(schedule, num_warps=min(16, 2 * schedule.num_warps))
    return schedule
