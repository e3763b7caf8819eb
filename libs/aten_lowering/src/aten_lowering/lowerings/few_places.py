"""Reductions at places that are data, of many values in few places, which wait for each other where
they are combined atomically.

In very few, each place asks every value whether it is one of its own: a reduction as any other,
which programs share, whose order is the same in every run, and which is computed together with what
its values are made of. In more, neighbouring values go to different copies of the places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

import sympy

from aten_lowering.builder import Coords, KernelBuilder, Operand, Value, at
from aten_lowering.call import Call, least, opmath
from aten_lowering.few import Crowd
from loop_ir import DType, Indirect, Stmt
from symexpr import Mod

# Of a point, the places that it has a part in, with the value for each and whether it counts.
Part = tuple[Coords, Value, Value | None]
Parts = Callable[[KernelBuilder], Sequence[Part]]

# Modes of stores -> reductions, and the operations that join two of their results.
_FOLDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
_JOINS = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}

# Neighbouring places that read a value together, at most.
_AT_ONCE = 8
# Columns of a place that fill a line of memory's parts.
_LINE = 8


@dataclass(frozen=True)
class Scatter:
    """Values that replace what the input (None: zeros) has at places that are data, or are combined
    with it by a mode of stores; then divided by their number, for a mean."""

    call: Call
    out: Operand
    input: Operand | None
    points: Coords
    parts: Parts
    mode: str
    mean: bool
    include_self: bool

    @property
    def neutral(self) -> int | float:
        """What changes nothing that it is combined with."""
        dtype = opmath(self.out.dtype)
        if self.mode == "max":
            return least(dtype)
        if self.mode == "min":
            return -least(dtype) if dtype.is_float else -1 - least(dtype)
        return int(self.mode == "mul")

    def old(self, k: KernelBuilder, place: Coords, dtype: DType) -> Value:
        """What the input has there."""
        return k.const(0, dtype) if self.input is None else k.load(self.input, place).to(dtype)


@dataclass(frozen=True)
class Meeting:
    """How places have to do with points. asked: dimensions of the result that are data; own:
    others, which are dimensions of the points; over: the dimensions of the points that meet in the
    places."""

    asked: tuple[int, ...]
    own: dict[int, int]
    over: tuple[int, ...]
    crowd: Crowd

    @staticmethod
    def of(scatter: Scatter) -> Meeting | None:
        """None where a point has several parts, or a coordinate of a place is computed of those of
        the points."""
        size, points = scatter.out.size, scatter.points
        if 0 in (*points, *size):
            return None
        probe = KernelBuilder("", points, scatter.call.origin)
        (place, _, _), *more = scatter.parts(probe)
        own = {d: probe.coords.index(c) for d, c in enumerate(place) if c in probe.coords and c}
        asked = tuple(d for d in range(len(place)) if d not in own and size[d] != 1)
        over = tuple(p for p in range(len(scatter.points)) if p not in own.values())
        alike = all(size[d] == points[p] for d, p in own.items())
        data = all(place[d].is_Symbol for d in asked)
        if more or not (alike and data) or len(own) + len(over) != len(points):
            return None
        crowd = Crowd.of(size, asked, sympy.Mul(*(points[p] for p in over)))
        return Meeting(asked, own, over, crowd)


def reduce_in_few(scatter: Scatter, found: Meeting) -> bool:
    """`out[j, c] = input[j, c] + sum over i of where(index[i] == j, value[i, c], 0)`, or another
    fold; False where that is not worth it."""
    call, out, mode, mean = scatter.call, scatter.out, scatter.mode, scatter.mean
    include_self, wide = scatter.include_self, opmath(out.dtype)
    if not found.crowd.is_asked or mode not in _FOLDS:
        return False
    if call.in_place and (mean or not include_self or wide is not out.dtype):
        return False
    size = out.size
    if found.asked:  # so many neighbours of a dimension read a value together
        last = found.asked[-1]
        count = max(n for n in range(1, _AT_ONCE + 1) if size[last] % n == 0)
        size = at(size, last, size[last] / count)
    k = call.kernel(size)
    first = k.coords
    rows = [first]
    if found.asked:
        rows = [at(first, last, first[last] * count + n) for n in range(count)]
    inner = k.inner([scatter.points[p] for p in found.over])
    where = {p: first[d] for d, p in found.own.items()} | dict(zip(found.over, inner, strict=True))
    k.coords = tuple(where[p] for p in range(len(scatter.points)))
    ((place, value, inside),) = scatter.parts(k)
    value = value.to(out.dtype).to(wide)
    folded: list[tuple[Value, Value | None]] = []
    for row in rows:
        tests = [k.index(place[d])("eq", k.index(row[d])) for d in found.asked]
        tests = tests if inside is None else [inside, *tests]
        hit = reduce(and_, tests) if tests else None
        (total,) = k.reduce(
            _FOLDS[mode], value if hit is None else hit.choose(value, scatter.neutral)
        )
        number = None
        if hit is not None and (mean or not include_self):
            (number,) = k.reduce("sum", hit.to(DType.i32))
        folded.append((total, number))
    k.once()
    for row, (total, number) in zip(rows, folded, strict=True):
        if call.in_place:
            k.store(out, row, total, mode)
            continue
        old = scatter.old(k, row, wide)
        new = old(_JOINS[mode], total) if include_self else total
        if number is None:
            number = k.number(found.crowd.values, DType.i32)
        elif not include_self:
            new = (number > 0).choose(new, old)
        if mean:
            number = (number + int(include_self))("maximum", 1).to(wide)
            new = new("div" if wide.is_float else "floordiv", number)
        k.store(out, row, new)
    call.emit_kernel(k)
    return True


def reduce_in_copies(scatter: Scatter, marked: Operand | None, found: Meeting) -> bool:
    """`copies[i % n, index[i], c] += value[i, c]; out[j, c] = input[j, c] + sum over n of copies`,
    or another fold; False where that is not worth it. Copies of a number lie side by side, those of
    rows one after the other. marked: places that forget what the input has there."""
    call, out, mode, points = scatter.call, scatter.out, scatter.mode, scatter.points
    count, wide = found.crowd.copies, opmath(out.dtype)
    if count == 1 or mode not in _FOLDS or (call.in_place and wide is not out.dtype):
        return False
    rows = found.crowd.line >= _LINE

    def copied(coords: Coords, number: sympy.Expr) -> Coords:
        return (number, *coords) if rows else (*coords, number)

    size = copied(out.size, sympy.Integer(count))
    copies = call.scratch("copies", wide, size)
    k = call.kernel(size, f"{call.node.name}_start")
    k.store(copies, k.coords, k.const(scatter.neutral, wide))
    call.emit_kernel(k)
    k = call.kernel(points, f"{call.node.name}_parts")
    ((place, value, inside),) = scatter.parts(k)
    number: sympy.Expr = sympy.S.Zero
    for p in found.over:
        number = number * points[p] + k.coords[p]
    own = copied(place, Mod(number, count))
    k.store(copies, own, value.to(out.dtype), mode, inside)
    call.emit_kernel(k)
    k = call.kernel(out.size)
    (number,) = k.inner((sympy.Integer(count),))
    (total,) = k.reduce(_FOLDS[mode], k.load(copies, copied(k.coords, number)))
    k.once()
    if call.in_place:
        k.store(out, k.coords, total, mode)
    else:
        old = scatter.old(k, k.coords, wide)
        new = old(_JOINS[mode], total)
        if marked is not None:
            new = k.load(marked, tuple(k.coords[d] for d in found.asked)).choose(total, old)
        k.store(out, k.coords, new)
    call.emit_kernel(k)
    return True


def marks(scatter: Scatter, found: Meeting) -> Operand | None:
    """Which of the places some point goes to, as a new tensor of the dimensions that are data;
    None where these differ between columns, and where columns are few."""
    call, out, points = scatter.call, scatter.out, scatter.points
    columns = found.crowd.columns
    wide = columns.is_Integer and columns >= _LINE
    if not found.asked or not (wide or found.crowd.copies > 1):
        return None

    def looked_up(k: KernelBuilder, over: Coords, own: Coords) -> tuple[Coords, Value | None]:
        chosen = iter(over)
        k.coords = tuple(next(chosen) if p in found.over else own[p] for p in range(len(points)))
        ((place, _, inside),) = scatter.parts(k)
        return tuple(place[d] for d in found.asked), inside

    def lookups(first: bool) -> list[Stmt]:
        k = KernelBuilder("", points, call.origin)
        over = tuple(k.coords[p] for p in found.over)
        looked_up(k, over, k.coords if first else (sympy.S.Zero,) * len(points))
        body = k.finish().phases[0].body
        return list(body[: max(n for n, s in enumerate(body) if isinstance(s, Indirect)) + 1])

    if lookups(True) != lookups(False):
        return None
    size = tuple(out.size[d] for d in found.asked)
    marked = call.scratch("marks", DType.bool_, size)
    k = call.kernel(size, f"{call.node.name}_unmarked")
    k.store(marked, k.coords, k.const(False, DType.bool_))
    call.emit_kernel(k)
    k = call.kernel([points[p] for p in found.over], f"{call.node.name}_marked")
    place, inside = looked_up(k, k.coords, (sympy.S.Zero,) * len(points))
    k.store(marked, place, k.const(True, DType.bool_), mask=inside)
    call.emit_kernel(k)
    return marked
