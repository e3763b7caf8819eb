"""The host program as CUDA graphs: one launch of the driver in place of one a kernel."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import triton_rt
from compile_cli.options import Options
from cuda_graphs import GraphedCallable, Lending
from fx_emit import KernelCall
from wrapper_ir import DefineSubgraph, ExternCall, Op, Program, Return
from wrapper_ir.analysis import kernels, param_roots, storages, subgraph_of, uses, written
from wrapper_ir.captures import Captures
from wrapper_ir.passes import Partition, Pass

DEVICE = "cuda"
_WAITING = {
    tag
    for name in ("cudagraph_unsafe", "data_dependent_output", "dynamic_output_shape")
    if (tag := getattr(torch.Tag, name, None)) is not None
}


def partition(options: Options, passes: Sequence[Pass]) -> Partition:
    """What cuts a program at what no graph holds. passes: those that each part goes through."""
    return Partition(partial(_left_out, options.not_captured), DEVICE, tuple(passes))


def _left_out(names: Sequence[str], target: str) -> bool:
    """Whether a graph may not hold the operator: `names` has it, or its packet, or it waits."""
    packet = target.rpartition(".")[0]
    if target in names or packet in names:
        return True
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part, None)
    return not _WAITING.isdisjoint(getattr(found, "tags", ()))


def parted(
    program: Program, emit: Callable[[Program], Callable[..., Any]], lending: Lending | None
) -> tuple[Program, dict[str, Callable[..., Any]], tuple[GraphedCallable, ...]]:
    """The program with calls of operators in place of those of its captured parts, those operators
    by target, and their graphs. What only the program gets from a part is lent, and so is what
    `lending` says of its results."""
    defines = [op for op in program.ops if isinstance(op, DefineSubgraph) and op.captured]
    parts = {op.program.name: op.program for op in defines}
    lends = lending or Lending()
    roots = storages(program.ops, param_roots(program))
    values = next(op for op in program.ops if isinstance(op, Return)).values
    own = {
        roots[name]
        for i, value in enumerate(values)
        for name in (uses(Return((value,))) if i not in lends.positions else ())
    }
    operators: dict[str, Callable[..., Any]] = {}
    made: list[GraphedCallable] = []
    ops: list[Op] = []
    for op in (op for op in program.ops if op not in defines):
        called = parts.get(subgraph_of(op) or "")
        if called is not None and isinstance(op, ExternCall):
            names = [out[0] for out in op.outs if out is not None]
            lent = Lending([i for i, name in enumerate(names) if name not in own], lends.loans)
            graph = graphed(emit(called), called, lent)
            op = replace(op, target="compile_cli." + called.name)
            operators[op.target] = KernelCall(graph, called.name)
            made.append(graph)
        ops.append(op)
    return replace(program, ops=tuple(ops)), operators, tuple(made)


def whole(program: Program, options: Options) -> bool:
    """Whether one graph holds all of the program."""
    return Captures(program, partial(_left_out, options.not_captured), DEVICE).whole()


def graphed(
    run: Callable[..., Sequence[Any]], program: Program, lending: Lending | None = None
) -> GraphedCallable:
    """`run`, captured at its second call with the same layouts. Results are the caller's own;
    inputs that move between calls are copied, weights are captured in place; what cannot be
    captured runs as before, and `explain()` of the result says why. lending: the results
    that another graph gets are not copied."""
    mutated, same = mutated_inputs(program), triton_rt.same_tensors
    return GraphedCallable(run, mutated=mutated, same=same, lending=lending)


def mutated_inputs(program: Program) -> tuple[int, ...]:
    """Positions of the inputs that the program writes to, through views and descriptors too."""
    roots = storages(program.ops, param_roots(program))
    changed = written(program.ops, kernels(program), roots)
    return tuple(i for i, p in enumerate(program.params) if p.name in changed)
