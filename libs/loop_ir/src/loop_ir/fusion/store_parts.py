"""Parts of a concatenation that the kernels which make them store where they belong."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

import sympy

from loop_ir.ir import analysis
from loop_ir.ir import nodes as ir
from loop_ir.ir.affine import disjoint, linear, product, same, span, substitute
from loop_ir.ir.body import fresh_values
from loop_ir.ir.masks import definitions, mask_tests
from loop_ir.ir.names import defined_values, renamed, statements, used_values
from loop_ir.ir.points import mixed_radix
from loop_ir.ir.renaming import fresh_name, union_buffers, used_buffers
from loop_ir.ir.rewrite import ranges_of, simplify_with
from loop_ir.splitting.split_reductions import LAUNCH_BYTES
from symexpr import FloorDiv, Mod
from tensor_ir import DType

# Bytes side by side of what is written at once: a sector.
_LEAST_RUN = 32


@dataclass(frozen=True)
class StoreParts:
    """A kernel that does nothing but join buffers end to end is left to what makes them:

        k:   parallel i0 < 4, i1 < 5: store a[5*i0 + i1]
        cat: parallel i0 < 4, i1 < 8: y[8*i0 + i1] = a[5*i0 + i1] if i1 < 5 else b[3*i0 + i1 - 5]
     -> k:   parallel i0 < 4, i1 < 5: store y[8*i0 + i1]
        cat: parallel i0 < 4, i1 < 3: y[8*i0 + i1 + 5] = b[3*i0 + i1]

    A part that no kernel of the graph makes alone (`b`) is copied still, by a kernel of its own;
    one that others read is stored twice. Parts that lie in shorter runs than a sector are stored
    where they belong only if one kernel makes all of them: it fills each sector."""

    name = "store_parts"

    def run(self, graph: ir.Graph) -> ir.Graph:
        """The graph with parts stored into their wholes."""
        nodes: list[ir.Node] = list(graph.nodes)
        for node in graph.nodes:
            if isinstance(node, ir.Kernel) and (whole := _Whole.of(node)) is not None:
                whole.place(nodes, graph)
        return graph if nodes == list(graph.nodes) else replace(graph, nodes=tuple(nodes))


def joins_runs(kernel: ir.Kernel, buffers: Collection[str]) -> bool:
    """Whether the kernel does nothing but join buffers end to end, where one of these lies in runs
    worth a store."""
    whole = _Whole.of(kernel)
    parts = () if whole is None else whole.parts
    return any(p.load.buffer in buffers and whole is not None and whole.runs(p) for p in parts)


@dataclass(frozen=True)
class _Part:
    """Points `low` to `high` of an axis, at which the whole is `value`: what `load` gives, or what
    `body` computes of that and of constants."""

    low: int
    high: int
    load: ir.Load
    body: tuple[ir.Stmt, ...]
    value: str

    def followed_by(self, joined: str, after: tuple[ir.Stmt, ...], value: str) -> _Part:
        """The part, where `value` is computed `after` it was joined."""
        if not after:
            return self
        named = tuple(renamed(s, {joined: self.value}) for s in after)
        have = {name for s in self.body for name in defined_values(s)}
        new = tuple(s for s in named if have.isdisjoint(defined_values(s)))
        return replace(self, body=(*self.body, *new), value=value)


@dataclass(frozen=True)
class _Whole:
    """A kernel that joins parts along one of its axes, and its store."""

    kernel: ir.Kernel
    axis: ir.Axis
    parts: tuple[_Part, ...]
    store: ir.Store

    @staticmethod
    def of(kernel: ir.Kernel) -> _Whole | None:
        """None for a kernel that does anything else."""
        stores = [s for s in statements(kernel) if isinstance(s, ir.Store)]
        if not analysis.is_pointwise(kernel) or len(stores) != 1 or len(kernel.phases) != 1:
            return None
        (store,) = stores
        reader = _Reader(kernel)
        joined, after = reader.joined(store.value)
        found = reader.parts(joined) or ()
        parts = sorted(
            (p.followed_by(joined, after, store.value) for p in found), key=attrgetter("low")
        )
        ends = [0, *(p.high for p in parts)]
        tiled = all(p.low == end for p, end in zip(parts, ends, strict=False))
        if store.mode != "set" or store.mask is not None or len(parts) < 2 or len(reader.axes) != 1:
            return None
        (axis,) = (a for a in kernel.axes if a.symbol in reader.axes)
        whole = _Whole(kernel, axis, tuple(parts), store)
        return whole if tiled and axis.extent == ends[-1] else None

    def place(self, nodes: list[ir.Node], graph: ir.Graph) -> None:
        """Rewrites the nodes if bytes are saved."""
        fixed = {i.name for i in graph.inputs} | {name for name, _ in graph.constants}
        number = next(n for n, node in enumerate(nodes) if node is self.kernel)
        out = self.store.buffer
        if out in fixed or any(out in analysis.writes(n) for n in nodes if n is not self.kernel):
            return
        makers: dict[_Part, tuple[int, ir.Store]] = {}
        for part in self.parts:
            place = self._maker(part, nodes[:number], fixed)
            made = None if place is None else self._stored(nodes[place], part)
            if place is None or made is None:
                continue
            over = _extents(nodes[place], part.load.buffer)
            others = ((q, store) for q, (where, store) in makers.items() if where == place)
            if all(
                disjoint(store.index, made.index, _extents(nodes[place], q.load.buffer), over)
                for q, store in others
            ):
                makers[part] = place, made
        if len(makers) < len(self.parts) or len({place for place, _ in makers.values()}) > 1:
            makers = {part: made for part, made in makers.items() if self.runs(part)}
        left = [part for part in self.parts if part not in makers]
        hints = analysis.hints_of(graph.symbols)
        size = part.load.dtype.itemsize
        saved = sum(
            analysis.at_hints(product(self._extents(p).values()), hints) * size for p in makers
        )
        if not makers or saved < (len(left) - 1) * LAUNCH_BYTES:
            return
        nodes[number : number + 1] = self._copies(left, nodes)
        kept = analysis.output_buffers(graph)
        for part, (place, store) in makers.items():
            name = part.load.buffer
            needed = name in kept or any(name in analysis.reads(n) for n in nodes)
            nodes[place] = self._storing(nodes[place], part, store, needed)

    def _extents(self, part: _Part) -> dict[ir.Axis, sympy.Expr]:
        """The extents of the axes of the part's points."""
        width = sympy.Integer(part.high - part.low)
        return {a: width if a == self.axis else a.extent for a in self.kernel.axes}

    def _maker(self, part: _Part, before: list[ir.Node], fixed: set[str]) -> int | None:
        """The kernel that alone writes the part, whole, and does not read it."""
        buffer = part.load.buffer
        found = [n for n, node in enumerate(before) if buffer in analysis.writes(node)]
        once = sum(p.load.buffer == buffer for p in self.parts) == 1
        if buffer in fixed or len(found) != 1 or not once:
            return None
        node = before[found[0]]
        return (
            found[0] if isinstance(node, ir.Kernel) and buffer not in analysis.reads(node) else None
        )

    def runs(self, part: _Part) -> bool:
        """Whether a part lies in the whole in runs worth a store."""
        form = linear(self.store.index, tuple(a.symbol for a in self.kernel.axes))
        if form is None:
            return False
        run = form.coefficient(self.axis.symbol) * (part.high - part.low) * part.load.dtype.itemsize
        return not run.is_Integer or bool(run >= _LEAST_RUN)

    def _stored(self, node: ir.Node, part: _Part) -> ir.Store | None:
        """The store into the whole, in the kernel that makes the part, of what it stores there."""
        assert isinstance(node, ir.Kernel)
        buffer = part.load.buffer
        types = {b.name: b.type for b in (*node.buffers, *self.kernel.buffers)}
        stores = [s for s in statements(node) if isinstance(s, ir.Store) and s.buffer == buffer]
        places = self._places(part, span(types[buffer]))
        if len(stores) != 1 or stores[0].mode != "set" or places is None:
            return None
        (store,) = stores
        if _dtype(node, store.value) != part.load.dtype:
            return None  # readers see the value as the buffer rounds it
        at = {axis: place(store.index) for axis, place in places.items()}
        index = simplify_with(sympy.expand(self.store.index.xreplace(at)), ranges_of(node))
        axes = tuple(a.symbol for p in node.phases for a in (*node.axes, *p.axes))
        if linear(index, axes) is None:
            return None
        return replace(store, buffer=self.store.buffer, index=index)

    def _places(self, part: _Part, elements: sympy.Expr) -> dict[sympy.Symbol, _Place] | None:
        """For each axis of the whole, where on it an element of the part's buffer lies, if each of
        its `elements` is one point."""
        first = {self.axis.symbol: part.low}
        start = ((self.axis.symbol, self.axis.symbol + part.low),)
        extents = {a.symbol: n for a, n in self._extents(part).items()}
        digits = mixed_radix(substitute(part.load.index, start), extents)
        if digits is None or not same(product(extents.values()), elements):
            return None
        places = {s: _Place(sympy.S.One, sympy.S.One, first.get(s, 0)) for s in extents}
        for number, (axis, step) in enumerate(digits):
            places[axis] = _Place(step, extents[axis] if number else None, first.get(axis, 0))
        return places

    def _storing(self, kernel: ir.Node, part: _Part, store: ir.Store, needed: bool) -> ir.Kernel:
        """The kernel that stores into the whole, and the part too if that is needed."""
        assert isinstance(kernel, ir.Kernel)
        fresh = fresh_values(kernel)
        names = {part.load.out: store.value}
        body: list[ir.Stmt] = []
        for stmt in part.body:
            names.update((name, next(fresh)) for name in defined_values(stmt))
            body.append(renamed(stmt, names))
        body.append(replace(store, value=names[part.value]))

        def stores(stmt: ir.Stmt) -> Iterator[ir.Stmt]:
            mine = isinstance(stmt, ir.Store) and stmt.buffer == part.load.buffer
            if needed or not mine:
                yield stmt
            if mine:
                yield from body

        phases = tuple(
            replace(p, body=tuple(t for s in p.body for t in stores(s))) for p in kernel.phases
        )
        (whole,) = (b for b in self.kernel.buffers if b.name == self.store.buffer)
        buffers = union_buffers(kernel.buffers, (whole,))
        origins = (*kernel.origins, *(o for o in self.kernel.origins if o not in kernel.origins))
        return used_buffers(replace(kernel, buffers=buffers, phases=phases, origins=origins))

    def _copies(self, parts: list[_Part], nodes: list[ir.Node]) -> list[ir.Kernel]:
        """Kernels that copy the other parts."""
        taken = {analysis.node_name(n) for n in nodes if n is not self.kernel}
        copies = []
        for part in parts:
            shift = ((self.axis.symbol, self.axis.symbol + part.low),)
            load = replace(part.load, mask=None, index=substitute(part.load.index, shift))
            store = replace(self.store, value=part.value, index=substitute(self.store.index, shift))
            copy = replace(
                self.kernel,
                name=fresh_name(self.kernel.name, taken),
                axes=tuple(replace(a, extent=n) for a, n in self._extents(part).items()),
                phases=(ir.Phase((), (load, *part.body, store)),),
            )
            copies.append(used_buffers(copy))
        return copies


@dataclass(frozen=True)
class _Place:
    """Where elements lie along an axis whose neighbours are `step` elements apart, from `low` on;
    extent: None of the outermost axis."""

    step: sympy.Expr
    extent: sympy.Expr | None
    low: int

    def __call__(self, element: sympy.Expr) -> sympy.Expr:
        at = sympy.sympify(FloorDiv(element, self.step))
        return self.low + (at if self.extent is None else sympy.sympify(Mod(at, self.extent)))


class _Reader:
    """What the values of a kernel are, as parts. axes: along which."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.extents = {a.symbol: a.extent for a in kernel.axes}
        self.made = definitions(kernel)
        self.places = {s.symbol for s in statements(kernel) if isinstance(s, ir.Indirect)}
        self.axes: set[sympy.Symbol] = set()

    def joined(self, value: str) -> tuple[str, tuple[ir.Stmt, ...]]:
        """The value that `value` is computed of and of constants alone, and how."""
        after: list[ir.Stmt] = []
        while isinstance(stmt := self.made[value], ir.Compute) and stmt.op != "where":
            names = list(dict.fromkeys(used_values(stmt)))
            consts = [s for n in names if isinstance(s := self.made[n], ir.Const)]
            rest = [n for n in names if not isinstance(self.made[n], ir.Const)]
            if len(rest) != 1:
                break
            after[:0] = [*consts, stmt]
            (value,) = rest
        return value, tuple(dict.fromkeys(after))

    def parts(self, value: str) -> list[_Part] | None:
        """The parts that a value is, each inside of the masks that choose it; None if it is
        anything else where these are not."""
        stmt = self.made[value]
        if isinstance(stmt, ir.Const):
            return []
        if not (isinstance(stmt, ir.Compute) and stmt.op == "where"):
            return self._leaf(value)
        mask, then, other = stmt.args
        inside, outside, chosen = self.parts(then), self.parts(other), self._interval(mask)
        if inside is None or outside is None or chosen is None:
            return None
        low, high = chosen
        fits = all(low <= p.low and p.high <= high for p in inside)
        apart = all(p.high <= low or high <= p.low for p in outside)
        return [*inside, *outside] if fits and apart else None

    def _leaf(self, value: str) -> list[_Part] | None:
        """A load under a mask, at a place that is no data, and what is computed of it and of
        constants."""
        needed = {value}
        body: list[ir.Stmt] = []
        loads: list[ir.Load] = []
        for stmt in reversed(list(dict.fromkeys(self.made.values()))):
            if needed.isdisjoint(defined_values(stmt)):
                continue
            if isinstance(stmt, ir.Load):
                loads.append(stmt)
            elif isinstance(stmt, ir.Compute | ir.Const) and not (
                isinstance(stmt, ir.Compute) and stmt.op == "where"
            ):
                needed.update(used_values(stmt))
                body.insert(0, stmt)
            else:
                return None
        if len(loads) != 1 or not self.places.isdisjoint(loads[0].index.free_symbols):
            return None
        chosen = self._interval(loads[0].mask)
        return None if chosen is None else [_Part(*chosen, loads[0], tuple(body), value)]

    def _interval(self, mask: str | None) -> tuple[int, int] | None:
        """`low <= axis < high`, of a mask that says so, or one of these."""
        low, high, axes = 0, None, set()
        for test in mask_tests(self.made, mask or ""):
            form = None if test is None else linear(test, tuple(self.extents))
            if form is None or len(form.terms) != 1 or not form.rest.is_Integer:
                return None
            ((axis, sign),) = form.terms
            if sign not in (1, -1):
                return None
            axes.add(axis)
            if sign == 1:
                low = max(low, -int(form.rest))
            else:
                end = int(form.rest) + 1
                high = end if high is None else min(high, end)
        if len(axes) != 1:
            return None
        self.axes |= axes
        extent = self.extents[axes.pop()]
        if high is None and extent.is_Integer:
            high = int(extent)
        return None if high is None else (low, high)


def _extents(node: ir.Node, buffer: str) -> dict[sympy.Symbol, sympy.Expr]:
    """The extents of the axes over which a kernel stores to a buffer."""
    assert isinstance(node, ir.Kernel)
    (phase,) = (
        p
        for p in node.phases
        if any(isinstance(s, ir.Store) and s.buffer == buffer for s in p.body)
    )
    return {a.symbol: a.extent for a in (*node.axes, *phase.axes)}


def _dtype(kernel: ir.Kernel, value: str) -> DType:
    (made,) = (s for s in statements(kernel) if value in defined_values(s))
    assert not isinstance(made, ir.Store | ir.Indirect)
    return made.dtype
