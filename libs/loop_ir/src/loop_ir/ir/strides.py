"""Along which axes a kernel walks memory: what decides the shape of its tiles."""

from collections import Counter
from functools import lru_cache

import sympy

from loop_ir.ir.affine import CACHE, product
from loop_ir.ir.names import Name, operands, results, statements, varying
from loop_ir.ir.nodes import Axis, Compute, Indirect, Kernel, Load, Scan, Store
from loop_ir.ir.rewrite import ranges_of
from symexpr import bounds
from tensor_ir import DType, once

# Elements of a row that a program holds whole.
HELD_ROW = 8192
# Elements of a row that is a tile of two dimensions.
_WIDEST_PLANE = 32768
# Neighbours that are so many elements apart still share lines of the cache.
_FEW = 4
# Neighbours in memory that are worth reading by as many lanes.
_LANES = 32
# Kernels whose traits are kept: a schedule is asked for many sizes of one.
_KERNELS = 64


def _accesses(kernel: Kernel) -> Counter[tuple[str, sympy.Expr, tuple[Axis, ...]]]:
    """Buffer, index, and the inner axes of the phase, of each different load and store -> bytes of
    an element."""
    itemsize = {b.name: b.type.dtype.itemsize for b in kernel.buffers}
    found: Counter[tuple[str, sympy.Expr, tuple[Axis, ...]]] = Counter()
    for phase in kernel.phases:
        for stmt in phase.body:
            if isinstance(stmt, Load | Store):
                found[stmt.buffer, stmt.index, phase.axes] = itemsize[stmt.buffer]
    return found


@lru_cache(CACHE)
def step(index: sympy.Expr, axis: Axis) -> sympy.Expr | None:
    """How far one step along `axis` moves the index; None where that is not the same everywhere."""
    s = axis.symbol
    moving = sympy.Add(*(t for t in sympy.Add.make_args(index) if s in t.free_symbols))
    step = sympy.expand(moving.xreplace({s: s + 1}) - moving)
    return None if s in step.free_symbols else step


@lru_cache(_KERNELS)
def across(kernel: Kernel) -> Axis | None:
    """The axis besides the last one along which a flat kernel reads or writes most contiguously:
    `y[i0*64 + i1] = x[i1*128 + i0]` -> i0. None where tiles of the last axis alone are good."""
    if len(kernel.axes) < 2:
        return None
    *others, last = kernel.axes
    votes: Counter[Axis] = Counter()
    for (_, index, _), size in _accesses(kernel).items():
        if step(index, last) in (0, 1):
            continue
        for axis in others:
            if step(index, axis) == 1:
                votes[axis] += size
    return max(votes, key=lambda a: votes[a]) if votes else None


def beside(kernel: Kernel, axis: Axis) -> sympy.Expr:
    """How many points lie side by side along `axis`, which is `across(kernel)`, and along the axes
    outside of it that go on where it ends: `x[i2*32 + i0*4 + i1]`, i1 < 4, i0 < 8 -> 32."""
    run = axis.extent
    *others, last = (a for a in kernel.axes if a != axis)
    for _, index, _ in _accesses(kernel):
        if step(index, axis) != 1 or step(index, last) in (0, 1):
            continue
        found = axis.extent
        for outer in reversed(others):
            if step(index, outer) != found:
                break
            found = found * outer.extent
        run = found if found.is_Integer and run.is_Integer and found > run else run
    return run


def picks_rows(kernel: Kernel) -> bool:
    """A flat kernel reads or writes rows at places that are data, the same all along its last axis:
    `y[t0*64 + i1]`, t0 loaded at i0. A program of one row looks its place up once."""
    found = _varying(kernel)
    places = [s for s in statements(kernel) if isinstance(s, Indirect)] if found else []
    return bool(places) and all(found.isdisjoint(operands(s)) for s in places)


def divides_lines(kernel: Kernel) -> set[str]:
    """Along what a flat kernel divides numbers of f32 by one that is the same: "rows", all along
    its last axis, or "columns", along all others. A program of a row, or of several pieces of rows
    below each other, takes its reciprocal once."""
    found = _varying(kernel)
    others = (varying(statements(kernel), a.symbol) for a in kernel.axes[:-1])
    beyond = set[Name]().union(*others)
    pairs = [
        s.args
        for s in statements(kernel)
        if found and isinstance(s, Compute) and (s.op, s.dtype) == ("div", DType.f32)
    ]
    lines = {"rows": (found, beyond), "columns": (beyond, found)}
    return {
        name
        for name, (over, along) in lines.items()
        if any(a in over and b in along - over for a, b in pairs)
    }


def _varying(kernel: Kernel) -> set[Name]:
    """What differs along the last of several axes of a flat kernel: symbols and values."""
    if len(kernel.axes) < 2 or any(p.axes for p in kernel.phases):
        return set()
    return varying(statements(kernel), kernel.axes[-1].symbol)


@once
def reduces_columns(kernel: Kernel) -> bool:
    """Something that a reduction reads or writes lies contiguous along the last parallel axis, or
    a few elements apart, not along the inner axes: `sum over r0 of x[r0*768 + i0]`, or of
    `x[r0*768 + 2*i0]`. Tiles of several rows suit both."""
    if not kernel.axes:
        return False
    last = kernel.axes[-1]

    def columns(index: sympy.Expr, inner: Axis) -> bool:
        beside, along = step(index, last), step(index, inner)
        if beside is None or not beside.is_Integer or not 1 <= beside <= _FEW or along in (0, 1):
            return False
        return beside == 1 or along is None or not along.is_Integer or abs(along) > beside

    return any(bool(inner) and columns(i, inner[-1]) for _, i, inner in _accesses(kernel))


def picks_along(kernel: Kernel, axis: Axis) -> bool:
    """What is reduced is read at places that are data, the same for neighbours in memory along an
    axis (bags of rows of a table), or near each other's (places of a resampled line): tiles of
    elements of a row read a sector of each for few neighbours, where lanes that are neighbours read
    lines (a kernel of this form on an H200: sums of 20 rows of 64 of f32, 2**15 of them, 50 us, 162
    in tiles; torch's embedding_bag 112)."""
    if not axis.extent.is_Integer or axis.extent < _LANES:
        return False
    own = varying(statements(kernel), axis.symbol, over=False)
    loaded: set[Name] = set()
    for stmt in statements(kernel):
        if isinstance(stmt, Load) or not loaded.isdisjoint(operands(stmt)):
            loaded.update(results(stmt))
    inner = [a for p in kernel.phases for a in p.axes]
    inside = [s for p in kernel.phases if p.axes for s in p.body]
    picked = {s.symbol for s in inside if isinstance(s, Indirect)}

    def near(load: Load) -> bool:
        places = picked & load.index.free_symbols
        if not own.isdisjoint(places):
            return loaded.isdisjoint(places)
        apart = step(load.index, axis)
        if apart in (0, 1) or apart is None or places:
            return apart in (0, 1)
        count = product(a.extent for a in inner)
        return bool(count.is_Integer and apart.is_Integer and 0 < apart <= count)

    loads = [s for s in inside if isinstance(s, Load)]
    data = any(not picked.isdisjoint(s.index.free_symbols) for s in loads)
    return data and all(map(near, loads))


def reads_across(kernel: Kernel) -> set[bool]:
    """For what a kernel reads of its rows, whether neighbours along the last parallel axis, and not
    along the inner ones, are neighbours in memory."""
    found: set[bool] = set()
    for phase in kernel.phases if kernel.axes else ():
        for stmt in phase.body if phase.axes else ():
            if isinstance(stmt, Load):
                steps = step(stmt.index, kernel.axes[-1]), step(stmt.index, phase.axes[-1])
                if 0 not in steps and 1 in steps:
                    found.add(steps[0] == 1)
    return found


def holds_rows(kernel: Kernel) -> bool:
    """A program may hold rows whole, whichever way it goes along them: they lie along memory, and
    have few elements whatever the sizes are."""
    ranges = dict(ranges_of(kernel))
    highs = [bounds(product(a.extent for a in p.axes), ranges)[1] for p in kernel.phases if p.axes]
    return not reduces_columns(kernel) and all(h is not None and h <= HELD_ROW for h in highs)


def columns_part(kernel: Kernel) -> bool:
    """Neighbours along the flattened parallel axes lie apart in memory where the last axis ends:
    `x[i0*777000 + r0*777 + i1]`."""
    last = kernel.axes[-1] if kernel.axes else None

    def parts(index: sympy.Expr) -> bool:
        steps = [step(index, a) for a in kernel.axes]
        pairs = zip(steps, steps[1:], kernel.axes[1:], strict=False)
        return any(
            a is None or b is None or sympy.expand(a - b * axis.extent) != 0 for a, b, axis in pairs
        )

    return last is not None and any(
        parts(index) for _, index, _ in _accesses(kernel) if step(index, last) != 0
    )


def columns_at_once(kernel: Kernel) -> int:
    """How many neighbouring columns a program should reduce: what it reads of a row of 16-bit
    elements then is a cache line. Of results for each element, two: short stores cost more (H100:
    of 16 bytes a tenth of the rate of 512, where loads keep a fifth)."""
    stores = any(isinstance(s, Store) for p in kernel.phases if p.axes for s in p.body)
    return 128 if stores else 64


def turns_rows(kernel: Kernel) -> bool:
    """Rows along two axes or more are read or stored along one of them, and stored along another:
    `y[r0*7168 + r1]` beside `z[r1*8192 + r0]`."""
    inner = [(index, axes) for _, index, axes in _accesses(kernel) if len(axes) > 1]
    stored = {s.index for p in kernel.phases if p.axes for s in p.body if isinstance(s, Store)}

    def along(index: sympy.Expr, axes: tuple[Axis, ...]) -> set[sympy.Symbol]:
        return {a.symbol for a in axes if step(index, a) == 1}

    ways = set[sympy.Symbol]().union(*(along(*each) for each in inner))
    own = set[sympy.Symbol]().union(*(along(*each) for each in inner if each[0] in stored))
    return len(ways) > 1 and bool(own)


def plane_of_row(kernel: Kernel) -> tuple[int, ...]:
    """The sizes of rows that are turned around, if these are two powers of two: as one tile of two
    dimensions, which is turned in shared memory, all of it moves along memory (tiles of 128 x 128
    of bf16 cast to 8 bits, and the transpose of that, 8192 x 7168 on an H100: 114 us, 974 where
    bytes were stored one by one). Empty: rows are no such."""
    spaces = {p.axes for p in kernel.phases if p.axes}
    axes = next(iter(spaces), ())
    if len(spaces) != 1 or len(axes) != 2 or any(isinstance(s, Scan) for s in statements(kernel)):
        return ()
    sizes = tuple(int(a.extent) if a.extent.is_Integer else 0 for a in axes)
    fits = min(sizes) >= 16 and sizes[0] * sizes[1] <= _WIDEST_PLANE
    return sizes if fits and not any(n & (n - 1) for n in sizes) and turns_rows(kernel) else ()
