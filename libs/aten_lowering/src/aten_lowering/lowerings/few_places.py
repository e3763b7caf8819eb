"""Reductions at places that are data, of many values in few places: each place asks every value
whether it is one of its own.

What is combined atomically in few places waits for each other. Here it is a reduction as any other,
which programs share, whose order is the same in every run, and which is computed together with what
its values are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

import sympy

from aten_lowering.builder import Coords, KernelBuilder, Operand, Value, at
from aten_lowering.call import Call, opmath
from aten_lowering.few import are_few
from loop_ir import DType

# Of a point, the places that it has a part in, with the value for each and whether it counts.
Parts = Callable[[KernelBuilder], Sequence[tuple[Coords, Value, Value | None]]]

# Modes of stores -> reductions, and the operations that join two of their results.
_FOLDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
_JOINS = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}

# Neighbouring places that read a value together, at most.
_AT_ONCE = 16


@dataclass(frozen=True)
class _Question:
    """How places have to do with points. asked: dimensions of the result of which every place asks
    the values; own: others, which are dimensions of the points; over: the dimensions of the points
    that a place walks over, `values` points."""

    asked: tuple[int, ...]
    own: dict[int, int]
    over: tuple[int, ...]
    values: sympy.Expr


def _question(
    call: Call, size: Coords, points: Sequence[sympy.Expr], parts: Parts
) -> _Question | None:
    """None where a point has several parts, the places are many, or a coordinate of them is
    computed of those of the points."""
    probe = KernelBuilder("", points, call.origin)
    (place, _, _), *more = parts(probe)
    own = {d: probe.coords.index(c) for d, c in enumerate(place) if c != 0 and c in probe.coords}
    asked = tuple(d for d in range(len(place)) if d not in own and size[d] != 1)
    if more or len({*own.values()}) < len(own):
        return None
    if any(size[d] != points[p] for d, p in own.items()) or not all(
        place[d].is_Symbol for d in asked
    ):
        return None
    over = tuple(p for p in range(len(points)) if p not in own.values())
    values = sympy.Mul(*(points[p] for p in over))
    few = are_few(sympy.Mul(*(size[d] for d in asked)), values)
    return _Question(asked, own, over, values) if few else None


def reduce_in_few(
    call: Call,
    out: Operand,
    input: Operand | None,
    points: Sequence[sympy.Expr],
    parts: Parts,
    mode: str,
    neutral: int | float,
    mean: bool,
    include_self: bool,
) -> bool:
    """`out[j, c] = input[j, c] + sum over i of where(index[i] == j, value[i, c], 0)`, or another
    fold; False where that is not worth it. neutral: what changes nothing that it is folded with."""
    wide = opmath(out.dtype)
    if mode not in _FOLDS or 0 in (*points, *out.size):
        return False
    if call.in_place and (mean or not include_self or wide is not out.dtype):
        return False
    found = _question(call, out.size, points, parts)
    if found is None:
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
    inner = k.inner([points[p] for p in found.over])
    where = {p: first[d] for d, p in found.own.items()} | dict(zip(found.over, inner, strict=True))
    k.coords = tuple(where[p] for p in range(len(points)))
    ((place, value, inside),) = parts(k)
    value = value.to(out.dtype).to(wide)
    folded: list[tuple[Value, Value | None]] = []
    for row in rows:
        tests = [k.index(place[d])("eq", k.index(row[d])) for d in found.asked]
        tests = tests if inside is None else [inside, *tests]
        hit = reduce(and_, tests) if tests else None
        (total,) = k.reduce(_FOLDS[mode], value if hit is None else hit.choose(value, neutral))
        number = None
        if hit is not None and (mean or not include_self):
            (number,) = k.reduce("sum", hit.to(DType.i32))
        folded.append((total, number))
    k.once()
    for row, (total, number) in zip(rows, folded, strict=True):
        if call.in_place:
            k.store(out, row, total, mode)
            continue
        old = k.const(0, wide) if input is None else k.load(input, row).to(wide)
        new = old(_JOINS[mode], total) if include_self else total
        if number is None:
            number = k.number(found.values, DType.i32)
        elif not include_self:
            new = (number > 0).choose(new, old)
        if mean:
            number = (number + int(include_self))("maximum", 1).to(wide)
            new = new("div" if wide.is_float else "floordiv", number)
        k.store(out, row, new)
    call.emit_kernel(k)
    return True
