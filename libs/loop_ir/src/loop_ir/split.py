"""Cuts kernels into stages, and reductions into partial results of chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

import sympy

from loop_ir.affine import product, substitute
from loop_ir.align import fresh_symbols
from loop_ir.analysis import defined_values, identity, inner_axes, scans, statements
from loop_ir.combine import fresh_name
from loop_ir.nodes import (
    Axis,
    Buffer,
    Compute,
    Const,
    Index,
    Indirect,
    Kernel,
    Load,
    Phase,
    Reduce,
    Scan,
    Stmt,
    Store,
)
from loop_ir.passes.dead_code import drop_dead_statements
from loop_ir.passes.merge_axes import merge
from loop_ir.passes.order_axes import order
from loop_ir.rewrite import items_of, map_expressions, renumber, stage, used_buffers
from symexpr import Max, Min
from wrapper_ir.types import DType, TensorType, contiguous_strides

# Bytes that stay in an H200's second-level cache beside what streams through it, and elements that
# are read of them at a time.
_CACHED = 8 << 20
_PIECE = 8192


@dataclass(frozen=True)
class Cut:
    """`axis` in `count` chunks of `length`; exact: they are just its extent, else the last ones
    reach past its end."""

    axis: Axis
    count: sympy.Expr
    length: sympy.Expr
    exact: bool


def split(
    kernel: Kernel,
    cut_of: Callable[[Kernel], Cut | None],
    taken: set[str],
    apart: Callable[[Kernel], bool] = lambda kernel: False,
) -> list[Kernel]:
    """The kernels that do what `kernel` does, in order, where `cut_of` says that it pays: one
    for each reduction that others wait for, shared between programs as `cut_of` says of it, and one
    for all points that are left. It reads nothing that it writes, but where nothing is reduced.
    apart: whether stages are worth a kernel each, though nothing is shared.
    taken: names of the graph, to which those of new kernels and buffers are added."""
    cut = cut_of(kernel)
    if cut is None and not apart(kernel):
        return [kernel]
    stages = separate(kernel, taken)
    if len(stages) > 1:
        return [part for stage in stages for part in split(stage, cut_of, taken)]
    if cut is None:
        return [kernel]
    partial, finish = chunks(kernel, cut, taken)
    return [*split(partial, cut_of, taken), finish]


def separate(kernel: Kernel, taken: set[str]) -> list[Kernel]:
    """Kernels with one stage of reductions each, and one of what follows at all points:

    k: over r0: reduce; once: a; over r0: b   ->   k_stage: over r0: reduce; once: a; store
                                                   k: at all points: a; b

    Where `b` scans, it stays by rows: `once: a; over r0: b`.
    """
    return _Stages(kernel, taken).run()


def chunks(kernel: Kernel, cut: Cut, taken: set[str]) -> list[Kernel]:
    """A kernel with one stage of reductions as two: `cut.axis`, an inner axis of all its phases
    with inner axes, is shared between programs, and their partial results are reduced."""
    return Chunks(cut, taken, kernel).run()


@dataclass(frozen=True)
class _Partial:
    """A reduction and the buffers of its partial results, and of its results."""

    reduce: Reduce
    partial: tuple[str, ...]
    dtypes: tuple[DType, ...]


class _Kernels:
    """What is made of a kernel."""

    def __init__(self, kernel: Kernel, taken: set[str]) -> None:
        self.kernel = kernel
        self.taken = taken
        self.types = {
            name: s.dtype
            for s in statements(kernel)
            if not isinstance(s, Store | Indirect)
            for name in defined_values(s)
        }
        self.buffers = {b.name: b for b in kernel.buffers}
        self.device = kernel.buffers[0].type.device
        self.out: list[Kernel] = []

    def add(self, suffix: str, nest: tuple[Phase, ...] | Kernel, in_order: bool = False) -> None:
        """in_order: the parallel axes stay in the order that they are in."""
        kernel = nest if isinstance(nest, Kernel) else replace(self.kernel, phases=nest)
        name = self.kernel.name
        if suffix:
            name = fresh_name(f"{name}_{suffix}", self.taken)
        buffers = tuple(self.buffers.values())
        stored = {s.buffer for s in statements(kernel) if isinstance(s, Store)}
        slim = drop_dead_statements(replace(kernel, name=name, buffers=buffers), stored)
        if slim is None or not stored:
            return
        if inner := inner_axes(slim):
            slim = replace(slim, phases=stage(items_of(slim), inner))
        slim = used_buffers(slim)
        self.out.append(renumber(merge(slim if in_order else order(slim))))


class _Stages(_Kernels):
    def run(self) -> list[Kernel]:
        rest = self.kernel
        while True:
            level = next(n for n, p in enumerate(rest.phases) if _reduces(p))
            after = self._rest(rest, level)
            later = [p for p in after.phases if p.axes]
            more = any(map(_reduces, later))
            head = [p if p.axes or not more else _without_stores(p)
                    for p in rest.phases[: level + 1]]  # fmt: skip
            tail = () if more else tuple(p for p in rest.phases[level + 1 :] if not p.axes)
            if not later:
                self.add("", (*head, *tail))
                return self.out
            reduces = [s for s in rest.phases[level].body if isinstance(s, Reduce)]
            results = [name for s in reduces for name in s.outs]
            store = [self._store(name) for name in results]
            self.add("stage", (*head, Phase((), tuple(store)), *tail))
            load = [Load(n, s.buffer, s.index, self.types[n])
                    for n, s in zip(results, store, strict=True)]  # fmt: skip
            rest = replace(after, phases=(Phase((), tuple(load)), *after.phases))
            if not more and scans(rest):
                self.add("", tuple(p if p.axes else _without_stores(p) for p in rest.phases))
                return self.out
            if not more:
                body = [s for p in rest.phases for s in (p if p.axes else _without_stores(p)).body]
                axes = (*rest.axes, *(inner_axes(rest) or ()))
                flat = replace(rest, axes=axes, phases=(Phase((), tuple(body)),))
                pieces = self._by_rows(flat, len(rest.axes))
                self.add("", pieces, in_order=pieces is not flat)
                return self.out

    def _by_rows(self, flat: Kernel, rows: int) -> Kernel:
        """What all rows read (weights of a norm), if it is large, is read in pieces, each for one
        row after the other, so that it stays in the cache: `x[i0*2**22 + i1] * w[i1]`
        -> `x[i1*2**22 + i0*2**13 + i2] * w[i0*2**13 + i2]`."""
        last = flat.axes[-1]
        row = {a.symbol for a in flat.axes[:rows]}
        shared = [s for s in statements(flat) if isinstance(s, Load)
                  and last.symbol in s.index.free_symbols
                  and row.isdisjoint(s.index.free_symbols)]  # fmt: skip
        if len(flat.axes) == rows or not rows or not last.extent.is_Integer:
            return flat
        piece = min(int(last.extent) & -int(last.extent), _PIECE)
        if sum(s.dtype.itemsize for s in shared) * last.extent < _CACHED or piece < _PIECE:
            return flat
        used = {a.symbol.name for a in flat.axes} | {s.name for s in flat.symbols}
        used |= {s.symbol.name for s in statements(flat) if isinstance(s, Indirect)}
        outer = next(fresh_symbols("i", used))
        shift = ((last.symbol, outer * piece + last.symbol),)
        (phase,) = flat.phases
        body = tuple(map_expressions(s, lambda e: substitute(e, shift)) for s in phase.body)
        axes = (Axis(outer, last.extent / piece), *flat.axes[:-1],
                replace(last, extent=sympy.Integer(piece)))  # fmt: skip
        return replace(flat, axes=axes, phases=(Phase((), body),))

    def _rest(self, kernel: Kernel, level: int) -> Kernel:
        """What is left of a kernel once its reductions up to `level` are known, and all that is
        stored at inner points up to there is."""
        phases = []
        for number, phase in enumerate(kernel.phases):
            body = phase.body
            if number <= level and phase.axes:
                body = tuple(s for s in body if not isinstance(s, Reduce | Store))
            phases.append(replace(phase, body=body))
        stored = {s.buffer for p in phases for s in p.body if isinstance(s, Store)}
        rest = drop_dead_statements(replace(kernel, phases=tuple(phases)), stored)
        return replace(kernel, phases=()) if rest is None else rest

    def _store(self, value: str) -> Store:
        """Of a result, into a new contiguous buffer over the parallel axes."""
        name = fresh_name(f"{self.kernel.name}_{value}", self.taken)
        size = tuple(a.extent for a in self.kernel.axes)
        layout = TensorType(self.types[value], size, contiguous_strides(size), self.device)
        self.buffers[name] = Buffer(name, layout, True)
        return Store(name, _place(self.kernel.axes), value)


def _place(axes: Sequence[Axis], first: sympy.Expr = sympy.S.Zero) -> sympy.Expr:
    """The element of a contiguous buffer over `first` and the axes."""
    index = first
    for axis in axes:
        index = index * axis.extent + axis.symbol
    return sympy.expand(index)


class Chunks(_Kernels):
    def __init__(self, cut: Cut, taken: set[str], kernel: Kernel) -> None:
        super().__init__(kernel, taken)
        self.cut = cut
        self.inner = inner_axes(kernel) or ()
        used = {a.symbol.name for a in (*kernel.axes, *self.inner)}
        used |= {s.name for s in kernel.symbols}
        used |= {s.symbol.name for s in statements(kernel) if isinstance(s, Indirect)}
        self.chunk = next(fresh_symbols("i", used))
        self.which = (s for s in fresh_symbols("t", used))
        known = {name for s in statements(kernel) for name in defined_values(s)}
        self.values = (f"v{n}" for n in count() if f"v{n}" not in known)
        others = (a.extent for a in self.inner if a is not cut.axis)
        self.others = product(others)  # points of an inner space for one step along the axis

    # ---- the whole

    def run(self) -> list[Kernel]:
        (level,) = (n for n, p in enumerate(self.kernel.phases) if _reduces(p))
        parts = [self._partial(s) for s in self.kernel.phases[level].body if isinstance(s, Reduce)]
        self.add("partial", self._chunked(self._partial_phases(level, parts)))
        finish = [phase for part in parts for phase in self._finish_phases(part)]
        self.add("", (*finish, *(p for p in self.kernel.phases if not p.axes)))
        return self.out

    # ---- buffers

    def _buffer(self, name: str, dtype: DType, size: tuple[sympy.Expr, ...]) -> str:
        name = fresh_name(name, self.taken)
        self.buffers[name] = Buffer(
            name, TensorType(dtype, size, contiguous_strides(size), self.device), True
        )
        return name

    def _at(self, chunk: sympy.Expr) -> sympy.Expr:
        """The element of a contiguous buffer over chunks, then parallel axes."""
        return _place(self.kernel.axes, chunk)

    def _partial(self, stmt: Reduce) -> _Partial:
        size = (self.cut.count, *(a.extent for a in self.kernel.axes))
        dtypes = [stmt.dtype] * len(stmt.outs)
        if stmt.op in ("argmax", "argmin"):
            dtypes = [self.types[stmt.args[0]], DType.i64]
        names = tuple(
            self._buffer(f"{self.kernel.name}_{stmt.op}", dtype, size) for dtype in dtypes
        )
        return _Partial(stmt, names, tuple(dtypes))

    # ---- the kernel over chunks

    def _partial_phases(self, level: int, parts: Sequence[_Partial]) -> tuple[Phase, ...]:
        """All that leads to the reductions of a level, and stores of what they give of a chunk."""
        phases = [p if p.axes else _without_stores(p) for p in self.kernel.phases[:level]]
        at = self._at(self.chunk)
        last = self.kernel.phases[level]
        body: list[Stmt] = [s for s in last.body if not isinstance(s, Reduce)]
        after: list[Phase] = []
        stores: list[Stmt] = []
        for part in parts:
            stmt = part.reduce
            names = tuple(self._fresh() for _ in part.partial)
            if stmt.op in ("argmax", "argmin"):
                best, index = names
                body.append(Reduce((best,), stmt.op[3:], stmt.args, part.dtypes[0]))
                body.append(Reduce((index,), stmt.op, stmt.args, DType.i64))
            elif stmt.op == "welford" and not self.cut.exact:
                # lanes past the end would count: the sum first, then the squares
                mean, m2 = names
                total = self._fresh()
                body.append(Reduce((total,), "sum", stmt.args, stmt.dtype))
                once, points = self._count(self.chunk, stmt.dtype, 1)
                once.append(Compute(mean, "div", (total, points), stmt.dtype))
                square: list[Stmt] = self._square(stmt.args[0], mean, stmt.dtype)
                square.append(Reduce((m2,), "sum", (_result(square),), stmt.dtype))
                after += [Phase((), tuple(once)), Phase(last.axes, tuple(square))]
            else:
                body.append(replace(stmt, outs=names))
            stores += [Store(b, at, v) for b, v in zip(part.partial, names, strict=True)]
        phases.append(replace(last, body=tuple(body)))
        return (*phases, *after, Phase((), tuple(stores)))

    def _square(self, value: str, mean: str, dtype: DType) -> list[Stmt]:
        delta, square = self._fresh(), self._fresh()
        return [Compute(delta, "sub", (value, mean), dtype),
                Compute(square, "mul", (delta, delta), dtype)]  # fmt: skip

    def _count(self, chunk: sympy.Symbol, dtype: DType, least: int) -> tuple[list[Stmt], str]:
        """How many elements a chunk has, `least` at least."""
        length = self.cut.length
        if not self.cut.exact:
            length = sympy.sympify(Min(length, self.cut.axis.extent - chunk * length))
            length = sympy.sympify(Max(least, length))
        points = length * self.others
        index, number = self._fresh(), self._fresh()
        return [Index(index, points, DType.i64), Compute(number, "cast", (index,), dtype)], number

    def _chunked(self, phases: tuple[Phase, ...]) -> Kernel:
        """The phases with the axis walked over one chunk a program."""
        axis, length = self.cut.axis, self.cut.length
        shift = ((axis.symbol, self.chunk * length + axis.symbol),)
        out: list[Phase] = []
        mask: str | None = None
        for phase in phases:
            body: list[Stmt] = [
                map_expressions(s, lambda e: substitute(e, shift)) for s in phase.body
            ]
            if phase.axes and not self.cut.exact:
                head: list[Stmt] = []
                if mask is None:
                    mask = self._fresh()
                    head = self._inside(mask, shift[0][1])
                body = [*head, *(t for s in body for t in self._masked(s, mask))]
            axes = tuple(replace(a, extent=length) if a == axis else a for a in phase.axes)
            out.append(Phase(axes, tuple(body)))
        chunks = Axis(self.chunk, self.cut.count)
        return replace(self.kernel, axes=(chunks, *self.kernel.axes), phases=tuple(out))

    def _inside(self, mask: str, at: sympy.Expr) -> list[Stmt]:
        index, end = self._fresh(), self._fresh()
        return [Index(index, at, DType.i64), Index(end, self.cut.axis.extent, DType.i64),
                Compute(mask, "lt", (index, end), DType.bool_)]  # fmt: skip

    def _masked(self, stmt: Stmt, mask: str) -> list[Stmt]:
        """A statement at inner points of which those outside of `mask` are none."""
        if isinstance(stmt, Load | Store):
            if stmt.mask is None:
                return [replace(stmt, mask=mask)]
            both = self._fresh()
            return [Compute(both, "and", (mask, stmt.mask), DType.bool_), replace(stmt, mask=both)]
        if not isinstance(stmt, Reduce | Scan):
            return [stmt]
        (value,) = stmt.args
        dtype = self.types.get(value, stmt.dtype)
        none, kept = self._fresh(), self._fresh()
        return [Const(none, identity(stmt.op, dtype), dtype),
                Compute(kept, "where", (mask, value, none), dtype),
                replace(stmt, args=(kept,))]  # fmt: skip

    # ---- the kernel over partial results

    def _finish_phases(self, part: _Partial) -> list[Phase]:
        """The results of a reduction from those of its chunks."""
        stmt = part.reduce
        chunk = self.cut.axis.symbol
        over = (Axis(chunk, self.cut.count),)
        at = self._at(chunk)
        loads: list[Stmt] = []
        values = []
        for buffer, dtype in zip(part.partial, part.dtypes, strict=True):
            values.append(self._fresh())
            loads.append(Load(values[-1], buffer, at, dtype))
        if stmt.op in ("argmax", "argmin"):
            return self._finish_extreme(part, over, loads[0], values[0])
        if stmt.op == "softmax":
            return self._finish_softmax(stmt, over, loads, values)
        if stmt.op != "welford":
            return [Phase(over, (*loads, replace(stmt, args=(values[0],))))]
        dtype, (mean, m2) = stmt.dtype, stmt.outs
        counting, number = self._count(chunk, dtype, 0)
        weighted, total = self._fresh(), self._fresh()
        points, all_points = self._fresh(), self._fresh()
        square = self._square(values[0], mean, dtype)
        scaled, whole = self._fresh(), self._fresh()
        extent = product((self.cut.axis.extent, self.others))
        return [
            Phase(over, (*loads, *counting,
                         Compute(weighted, "mul", (values[0], number), dtype),
                         Reduce((total,), "sum", (weighted,), dtype))),
            Phase((), (Index(points, extent, DType.i64),
                       Compute(all_points, "cast", (points,), dtype),
                       Compute(mean, "div", (total, all_points), dtype))),
            Phase(over, (*square,
                         Compute(scaled, "mul", (_result(square), number), dtype),
                         Compute(whole, "add", (values[1], scaled), dtype),
                         Reduce((m2,), "sum", (whole,), dtype))),
        ]  # fmt: skip

    def _finish_softmax(
        self, stmt: Reduce, over: tuple[Axis, ...], loads: list[Stmt], values: list[str]
    ) -> list[Phase]:
        """The maximum of all chunks, and their sums as seen from there. (Of nothing but -inf, a sum
        is 0, and so is what it counts.)"""
        dtype, (peak, total) = stmt.dtype, stmt.outs
        none, empty, shift, scale, part = (self._fresh() for _ in range(5))
        least, counted = self._fresh(), self._fresh()
        return [
            Phase(over, (*loads, Reduce((peak,), "max", (values[0],), dtype))),
            Phase(over, (Const(least, -math.inf, dtype), Const(none, 0.0, dtype),
                         Compute(empty, "eq", (values[0], least), DType.bool_),
                         Compute(shift, "sub", (values[0], peak), dtype),
                         Compute(scale, "exp", (shift,), dtype),
                         Compute(part, "mul", (values[1], scale), dtype),
                         Compute(counted, "where", (empty, none, part), dtype),
                         Reduce((total,), "sum", (counted,), dtype))),
        ]  # fmt: skip

    def _finish_extreme(
        self, part: _Partial, over: tuple[Axis, ...], load: Stmt, value: str
    ) -> list[Phase]:
        """The chunk of the first extreme, and its place in it."""
        chunk, place, base = self._fresh(), self._fresh(), self._fresh()
        symbol = next(self.which)
        at = self._at(symbol)
        start = sympy.expand(symbol * self.cut.length * self.others)
        return [
            Phase(over, (load, Reduce((chunk,), part.reduce.op, (value,), DType.i64))),
            Phase((), (Indirect(symbol, chunk, self.cut.count),
                       Load(place, part.partial[1], at, DType.i64),
                       Index(base, start, DType.i64),
                       Compute(part.reduce.outs[0], "add", (place, base), DType.i64))),
        ]  # fmt: skip

    def _fresh(self) -> str:
        return next(self.values)


def _reduces(phase: Phase) -> bool:
    return any(isinstance(s, Reduce) for s in phase.body)


def _without_stores(phase: Phase) -> Phase:
    return replace(phase, body=tuple(s for s in phase.body if not isinstance(s, Store)))


def _result(body: Sequence[Stmt]) -> str:
    return defined_values(body[-1])[0]
