"""Rows that several programs hold together, a piece each, so that memory is read once: long ones
that a program would read again for what is stored of each element."""

from collections.abc import Mapping

from loop_ir.ir.affine import product
from loop_ir.ir.analysis import at_hints, inner_axes, scans, traffic
from loop_ir.ir.in_place import in_place_buffers, stays_outside
from loop_ir.ir.names import Name, operands, results, statements
from loop_ir.ir.nodes import Indirect, Kernel, Load, Reduce, Store
from loop_ir.ir.strides import reduces_columns
from tensor_ir import DType

# What pieces of a row fold to can be joined of these.
_FOLDS = frozenset(("sum", "prod", "max", "min", "welford", "softmax"))
_TYPES = (DType.f32, DType.f64, DType.i32, DType.i64)
# Numbers of 32 bits that a program holds, of each of which it has one for each element: three
# programs a multiprocessor, of which some read while others write (softmax of 1024 x 100000 of f32
# on an H100: 286 us in pieces of 8192, 294 of 16384, 352 of 32768; 415 if rows are read again).
_HELD = 8192
# Bytes of a row up to which those of all programs stay in the second-level cache until they are
# read again (group norm of 1024 rows of 32256 of f32: 97 us so, 136 held together), and where
# nothing that is stored of each element takes room there (cosines of 8192 pairs of 32768 of f32 on
# an H100: 688 us, 976 held together).
_CACHED, _CACHED_ALONE = 192 << 10, 256 << 10
# Programs that hold one row at most, so that those of a few rows run at once, and that are worth a
# launch of this form.
_MOST, _FEWEST = 64, 132
# Of several inner axes, the last is a multiple of so many elements: else each would be found by a
# division and read alone (batch norm of 64 x 128 x 3025 of f32, with its gradient, on an H100: 457
# us held together, 318 so).
_VECTOR = 8
# Fewer bytes are moved in less time than programs take to speak.
_LEAST = 32 << 20


def can_hold_together(kernel: Kernel) -> bool:
    """Whether rows can be held in pieces by several programs: of one length, folded in any order,
    and then read again for what is stored at each point, to other buffers than are read there."""
    inner = inner_axes(kernel)
    if not inner or scans(kernel) or not product(a.extent for a in inner).is_Integer:
        return False
    folds = [s for s in statements(kernel) if isinstance(s, Reduce)]
    stores = [s for s in statements(kernel) if isinstance(s, Store)]
    return (
        bool(folds)
        and all(s.op in _FOLDS and s.dtype in _TYPES for s in folds)
        and all(s.mode == "set" for s in stores)
        and (not in_place_buffers(kernel) or stays_outside(kernel))
        and not reduces_columns(kernel)
    )


def programs_of_row(kernel: Kernel, hints: Mapping[str, int]) -> int:
    """How many programs do best to hold a row together; 1 where one holds it, or reads it again."""
    if not can_hold_together(kernel) or traffic(kernel, hints).total < _LEAST:
        return 1
    inner = inner_axes(kernel) or ()
    row = {a.symbol for a in kernel.axes}
    along = {a.symbol for a in inner if a.extent != 1}
    loads = [s for p in kernel.phases if p.axes for s in p.body if isinstance(s, Load)]
    used = {s: s.index.free_symbols for s in loads}
    own = {
        s.buffer: s.dtype.itemsize for s in loads if along <= used[s] and (row & used[s] or not row)
    }
    points = int(product(a.extent for a in inner))
    held = _held(kernel)
    odd = len(along) > 1 and inner[-1].extent % _VECTOR != 0
    stored = any(isinstance(s, Store) for p in kernel.phases if p.axes for s in p.body)
    cached = _CACHED if stored else _CACHED_ALONE
    if not held or odd or sum(own.values()) * points <= cached:
        return 1
    count = -(-points * held // _HELD)
    rows = at_hints(product(a.extent for a in kernel.axes), hints)
    return count if 1 < count <= _MOST and rows * count >= _FEWEST else 1


def _held(kernel: Kernel) -> int:
    """Of each inner point, how many numbers of 32 bits one phase at most leaves to later ones."""
    phases = [p for p in kernel.phases if p.axes]
    inner: set[Name] = {a.symbol for p in phases for a in p.axes}
    made: list[dict[Name, int]] = []
    used: list[set[Name]] = []
    for phase in phases:
        own: dict[Name, int] = {}
        for stmt in phase.body:
            if not isinstance(stmt, Reduce | Store) and not inner.isdisjoint(operands(stmt)):
                inner.update(results(stmt))
                size = 1 if isinstance(stmt, Indirect) else -(-stmt.dtype.itemsize // 4)
                own.update(dict.fromkeys(results(stmt), size))
        made.append(own)
        used.append({u for s in phase.body for u in operands(s)})
    most = 0
    for n in range(1, len(phases)):
        before = {name: size for own in made[:n] for name, size in own.items()}
        later = set[Name]().union(*used[n:])
        most = max(most, sum(size for name, size in before.items() if name in later))
    return most
