"""The host program as CUDA graphs: one launch of the driver in place of one a kernel."""

from collections.abc import Callable, Sequence
from typing import Any

import triton_rt
from cuda_graphs import GraphedCallable, Lending
from wrapper_ir import Program
from wrapper_ir.analysis import accesses, kernels, param_roots, storages, walk


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
    defined = kernels(program)
    written = {name for op in walk(program.ops) for name in accesses(op, defined)[1]}
    root = storages(program.ops, param_roots(program))
    roots = {root[name] for name in written}
    return tuple(i for i, p in enumerate(program.params) if p.name in roots)
