"""Cuts kernels into stages: one of reductions each, and one of what follows at all points."""

from dataclasses import replace

import sympy

from loop_ir.ir import names as ir_names
from loop_ir.ir.affine import substitute
from loop_ir.ir.analysis import inner_axes
from loop_ir.ir.nodes import Axis, Indirect, Kernel, Load, Phase, Reduce, Store
from loop_ir.ir.points import place_in
from loop_ir.ir.renaming import fresh_name, fresh_symbols, new_buffer, renumber, used_buffers
from loop_ir.ir.staging import items_of, stage
from loop_ir.passes.dead_code import drop_dead_statements
from loop_ir.passes.merge_axes import merge
from loop_ir.passes.order_axes import order
from tensor_ir import DType

# Bytes that stay in an H200's second-level cache beside what streams through it, and elements that
# are read of them at a time.
_CACHED = 8 << 20
_PIECE = 8192


def separate(kernel: Kernel, taken: set[str]) -> list[Kernel]:
    """Kernels with one stage of reductions each, and one of what follows at all points:

    k: over r0: reduce; once: a; over r0: b   ->   k_stage: over r0: reduce; once: a; store
                                                   k: at all points: a; b
    """
    return _Stages(kernel, taken).run()


class Pieces:
    """The kernels that are made of one kernel, in `out`."""

    def __init__(self, kernel: Kernel, taken: set[str]) -> None:
        self.kernel = kernel
        self.taken = taken
        self.types = ir_names.value_types(kernel)
        self.buffers = {b.name: b for b in kernel.buffers}
        self.out: list[Kernel] = []

    def add(self, suffix: str, nest: tuple[Phase, ...] | Kernel, in_order: bool = False) -> None:
        """Adds a kernel, called after the whole and `suffix`, of what of the nest reaches a store.
        in_order: the parallel axes stay in the order that they are in."""
        kernel = nest if isinstance(nest, Kernel) else replace(self.kernel, phases=nest)
        name = self.kernel.name
        if suffix:
            name = fresh_name(f"{name}_{suffix}", self.taken)
        buffers = tuple(self.buffers.values())
        slim = drop_dead_statements(replace(kernel, name=name, buffers=buffers))
        if slim is None:
            return
        if inner := inner_axes(slim):
            slim = replace(slim, phases=stage(items_of(slim), inner))
        slim = used_buffers(slim)
        self.out.append(renumber(merge(slim if in_order else order(slim))))

    def buffer(self, suffix: str, dtype: DType, size: tuple[sympy.Expr, ...]) -> str:
        """The name of a new contiguous buffer, called after the whole and `suffix`."""
        name = fresh_name(f"{self.kernel.name}_{suffix}", self.taken)
        self.buffers[name] = new_buffer(name, dtype, size, self.kernel.buffers[0].type.device)
        return name

    def store(self, value: str, axes: tuple[Axis, ...]) -> Store:
        """Of a result, into a new contiguous buffer over these axes."""
        name = self.buffer(value, self.types[value], tuple(a.extent for a in axes))
        return Store(name, place_in(axes), value)


class _Stages(Pieces):
    def run(self) -> list[Kernel]:
        rest = self.kernel
        while True:
            level = next(n for n, p in enumerate(rest.phases) if reduces(p))
            after = self._rest(rest, level)
            later = [p for p in after.phases if p.axes]
            more = any(map(reduces, later))
            head = [
                p if p.axes or not more else without_stores(p) for p in rest.phases[: level + 1]
            ]
            tail = () if more else tuple(p for p in rest.phases[level + 1 :] if not p.axes)
            if not later:
                self.add("", (*head, *tail))
                return self.out
            results = [n for s in rest.phases[level].body if isinstance(s, Reduce) for n in s.outs]
            if not more:
                results = self._needed(rest, level, results)
            store = [self.store(name, self.kernel.axes) for name in results]
            self.add("stage", (*head, *tail, Phase((), tuple(store))))
            load = [
                Load(n, s.buffer, s.index, self.types[n])
                for n, s in zip(results, store, strict=True)
            ]
            phases = tuple(without(p, results) for p in after.phases)
            rest = replace(after, phases=(Phase((), tuple(load)), *phases))
            if not more:
                body = [s for p in rest.phases for s in (p if p.axes else without_stores(p)).body]
                axes = (*rest.axes, *(inner_axes(rest) or ()))
                flat = replace(rest, axes=axes, phases=(Phase((), tuple(body)),))
                pieces = self._by_rows(flat, len(rest.axes))
                self.add("", pieces, in_order=pieces is not flat)
                return self.out

    def _needed(self, kernel: Kernel, level: int, results: list[str]) -> list[str]:
        """Of what is computed of the results once a row, what is read at inner points: a deviation
        instead of the variance that it is computed of, again at each of them. The results, where
        that would be more bytes."""
        later = kernel.phases[level + 1 :]
        once = [s for p in later if not p.axes for s in p.body]
        known = list(results)
        for stmt in once:
            if not set(known).isdisjoint(ir_names.used_values(stmt)):
                if isinstance(stmt, Indirect):
                    return results
                known += ir_names.defined_values(stmt)
        read = {n for p in later if p.axes for s in p.body for n in ir_names.used_values(s)}
        needed = [n for n in known if n in read]
        sizes = [sum(self.types[n].itemsize for n in names) for names in (needed, results)]
        return needed if needed and sizes[0] <= sizes[1] else results

    def _by_rows(self, flat: Kernel, rows: int) -> Kernel:
        """What all rows read (weights of a norm), if it is large, is read in pieces, each for one
        row after the other, so that it stays in the cache: `x[i0*2**22 + i1] * w[i1]`
        -> `x[i1*2**22 + i0*2**13 + i2] * w[i0*2**13 + i2]`."""
        last = flat.axes[-1]
        row = {a.symbol for a in flat.axes[:rows]}
        shared = [
            s
            for s in ir_names.statements(flat)
            if isinstance(s, Load)
            and last.symbol in s.index.free_symbols
            and row.isdisjoint(s.index.free_symbols)
        ]
        if len(flat.axes) == rows or not rows or not last.extent.is_Integer:
            return flat
        piece = min(int(last.extent) & -int(last.extent), _PIECE)
        if sum(s.dtype.itemsize for s in shared) * last.extent < _CACHED or piece < _PIECE:
            return flat
        outer = next(fresh_symbols("i", ir_names.symbol_names(flat)))
        shift = ((last.symbol, outer * piece + last.symbol),)
        (phase,) = flat.phases
        body = tuple(
            ir_names.map_expressions(s, lambda e: substitute(e, shift)) for s in phase.body
        )
        axes = (
            Axis(outer, last.extent / piece),
            *flat.axes[:-1],
            replace(last, extent=sympy.Integer(piece)),
        )
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
        rest = drop_dead_statements(replace(kernel, phases=tuple(phases)))
        return replace(kernel, phases=()) if rest is None else rest


def reduces(phase: Phase) -> bool:
    """Whether the phase has a reduction."""
    return any(isinstance(s, Reduce) for s in phase.body)


def without(phase: Phase, names: list[str]) -> Phase:
    """The phase without what defines these values."""
    kept = (s for s in phase.body if not {*names} & {*ir_names.defined_values(s)})
    return replace(phase, body=tuple(kept))


def without_stores(phase: Phase) -> Phase:
    """The phase with all that it computes, and nothing stored."""
    return replace(phase, body=tuple(s for s in phase.body if not isinstance(s, Store)))
