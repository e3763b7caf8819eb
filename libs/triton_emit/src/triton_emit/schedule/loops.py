"""Rows that a program walks over, chunk by chunk or one after the other."""

from dataclasses import replace

from loop_ir import HELD_ROW, Kernel, Load, Reduce, Scan, Store, row_of_pieces
from loop_ir.ir import statements
from triton_emit.rereading import times_read
from triton_emit.schedule import traits
from triton_emit.schedule.columns import may_step
from triton_emit.schedule.h200 import L2_BYTES, LONG, MULTIPROCESSORS, WARPS
from triton_emit.schedule.held import cut_rows, short_pieces
from triton_emit.schedule.record import Schedule, next_power_of_two
from triton_emit.vectors import access

# Elements of a piece of a row that is worth a step of a loop.
_PIECES = (1024, 2048)
# Of rows that a program walks over, what is read ahead, and at most.
_AHEAD_BYTES, MOST_AHEAD = 24 << 10, 96 << 10
# And one that is read once for a number, in steps of twice as many elements by twice as many warps
# (sums of squares of 8192 x 12288 of bf16 on an H200: 53 us, 56; not three sums of bytes, 16384 x
# 20001 on an H100: 521 us, 195). So is one whose elements of 32 bits are a load each (rows of 9000
# x 9001 on an H100: 118 us, 125).
_VERY_LONG = 12288
# Rows that 32 warps hold, 16 elements of each a thread.
MOST_KEPT = 2


def looped(kernel: Kernel, width: int, rows: int) -> Schedule:
    """Few warps for what is read once: programs enough wait for memory. More where rows are few or
    long, and where rows of all programs that run at once would not stay in L2 until they are read
    again. 16 elements a thread; 8 where two numbers are kept for each, and of what is read once and
    not stored (half of that again of 2048 elements and more in a line: a masked loss of f32 on an
    H100 117 us, 140 of 8 warps), if that is no one tensor in vectors that few programs share: they
    leave registers for programs to run beside one another (three sums of 64 x 4 x 147456 of f32 on
    an H200: 113 us, 128 with 16). Fewer of rows that are read again and would leave much of their
    last chunk empty (softmax of 8192 x 10000 of bf16: 90 us, 99 in chunks of 4096, 140 in chunks of
    8192). 32 warps for what applies rows past 16384 elements (of 3000 x 33000 of bf16 on an H100:
    147 us, 181)."""
    again = traits.read_again(kernel) * width
    pairs = any(
        isinstance(s, Reduce | Scan) and s.op in traits.PAIRS[type(s)] for s in statements(kernel)
    )
    warps = 4 if not again else 8 if width <= HELD_ROW else 16
    while warps < 32 and rows * warps < MULTIPROCESSORS * WARPS // 2:
        if warps == 8 and 2 * rows >= 7 * MULTIPROCESSORS:
            break  # nearly four programs a multiprocessor: 512 rows of bf16 39 us, 40 with 16 warps
        warps *= 2
    while warps < 32 and MULTIPROCESSORS * (WARPS // warps) * again > 2 * L2_BYTES // 3:
        warps *= 2
    phases = [p for p in kernel.phases if p.axes]
    applies = any(isinstance(s, Store) for p in phases for s in p.body)
    if again and applies and width > 2 * HELD_ROW:
        warps = 32
    lines = all(len(p.axes) == 1 for p in phases)
    small = not (warps == 32 and lines) if pairs else warps == 32 and not again
    each = 256 if small else 512
    online = any(isinstance(s, Reduce) and s.op == "softmax" for s in statements(kernel))
    if warps == 32 and online and traits.inner_bound(kernel) is None and width <= 16 * HELD_ROW:
        # two programs a multiprocessor, of which one waits (softmax of dynamic rows of bf16 on an
        # H100, 2500 of 32300 165 us, 382 of 16 elements a thread, 350 of 89571 109 and 178)
        each = 128
    rblock = min(each * warps, next_power_of_two(width))
    if again and rows >= 2 * MULTIPROCESSORS:
        least = max(2048, 128 * warps)
        while rblock > least and 10 * -(-width // rblock) * rblock > 11 * width:
            rblock //= 2
    if warps <= 8 and not (pairs or again or applies):
        loads = {s: p.axes for p in phases for s in p.body if isinstance(s, Load)}
        if warps == 4 or len(loads) > 1 or any(access(kernel, *s) == 1 for s in loads.items()):
            folds = sum(isinstance(s, Reduce) for p in phases for s in p.body)
            single = folds == 1 and traits.row_bytes(kernel) > 1
            steps = (s.index.coeff(a.symbol) for s in loads for a in kernel.axes)
            apart = traits.row_bytes(kernel) == 4 and any(step.is_odd for step in steps)
            long = width >= (2 * LONG if apart and len(loads) == 1 else _VERY_LONG)
            plain = single and long and all(len(p.axes) == 1 for p in phases)
            rblock, warps = (4096, 16) if plain else (min(2048, rblock), 8)
            if piece := _piece(kernel):
                rblock, warps = piece, piece // 256
    moved = {(s.buffer, s.index) for p in phases for s in p.body if isinstance(s, Load | Store)}
    many = applies and not again and len(moved) > 4
    if many:
        rblock, warps = min(1024, rblock), 8
    most = max(4, rblock // (128 if many or (again and width > HELD_ROW) else 256))
    warps = min(warps, most)
    scanning = any(isinstance(s, Scan) for s in statements(kernel))
    if warps == 8 and rblock >= 2048 and lines and not (again or scanning):
        warps = 16
    return Schedule("looped", 1, rblock, warps)


def read_twice(kernel: Kernel, width: int, rows: int) -> Schedule | None:
    """Of rows past 4096 elements, which a program reads for a number and again to apply it: their
    registers are free for other programs, one of which reads while another stores (on an H200 an
    RMS norm of 16384 x 8192 of bf16 in 128 us, 133 of rows that are held; a gradient of 8192 x 5000
    of f32 in 118, 128; 10240 x 8000 of f32 with a mask, standardised by three loops, in 163, 185).
    16 warps, so that the rows of all programs stay in the caches until they are read again (in 8
    bits on an H100: 136 us, 141 of eight). Rows of 16 bits that end within a chunk are held: 5000
    of an RMS norm took 89 us, and Inductor's two loops 92."""
    read = traits.read_again(kernel) * width
    programs = MULTIPROCESSORS * WARPS // 16
    readings = times_read(kernel) if width > 4096 else 0
    if not readings or not 0 < programs * read <= L2_BYTES // 2:
        return None
    if rows < 4 * programs or len(traits.rows_read(kernel)) > MOST_KEPT:
        return None
    if width % 2048 and traits.row_bytes(kernel) < 4:
        return None
    rblock = 2048 if readings > 2 or 0 < width % 4096 <= 2048 else 4096
    return Schedule("looped", 1, rblock, 16)


def scanned_chunks(kernel: Kernel, width: int, rblock: int) -> Schedule | None:
    """Of rows that are scanned on their one reading and would leave much of a tile empty: chunks of
    8 elements a thread, each of which waits for the one before (means and deviations of what came
    so far of 9000 x 4100 of f32 on an H100: 342 us in tiles of 8192, Inductor 220)."""
    once = sum(bool(p.axes) for p in kernel.phases) == 1 and may_step(kernel)
    if not once or rblock < 4 * LONG or 5 * width > 4 * rblock or not traits.can_loop(kernel):
        return None
    return Schedule("looped", 1, LONG, 4)


def _piece(kernel: Kernel) -> int:
    """The last of several inner axes, up to a power of two, if a loop can step over such pieces one
    by one: where an element is in its piece is then the same in all steps (32768 x 1000 of f32 with
    weights of columns on an H200: 76 us, 86 in steps of 2048). Else 0."""
    spaces = traits.inner_spaces(kernel)
    last = spaces[0][-1].extent
    if len(spaces) > 1 or len(spaces[0]) < 2 or not last.is_Integer:
        return 0
    wide = next_power_of_two(int(last))
    return wide if wide in _PIECES and 8 * last >= 7 * wide else 0


def looking_back(kernel: Kernel) -> Schedule:
    """Chunks of 32 elements a thread, or 16 pairs or numbers of 64 bits. Groups so large that what
    one moves takes longer than its last chunk takes to tell the next one's."""
    found = [s for s in statements(kernel) if isinstance(s, Scan)]
    wide = any(s.op in traits.PAIRS[Scan] or s.dtype.itemsize > 4 for s in found)
    return Schedule("looped", 1, 4096 if wide else 8192, 8, lookback=512)


def walking(kernel: Kernel, rblock: int) -> Schedule:
    """Rows of 4096 elements, or as many shorter ones, 16 elements a thread, which holds that many
    of each sum, or twice as many where much of a tile is empty (gradient of layer norm, 50176 x 768
    on an H200: 94 us, 111 with 16). What comes next, two tiles of it, is on its way to shared
    memory meanwhile (36864 x 1024 of bf16: 77 us, 100 with one tile on its way). Rows of which
    bytes are read beside wider elements (masks of dropout) come one at a time: tiles of several
    would change layout at each step (16384 x 1024: 62 us, 112 of four)."""
    if (short := short_pieces(kernel, 1 << 31)) is not None:
        return short
    sizes = {s.dtype.itemsize for s in traits.row_loads(kernel)}
    if rblock >= LONG and 1 in sizes and len(sizes) > 1:
        warps = max(4, min(16, rblock // 256))
        return Schedule("persistent", 1, rblock, warps, num_stages=3)
    xblock, row = max(1, 4096 // rblock), row_of_pieces(kernel)
    warps = max(4, min(16, xblock * rblock // 512))
    found = Schedule("persistent", xblock, rblock, warps)
    if (cut := cut_rows(kernel, found)) is not None:
        found = cut
    elif 0 < 5 * row <= 4 * rblock:
        found = replace(found, num_warps=max(4, warps // 2))
    ahead = xblock * (rblock if cut is None else row) * traits.row_bytes(kernel)
    stages = min(4, max(3 if 2 * ahead <= MOST_AHEAD else 2, 1 + _AHEAD_BYTES // ahead))
    return replace(found, num_stages=stages)
