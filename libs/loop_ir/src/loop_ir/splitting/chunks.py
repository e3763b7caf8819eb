"""Reductions cut into partial results of chunks, which programs share."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import sympy

from loop_ir.ir.affine import product, substitute
from loop_ir.ir.analysis import identity, inner_axes
from loop_ir.ir.body import Body, fresh_values
from loop_ir.ir.names import map_expressions, statements, symbol_names
from loop_ir.ir.nodes import Axis, Indirect, Kernel, Load, Phase, Reduce, Scan, Stmt, Store
from loop_ir.ir.points import place_in
from loop_ir.ir.renaming import fresh_symbols
from loop_ir.splitting.stages import Pieces, reduces, without_stores
from symexpr import Max, Min
from tensor_ir import DType


@dataclass(frozen=True)
class Cut:
    """`axis` in `count` chunks of `length`; exact: they are just its extent, else the last ones
    reach past its end."""

    axis: Axis
    count: sympy.Expr
    length: sympy.Expr
    exact: bool


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


class Chunks(Pieces):
    """The kernels of a reduction that is cut into chunks: partial results, what folds them, what
    applies them."""

    def __init__(self, cut: Cut, taken: set[str], kernel: Kernel) -> None:
        super().__init__(kernel, taken)
        self.cut = cut
        self.inner = inner_axes(kernel) or ()
        used = symbol_names(kernel)
        self.chunk = next(fresh_symbols("i", used))
        self.which = (s for s in fresh_symbols("t", used))
        places = (s.symbol for s in statements(kernel) if isinstance(s, Indirect))
        self.varies = {cut.axis.symbol, *places}
        self.values = fresh_values(kernel)
        others = (a.extent for a in self.inner if a is not cut.axis)
        self.others = product(others)  # points of an inner space for one step along the axis

    def run(self) -> list[Kernel]:
        """The kernels, in the order in which they run."""
        (level,) = (n for n, p in enumerate(self.kernel.phases) if reduces(p))
        parts = [self._partial(s) for s in self.kernel.phases[level].body if isinstance(s, Reduce)]
        self.add("partial", self._chunked(self._partial_phases(level, parts)))
        finish = [phase for part in parts for phase in self._finish_phases(part)]
        self.add("", (*finish, *(p for p in self.kernel.phases if not p.axes)))
        return self.out

    def _at(self, chunk: sympy.Expr) -> sympy.Expr:
        """The element of a contiguous buffer over chunks, then parallel axes."""
        return place_in(self.kernel.axes, chunk)

    def _partial(self, stmt: Reduce) -> _Partial:
        size = (self.cut.count, *(a.extent for a in self.kernel.axes))
        dtypes = [stmt.dtype] * len(stmt.outs)
        if stmt.op in ("argmax", "argmin"):
            dtypes = [self.types[stmt.args[0]], DType.i64]
        names = tuple(self.buffer(stmt.op, dtype, size) for dtype in dtypes)
        return _Partial(stmt, names, tuple(dtypes))

    def _partial_phases(self, level: int, parts: Sequence[_Partial]) -> tuple[Phase, ...]:
        """All that leads to the reductions of a level, and stores of what they give of a chunk."""
        phases = [p if p.axes else without_stores(p) for p in self.kernel.phases[:level]]
        at = self._at(self.chunk)
        last = self.kernel.phases[level]
        body = self._body(s for s in last.body if not isinstance(s, Reduce))
        after: list[Phase] = []
        stores: list[Stmt] = []
        for part in parts:
            stmt = part.reduce
            names: tuple[str, ...]
            if stmt.op in ("argmax", "argmin"):
                best = body.reduce(part.dtypes[0], stmt.op[3:], *stmt.args)
                names = (best, body.reduce(DType.i64, stmt.op, *stmt.args))
            elif stmt.op == "welford" and not self.cut.exact:
                # lanes past the end would count: the sum first, then the squares
                total = body.reduce(stmt.dtype, "sum", *stmt.args)
                once, squares = self._body(), self._body()
                points = self._count(once, self.chunk, stmt.dtype, 1)
                mean = once.compute(stmt.dtype, "div", total, points)
                square = _square(squares, stmt.args[0], mean, stmt.dtype)
                names = (mean, squares.reduce(stmt.dtype, "sum", square))
                after += [Phase((), tuple(once)), Phase(last.axes, tuple(squares))]
            else:
                names = tuple(self._fresh() for _ in part.partial)
                body.append(replace(stmt, outs=names))
            stores += [Store(b, at, v) for b, v in zip(part.partial, names, strict=True)]
        phases.append(replace(last, body=tuple(body)))
        return (*phases, *after, Phase((), tuple(stores)))

    def _count(self, body: Body, chunk: sympy.Symbol, dtype: DType, least: int) -> str:
        """How many elements a chunk has, `least` at least."""
        length = self.cut.length
        if not self.cut.exact:
            length = sympy.sympify(Min(length, self.cut.axis.extent - chunk * length))
            length = sympy.sympify(Max(least, length))
        return body.compute(dtype, "cast", body.number(length * self.others))

    def _chunked(self, phases: tuple[Phase, ...]) -> Kernel:
        """The phases with the axis walked over one chunk a program."""
        axis, length = self.cut.axis, self.cut.length
        shift = ((axis.symbol, self.chunk * length + axis.symbol),)
        out: list[Phase] = []
        mask: str | None = None
        for phase in phases:
            body = self._body()
            moved = [map_expressions(s, lambda e: substitute(e, shift)) for s in phase.body]
            if not phase.axes or self.cut.exact:
                body += moved
            else:
                if mask is None:
                    end = self.cut.axis.extent
                    mask = body.test("lt", body.number(shift[0][1]), body.number(end))
                for stmt in moved:
                    self._mask(body, stmt, mask)
            axes = tuple(replace(a, extent=length) if a == axis else a for a in phase.axes)
            out.append(Phase(axes, tuple(body)))
        chunks = Axis(self.chunk, self.cut.count)
        return replace(self.kernel, axes=(chunks, *self.kernel.axes), phases=tuple(out))

    def _mask(self, body: Body, stmt: Stmt, mask: str) -> None:
        """A statement at inner points of which those outside of `mask` are none. What is read
        alike at all points of the axis is there."""
        if isinstance(stmt, Load) and self.varies.isdisjoint(stmt.index.free_symbols):
            pass
        elif isinstance(stmt, Load | Store):
            stmt = body.guarded(stmt, mask)
        elif isinstance(stmt, Reduce | Scan):
            (value,) = stmt.args
            dtype = self.types.get(value, stmt.dtype)
            none = body.const(identity(stmt.op, dtype), dtype)
            stmt = replace(stmt, args=(body.compute(dtype, "where", mask, value, none),))
        body.append(stmt)

    def _finish_phases(self, part: _Partial) -> list[Phase]:
        """The results of a reduction from those of its chunks."""
        stmt = part.reduce
        chunk = self.cut.axis.symbol
        over = (Axis(chunk, self.cut.count),)
        at = self._at(chunk)
        body = self._body()
        values = [body.load(b, at, t) for b, t in zip(part.partial, part.dtypes, strict=True)]
        if stmt.op in ("argmax", "argmin"):
            return self._finish_extreme(part, over, body, values[0])
        if stmt.op == "softmax":
            return self._finish_softmax(stmt, over, body, values)
        if stmt.op != "welford":
            return [Phase(over, (*body, replace(stmt, args=(values[0],))))]
        dtype, (mean, m2) = stmt.dtype, stmt.outs
        once, squares = self._body(), self._body()
        number = self._count(body, chunk, dtype, 0)
        total = body.reduce(dtype, "sum", body.compute(dtype, "mul", values[0], number))
        points = once.number(product((self.cut.axis.extent, self.others)))
        once.compute(dtype, "div", total, once.compute(dtype, "cast", points), out=mean)
        square = _square(squares, values[0], mean, dtype)
        scaled = squares.compute(dtype, "mul", square, number)
        squares.reduce(dtype, "sum", squares.compute(dtype, "add", values[1], scaled), out=m2)
        return [Phase(over, tuple(body)), Phase((), tuple(once)), Phase(over, tuple(squares))]

    def _finish_softmax(
        self, stmt: Reduce, over: tuple[Axis, ...], body: Body, values: list[str]
    ) -> list[Phase]:
        """The maximum of all chunks, and their sums as seen from there. (Of nothing but -inf, a sum
        is 0, and so is what it counts.)"""
        dtype, (peak, total) = stmt.dtype, stmt.outs
        body.reduce(dtype, "max", values[0], out=peak)
        sums = self._body()
        least, none = sums.const(-math.inf, dtype), sums.const(0.0, dtype)
        empty = sums.test("eq", values[0], least)
        scale = sums.compute(dtype, "exp", sums.compute(dtype, "sub", values[0], peak))
        part = sums.compute(dtype, "mul", values[1], scale)
        sums.reduce(dtype, "sum", sums.compute(dtype, "where", empty, none, part), out=total)
        return [Phase(over, tuple(body)), Phase(over, tuple(sums))]

    def _finish_extreme(
        self, part: _Partial, over: tuple[Axis, ...], body: Body, value: str
    ) -> list[Phase]:
        """The chunk of the first extreme, and its place in it."""
        load = body[0]
        chunk, symbol = self._fresh(), next(self.which)
        find = Reduce((chunk,), part.reduce.op, (value,), DType.i64)
        once = self._body((Indirect(symbol, chunk, self.cut.count),))
        place = once.load(part.partial[1], self._at(symbol), DType.i64)
        base = once.number(sympy.expand(symbol * self.cut.length * self.others))
        once.compute(DType.i64, "add", place, base, out=part.reduce.outs[0])
        return [Phase(over, (load, find)), Phase((), tuple(once))]

    def _body(self, body: Iterable[Stmt] = ()) -> Body:
        return Body(self.values, body)

    def _fresh(self) -> str:
        return next(self.values)


def _square(body: Body, value: str, mean: str, dtype: DType) -> str:
    delta = body.compute(dtype, "sub", value, mean)
    return body.compute(dtype, "mul", delta, delta)
