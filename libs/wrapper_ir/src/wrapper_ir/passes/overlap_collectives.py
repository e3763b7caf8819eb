"""Communication overlaps with what does not hang on it, and sums in place where it may."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from tensor_ir import TensorType
from wrapper_ir.analysis import accesses, definitions, kernels, param_roots, storages, uses
from wrapper_ir.collectives import FAMILY, Pending, waited
from wrapper_ir.ops import Allocate, DefineKernel, ExternCall, If, Op, Program, Return
from wrapper_ir.passes.plan_memory import FRESH

SUM = FAMILY + "all_reduce.default"
SUM_IN_PLACE = FAMILY + "all_reduce_.default"


@dataclass(frozen=True)
class OverlapCollectives:
    """`r = all_reduce(x); w = wait_tensor(r); launch k(a); launch j(w)` -> `r = all_reduce_(x)`;
    `launch k(a); w = wait_tensor(r); launch j(w)`.

    A wait moves down to the first op that reads or writes its result, or writes what the
    communication was given; waits do not pass `if` and `return`. A sum over ranks is made in its
    operand where this is a contiguous storage of the program's own that nothing uses later:
    `all_reduce` copies it first. Starts stay where they are, in the order of all ranks."""

    name: ClassVar[str] = "overlap_collectives"

    def run(self, program: Program) -> Program:
        """The program with its waits as late as may be."""
        if not any(waited(op) for op in program.ops):
            return program
        program = replace(program, ops=_in_place(program))
        return replace(program, ops=_sunk(program))


def _in_place(program: Program) -> tuple[Op, ...]:
    roots = storages(program.ops, param_roots(program))
    last = {roots[name]: i for i, op in enumerate(program.ops) for name in uses(op)}
    own: dict[str, TensorType] = {}
    summed: set[str] = set()
    out: list[Op] = []
    for i, op in enumerate(program.ops):
        if isinstance(op, Allocate) or (isinstance(op, ExternCall) and op.target in FRESH):
            own.update(definitions(op))
        if isinstance(op, ExternCall) and op.target == SUM:
            (operand,), (result,) = uses(op), definitions(op)
            type = own.get(operand)
            if type == result[1] and type.is_contiguous and last[operand] == i:
                op = replace(op, target=SUM_IN_PLACE, mutates=(operand,), alias=operand)
                summed.add(result[0])
        elif isinstance(op, ExternCall) and (waits_for := waited(op)) in summed:
            op = replace(op, alias=waits_for)
        out.append(op)
    return tuple(out)


def _sunk(program: Program) -> tuple[Op, ...]:
    roots = storages(program.ops, param_roots(program))
    defined = kernels(program)
    pending = Pending(roots.__getitem__)
    late: dict[ExternCall, frozenset[str]] = {}
    out: list[Op] = []
    for op in program.ops:
        if isinstance(op, ExternCall) and (result := waited(op)) is not None:
            late[op] = pending.taken(result)
        else:
            due = [w for w, taken in late.items() if _needs(op, w, taken, roots, defined)]
            for wait in due:
                del late[wait]
            out += [*due, op]
        pending.run(op)
    return tuple(out)


def _needs(
    op: Op,
    wait: ExternCall,
    taken: frozenset[str],
    roots: Mapping[str, str],
    defined: Mapping[str, DefineKernel],
) -> bool:
    """The op must not run before the wait."""
    if isinstance(op, If | Return):
        return True
    results = {roots[name] for name, _ in definitions(wait)} | {roots[n] for n in uses(wait)}
    if any(roots[name] in results for name in uses(op)):
        return True
    return any(roots[name] in taken for name in accesses(op, defined)[1])
