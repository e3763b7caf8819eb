"""What a CUDA graph can hold: ops of tensors on a GPU, for whose values the host does not wait."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from wrapper_ir import ops as ir
from wrapper_ir.analysis import definitions, subgraph_of, types_of, uses, walk
from wrapper_ir.collectives import is_start, waited

WORK = (ir.Launch, ir.ExternCall, ir.CopyBack, ir.If, ir.SymbolDef)
"""Ops that do something as the program runs, and not only name it."""

Callees = Mapping[str, ir.Program | ir.DefineControl]


def callees(ops: Sequence[ir.Op]) -> Callees:
    """What the ops define for calls, by name."""
    programs = {op.program.name: op.program for op in ops if isinstance(op, ir.DefineSubgraph)}
    return programs | {op.name: op for op in ops if isinstance(op, ir.DefineControl)}


def reached(ops: Sequence[ir.Op], known: Callees) -> Iterator[ir.Op]:
    """The ops, those in their blocks, and those of the subgraphs that they call."""
    for op in walk(ops):
        yield op
        called = known.get(subgraph_of(op) or "")
        if isinstance(called, ir.DefineControl):
            yield called
        names = called.subgraphs if isinstance(called, ir.DefineControl) else ()
        for body in (called, *(known[name] for name in names)):
            if isinstance(body, ir.Program):
                yield from reached(body.ops, callees(body.ops))


def stops(op: ir.Op) -> bool:
    """Whether the host waits for data there, or for other ranks."""
    match op:
        case ir.SymbolDef():
            return op.of == "item"
        case ir.ExternCall():
            return bool(op.binds) or is_start(op) or waited(op) is not None
        case ir.DefineControl():
            return op.form != "scan"
    return False


class Captures:
    """Which ops of a program can be captured. left_out: whether an operator is not, by its name.
    device: the kind that graphs are captured on."""

    def __init__(self, program: ir.Program, left_out: Callable[[str], bool], device: str) -> None:
        self._program, self._left_out, self._device = program, left_out, device
        self._known = callees(program.ops)
        self._kinds = {name: type.device.kind for name, type in types_of(program).items()}

    def op(self, op: ir.Op) -> bool:
        """Whether all that the op does can be captured."""
        kinds = {self._kinds[name] for name in uses(op)}
        for inner in reached([op], self._known):
            kinds |= {type.device.kind for _, type in definitions(inner)}
            if stops(inner) or (isinstance(inner, ir.ExternCall) and self._left_out(inner.target)):
                return False
        return kinds == {self._device}

    def whole(self) -> bool:
        """Whether one graph holds all of the program."""
        tensors = (p.type for p in self._program.params if p.type is not None)
        work = (op for op in self._program.ops if isinstance(op, WORK))
        return all(t.device.kind == self._device for t in tensors) and all(map(self.op, work))
