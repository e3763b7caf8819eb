"""Cuts a program at what no CUDA graph can hold, into parts that graphs are made of."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

from symexpr import symbol
from tensor_ir import Ref
from wrapper_ir import analysis
from wrapper_ir import ops as ir
from wrapper_ir.captures import WORK, Captures, callees
from wrapper_ir.devices import guarded
from wrapper_ir.passes.pipeline import Pass, run_passes


@dataclass(frozen=True)
class Partition:
    """`launch a (x, b0); ...; u = extern aten.nonzero.default(b0) binds (n,); launch c (u, n)` ->

        subgraph main_part0(x: f32[8] cuda:0) captured:
          b0 = alloc f32[8] cuda:0
          launch a (x, b0)
          ...
          return (b0,)
        (b0,) = extern subgraph.main_part0(x) -> (f32[8] cuda:0,)
        u = extern aten.nonzero.default(b0) binds (n,) -> i64[n, 1] cuda:0
        launch c (u, n)

    A part takes the storages from before it that it uses, and symbols, and gives those of its own
    that are used after it; its call `mutates` what it writes to. Views and descriptors are made
    anew by each part that uses them. Stretches of fewer launches and calls than `least`, which
    cost less than a graph's, stay as they are, and so does a program that one graph holds.
    left_out: whether an operator is not captured, by its name. device: the kind that graphs are
    captured on. passes: what parts go through."""

    left_out: Callable[[str], bool]
    device: str
    passes: tuple[Pass, ...] = ()
    least: int = 4
    name: ClassVar[str] = "partition"

    def run(self, program: ir.Program) -> ir.Program:
        """The program with its parts."""
        captures = Captures(program, self.left_out, self.device)
        if captures.whole():
            return program
        cut = _Cut(self, program, captures)
        return cut.program() if any(part for part, _ in cut.stretches) else program


class _Cut:
    """stretches: ops that follow each other, and whether they are a part. first, last: the number
    of the stretch that uses a storage first, and last. named: what defines a name."""

    def __init__(self, how: Partition, program: ir.Program, captures: Captures) -> None:
        self.how, self.source, self.captures = how, program, captures
        # Without ends of storages: those of parts are found anew.
        ops = [
            ir.Allocate(op.out, op.type, op.comment) if isinstance(op, ir.Reuse) else op
            for op in program.ops
            if not isinstance(op, ir.Free)
        ]
        self.head = [op for op in ops if isinstance(op, ir.SymbolDef) and op.of != "item"]
        self.kernels, self.callees = analysis.kernels(program), callees(program.ops)
        # What an operator outside of parts says to be a view goes into them as it is.
        apart = [
            replace(op, alias=None) if isinstance(op, ir.ExternCall) and self._is_apart(op) else op
            for op in ops
        ]
        self.roots = analysis.storages(apart, analysis.param_roots(program))
        self.types = analysis.types_of(program)
        params = (p.name for p in program.params if p.type is not None)
        self.named: dict[str, ir.Op | None] = dict.fromkeys(params)
        for op in ops:
            self.named |= dict.fromkeys(dict(analysis.definitions(op)), op)
            if isinstance(op, ir.Describe):
                self.named[op.out] = op
        self.stretches = self._stretches([op for op in ops if op not in self.head])
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        for i, (_, stretch) in enumerate(self.stretches):
            for root in self._used(stretch):
                self.first.setdefault(root, i)
                self.last[root] = i

    def _is_apart(self, op: ir.Op) -> bool:
        if not isinstance(op, ir.ExternCall) or op.alias is None:
            return False
        return not self.captures.op(op) or (len(set(analysis.uses(op))) > 1 and not op.mutates)

    def _is_view(self, op: ir.Op) -> bool:
        """Whether the op only names memory, as often as one likes."""
        if isinstance(op, ir.ExternCall):
            return op.alias is not None and not op.mutates and not self._is_apart(op)
        return isinstance(op, ir.View | ir.Describe | ir.Workspace)

    def _stretches(self, ops: Sequence[ir.Op]) -> list[tuple[bool, list[ir.Op]]]:
        remarks: list[ir.Op] = []  # comments and assertions stay with what follows them
        found: list[tuple[bool, list[ir.Op]]] = []
        for op in ops:
            if isinstance(op, ir.Comment | ir.Assert):
                remarks.append(op)
            elif isinstance(op, (*WORK, ir.Return)) and not self._is_view(op):
                part = not (isinstance(op, ir.Return) or self._is_apart(op))
                part = part and self.captures.op(op)
                found.append((part, [*remarks, op]))
                remarks = []
        kinds = [(part, list(run)) for part, run in groupby(found, lambda one: one[0])]
        large = [(part and len(run) >= self.how.least, run) for part, run in kinds]
        return [
            (part, [op for _, run in runs for _, ops in run for op in ops])
            for part, runs in groupby(large, lambda one: one[0])
        ]

    def program(self) -> ir.Program:
        """The program that calls the parts."""
        parts: list[ir.Op] = []
        body: list[ir.Op] = []
        known = {p.name for p in self.source.params}
        for i, (is_part, stretch) in enumerate(self.stretches):
            if is_part:
                part, call = self._part(i, f"{self.source.name}_part{len(parts)}")
                parts.append(ir.DefineSubgraph(part, captured=True))
                stretch = [call]
            body += self._with_names(stretch, known)
        ops = (*self.head, *self._defines(body), *parts, *body)
        return guarded(replace(self.source, ops=ops))

    def _part(self, i: int, name: str) -> tuple[ir.Program, ir.ExternCall]:
        stretch, source = self.stretches[i][1], self.source
        used = self._used(stretch)
        own = {
            n
            for op in stretch
            if analysis.alias_source(op) is None
            for n, _ in analysis.definitions(op)
        }
        own |= {n for n in used if self.first[n] == i and isinstance(self.named[n], ir.Allocate)}
        own |= {n for n in used if isinstance(self.named[n], ir.Workspace)}
        taken = [n for n in used if n not in own]
        given = [
            n
            for n in used
            if n in own and self.last[n] > i and not isinstance(self.named[n], ir.Workspace)
        ]
        changed = analysis.written(stretch, self.kernels, self.roots)
        ops = list(self._with_names(stretch, set(taken)))
        said = [e for op in analysis.walk(ops) for e in analysis.expressions(op)]
        said += [e for n in (*taken, *given) for e in analysis.type_expressions(self.types[n])]
        symbols = sorted(analysis.free_symbols(said))
        asserted = (op.condition for op in source.ops if isinstance(op, ir.Assert))
        part = ir.Program(
            name,
            (*(ir.Param(n, self.types[n]) for n in taken), *(ir.Param(s, None) for s in symbols)),
            (*self._defines(ops), *ops, ir.Return(tuple(map(Ref, given)))),
            tuple(s for s in source.symbols if s.name in symbols),
            tuple(
                c for c in (*source.given, *asserted) if analysis.free_symbols([c]) <= set(symbols)
            ),
        )
        call = ir.ExternCall(
            analysis.SUBGRAPH + name,
            (*map(Ref, taken), *map(symbol, symbols)),
            outs=tuple((n, self.types[n]) for n in given),
            tuple_result=True,
            mutates=tuple(n for n in taken if n in changed),
        )
        return run_passes(guarded(part), self.how.passes, verify=False), call

    def _used(self, ops: Sequence[ir.Op]) -> list[str]:
        """The storages that ops use or make, but for those that live in their blocks."""
        names = (n for op in ops for n in (*analysis.uses(op), *dict(analysis.definitions(op))))
        return list(dict.fromkeys(self.roots[n] for n in names if n in self.named))

    def _with_names(self, ops: Sequence[ir.Op], known: set[str]) -> Iterator[ir.Op]:
        """The ops, and before each what defines the names in it that are not `known` yet."""
        for op in ops:
            for name in analysis.uses(op):
                yield from self._name(name, known)
            known |= set(dict(analysis.definitions(op)))
            yield op

    def _name(self, name: str, known: set[str]) -> Iterator[ir.Op]:
        op = self.named.get(name)
        if op is None or name in known:
            return
        if isinstance(op, ir.ExternCall) and not self._is_view(op):
            assert op.alias is not None, "what a part makes and others use is what it gives"
            op = ir.View(name, op.alias, self.types[op.alias], op.comment)  # written in place
        known |= {name, *dict(analysis.definitions(op))}
        for source in analysis.uses(op):
            yield from self._name(source, known)
        yield op

    def _defines(self, ops: Sequence[ir.Op]) -> Iterator[ir.Op]:
        """The definitions of kernels and subgraphs that ops call."""
        names = {op.kernel for op in analysis.walk(ops) if isinstance(op, ir.Launch)}
        calls = {
            name for op in analysis.walk(ops) if (name := analysis.subgraph_of(op)) is not None
        }
        control = [self.callees.get(name) for name in calls]
        calls |= {n for c in control if isinstance(c, ir.DefineControl) for n in c.subgraphs}
        for op in self.source.ops:
            called = op.program if isinstance(op, ir.DefineSubgraph) else op
            named = isinstance(called, ir.Program | ir.DefineControl) and called.name in calls
            if named or (isinstance(op, ir.DefineKernel) and op.name in names):
                yield op
