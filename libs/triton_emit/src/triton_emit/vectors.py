"""How many neighbouring elements a thread of a flat kernel should take at once.

Triton gives each thread as many as its best aligned access can move in 16 bytes. Loads that cannot
move them together are taken one by one, and the L1 cache serves the rest of their lines: rows 4097
elements apart take no longer than others. Stores have no such help: where the number of points cuts
a vector, its mask makes each a store of one element, 16 bytes from those of the next lanes (4097 x
4097 of bf16 on an H200: 67 us, 23 with neighbours in neighbouring lanes). Nor do loads that step
over elements pay for vectors: what the lanes of a warp read at once then lies far apart (windows of
two columns: 32 bytes from one lane to the next). The same goes for windows that overlap: most of
their loads are not aligned (4x4 windows of f32: 2102 us with vectors, 904 without); and for several
loads of neighbours that cannot move vectors: each reads, of four elements a thread, four times the
lines that a warp needs, and the L1 cache gives one at a time (gradient of maxima of odd rows: 122
us, and 93; but what several neighbours share is better read by one thread: trilinear upsampling 219
us, and 394 without)."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import gcd

import sympy

from loop_ir import ATOMICS, Axis, Compute, DType, Index, Kernel, Load, Store
from loop_ir.ir import expression, statements
from symexpr import FloorDiv, Max, Min, Mod
from triton_emit.tiles import Tile

_KERNELS = 64  # whose answers are kept: a schedule is asked for many sizes of one
_WIDEST = 16  # bytes of the widest access, and elements of the widest vector
_SLIDES = 3  # places of a window from which on factors are worth sharing
_ALONE = 12  # bytes of a point that loads read one by one, which the L1 cache has no time for
# Numbers of a row that are worth a program of its own, and points of a block.
_NUMBERS, _BLOCK = 2, 1024


@lru_cache(_KERNELS)
def vector(kernel: Kernel) -> int:
    """The widest vector, in elements, that the end of a flat kernel's points does not cut, where it
    would cut a store's; else 0: what Triton takes anyway.

    y[i0] = x[i0], i0 < 4097*4097             ->  1
    y[i0] = x[i0], i0 < 4098*4097             ->  2
    y[i0*4096 + i1] = x[i0*4097 + i1]         ->  0: loads one by one, stores whole
    y[i0*4097 + i1] = x[i0*4096 + i1]         ->  0: no vector begins where these rows do
    y[i0*s0 + i1] = x[i0*s0 + i1]             ->  0: s0 may be a multiple of 16
    y[i0*64 + i1] = x[i0*128 + 2*i1]          ->  1: elements are stepped over
    y[i0*64 + i1] = x[i0*192 + 3*i1] : u8     ->  0: four of them are 12 bytes
    y[i0] = x[i0] + x[i0 + 1] + x[i0 + 2]     ->  1: a window
    y[i0*777 + i1] = w[i1] + v[i1] + u[i1]    ->  1: several loads of which none is a vector
    y[i0*3 + i1] = w[i1] + w[i1+3] + w[i1+6]  ->  0: rows of three, which share no elements
    y[t0*64 + i1] max= x[i0*64 + i1]          ->  1: combined one by one
    """
    if combines_ones(kernel):
        return 1
    loads = [s for s in statements(kernel) if isinstance(s, Load)]
    types = {b.name: b.type for b in kernel.buffers}
    stored = [types[s.buffer].dtype.itemsize for s in statements(kernel) if isinstance(s, Store)]
    run = _WIDEST // min(stored, default=1)
    if any(_steps_over(s, kernel.axes, run) for s in loads) or reads_windows(kernel):
        return 1
    if _read_alone(loads, kernel.axes) >= _ALONE:
        return 1
    together = _divisor(sympy.Mul(*(a.extent for a in kernel.axes)))
    for stmt in statements(kernel):
        if isinstance(stmt, Store) and stmt.mode not in ATOMICS:
            whole = _WIDEST // types[stmt.buffer].dtype.itemsize
            if min(neighbours(stmt.index, kernel.axes), whole) > together:
                return together
    return 0


def combines_ones(kernel: Kernel) -> bool:
    """Neighbours are combined with memory, by what no instruction does to several at once: a warp
    should then reach a line, not sixteen bytes of each of four."""
    types = {b.name: b.type.dtype for b in kernel.buffers}
    return any(
        isinstance(s, Store)
        and s.mode in ATOMICS
        and not (s.mode == "add" and types[s.buffer] is DType.f32)
        and neighbours(s.index, kernel.axes) > 1
        for s in statements(kernel)
    )


def bends(kernel: Kernel) -> bool:
    """Some value hangs on the coordinate along the last axis as a number (weights of resampling):
    what that costs is shared between rows of a tile. Places that are not linear in the last axis
    are no reason: flat kernels take 107 us where tiled ones take 120 (nearest
    neighbours), and 40 where they take 172 (windows of a rolled image, H200)."""
    if len(kernel.axes) < 2:
        return False
    last = kernel.axes[-1].symbol
    body = tuple(statements(kernel))
    along = {s.out for s in body if isinstance(s, Index) and s.expr.free_symbols == {last}}
    return any(
        isinstance(s, Compute) and s.op == "cast" and s.dtype.is_float and s.args[0] in along
        for s in body
    )


@lru_cache(_KERNELS)
def slides(kernel: Kernel) -> bool:
    """A tensor is read at several places, with factors of another that neighbours along the last
    axis share, or those along all others do: a tile reads each factor once (depthwise convolution,
    3x3 of f32 images on an H200: 318 us, 428 flat)."""
    if len(kernel.axes) < 2:
        return False
    last = kernel.axes[-1].symbol
    axes = {a.symbol for a in kernel.axes}
    loads = [s for s in statements(kernel) if isinstance(s, Load)]
    counts = Counter(s.buffer for s in loads)
    over = {s.buffer: s.index.free_symbols & axes for s in loads if counts[s.buffer] >= _SLIDES}
    factors = sum(last not in along or along == {last} for along in over.values() if along)
    return bool(0 < factors < len(over))


@lru_cache(_KERNELS)
def reads_rows(kernel: Kernel) -> bool:
    """Several numbers are read that are the same all along the last axis, and differ along others
    (a channel's mean, scale and bias), where blocks of points have parts of several rows, which
    begin where vectors do: a program of one row reads its numbers, and computes what hangs on them
    alone, once (two biases of 16384 x 15876 of bf16 on an H200: 250 us, 434 flat)."""
    if len(kernel.axes) < 2 or any(p.axes for p in kernel.phases):
        return False
    *others, last = kernel.axes
    if not last.extent.is_Integer or last.extent % _BLOCK == 0:
        return False
    sizes = {b.name: b.type.dtype.itemsize for b in kernel.buffers}
    moved = {(s.buffer, s.index) for s in statements(kernel) if isinstance(s, Load | Store)}
    along = [(sizes[name], sympy.expand(e)) for name, e in moved if last.symbol in e.free_symbols]
    numbers = sum(bool(e.free_symbols) for _, e in moved) - len(along)
    return numbers >= _NUMBERS and all(
        e.coeff(last.symbol) == 1
        and size * min(_divisor(e.coeff(a.symbol)) for a in others) >= _WIDEST // 2
        for size, e in along
    )


@lru_cache(_KERNELS)
def unravels(kernel: Kernel) -> bool:
    """Each point takes its number among all apart, for coordinates that memory or a test asks for,
    where no vector of neighbours shares what that costs: ten instructions for a coordinate, twice
    as many of sizes that are not known.

    y[i0*12544 + i1*112 + i2] = x[...] if i2 >= 1, i1 < 112, i2 < 112   ->  True
    y[i0*4096 + i1] = x[i0*4096 + i1] + w[i1], i1 < 4096                ->  False: vectors
    """
    if len(kernel.axes) < 2 or any(p.axes for p in kernel.phases):
        return False
    tile = Tile("x", "xindex", "i", kernel.axes, str)
    for e in map(expression, statements(kernel)):
        if e is not None:
            tile.rewrite(e)
    known = all(a.extent.is_Integer for a in kernel.axes)
    several = not known or (len(kernel.axes) > 2 and moves_alone(kernel))
    return bool(tile.definitions) and several


def moves_alone(kernel: Kernel) -> bool:
    """Some access along the last axis is of single elements, or of fewer than 8 bytes, wherever its
    rows begin; not those that neighbours share. Sizes that are not known are taken for multiples of
    16."""
    axes = {a.symbol for a in kernel.axes}
    last = kernel.axes[-1].symbol
    sizes = {b.name: b.type.dtype.itemsize for b in kernel.buffers}
    for stmt in statements(kernel):
        if isinstance(stmt, Load | Store):
            shared = dict.fromkeys(stmt.index.atoms(FloorDiv), sympy.S.Zero)
            own = last in stmt.index.xreplace(shared).free_symbols
            rest = sympy.expand(stmt.index - last)
            terms = [t.as_coeff_Mul() for t in sympy.Add.make_args(rest)]
            run = gcd(_WIDEST, *(int(n) for n, e in terms if e.free_symbols <= axes))
            whole = last not in rest.free_symbols and run * sizes[stmt.buffer] >= _WIDEST // 2
            if own and not whole:
                return True
    return False


def aligned(kernel: Kernel) -> bool:
    """Whether the widest vectors move all that is read along the last axis."""
    *others, last = (a.symbol for a in kernel.axes)
    sizes = {b.name: b.type.dtype.itemsize for b in kernel.buffers}
    for stmt in statements(kernel):
        if isinstance(stmt, Load) and last in stmt.index.free_symbols:
            run = neighbours(stmt.index, kernel.axes) * sizes[stmt.buffer]
            if run < _WIDEST and not stmt.index.free_symbols.isdisjoint(others):
                return False
    return True


@lru_cache(_KERNELS)
def reads_windows(kernel: Kernel) -> bool:
    """A tensor is read at three places or more, which are close, not a vector apart, and move along
    the last axis: what neighbours share (three coordinates for a row of radial bases) is no window.
    Near an edge a window may be reflected, or go on at the other one. Nor are parts of a row that
    lie apart (rotary of 60 of 80 elements, 30 apart: 67 us on an H100, 97 as a window)."""
    if not kernel.axes or _rows_are_short(kernel.axes):
        return False
    apart: dict[tuple[str, sympy.Expr, int], set[int]] = {}
    types = {b.name: b.type for b in kernel.buffers}
    last = kernel.axes[-1].symbol
    for stmt in statements(kernel):
        if isinstance(stmt, Load) and last in stmt.index.free_symbols:
            offset, rest = sympy.expand(_inside(stmt.index, last)).as_coeff_Add()
            whole = _WIDEST // types[stmt.buffer].dtype.itemsize
            if offset.is_Integer:
                apart.setdefault((stmt.buffer, rest, max(1, whole)), set()).add(int(offset))
    return any(
        len({n % whole for n in found if 0 <= n - first < _WIDEST}) >= 3
        for (_, _, whole), found in apart.items()
        for first in found
    )


@lru_cache(_KERNELS)
def reads_records(kernel: Kernel) -> bool:
    """What looks like a window is numbers of a point's own: coordinates of points in space."""
    if not reads_windows(kernel):
        return False
    last = kernel.axes[-1].symbol
    steps = {
        sympy.expand(_inside(s.index, last)).coeff(last)
        for s in statements(kernel)
        if isinstance(s, Load) and last in s.index.free_symbols
    }
    return all(n.is_Integer and n >= 3 for n in steps)


def access(kernel: Kernel, stmt: Load | Store, inner: tuple[Axis, ...]) -> int:
    """How many elements along the last of the inner axes of a row one access moves at most."""
    sizes = {b.name: b.type.dtype.itemsize for b in kernel.buffers}
    whole = max(1, _WIDEST // sizes[stmt.buffer])
    if inner[-1].symbol not in stmt.index.free_symbols:
        return whole
    return min(whole, neighbours(stmt.index, (*kernel.axes, *inner)))


def moves_vectors(kernel: Kernel) -> bool:
    """Whether rows of what reductions of columns read may begin where a vector does."""
    loads = [(p, s) for p in kernel.phases if p.axes for s in p.body if isinstance(s, Load)]
    return any(
        all(_divisor(sympy.expand(load.index).coeff(a.symbol)) > 1 for a in phase.axes)
        for phase, load in loads
    )


def _inside(index: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr:
    """What an index is far from the edges at which it turns around or begins again:
    `Max(i0 - 2, 2 - i0)` -> `i0 - 2`."""
    turns = {
        e: arg
        for e in index.atoms(Min, Max, Mod)
        for arg in e.args
        if sympy.expand(arg).coeff(symbol) == 1
    }
    return index.xreplace(turns)


def _rows_are_short(axes: tuple[Axis, ...]) -> bool:
    """The last axis is shorter than a vector: no access of several neighbours is along it alone
    (products of 3 x 3 matrices on an H200: 60 us, 69 with neighbours in neighbouring lanes)."""
    return len(axes) > 1 and bool(axes[-1].extent.is_Integer) and axes[-1].extent < 4


def _steps_over(load: Load, axes: tuple[Axis, ...], run: int) -> bool:
    """Whether neighbours along the last axis are a few elements apart, and a run of them is wider
    than an access (channels of bytes that are stored as f32 on an H200: 29 us, 48 one by one)."""
    if not axes:
        return False
    step = sympy.expand(load.index).coeff(axes[-1].symbol)
    if not step.is_Integer or not 1 < abs(int(step)) <= _WIDEST:
        return False
    return abs(int(step)) * load.dtype.itemsize * run > _WIDEST


def _read_alone(loads: Sequence[Load], axes: tuple[Axis, ...]) -> int:
    """Bytes of a point that no vector moves, although they lie side by side along the last axis."""
    if not axes or _rows_are_short(axes):
        return 0
    last, symbols = axes[-1].symbol, {a.symbol for a in axes}
    alone: dict[tuple[str, sympy.Expr], int] = {}
    for load in loads:
        if last not in load.index.free_symbols or neighbours(load.index, axes) > 1:
            continue
        # a vector, where all else is a multiple of two: sizes that are not known are
        rest = sympy.expand(load.index - last)
        terms = (axes[-1].extent, *sympy.Add.make_args(rest))
        known = [t.as_coeff_Mul()[0] for t in terms if t.free_symbols <= symbols]
        if last not in rest.free_symbols and any(n % 2 for n in known):
            alone[load.buffer, load.index] = max(4, load.dtype.itemsize)
    return sum(alone.values())


def neighbours(index: sympy.Expr, axes: tuple[Axis, ...]) -> int:
    """How many elements, from each multiple of that number of points on, lie side by side in memory
    and begin at a multiple of it: a power of two, 16 at most. Sizes that are not known are taken
    for multiples of 16; 1 where the index is not linear in the axes.

    4096*i0 + i1 + 4, i0 < 8, i1 < 4096       ->  4
    4104*i0 + i1, i0 < 8, i1 < 4097           ->  1: the rows of points have an odd length
    2*i0                                      ->  1
    """
    axes = tuple(a for a in axes if a.extent != 1)
    symbols = [a.symbol for a in axes]
    index = sympy.expand(index)
    steps = [index.coeff(s) for s in symbols]
    rest = sympy.expand(index - sympy.Add(*(c * s for c, s in zip(steps, symbols, strict=True))))
    if not axes or steps[-1] != 1 or any(set(symbols) & e.free_symbols for e in (rest, *steps)):
        return 1
    run = min(_divisor(t) for t in sympy.Add.make_args(rest))
    inside, joined = axes[-1].extent, True
    for axis, step in zip(axes[-2::-1], steps[-2::-1], strict=True):
        if joined and sympy.expand(step - inside) == 0:
            inside = inside * axis.extent
            continue
        if joined:
            run = min(run, _divisor(inside))
        joined = False
        run = min(run, _divisor(step))
    return run


def _divisor(e: sympy.Expr) -> int:
    """The largest power of two up to 16 that may divide a term of sizes."""
    number, others = sympy.sympify(e).as_coeff_Mul()
    if others.free_symbols or not number.is_Integer:
        return _WIDEST
    return gcd(int(number), _WIDEST)
