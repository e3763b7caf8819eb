"""Rows that are neighbours in memory, along the columns of which a kernel reduces or scans."""

import loop_ir as ir
from loop_ir.ir import scans, statements
from triton_emit.schedule.h200 import LANES, LINE, MULTIPROCESSORS, WARPS
from triton_emit.schedule.record import Schedule, next_power_of_two
from triton_emit.schedule.traits import PAIRS, held_numbers, row_bytes, rows_read
from triton_emit.vectors import moves_vectors, neighbours

# The longest columns that are held whole.
PERSISTENT_COLUMNS = 128
# Those that are held whole if they are read again, and the elements of a tile of them.
_WHOLE_COLUMNS, _WHOLE_TILE = 1024, 16384
# Warps that share the rows of a step of a scan of columns.
_STEPPING = 8


def persistent_columns(kernel: ir.Kernel, rblock: int) -> Schedule:
    """Neighbouring rows, so that each step along the reduction reads a cache line or two; 16 or
    32 elements a thread (sums of four heads of bf16 on an H200: 113 us with 128 rows of a warp, 164
    with 64; means of windows of 8 x 8 of bf16 on an H100: 51 us with 32, 63 with 16), 64 of what
    finds places, which warps would tell each other (argmax of 21 classes of f32 on an H100: 74 us
    by one warp, 101 by four). More where something is stored for each element: of columns of few
    rows a tile has several whole (means of 31 x 50 of f32 and what is left of them on an H100: 95
    us in tiles of 256 rows, 121 of 64)."""
    if any(isinstance(s, ir.Store) for p in kernel.phases if p.axes for s in p.body):
        tile = 8192 if fills_less(kernel.axes[-1], LINE) else 4096
        xblock = max(32, min(256, tile // rblock))
        warps = xblock * rblock // (512 if tile == 8192 else 1024)
        return Schedule("persistent", xblock, rblock, max(1, warps))
    xblock = 128 if rblock <= 4 else 64 if rblock <= 32 else 32
    held = 2048 if _places(kernel) else 1024 if rblock > 32 else 512
    warps = max(1, min(4, xblock * rblock // held))
    return Schedule("persistent", xblock, rblock, warps)


def whole_columns(kernel: ir.Kernel, width: int, rows: int, rblock: int) -> Schedule | None:
    """Of columns of up to 1024 elements that are read again for what is stored of each, and stored
    as they lie: tiles that programs hold, 32 elements a thread (on an H100, softmax of 64 x 512 x
    777 of f32 97 us, 146 in three loops, with its gradient 220 and 371; of 64 x 768 x 784 of bf16
    67 and 93; an RMS norm of 192 channels of 32 x 3192 of bf16 37 and 49). Twice as many columns
    where no access moves two of the longest (1024 x 257 of bf16: 97 us, 116; 156 in three loops).
    None where much of a tile would be empty, or programs few."""
    line = _stored_line(kernel)
    if not line or _stores_rows(kernel) or scans(kernel) or 4 * width < 3 * rblock:
        return None
    if rblock > _WHOLE_COLUMNS or not 0 < held_numbers(kernel) <= 2:
        return None
    numbers = held_numbers(kernel)
    xblock = min(line if numbers == 1 else 32, _WHOLE_TILE // rblock)
    if rblock == _WHOLE_COLUMNS and not moves_vectors(kernel):
        xblock *= 2
    if rows < 2 * MULTIPROCESSORS * xblock:
        return None
    warps = max(1, xblock * rblock * numbers // 2048)
    return Schedule("persistent", xblock, rblock, warps)


def looped_columns(kernel: ir.Kernel, width: int, rows: int, beside: int) -> Schedule:
    """Few rows a program where there are few: each has the whole reduction to do, with as many
    warps as keep the multiprocessors reading; 16 elements a thread, 8 where each is a load of its
    own (10007 x 3001 of bf16 on an H200: 32 us, 36 with 16) or rows have factors (means under a
    mask, 64 x 1023 x 1024 of bf16 on an H100: 58 us, 64 with 16). Of columns that are stored tiles
    of 2048 elements, also where programs are few: their rows are read again (softmax of 64 x 768 x
    784 of bf16: 75 us, 88 with 4096). Scans keep to small tiles: each step waits for the one before
    it. Longer steps of what is stored across them (softmax of 20 x 1200 x 1800
    of f32, transposed, on an H100: 184 us with 256, 203 with 128, 227 with 64). beside: of the
    rows, how many are neighbours in memory."""
    scanning = scans(kernel)
    if may_step(kernel) and width >= 2 * _STEPPING and beside >= min(rows, LANES):
        return _stepping(kernel, width, rows, beside)
    line = 0 if scanning else _stored_line(kernel)
    xblock = 64 if scanning else line or ir.columns_at_once(kernel)
    least = MULTIPROCESSORS * (4 if scanning else 3) // 2  # programs
    while xblock > 16 and rows < least * xblock:
        xblock //= 2
    programs = -(-rows // xblock)
    few = scanning or line or 16 * programs < 3 * MULTIPROCESSORS * WARPS
    alone = moves_vectors(kernel) and (line or _loads(kernel) == 1)
    warps = 2 if alone and not few else 4
    while not scanning and warps < 32 and 4 * programs * warps < MULTIPROCESSORS * WARPS:
        warps *= 2
    if line and programs >= 2 * MULTIPROCESSORS:
        steps = max(2048 // xblock, line if _stores_rows(kernel) else 0)
        rblock = min(steps, next_power_of_two(width))
        if line == 32 and width >= LINE and len(rows_read(kernel)) == 1:
            steps = LINE if width < 8 * LINE else 2 * LINE
            if 10 * (-width % steps) > 3 * width:  # 150 on an H100: 190 us of 128, 125 of 64
                steps //= 2
            return Schedule("looped", xblock, steps, steps // 8)
        many = 32 * programs >= 3 * MULTIPROCESSORS * WARPS
        warps = 4 if many and line != 32 and xblock * steps <= 2048 else 8
        return Schedule("looped", xblock, rblock, warps)
    if warps == 4 and xblock == 64 and _places(kernel):
        rblock, warps = min(32, next_power_of_two(width)), max(1, 16 // row_bytes(kernel))
        return Schedule("looped", 32, rblock, warps)
    if few and not scanning and warps == 4 and _reads_alone(kernel):
        # columns that begin at odd places (extremes of 6000 x 5001 of f32 on an H100: 58 us, 90 of
        # 64 columns in steps of 16; sums of 20000 x 5001 of bytes 77, 84 of 32, 117)
        rblock = min(64 if row_bytes(kernel) == 1 else 32, next_power_of_two(width))
        return Schedule("looped", min(xblock, 32), rblock, 8)
    if not few and _element_bytes(kernel) == 4 and not moves_vectors(kernel):
        # pieces of lines that two programs share, four elements a thread, each a load (the middle
        # of 32 x 4096 x 4095 of f32 on an H100: 771 us, 915 of 32 columns and 8 warps; on an H200
        # of those 530, and 572 of 16 elements a thread)
        rblock = min(64, next_power_of_two(width))
        return Schedule("looped", 64, rblock, max(1, rblock // 2))
    elements = 512 if scanning or alone else 256  # of a warp
    if not (scanning or line) and sum(bool(p.axes) for p in kernel.phases) > 1:
        # read again for squares of distances from the mean, which the caches have meanwhile (of
        # 60001 x 700 of f32, dynamic, on an H100: 129 us, 163 of 16 elements a thread)
        elements, warps = 128, max(warps, 16)
    rblock = min(elements * warps // xblock, next_power_of_two(width))
    warps = min(32, max(1, xblock * rblock // elements))
    return Schedule("looped", xblock, rblock, warps)


def _places(kernel: ir.Kernel) -> bool:
    """It finds the places of extremes: narrow tiles, few elements a thread, which holds two numbers
    for each (argmax of the middle of 64 x 4096 x 4095 on an H100: of bf16 815 us by eight warps,
    994 in tiles of 64 x 16 by four; of f32 776 by four, 819)."""
    return any(
        isinstance(s, ir.Reduce) and s.op in ("argmax", "argmin") for s in statements(kernel)
    )


def _reads_alone(kernel: ir.Kernel) -> bool:
    """It folds one tensor, no access of which moves vectors, and has no long steps to do."""
    steps = any(isinstance(s, ir.Reduce) and s.op == "welford" for s in statements(kernel))
    return _loads(kernel) == 1 and not moves_vectors(kernel) and not steps


def _loads(kernel: ir.Kernel) -> int:
    return sum(isinstance(s, ir.Load) for p in kernel.phases if p.axes for s in p.body)


def picked_columns(kernel: ir.Kernel, rows: int) -> Schedule | None:
    """Of sums of rows at places that are data: each thread has as many neighbouring columns as an
    access moves, and goes from row to row (bags of 100 rows of 64 of f32, 2**13 of them, by hand on
    an H200: 37 us, 57 in steps of 8 rows, 89 in tiles of 8 columns, 97 by torch's)."""
    phases = [p for p in kernel.phases if p.axes]
    if len(phases) != 1 or not kernel.axes or not ir.picks_along(kernel, kernel.axes[-1]):
        return None
    if any(isinstance(s, ir.Store | ir.Scan) for s in phases[0].body):
        return None
    loads = [s for s in phases[0].body if isinstance(s, ir.Load)]
    beside = [s for s in loads if neighbours(s.index, kernel.axes[-1:]) > 1]
    if not beside:
        return None
    xblock, each = 512, 16 // max(s.dtype.itemsize for s in beside)
    while xblock > LANES * each and rows < 2 * MULTIPROCESSORS * xblock:
        xblock //= 2
    return Schedule("looped", xblock, 1, max(1, xblock // (LANES * each)))


def _stores_rows(kernel: ir.Kernel) -> bool:
    """What is stored lies along the inner axes, across the columns that are read: squares of lines
    suit both (gradient of a norm of channels, stored as it lies where they come last, 64 x 192 x
    3136 of bf16 on an H200: 80 us with 64 x 64, 88 with 64 x 32)."""
    return any(
        isinstance(s, ir.Store) and s.index.coeff(p.axes[-1].symbol) == 1
        for p in kernel.phases
        if p.axes
        for s in p.body
    )


def _stored_line(kernel: ir.Kernel) -> int:
    """Columns that are a line of the widest that is read or stored for each element, where
    something is stored; else 0. Wider tiles leave fewer rows to a step (layer norm of 192 channels
    of 64 x 56 x 56 of bf16 on an H200: 51 us with 64 x 32, 63 with 128 x 32, 70 with 128 x 16)."""
    inner = {a.symbol for p in kernel.phases for a in p.axes}
    last = kernel.axes[-1].symbol
    inside = [s for p in kernel.phases if p.axes for s in p.body]
    moved = [
        s for s in inside if isinstance(s, ir.Load | ir.Store) and last in s.index.free_symbols
    ]
    if not any(isinstance(s, ir.Store) for s in moved):
        return 0
    types = {b.name: b.type.dtype for b in kernel.buffers}
    sizes = {types[s.buffer].itemsize for s in moved if not inner.isdisjoint(s.index.free_symbols)}
    return max(16, LINE // max(sizes, default=4))


def may_step(kernel: ir.Kernel) -> bool:
    """It scans, and does nothing else along its inner axes that joins elements."""
    return scans(kernel) and not any(isinstance(s, ir.Reduce) for s in statements(kernel))


def fills_less(axis: ir.Axis, xblock: int) -> bool:
    """The points of an axis are fewer than half of a block."""
    return bool(axis.extent.is_Integer and 2 * axis.extent < xblock)


def shares_factors(kernel: ir.Kernel, xblock: int) -> bool:
    """It reduces columns, those of one place of the outer axes with the same factors: `w[i0*256 +
    r0]` beside `x[i0*802816 + r0*3136 + i1]`. A program has columns of one such place, so that it
    reads each factor, and computes what hangs on it alone, once. Not where the place has so few
    that less than half of a program's `xblock` would be some."""
    if len(kernel.axes) < 2 or not ir.reduces_columns(kernel):
        return False
    if fills_less(kernel.axes[-1], xblock):
        return False
    *others, last = (a.symbol for a in kernel.axes)
    return any(
        isinstance(s, ir.Load)
        and last not in s.index.free_symbols
        and not s.index.free_symbols.isdisjoint(others)
        for p in kernel.phases
        if p.axes
        for s in p.body
    )


def _stepping(kernel: ir.Kernel, width: int, rows: int, beside: int) -> Schedule:
    """Each warp reads cache lines of its own rows, as many as registers hold, and a thread scans
    its one or two columns without a word to others; then warps are joined. (4096 x 16384
    of bf16 on an H200: 74 us, 175 where neighbouring threads have neighbouring rows.)"""
    xblock = 64 if 2 * rows >= 3 * MULTIPROCESSORS * 64 and beside > LANES else 32
    inner = {a.symbol for p in kernel.phases for a in p.axes}
    loads = sum(
        isinstance(s, ir.Load) and not inner.isdisjoint(s.index.free_symbols)
        for s in statements(kernel)
    )
    numbers = max(1, loads) * max(1, _element_bytes(kernel) // 4)
    if any(isinstance(s, ir.Scan) and s.op in PAIRS[ir.Scan] for s in statements(kernel)):
        numbers *= 2
    steps = max(4, 32 // next_power_of_two(numbers))
    steps = min(steps, next_power_of_two(width) // _STEPPING)
    return Schedule("looped", xblock, _STEPPING * steps, num_warps=_STEPPING, steps=steps)


def _element_bytes(kernel: ir.Kernel) -> int:
    """Bytes of the widest element that a kernel keeps a full tile of."""
    sizes = [b.type.dtype.itemsize for b in kernel.buffers if len(b.type.size) > 1]
    return max(sizes, default=4)
