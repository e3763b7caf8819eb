"""Reductions of windows in several dimensions, one dimension after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd

import sympy

from loop_ir.ir import names
from loop_ir.ir import nodes as ir
from loop_ir.ir.affine import linear, product, quotient
from loop_ir.ir.analysis import JOINS, at_hints, hints_of, scans
from loop_ir.ir.body import Body, fresh_values
from loop_ir.ir.points import place_in
from loop_ir.passes.unroll_short_rows import rewrite as write_out
from loop_ir.splitting.split_reductions import LAUNCH_BYTES, names_of
from loop_ir.splitting.stages import Pieces, without_stores
from tensor_ir import DType

# Places of a window that are fewer take less time where they are than another tensor does (maxima
# of 5 x 5 of f32 by hand on an H200: 69 us, 88 one dimension after the other; of 7 x 7 595 and 70).
_FEWEST = 28
# Places that a kernel names one by one.
_NAMED = 27
# Of the places that are read, so many times as many as the two dimensions have by themselves.
_TIMES = 2


@dataclass(frozen=True)
class SeparableWindows:
    """A reduction of windows that overlap becomes one of lines, and one of what these gave:

        k: parallel i0 < 58, i1 < 58: over r0 < 7, r1 < 7: y = reduce max(x[64*i0 + 64*r0 + i1+r1])
     ->
        k_lines: parallel i0 < 64, i1 < 58: over r1 < 7: t = reduce max(x[64*i0 + i1 + r1])
        k:       parallel i0 < 58, i1 < 58: over r0 < 7: y = reduce max(t[58*i0 + 58*r0 + i1])

    where all that is computed of a place depends on `i0` and `r0` by the line alone that they lead
    to (steps and dilations are factors), which also says where a mask holds. Sums are of the type
    that they are added up in; extremes are exact, in the type that was read. Kernels that need the
    place of an extreme stay whole, as do those whose windows share too little."""

    name = "separable_windows"

    def run(self, graph: ir.Graph) -> ir.Graph:
        """The graph with windows reduced one dimension after the other."""
        hints = hints_of(graph.symbols)
        taken = {name for node in graph.nodes for name in names_of(node)}
        nodes: list[ir.Node] = []
        for node in graph.nodes:
            parts = separate(node, hints, taken) if isinstance(node, ir.Kernel) else [node]
            nodes += parts
        return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes))


def separate(kernel: ir.Kernel, hints: Mapping[str, int], taken: set[str]) -> list[ir.Kernel]:
    """The kernels that do what `kernel` does, in order: itself alone where that is no reduction of
    windows, or is one that is better whole. taken: names of the graph, to which those of new
    kernels and buffers are added."""
    slides = [slide for axis in _window(kernel) for slide in _slides(kernel, axis)]
    slide = min(slides, key=lambda s: s.cost(kernel, hints), default=None)
    if slide is None or not slide.pays(kernel, hints):
        return [kernel]
    pieces = Pieces(kernel, taken)
    last = _join(kernel, slide, pieces)
    pieces.add("", last)
    lines, last = pieces.out
    parts = [*separate(lines, hints, taken), last]
    return [write_out(part, _NAMED) for part in parts]


@dataclass(frozen=True)
class _Slide:
    """A dimension of windows: `step * parallel + dilation * inner` is the line that is read."""

    parallel: ir.Axis
    inner: ir.Axis
    step: int
    dilation: int

    @property
    def lines(self) -> sympy.Expr:
        """How many lines all windows reach."""
        reach = self.dilation * (self.inner.extent - 1) + 1
        return sympy.expand(self.step * (self.parallel.extent - 1) + reach)

    def line(self, expr: sympy.Expr) -> sympy.Expr | None:
        """An expression of the line, which goes by the name of the parallel axis, in place of one
        of both axes; None where it depends on them otherwise."""
        form = linear(expr, (self.parallel.symbol, self.inner.symbol))
        if form is None:
            return None
        along, within = (form.coefficient(a.symbol) for a in (self.parallel, self.inner))
        factor = quotient(within, sympy.Integer(self.dilation))
        if factor is None or sympy.expand(factor * self.step - along) != 0:
            return None
        return sympy.expand(factor * self.parallel.symbol + form.rest)

    def cost(self, kernel: ir.Kernel, hints: Mapping[str, int]) -> float:
        """Places read for a point where its lines are reduced first."""
        taps = at_hints(product(a.extent for a in _window(kernel)), hints)
        own = at_hints(self.inner.extent, hints)
        shared = at_hints(self.lines, hints) / max(1, at_hints(self.parallel.extent, hints))
        return own + shared * taps / max(1, own)

    def pays(self, kernel: ir.Kernel, hints: Mapping[str, int]) -> bool:
        """Whether fewer places are read by as much as another tensor and a launch take."""
        taps = at_hints(product(a.extent for a in _window(kernel)), hints)
        cost = self.cost(kernel, hints)
        points = at_hints(product(a.extent for a in kernel.axes), hints)
        sizes = [s.dtype.itemsize for s in names.statements(kernel) if isinstance(s, ir.Reduce)]
        saved = (taps - cost) * points * sum(sizes)
        return taps >= _FEWEST and taps >= _TIMES * cost and saved >= 2 * LAUNCH_BYTES


def _window(kernel: ir.Kernel) -> tuple[ir.Axis, ...]:
    """The inner axes of a kernel that does nothing at inner points but to fold numbers, in one
    phase, in any order, and writes nothing that it reads; none of another."""
    phases = [p for p in kernel.phases if p.axes]
    if len(phases) != 1 or len(phases[0].axes) < 2 or scans(kernel):
        return ()
    body = list(names.statements(kernel))
    stored = {s.buffer for s in body if isinstance(s, ir.Store)}
    reduces = [s for s in body if isinstance(s, ir.Reduce)]
    if not reduces or any(s.op not in JOINS for s in reduces):
        return ()
    if any(isinstance(s, ir.Store) for s in phases[0].body):
        return ()
    if any(isinstance(s, ir.Load) and s.buffer in stored for s in body):
        return ()
    return phases[0].axes if all(a.extent.is_Integer for a in phases[0].axes) else ()


def _slides(kernel: ir.Kernel, inner: ir.Axis) -> Iterator[_Slide]:
    """The dimensions that windows slide along by an inner axis."""
    body = names.behind((), names.statements(kernel), ir.Reduce)
    exprs = [e for e in map(names.expression, body) if e is not None]
    for axis in kernel.axes:
        symbols = (axis.symbol, inner.symbol)
        forms = (linear(e, symbols) for e in exprs if inner.symbol in e.free_symbols)
        form = next(forms, None)
        if form is None:
            continue
        along, within = (form.coefficient(s) for s in symbols)
        ratio = sympy.cancel(along / within) if within != 0 else sympy.S.Zero
        if not (ratio.is_Rational and ratio > 0):
            continue
        shared = gcd(int(ratio.p), int(ratio.q))
        slide = _Slide(axis, inner, int(ratio.p) // shared, int(ratio.q) // shared)
        if all(slide.line(e) is not None for e in exprs):
            yield slide


def _join(kernel: ir.Kernel, slide: _Slide, pieces: Pieces) -> ir.Kernel:
    """Adds the kernel that reduces lines to the pieces; what reduces these, and goes on."""
    at = next(n for n, p in enumerate(kernel.phases) if p.axes)
    before, phase, after = kernel.phases[:at], kernel.phases[at], kernel.phases[at + 1 :]
    axes = tuple(ir.Axis(a.symbol, slide.lines) if a == slide.parallel else a for a in kernel.axes)
    needed = set(names.behind((), names.statements(kernel), ir.Reduce))
    place = slide.step * slide.parallel.symbol + slide.dilation * slide.inner.symbol
    where = sympy.expand(place_in(axes).subs(slide.parallel.symbol, place))
    fresh = fresh_values(kernel)
    stores, joined = Body(fresh), Body(fresh)
    for stmt in phase.body:
        if isinstance(stmt, ir.Reduce):
            (out,) = stmt.outs
            kept = _exactly(kernel, stmt, pieces.types)
            narrow = out if kept is stmt.dtype else stores.compute(kept, "cast", out)
            buffer = pieces.buffer(stmt.op, kept, tuple(a.extent for a in axes))
            stores.append(ir.Store(buffer, place_in(axes), narrow))
            loaded = joined.load(buffer, where, kept)
            if kept is not stmt.dtype:
                loaded = joined.compute(stmt.dtype, "cast", loaded)
            joined.append(replace(stmt, args=(loaded,)))

    def lines(body: Iterable[ir.Stmt]) -> tuple[ir.Stmt, ...]:
        return tuple(
            names.map_expressions(s, lambda e: e if (line := slide.line(e)) is None else line)
            for s in body
            if s in needed
        )

    first = (ir.Phase((), lines(p.body)) for p in map(without_stores, before))
    rest = tuple(a for a in phase.axes if a != slide.inner)
    phases = (*first, ir.Phase(rest, lines(phase.body)), ir.Phase((), tuple(stores)))
    pieces.add("lines", replace(kernel, axes=axes, phases=phases))
    return replace(kernel, phases=(*before, ir.Phase((slide.inner,), tuple(joined)), *after))


def _exactly(kernel: ir.Kernel, stmt: ir.Reduce, types: Mapping[str, DType]) -> DType:
    """The type that what a reduction gives of a line is kept in: for an extreme that of the numbers
    it is one of. types: those of the kernel's values."""
    made = next(
        (s for s in names.statements(kernel) if stmt.args[0] in names.defined_values(s)), None
    )
    if stmt.op not in ("max", "min") or not isinstance(made, ir.Compute) or made.op != "cast":
        return stmt.dtype
    source = types[made.args[0]]
    exact = source.is_float and made.dtype.is_float and source.itemsize < stmt.dtype.itemsize
    return source if exact and made.dtype is stmt.dtype else stmt.dtype
