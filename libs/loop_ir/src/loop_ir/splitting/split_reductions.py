"""Shares long reductions and scans between programs where there are too few for the machine."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import sympy

from loop_ir.ir.affine import linear, product
from loop_ir.ir.analysis import at_hints, hints_of, inner_axes, node_name, scans, traffic
from loop_ir.ir.in_place import can_share
from loop_ir.ir.names import statements
from loop_ir.ir.nodes import Axis, Graph, Kernel, Load, Node, Reduce, Store
from loop_ir.ir.strides import columns_at_once, reduces_columns, step
from loop_ir.splitting.chunks import Cut
from loop_ir.splitting.crowds import FEW, beside
from loop_ir.splitting.online_softmax import pair_softmax
from loop_ir.splitting.shared_rows import programs_of_row
from loop_ir.splitting.split import split
from loop_ir.splitting.split_scans import can_split_scans, split_scans
from loop_ir.splitting.turns import in_turns
from symexpr import CeilDiv

# Programs that keep an H200 busy (132 multiprocessors): with fewer, memory is not read at its full
# speed; with eight a multiprocessor, the last ones to end leave little of it idle.
_MULTIPROCESSORS = 132
_BUSY = 2 * _MULTIPROCESSORS
_WANTED = 8 * _MULTIPROCESSORS
# Where columns are few, a program takes as few as this, before rows are worth sharing out; if all
# that comes of them is a number each, rows are shared before what a program reads of one is less
# than a cache line (16384 x 5000 of f32, 16 columns a program: 0.68 of the rate of a copy on an
# H200, where 32768 x 4096, whose rows are shared, reach 0.96).
_FEWEST_COLUMNS = 16
_LINE = 128
# Fewer bytes lie in the second-level cache since they were written: partial sums of a norm's weight
# (8 MB) are read in pieces of any length, and another launch would cost more than it saved.
_STREAMED = 32 << 20
# Of rows that programs read twice, as many bytes stay in the cache until then.
_CACHED = 60 << 20
# What a launch more costs, as the bytes that could be moved in its time: about two microseconds.
LAUNCH_BYTES = 8 << 20
# Fewer elements, or rows of a column, are not worth a program.
_LEAST_ELEMENTS = 2048
_LEAST_ROWS = 32
# Elements that a program scans of a row that is shared.
_SCANNED = 8192
# Elements side by side that are worth a program, rather than several such runs; half as many where
# no two of them are one access, and each would be found by a division.
_LONG_RUN = 4096
# Columns that no program holds whole.
_LONG_COLUMN = 512
# Pieces of a row of fewer bytes than this are read a sector or less at a time.
_SHORT_PIECE = 128
# Rows of this many elements or fewer share a program that holds whole lines of such pieces.
_SMALL_ROW = 256
# Chunks may be this many times as many as wanted; those of columns, where nothing nearer is even,
# so many.
_NEAR, _FAR = 2, 16
# Chunks begin at multiples of this where they can, so that no step of a loop needs a mask.
_ALIGNED = 4096


@dataclass(frozen=True)
class SplitReductions:
    """A kernel whose few programs reduce much becomes kernels of many programs:

        k:  parallel i0 < 4: over r0 < 2**20: reduce; once: a; over r0 < 2**20: b
     ->
        k_partial: parallel i1 < 256, i0 < 4: over r0 < 4096: reduce; once: store partial results
        k_finish:  parallel i0 < 4: over r0 < 256: reduce the partial results; store the results
        k:         parallel i1 < 256, i0 < 4: once: a; over r0 < 4096: b

    Without `b`, `k_finish` does `a` too, and is the last. Scans of columns are cut likewise
    (`split_scans`); those of rows programs share in one launch (`shares_scans`), as they hold long
    rows that are read again (`programs_of_row`). Which chunk an
    element belongs to depends on sizes alone, so that results are the same from run to run. Kernels
    whose inner points would be read again after they were written (`can_share`) stay whole, as do
    those where less time would be saved than the launches take."""

    name = "split_reductions"

    def run(self, graph: Graph) -> Graph:
        """The graph with the reductions of few rows shared between programs."""
        hints = hints_of(graph.symbols)
        taken = {name for node in graph.nodes for name in names_of(node)}
        nodes: list[Node] = []
        others = beside(graph, hints)
        for number, node in enumerate(graph.nodes):
            crowd = others.get(number, 0)
            if not isinstance(node, Kernel) or programs_of_row(node, hints) > 1:
                nodes.append(node)
            elif scans(node) and not can_split_scans(node):
                nodes += _turns(node, hints, taken)
            elif not can_split_scans(node):
                paired = pair_softmax(node)
                cut_of = partial(choose_cut, hints=hints, beside=crowd)
                parts = split(paired, cut_of, taken, _transposes)
                nodes += parts if len(parts) > 1 else [node]
            elif (cut := choose_cut(node, hints)) is not None:
                nodes += split_scans(node, cut, taken)
            else:
                nodes.append(node)
        return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes))


def _turns(kernel: Kernel, hints: Mapping[str, int], taken: set[str]) -> list[Kernel]:
    """A kernel that reduces and scans (`softmax(x).cumsum()`, `x.cumsum().sum()`), as kernels that
    share what they do, where that takes less time than few programs take for the whole."""
    whole = pair_softmax(kernel)
    if not can_share(whole):
        return [kernel]
    names = set(taken)
    parts: list[Kernel] = []
    for part in in_turns(whole, names):
        if not scans(part):
            parts += split(part, lambda k: choose_cut(k, hints), names)
            continue
        cut = choose_cut(part, hints) if can_split_scans(part) else None
        if cut is None and not shares_scans(part, hints):
            return [kernel]
        parts += [part] if cut is None else split_scans(part, cut, names)
    rows = max(1, at_hints(product(a.extent for a in kernel.axes), hints))
    programs = -(-rows // _FEWEST_COLUMNS) if reduces_columns(kernel) else rows
    moved = sum(traffic(p, hints).total for p in parts)
    if traffic(kernel, hints).total * _BUSY / programs <= moved + len(parts) * LAUNCH_BYTES:
        return [kernel]
    taken |= names
    return parts


def names_of(node: Node) -> Iterator[str]:
    """What a node and, of a kernel, its buffers are called."""
    yield node_name(node)
    if isinstance(node, Kernel):
        yield from (b.name for b in node.buffers)


def choose_cut(kernel: Kernel, hints: Mapping[str, int], beside: int = 0) -> Cut | None:
    """How to share the reductions of a kernel, or None where one program a row is as good. beside:
    bytes that others move meanwhile, whose programs keep the machine busy, too."""
    inner = inner_axes(kernel)
    reduces = [s for s in statements(kernel) if isinstance(s, Reduce)]
    scanning = scans(kernel)
    walks = any(isinstance(s, Store) and s.mode == "sum" for s in statements(kernel))
    if not inner or not (reduces or scanning) or walks or not can_share(kernel):
        return None
    columns = reduces_columns(kernel)
    if scanning and not (columns and can_split_scans(kernel)):
        return None
    # the first extreme is in the first chunk that has one if chunks are cut off the outermost axis
    ordered = any(s.op in ("argmax", "argmin") for s in reduces)
    rows = max(1, at_hints(product(a.extent for a in kernel.axes), hints))
    moved = traffic(kernel, hints)
    fewest = _fewest(kernel, moved.total) if moved.total > _STREAMED else _FEWEST_COLUMNS
    programs = -(-rows // fewest) if columns else rows
    if scanning:
        cost = 2 * LAUNCH_BYTES + sum(moved.read.values())
    else:
        levels = sum(any(isinstance(s, Reduce) for s in p.body) for p in kernel.phases)
        applies = any(p.axes for p in kernel.phases[_last_reduce(kernel) + 1 :])
        cost = (2 * levels - 1 + applies) * LAUNCH_BYTES
    piece = None if ordered or scanning else _short_piece(kernel, hints)
    if piece is not None and moved.total > cost:
        return Cut(piece, piece.extent, sympy.S.One, True)
    points = at_hints(product(a.extent for a in inner), hints)
    if not (ordered or columns or scanning) and moved.total > 16 * cost:
        part = _part_of_own(kernel, _CACHED // (_MULTIPROCESSORS * points) if applies else 0)
        if part is not None and points // part.extent >= _LONG_RUN:
            return Cut(part, part.extent, sympy.S.One, True)
    wide = -(-rows // columns_at_once(kernel)) if columns else rows
    wanted = min(_WANTED // wide, points // (_LEAST_ROWS if columns else _LEAST_ELEMENTS))
    if beside and wanted > 1:
        share = _WANTED * moved.total // (moved.total + beside) // wide
        wanted = min(wanted, max(2, share), FEW // 2)
        if 2 * programs >= wanted:
            return None
    busy = min(_BUSY, wide * wanted)
    together = max(moved.total * _BUSY / max(1, busy), moved.total + beside)
    if wanted < 2 or moved.total * _BUSY / programs - together <= cost:
        return None
    pieces = {a: at_hints(a.extent, hints) // (_piece(kernel, a) if columns else 1) for a in inner}
    first, most = inner[0], max(inner, key=lambda a: pieces[a])
    run = 0 if columns or len(inner) == 1 else points // max(1, at_hints(first.extent, hints))
    runs = run >= _LONG_RUN // (1 + run % 2)  # of memory, which half as many programs read as well
    axis = first if ordered or (1 + runs) * pieces[first] >= wanted else most
    wanted = wanted if ordered else min(wanted, max(2, pieces[axis]))
    extent = axis.extent
    if extent.is_Integer and axis is first and runs and extent <= (FEW if beside else 64 * wanted):
        return Cut(axis, extent, sympy.S.One, True)  # each chunk is one run
    if not extent.is_Integer:
        count = min(wanted, max(2, at_hints(extent, hints)))
        return Cut(axis, sympy.Integer(count), sympy.sympify(CeilDiv(extent, count)), False)
    if columns and not scanning:
        return _static_cut(axis, wanted, False, wide)
    return _static_cut(axis, wanted, axis is inner[-1] and not columns)


def shares_scans(kernel: Kernel, hints: Mapping[str, int]) -> bool:
    """Whether programs do better to share the scans of rows, in one launch, than to do one row
    each, though memory is filled for what they tell each other."""
    if not can_split_scans(kernel) or reduces_columns(kernel):
        return False
    rows = max(1, at_hints(product(a.extent for a in kernel.axes), hints))
    points = rows * at_hints(product(a.extent for a in kernel.phases[-1].axes), hints)
    busy = min(_BUSY, points // _SCANNED)
    return busy > rows and traffic(kernel, hints).total * (_BUSY / rows - _BUSY / busy) > (
        LAUNCH_BYTES
    )


def _part_of_own(kernel: Kernel, cached: int) -> Axis | None:
    """The outermost inner axis, along which parts of a row have numbers of their own (biases of the
    channels of a group). Programs of such a part read these once, not for each element. Not where
    `cached` bytes of each element, which are in the cache when the row is read again, are all."""
    first, *others = inner_axes(kernel) or ()
    loads = {s for s in statements(kernel) if isinstance(s, Load)}
    rest = {a.symbol for a in others}
    own = {s for s in loads if rest.isdisjoint(s.index.free_symbols)}
    read = sum(s.dtype.itemsize for s in loads - own)
    if not others or not first.extent.is_Integer or read <= cached:
        return None
    return first if any(first.symbol in s.index.free_symbols for s in own) else None


def _fewest(kernel: Kernel, moved: int) -> int:
    """Columns that a program takes at least. What is stored of each element is read for it again,
    from memory if that is much; pieces of half a line are moved well enough if it is not (columns
    of 12000 x 5376 of bf16 that are stored in 8 bits, 16 at a time, on an H100: 176 us, where
    Inductor's two kernels take 126)."""
    inner = [s for p in kernel.phases if p.axes for s in p.body]
    types = {b.name: b.type.dtype for b in kernel.buffers}
    stored = [types[s.buffer].itemsize for s in inner if isinstance(s, Store)]
    loaded = [s.dtype.itemsize for s in inner if isinstance(s, Load)]
    if scans(kernel):
        return _FEWEST_COLUMNS
    if stored and moved < 4 * _CACHED:
        return max(_FEWEST_COLUMNS, _LINE // 2 // min(stored + loaded))
    line = _LINE // max(loaded, default=_LINE)
    return max(_FEWEST_COLUMNS, min(line, columns_at_once(kernel)))


def _piece(kernel: Kernel, axis: Axis) -> int:
    """Elements of a chunk along an inner axis at least, if what is read lies along it: a cache
    line (sums over images and places of 64 x 768 x 784 times 64 x 784 x 768)."""
    inner = (s for p in kernel.phases if p.axes for s in p.body)
    sizes = (s.dtype.itemsize for s in inner if isinstance(s, Load) and step(s.index, axis) == 1)
    return _LINE // min(sizes, default=_LINE)


def _transposes(kernel: Kernel) -> bool:
    """Long columns are read, and what is stored of them lies along them; not so many that programs
    which hold a line of them keep the machine busy (layer norm of 64 x 768 x 784 of bf16, stored
    the other way, with its gradient on an H100: 384 us apart, 352 whole)."""
    inner = inner_axes(kernel)
    columns = product(a.extent for a in kernel.axes)
    if columns.is_Integer and columns >= _BUSY * columns_at_once(kernel):
        return False
    if not inner or not can_share(kernel) or not reduces_columns(kernel) or scans(kernel):
        return False
    if not any(isinstance(s, Reduce) for s in statements(kernel)):
        return False
    stores = [s for p in kernel.phases if p.axes for s in p.body if isinstance(s, Store)]
    long = inner[-1].extent.is_Integer and inner[-1].extent >= _LONG_COLUMN
    return long and any(s.mode == "set" and step(s.index, inner[-1]) == 1 for s in stores)


def _short_piece(kernel: Kernel, hints: Mapping[str, int]) -> Axis | None:
    """The inner axis of short pieces of a row that most of what is read lies in, if those of the
    next row are beside them, and rows are too long for a program to hold its neighbours too."""
    inner = inner_axes(kernel)
    if not inner or len(inner) < 2 or not kernel.axes:
        return None
    if at_hints(product(a.extent for a in inner), hints) <= _SMALL_ROW:
        return None
    votes: Counter[Axis | None] = Counter()
    for load in {s for s in statements(kernel) if isinstance(s, Load)}:
        form = linear(load.index, tuple(a.symbol for a in (*kernel.axes, *inner)))
        if form is None or any(form.coefficient(a.symbol) == 0 for a in inner):
            continue
        (piece, *_) = *(a for a in inner if form.coefficient(a.symbol) == 1), None
        beside = piece is not None and any(
            form.coefficient(a.symbol) == piece.extent for a in kernel.axes
        )
        size = load.dtype.itemsize
        short = piece is not None and piece.extent.is_Integer and piece.extent * size < _SHORT_PIECE
        votes[piece if beside and short else None] += size
    return max(votes, key=lambda a: votes[a]) if votes else None


def _static_cut(axis: Axis, wanted: int, aligned: bool, wide: int = 0) -> Cut | None:
    """About `wanted` chunks of equal length where the extent can be divided so, of aligned length
    if they lie behind each other in memory, and as many as give all multiprocessors as much to do
    (16 x 16900 x 128 of f32 on an H200: 52 chunks 42 us, 26 47). Of columns, `wide` programs side
    by side, rather many more than half as many (means of gelu, 128 x 64516 x 64 of f32, by hand:
    127 chunks 684 us, 4 864)."""
    extent = int(axis.extent)
    wanted = min(wanted, extent)
    if wanted < 2:
        return None

    def dividing(first: int, last: int) -> list[int]:
        return [n for n in range(max(2, first), last + 1) if extent % n == 0]

    def score(count: int) -> tuple[int, bool, float]:
        length = extent // count
        power = min(length & -length, _ALIGNED) if aligned else _ALIGNED
        off = abs(count - wanted) if aligned else max(count / wanted, wanted / count)
        return power, not wide or _is_even(count * wide), -off

    half, near = wanted // 2, min(extent, _NEAR * wanted)
    counts = dividing(half + bool(wide), near)
    if wide and not counts:
        far = min(_FAR * wanted, extent // (4 * _LEAST_ROWS))
        counts = dividing(near + 1, far)[:1] or dividing(half, half)
    best = max(counts, key=score, default=0)
    if best and (score(best)[0] >= 16 or not aligned):
        return Cut(axis, sympy.Integer(best), sympy.Integer(extent // best), True)
    length = -(-extent // wanted)
    if aligned:
        step = min(_ALIGNED, 1 << (length - 1).bit_length())
        length = -(-length // step) * step
    elif length >= 4 * _LEAST_ROWS:  # no step of a loop over rows needs a mask of its own
        length = -(-length // _LEAST_ROWS) * _LEAST_ROWS
    return Cut(axis, sympy.Integer(-(-extent // length)), sympy.Integer(length), False)


def _is_even(programs: int) -> bool:
    """Whether a multiprocessor waits for another no longer than a twentieth of the time."""
    most = -(-programs // _MULTIPROCESSORS)
    return 20 * programs >= 19 * most * _MULTIPROCESSORS


def _last_reduce(kernel: Kernel) -> int:
    return max(n for n, p in enumerate(kernel.phases) if any(isinstance(s, Reduce) for s in p.body))
