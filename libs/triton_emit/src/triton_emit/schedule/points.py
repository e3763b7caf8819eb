"""Kernels without inner axes: blocks of points, pairs of them, and tiles of two dimensions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy

import loop_ir as ir
from loop_ir.ir import ITERATED, at_hints, statements
from symexpr import Mod
from triton_emit import vectors
from triton_emit.idioms import cheaper
from triton_emit.pairs import paired
from triton_emit.schedule.h200 import LANES, LINE, LONG, MULTIPROCESSORS, NARROW, ROW
from triton_emit.schedule.record import Schedule, next_power_of_two
from triton_emit.schedule.traits import updates

# Statements for each of two neighbours: more of them leave no registers. Rows of pairs share most.
_MOST_PAIRED = 48

# Elements of pieces of rows that share the reciprocals of their columns (12000 x 5376 of bf16 in 8
# bits on an H100: 71 us of 256 x 8, 77 of 1024 x 4).
_PIECE = 2048
# Points of a tile of short rows that are looked up each.
_PICKED = 512
# Bytes of a table that stays in the first-level cache.
_TABLE = 1 << 16
# Points of a tile of rows.
_TILE = 1024
# Statements of a kernel of single elements, so many of which leave few registers.
_LONG_TEXT = 100
# Places of a window, so many of which leave few.
_LARGE_WINDOW = 27
# Functions of many steps, of which a thread has one.
_LONG_STEPS = frozenset(("zeta", "gamma_series", "gamma_fraction"))


def of_points(kernel: ir.Kernel, rows: int, hints: Mapping[str, int]) -> Schedule:
    """Of a kernel without inner axes. rows: its points."""
    line = sympy.Mul(*(a.extent for a in line_axes(kernel)))
    columns = at_hints(line, hints) if kernel.axes else 1
    other = ir.across(kernel)
    if other is not None:
        neighbours = at_hints(ir.beside(kernel, other), hints)
        if min(columns, neighbours) >= NARROW:
            return _tiled(kernel, columns, neighbours, rows)
    elif ir.picks_rows(kernel) and columns >= ROW:
        return replace(_picking(columns), vector=int(vectors.combines_ones(kernel)))
    divided = ir.divides_lines(cheaper(kernel))
    if columns >= LONG and ("rows" in divided or vectors.reads_rows(kernel)):
        return replace(_picking(columns), vector=vectors.vector(kernel))
    x = _snug(columns, (256, 128)) if "columns" in divided else 0
    if x and rows >= 2 * MULTIPROCESSORS * _PIECE:
        sizes = [b.type.dtype.itemsize for b in kernel.buffers if len(b.type.size) > 1]
        taken = vectors.vector(kernel) or 16 // max(4, *sizes)  # as many as of the reciprocals
        return Schedule("tiled", x, 1, 4, yblock=_PIECE // x, vector=taken)
    pairs = _pairs(kernel, rows)
    if vectors.bends(kernel) and not vectors.reads_windows(kernel):
        if (resampled := _resampled(columns, rows, pairs is not None)) is not None:
            return resampled
    elif pairs is None and (vectors.bends(kernel) or vectors.slides(kernel)):
        plane = _plane(kernel, columns, rows)
        if plane is not None:
            return plane
    if pairs is not None:
        return pairs
    if any(isinstance(s, ir.Store) and s.mode == "mul" for s in statements(kernel)):
        # A program tries again until all of its products are done: few wait for the slowest.
        return Schedule("flat", 128, num_warps=4)
    flat = replace(_flat(rows), vector=vectors.vector(kernel))
    if steps := {s.op for s in statements(kernel) if isinstance(s, ir.Compute)} & ITERATED.keys():
        # Few wait for the one of most steps; each element has a function of its own in the text.
        return replace(flat, xblock=512 if steps.isdisjoint(_LONG_STEPS) else 128, num_warps=4)
    if any(isinstance(s, ir.Compute) and s.op == "rarely" for s in statements(kernel)):
        # Its warps wait for each other before they branch (bessel_j0 of 2**25 f32 on an H100:
        # 99 us in blocks of 1024 of four warps, 95 of two, 94 in blocks of 512 of one).
        xblock = min(512, flat.xblock)
        return replace(flat, xblock=xblock, num_warps=max(1, xblock // 512))
    if vectors.unravels(kernel) and not _divides_longs(kernel):
        rows_of = _rows(kernel, columns, rows, hints)
        if rows_of is not None:
            return rows_of
    if _repeats(kernel) and _snug(columns, (256,)) and rows >= 2 * MULTIPROCESSORS * _TILE:
        # 3000 x 2001 of bf16 twice three times on an H100: 44 us, 55 flat; of f32 they are even
        return Schedule("tiled", 256, 1, 2, yblock=4)
    if vectors.reads_records(kernel):
        # Two a thread (three coordinates of 2**23 points on an H200: 36.6 us, 39.0 of four).
        return replace(flat, xblock=flat.xblock // 2, num_warps=2 * flat.num_warps)
    if flat.vector == 1 and sum(1 for _ in statements(kernel)) >= _LONG_TEXT:
        # gradient of 37 x 37 points in 100 x 100, 36 loads each, on an H100: 102 us, 114
        flat = replace(flat, num_warps=2 * flat.num_warps)
    if vectors.reads_windows(kernel):
        # means of 3 x 3 x 3 of f32 on an H100: 814 us of two a thread, 906 of four
        loads = sum(isinstance(s, ir.Load) for s in statements(kernel))
        return replace(
            flat, num_warps=min(32, (4 if loads >= _LARGE_WINDOW else 2) * flat.num_warps)
        )
    # A call keeps all others of a thread in registers (remainders of 33554432 integers of 64 bits
    # on an H200: 189 us of two a thread, 236 of eight), few hide the steps of a long formula of f64
    # (tanh(x) * exp(x) + sin(x) of 4096 x 4096 on an H100: 129 us of four, 160 of eight), and steps
    # of an optimizer take a vector of f32 a thread.
    wide = any(isinstance(s, ir.Compute) and s.dtype is ir.DType.f64 for s in statements(kernel))
    wide = wide or updates(kernel)
    each = 64 if _divides_longs(kernel) else 128 if wide else 256
    xblock = min(8 * each, flat.xblock)
    return replace(flat, xblock=xblock, num_warps=max(flat.num_warps, xblock // each))


def _flat(points: int) -> Schedule:
    xblock, warps = 1024, 4
    while xblock > 128 and points < 2 * MULTIPROCESSORS * xblock:
        xblock //= 2
        warps = max(1, warps // 2)
    return Schedule("flat", xblock, num_warps=warps)


def _pairs(kernel: ir.Kernel, points: int) -> Schedule | None:
    """Four pairs of neighbours side by side a thread; two where a point is several rows of them.
    None of what would leave no registers."""
    length = sum(1 for _ in statements(kernel))
    both = paired(kernel) if length <= 4 * _MOST_PAIRED else None
    if both is None:
        return None
    stored = Counter(s.buffer for s in statements(both) if isinstance(s, ir.Store))
    each = max(stored.values())
    if sum(1 for _ in statements(both)) > min(each, 4) * _MOST_PAIRED:
        return None
    flat = _flat(points // each)
    if each == 2:
        return replace(flat, vector=4, pairs=True)
    xblock = min(256, flat.xblock)
    return replace(flat, xblock=xblock, num_warps=xblock // 64, vector=2, pairs=True)


def _tiled(kernel: ir.Kernel, columns: int, rows: int, points: int) -> Schedule:
    """64 elements a side are a cache line or two of any type; 16 of them a thread, 8 of bytes
    (9000 x 7000 of bf16 in 8 bits, and transposed, on an H100: 154 us, 163 of 16). Long columns
    that end inside of a line are stored in longer pieces (channels first of 128 x 126 x 126 x 64 of
    bf16 on an H200: 140 us, 186 of 64 x 64), not those of 16 bits at odd places, nor of bytes, nor
    wider ones of which vectors are stored (64 x 126 x 126 x 128 of f32, activated, on an H100: 365
    us of 64 x 64, 478)."""
    bytes_ = any(b.type.dtype.itemsize == 1 for b in kernel.buffers)
    wide = any(b.written and b.type.dtype.itemsize > 2 for b in kernel.buffers)
    ends = columns % 64 and not (wide and columns % 4 == 0)
    long = columns >= 2048 and ends and rows >= 32 and not bytes_
    if long and not _stores_odd_halves(kernel) and points >= 2 * MULTIPROCESSORS * 256 * 32:
        return Schedule("tiled", 256, num_warps=8, yblock=32)
    x, y = (32 if n <= 32 or (n % 64 and n % 32 == 0) else 64 for n in (columns, rows))
    while x * y > 1024 and points < 2 * MULTIPROCESSORS * x * y:
        x, y = (x // 2, y) if x >= y else (x, y // 2)
    warps = max(1, x * y // (256 if bytes_ else 512))
    return Schedule("tiled", x, num_warps=warps, yblock=y)


def _stores_odd_halves(kernel: ir.Kernel) -> bool:
    """Elements of 16 bits are stored along the last axis, in rows that may begin at odd places, of
    which no two are stored at once (channels first of 128 x 55 x 55 x 128 of bf16 on an H200: 71 us
    of 64 x 64, 81 of 256 x 32)."""
    sizes = {b.name: b.type.dtype.itemsize for b in kernel.buffers}
    last = kernel.axes[-1].symbol
    starts = (
        sympy.expand(s.index - last)
        for s in statements(kernel)
        if isinstance(s, ir.Store) and sizes[s.buffer] == 2
    )
    return any(
        last not in e.free_symbols and any(t.as_coeff_Mul()[0] % 2 for t in sympy.Add.make_args(e))
        for e in starts
    )


def _repeats(kernel: ir.Kernel) -> bool:
    """Rows are read again and again along both of two axes: four remainders for a point, or two."""
    if len(kernel.axes) != 2 or not all(a.extent.is_Integer for a in kernel.axes):
        return False
    loads = (s for s in statements(kernel) if isinstance(s, ir.Load))
    wraps = (m.args[0] for s in loads for m in s.index.atoms(Mod))
    return {a.symbol for a in kernel.axes} <= set(wraps)


def _divides_longs(kernel: ir.Kernel) -> bool:
    """Integers of 64 bits are divided by others that are known only when it runs."""
    numbers = {s.out for s in statements(kernel) if isinstance(s, ir.Const)}
    return any(
        isinstance(s, ir.Compute)
        and s.op in ("floordiv", "truncdiv", "mod", "fmod")
        and s.dtype in (ir.DType.i64, ir.DType.u64)
        and s.args[1] not in numbers
        for s in statements(kernel)
    )


def _resampled(columns: int, points: int, alike: bool) -> Schedule | None:
    """Rows that share the weights of their columns: 16 elements a thread, of which neighbours lie
    in pairs, so that what the lanes of a warp read lies in one line; but not where neighbours read
    `alike`, as of images that are doubled (on an H100, f32 of 128 x 128 by 2 123 us, 150 of pairs
    of neighbours, bf16 of 112 x 112 142 and 158, volumes 135 and 250; f16 of 200 x 200 to 300 x 300
    182 in pairs, 233). None where a tile would be a fifth empty, or where there are too few."""
    x = _snug(columns, (128, 64))
    if not x or points < 2 * MULTIPROCESSORS * _TILE:
        return None
    return Schedule("tiled", x, 1, 2, yblock=_TILE // x, vector=1 if alike else 2)


def _plane(kernel: ir.Kernel, columns: int, points: int) -> Schedule | None:
    """Rows that share what is read for their columns, or the reverse: 8 elements a thread. None
    where a tile would be a fifth empty, or where there are too few tiles."""
    bends = vectors.bends(kernel)
    x = _snug(columns, (256, 128, 64) if bends else (256, 128, 64, 32, 16, 8))
    if not x or points < 2 * MULTIPROCESSORS * _TILE:
        return None
    taken = 2 if bends else int(not vectors.aligned(kernel))
    warps = 2 if vectors.reads_windows(kernel) and not bends else 4
    return Schedule("tiled", x, 1, warps, yblock=_TILE // x, vector=taken)


def _rows(
    kernel: ir.Kernel, columns: int, points: int, hints: Mapping[str, int]
) -> Schedule | None:
    """Rows of one place of the outer axes, whose points have their coordinates for the asking: 8
    elements a thread, 16 of what reads little of 16 bits, 4 of more (on an H100: windows of 3 x 3
    of bf16 copied, 16 x 64 x 112 x 112, 99 us, 119 flat; blurs of 5 x 5, reflected, 121 and 206; a
    causal mask of unknown size 69 and 143; of those of f32 120, 124 of 8, 166 of 16). None of what
    moves little, of known size, whose two quotients cost less than what tiles leave empty (tril of
    64 x 700 x 701 of bf16: 48 us flat, 55; rows of 1501 three times 46 and 54, of f32 26 and 29).
    None where much of a tile would be empty, of windows a tenth (maxima of 57 x 57: 77 us, 68
    flat), and of what is read at places that are data, but of a small table: rows want more of the
    first-level cache (samples of images at 25600 places: 601 us, 361 flat)."""
    if any(isinstance(s, ir.Store) and s.mode != "set" for s in statements(kernel)):
        return None
    if points < 2 * MULTIPROCESSORS * _TILE or _picked_bytes(kernel, hints) > _TABLE:
        return None
    x = next((n for n in (256, 128, 64, 32) if filled(columns, n) >= 0.75), 0)
    below = at_hints(kernel.axes[-2].extent, hints) if len(kernel.axes) > 2 else _TILE
    y = next((n for n in (_TILE // x, _TILE // 2 // x) if filled(below, n) >= 0.75), 0) if x else 0
    least = 0.9 if vectors.reads_windows(kernel) else 0.7
    if not y or filled(columns, x) * filled(below, y) < least:
        return None
    loads = [s.dtype.itemsize for s in statements(kernel) if isinstance(s, ir.Load)]
    if len(kernel.axes) == 3 and all(a.extent.is_Integer for a in kernel.axes) and len(loads) <= 2:
        return None
    each = 4 if len(loads) > 2 else 8 if max(loads, default=0) > 2 else 2
    warps = max(1, x * y * each // _TILE)
    return Schedule("tiled", x, 1, warps, yblock=y, vector=int(vectors.moves_alone(kernel)))


def _picked_bytes(kernel: ir.Kernel, hints: Mapping[str, int]) -> int:
    """Of the largest tensor that is read at places that are data."""
    places = {s.symbol for s in statements(kernel) if isinstance(s, ir.Indirect)}
    loads = (s for s in statements(kernel) if isinstance(s, ir.Load))
    read = {s.buffer for s in loads if not places.isdisjoint(s.index.free_symbols)}
    types = (b.type for b in kernel.buffers if b.name in read)
    sizes = (at_hints(sympy.Mul(*t.size), hints) * t.dtype.itemsize for t in types)
    return max(sizes, default=0)


def turned(kernel: ir.Kernel) -> ir.Axis | None:
    """The axis that is contiguous elsewhere, where enough lies side by side along it."""
    other = ir.across(kernel)
    run = None if other is None else ir.beside(kernel, other)
    return None if run is not None and run.is_Integer and run < NARROW else other


def line_axes(kernel: ir.Kernel) -> tuple[ir.Axis, ...]:
    """The axes along which tiles lie: the last one, and, of a kernel that transposes, where that is
    short those before it that go on in memory where it ends (12 x 30 x 60 x 40 x 50 of f32, turned:
    the last two)."""
    line, inner = kernel.axes[-1:], turned(kernel)
    if inner is None:
        return line
    *others, last = kernel.axes
    if not last.extent.is_Integer or last.extent >= LINE or last.extent % LANES == 0:
        return line
    stored = [sympy.expand(s.index) for s in statements(kernel) if isinstance(s, ir.Store)]
    for axis in reversed(others):
        size = sympy.Mul(*(a.extent for a in line))
        on = all(e.coeff(last.symbol) == 1 and e.coeff(axis.symbol) == size for e in stored)
        if axis == inner or not on or not axis.extent.is_Integer:
            break
        line = (axis, *line)
    return line


def rows_apart(kernel: ir.Kernel, yblock: int) -> bool:
    """The rows of a tile are of one place of the outer axes: the last of these has enough."""
    if yblock == 1 or len(kernel.axes) < 3 or turned(kernel) is not None:
        return False
    below = kernel.axes[-2].extent
    return not below.is_Integer or filled(int(below), yblock) >= 0.9


def filled(extent: int, block: int) -> float:
    """The share of blocks along an axis that is not empty."""
    return extent / (-(-extent // block) * block) if extent else 0.0


def _snug(columns: int, widths: Sequence[int]) -> int:
    """The first of these of which no tile along a row would be a fifth empty, or 0."""
    return next((x for x in widths if 5 * columns >= 4 * (-(-columns // x) * x)), 0)


def _picking(columns: int) -> Schedule:
    """A row, or a part of it, a program, 8 elements a thread: its place is looked up once. Parts of
    512 elements at least: of fewer there are more programs than a GPU begins in the time (batch
    norm and relu of 16384 rows of 3136 of bf16 on an H100: 75 us, 134 in parts of 256)."""
    x = min(1024, next_power_of_two(columns))
    if x == LONG and 0 < columns % x < x // 2:
        x //= 2
    y = max(1, _PICKED // x)
    return Schedule("tiled", x, num_warps=x * y // 256, yblock=y)
