"""Lines of a call of a subgraph, or of control of some: functions of the same library.

subgraph loop = while (more, body) carries 1
(z,) = extern subgraph.loop(x, n)
    ->  auto z_list = repeat(self, subgraphs::more, subgraphs::body, 1, false, {&x}, {n});

subgraph pick = if (f, g)
(z,) = extern subgraph.pick(p, x)
    ->  auto z_list = call_subgraph(self, truth(p) ? subgraphs::f : subgraphs::g, {&x}, {});"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpp_emit.calls import first_name, where, write_results
from cpp_emit.errors import UnsupportedArgument, UnsupportedOp
from cpp_emit.extern import string_literal
from cpp_emit.writer import Writer
from wrapper_ir import DefineControl, ExternCall, Program, Ref, Return


@dataclass(frozen=True)
class Callee:
    """What a call of a subgraph calls. functions: the C++ function, or those that `control` calls.
    program: the one whose results they are."""

    functions: tuple[str, ...]
    program: Program
    control: DefineControl | None = None

    def tensors_of(self, op: ExternCall) -> list[int | None]:
        """For each result of a call its place among those that are tensors, or None: a number."""
        last = self.program.ops[-1]
        if self.control is not None and self.control.form != "if":
            kinds = [True] * len(op.outs)
        elif isinstance(last, Return) and len(last.values) == len(op.outs):
            kinds = [isinstance(value, Ref) for value in last.values]
        else:
            raise UnsupportedOp(f"{op.target} gives another number of results")
        return [sum(kinds[:i]) if kind else None for i, kind in enumerate(kinds)]


def write_subgraph_call(w: Writer, op: ExternCall, callee: Callee) -> None:
    """Raises UnsupportedArgument for a number that is carried or taken, UnsupportedOp for results
    that the callee does not have."""
    control, functions, args = callee.control, list(callee.functions), list(op.args)
    numbers: list[str] = []
    name = "call_subgraph"
    if control is not None and control.form == "if":
        predicate = args.pop(0)
        if isinstance(predicate, Ref):
            test = f"truth({w.tensor(predicate.name)})"
        else:
            test = w.integer(predicate)
        functions = [f"{test} ? {functions[0]} : {functions[1]}"]
    elif control is not None:
        name = "scan" if control.form == "scan" else "repeat"
        last = str(control.over) if name == "scan" else w.integer(control.form == "trace")
        numbers = [str(control.carries), last]
        if not all(isinstance(arg, Ref) for arg in args[: control.carries + control.over]):
            raise UnsupportedArgument(f"{op.target} carries a number")
    tensors = [arg.name for arg in args if isinstance(arg, Ref)]
    ints: list[Any] = [arg for arg in args if not isinstance(arg, Ref)]
    items, at = w.names.fresh(f"{first_name(op)}_list"), string_literal(where(op))
    given = [*functions, *numbers, w.pointers(tensors), w.int64s(ints)]
    w.call(f"auto {items} = {name}", ["self", *given], op.comment)
    places = callee.tensors_of(op)
    w.line(f"check_count({items}, {sum(place is not None for place in places)}, {at});")
    outs = []
    for out, place in zip(op.outs, places, strict=True):
        if out is not None and place is None:
            raise UnsupportedArgument(f"{op.target}: result {out[0]} is a number")
        if out is not None:
            outs.append((out, f"std::move({items}[{place}])"))
    write_results(w, op, outs)
