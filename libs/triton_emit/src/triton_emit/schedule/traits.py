"""What is asked of a kernel before it is cut into programs."""

import sympy

from loop_ir import Axis, Indirect, Kernel, Load, Reduce, Scan, Store, reduces_columns
from loop_ir.ir import Name, once, operands, ranges_of, results, statements
from symexpr import bounds
from triton_emit.errors import UnsupportedKernel
from triton_emit.schedule.h200 import L2_BYTES, LINE
from triton_emit.schedule.record import Schedule
from triton_emit.ssa import clean, inner_dependent, loops
from triton_emit.vectors import neighbours

# Folds of two numbers for each element.
PAIRS = {Reduce: ("welford", "softmax"), Scan: ("argmax", "argmin", "logsumexp")}
# Of tensors whose lines leave it first, where rows are held and where they are walked over.
_MOST_STREAMED, _MOST_OF_CHUNKS = 320 << 20, 255 << 20
# Tensors that an update reads at each point: of more, a thread could not hold what it reads.
_READ = range(3, 9)


def inner_spaces(kernel: Kernel) -> list[tuple[Axis, ...]]:
    """The inner axes of phases, each once, in order."""
    return list(dict.fromkeys(phase.axes for phase in kernel.phases if phase.axes))


def inner_extents(kernel: Kernel) -> list[sympy.Expr]:
    """Points of every inner space."""
    return [sympy.Mul(*(a.extent for a in axes)) for axes in inner_spaces(kernel)]


@once
def inner_bound(kernel: Kernel) -> int | None:
    """The largest count of inner points, or None if it is not bounded."""
    ranges = dict(ranges_of(kernel))
    highs = [bounds(e, ranges)[1] for e in inner_extents(kernel)]
    return None if None in highs else max((h for h in highs if h is not None), default=1)


def can_loop(kernel: Kernel) -> bool:
    """No loop would have to read what an earlier one overwrote."""
    try:
        loops(clean(kernel))
    except UnsupportedKernel:
        return False
    return True


@once
def folds_alike(kernel: Kernel) -> bool:
    """Whether what it folds is the same for all of its points, of which it does nothing else until
    then."""
    own: set[Name] = {a.symbol for a in kernel.axes}
    for phase in kernel.phases:
        for stmt in phase.body:
            if not own.isdisjoint(operands(stmt)):
                if phase.axes:
                    return False
                own.update(results(stmt))
            if phase.axes and isinstance(stmt, Store | Scan | Indirect):
                return False
    return bool(own) and any(p.axes for p in kernel.phases)


def walks(kernel: Kernel) -> bool:
    """Programs walk over rows, of which they store sums."""
    return any(isinstance(s, Store) and s.mode == "sum" for s in statements(kernel))


def updates(kernel: Kernel) -> bool:
    """Several tensors are read at each point, and one of them is written there: a parameter and the
    means of its gradients. All that is read is asked for before the first result is needed."""
    if any(p.axes for p in kernel.phases):
        return False
    moved = [s for s in statements(kernel) if isinstance(s, Load | Store) and s.index.free_symbols]
    read = {s.buffer for s in moved if isinstance(s, Load)}
    return len(read) in _READ and any(s.buffer in read for s in moved if isinstance(s, Store))


@once
def row_loads(kernel: Kernel) -> set[Load]:
    """What is read at inner points of buffers that each row has elements of its own in."""
    rows = {a.symbol for a in kernel.axes}
    loads = {s for p in kernel.phases if p.axes for s in p.body if isinstance(s, Load)}
    return {s for s in loads if rows & s.index.free_symbols}


def row_bytes(kernel: Kernel) -> int:
    """Bytes that an inner point of a kernel reads of its row."""
    return max(1, sum(s.dtype.itemsize for s in row_loads(kernel)))


@once
def rows_read(kernel: Kernel) -> set[str]:
    """Buffers that each row has elements of its own in, which are read at inner points."""
    return {s.buffer for s in row_loads(kernel)}


def read_again(kernel: Kernel) -> int:
    """Bytes of an inner point that loops after the first read from memory again: elements of
    buffers that each row has for itself."""
    sizes = {b.name: b.type.dtype.itemsize for b in kernel.buffers}
    phases = [p for p in kernel.phases if p.axes]
    return sum(sizes[name] for name in rows_read(kernel)) if len(phases) > 1 else 0


def held_numbers(kernel: Kernel) -> int:
    """Of each inner point, how many numbers one phase at most leaves to later ones."""
    varies = inner_dependent(kernel)
    phases = [p for p in kernel.phases if p.axes]
    made = [{d for s in p.body for d in results(s) if varies[d]} for p in phases]
    used = [{u for s in p.body for u in operands(s)} for p in phases]
    ends = range(1, len(phases))
    return max((len(set().union(*made[:n]) & set().union(*used[n:])) for n in ends), default=0)


@once
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


def streams(kernel: Kernel, load: Load, inner: tuple[Axis, ...], schedule: Schedule) -> bool:
    """All that a kernel reads for numbers is one tensor, each line of which one program reads
    whole, and which pushes others out of L2 without fitting into it. inner: the axes of the load's
    phase. Larger tensors, several, and kernels that store what they read take longer if their lines
    leave L2 first (H200: 134 MB 4 to 14 % faster, 268 MB of chunks 4 % slower). So do columns of
    which a program reads pieces that are no whole lines, or shorter than one, as its neighbours
    read the rest, and what is read at several places (windows)."""
    applies = any(isinstance(s, Store) for p in kernel.phases if p.axes for s in p.body)
    if applies or len(rows_read(kernel)) != 1:
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
    if any(n * read.dtype.itemsize % LINE for n in pieces):
        return False
    last = inner[-1]
    run = last.extent * read.dtype.itemsize
    long = (
        len(inner) > 1
        and not columns
        and index.coeff(last.symbol) == 1
        and run.is_Integer
        and run >= LINE
    )
    if not (size.is_Integer and own and (long or neighbours(index, along) > 1)):
        return False
    return bool(
        L2_BYTES < size <= (_MOST_STREAMED if schedule.kind == "persistent" else _MOST_OF_CHUNKS)
    )
