"""Kernels whose reductions are sums, products, extremes and logic alone, which a loop folds in one
variable, and whose phases each go one way.

mean, m2 = welford(v)  ->  mean = sum(v) / n;  then m2 = sum((v - mean)**2)
k = argmax(v)          ->  m = max(v);         then k = min(v == m or isnan(v) ? place : n)
m, s = softmax(v)      ->  m = max(v);         then s = sum(m == -inf ? 0 : exp(v - m))
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import sympy

from loop_ir import Axis, DType, Kernel, Phase, Reduce, Scan, Stmt
from loop_ir.ir import Body, Name, definitions, fresh_values, operands, product, results


@dataclass(frozen=True)
class _Parts:
    """What stands in the place of a phase: the phase itself, what follows it once, and a phase
    over the same axes after that."""

    axes: tuple[Axis, ...]
    first: Body
    between: Body
    last: Body

    def welford(self, stmt: Reduce, kind: DType) -> None:
        mean, m2 = stmt.outs
        wide = kind if kind is DType.f64 else DType.f32
        (value,) = stmt.args
        value = value if kind is wide else self.first.compute(wide, "cast", value)
        total = self.first.reduce(wide, "sum", value)
        count = self.between.number(product(a.extent for a in self.axes))
        count = self.between.compute(wide, "cast", count)
        center = self.between.compute(wide, "div", total, count, out=mean if kind is wide else None)
        away = self.last.compute(wide, "sub", value, center)
        away = self.last.compute(wide, "mul", away, away)
        if kind is wide:
            self.last.reduce(wide, "sum", away, out=m2)
        else:
            self.between.compute(kind, "cast", center, out=mean)
            self.last.reduce(kind, "sum", self.last.compute(kind, "cast", away), out=m2)

    def softmax(self, stmt: Reduce, kind: DType) -> None:
        peak, total = stmt.outs
        (value,) = stmt.args
        self.first.reduce(kind, "max", value, out=peak)
        none = self.between.test("eq", peak, self.between.const(-math.inf, kind))
        e = self.last.compute(kind, "exp", self.last.compute(kind, "sub", value, peak))
        e = self.last.compute(kind, "where", none, self.last.const(0.0, kind), e)
        self.last.reduce(kind, "sum", e, out=total)

    def place(self, stmt: Reduce, kind: DType) -> None:
        (value,) = stmt.args
        extreme = self.first.reduce(kind, stmt.op.removeprefix("arg"), value)
        hit = self.last.test("eq", value, extreme)
        if kind.is_float:
            hit = self.last.test("or", hit, self.last.test("isnan", value))
        place: sympy.Expr = sympy.S.Zero
        for axis in self.axes:
            place = place * axis.extent + axis.symbol
        at = self.last.number(sympy.expand(place))
        none = self.last.number(product(a.extent for a in self.axes))
        found = self.last.compute(DType.i64, "where", hit, at, none)
        self.last.reduce(DType.i64, "min", found, out=stmt.outs[0])


_PARTS = {
    "welford": _Parts.welford,
    "softmax": _Parts.softmax,
    "argmax": _Parts.place,
    "argmin": _Parts.place,
}


def plain_folds(kernel: Kernel) -> Kernel:
    """The kernel with such reductions and scans, in further phases over the same inner axes."""
    fresh, made = fresh_values(kernel), definitions(kernel)
    phases: list[Phase] = []
    for phase in kernel.phases:
        parts = _Parts(phase.axes, Body(fresh), Body(fresh), Body(fresh))
        for stmt in phase.body:
            if isinstance(stmt, Reduce) and stmt.op in _PARTS:
                _PARTS[stmt.op](parts, stmt, made[stmt.args[0]].dtype)  # type: ignore[union-attr]  # a value has one
            else:
                parts.first.append(stmt)
        phases += [Phase(phase.axes, body) for body in _one_way(parts.first)]
        phases += [Phase((), tuple(parts.between))] if parts.between else []
        phases += [Phase(phase.axes, tuple(parts.last))] if parts.last else []
    return replace(kernel, phases=tuple(phases))


def _one_way(body: Sequence[Stmt]) -> Iterator[tuple[Stmt, ...]]:
    """Parts of a body, one after the other, each with scans in one direction alone."""
    left = list(body)
    while left:
        now: list[Stmt] = []
        later: list[Stmt] = []
        names: set[Name] = set()
        way = next((s.reverse for s in left if isinstance(s, Scan)), False)
        for stmt in left:
            other = isinstance(stmt, Scan) and stmt.reverse != way
            if other or not names.isdisjoint(operands(stmt)):
                names.update(results(stmt))
                later.append(stmt)
            else:
                now.append(stmt)
        yield tuple(now)
        left = later
