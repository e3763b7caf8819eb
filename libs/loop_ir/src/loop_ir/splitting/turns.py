"""Cuts kernels that scan and reduce into kernels that do one of the two."""

from dataclasses import replace

from loop_ir.ir.names import Name, operands, results
from loop_ir.ir.nodes import Axis, Kernel, Load, Phase, Reduce, Scan, Stmt, Store
from loop_ir.ir.strides import reduces_columns
from loop_ir.splitting.stages import Pieces


def in_turns(kernel: Kernel, taken: set[str]) -> list[Kernel]:
    """Kernels that reduce or scan, each value once, in the order in which one needs the other:

        k:  over r0: a = scan(x), b = reduce(a), c = scan(x + a); once: store b; over r0: store c
     ->
        k_turn_1: over r0: a = scan(x); store a
        k_turn_2: over r0: b = reduce(a); once: store b
        k:        over r0: c = scan(x + a); store c

    Reductions have even turns, scans odd ones; what is pointwise is computed wherever it is used.
    taken: names of the graph, to which those of new kernels and buffers are added."""
    return _Turns(kernel, taken).run()


class _Turns(Pieces):
    """turn: by name, the first turn in which it is known. kept: by result of a reduction or scan,
    where other turns find it; it is stored if they read it."""

    def __init__(self, kernel: Kernel, taken: set[str]) -> None:
        super().__init__(kernel, taken)
        self.turn: dict[Name, int] = {}
        self.kept: dict[str, Store] = {}
        self.read: set[str] = set()

    def run(self) -> list[Kernel]:
        folds: set[int] = set()
        for phase in self.kernel.phases:
            for stmt in phase.body:
                at = self._known(stmt)
                if isinstance(stmt, Reduce | Scan):
                    at += at % 2 if isinstance(stmt, Reduce) else 1 + at % 2
                    folds.add(at)
                self.turn.update(dict.fromkeys(results(stmt), at))
        self.turns = sorted(folds)
        if len(folds) == 1:
            return [self.kernel]
        for turn in reversed(self.turns):
            self.add("" if turn == self.turns[-1] else f"turn_{turn}", self._phases(turn))
            self.read.update(b.name for part in self.out for b in part.buffers)
        return self.out[::-1]

    def _known(self, stmt: Stmt) -> int:
        return max((self.turn.get(name, 0) for name in operands(stmt)), default=0)

    def _phases(self, turn: int) -> tuple[Phase, ...]:
        """What is done in a turn, and what this takes: from memory, what is of other turns."""
        first: list[Stmt] = []
        last: list[Stmt] = []
        phases: list[Phase] = []
        for phase in self.kernel.phases:
            body: list[Stmt] = []
            for stmt in phase.body:
                if isinstance(stmt, Store):
                    body += [stmt] if self._turn_of(stmt, phase) == turn else []
                    continue
                at = max(self.turn[name] for name in results(stmt))
                if not isinstance(stmt, Reduce | Scan) or at == turn:
                    body += [stmt] if at <= turn else []
                if isinstance(stmt, Reduce | Scan) and at <= turn:
                    inner = phase.axes if isinstance(stmt, Scan) else ()
                    stores = [self._kept(name, inner) for name in results(stmt)]
                    if at == turn:
                        stores = [s for s in stores if s.buffer in self.read]
                        (body if inner else last).extend(stores)
                    else:
                        loads = (
                            Load(s.value, s.buffer, s.index, self.types[s.value]) for s in stores
                        )
                        (body if inner else first).extend(loads)
            phases.append(replace(phase, body=tuple(body)))
        return (Phase((), tuple(first)), *phases, Phase((), tuple(last)))

    def _turn_of(self, store: Store, phase: Phase) -> int:
        """At inner points it waits for a scan: its kernel runs at all of them."""
        later = [turn for turn in self.turns if turn >= self._known(store)]
        return next((turn for turn in later if phase.axes and turn % 2), later[0])

    def _kept(self, value: str, inner: tuple[Axis, ...]) -> Store:
        """Of a result, into a new contiguous buffer."""
        if value not in self.kept:
            columns = inner and reduces_columns(self.kernel)
            axes = (*inner, *self.kernel.axes) if columns else (*self.kernel.axes, *inner)
            self.kept[value] = self.store(value, axes)
        return self.kept[value]
