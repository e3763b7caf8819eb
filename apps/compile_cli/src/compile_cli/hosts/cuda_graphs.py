"""The host program as CUDA graphs: one launch of the driver in place of one a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cuda_graphs import GraphedCallable
from wrapper_ir import CopyBack, DefineKernel, Describe, ExternCall, Launch, Program, Ref
from wrapper_ir.analysis import alias_source, walk


def graphed(run: Callable[..., Sequence[Any]], program: Program) -> GraphedCallable:
    """`run`, captured at its second call with the same layouts. Results are the caller's own;
    inputs that move between calls are copied, weights are captured in place; what cannot be
    captured runs as before, and `explain()` of the result says why."""
    return GraphedCallable(run, mutated=mutated_inputs(program))


def mutated_inputs(program: Program) -> tuple[int, ...]:
    """Positions of the inputs that the program writes to, through views and descriptors too."""
    kernels: dict[str, DefineKernel] = {}
    source: dict[str, str] = {}
    written: set[str] = set()
    for op in walk(program.ops):
        alias = alias_source(op)
        if isinstance(op, DefineKernel):
            kernels[op.name] = op
        elif isinstance(op, Describe):
            source[op.out] = op.src
        elif isinstance(op, Launch):
            params = kernels[op.kernel].params
            pairs = zip(params, op.args, strict=True)
            written |= {a.name for p, a in pairs if p.mutated and isinstance(a, Ref)}
        elif isinstance(op, ExternCall):
            written |= set(op.mutates)
        elif isinstance(op, CopyBack):
            written.add(op.dst)
        if alias is not None:
            outs = op.outs if isinstance(op, ExternCall) else ()
            names = [out[0] for out in outs if out is not None] or [getattr(op, "out", "")]
            source.update(dict.fromkeys(names, alias))

    def root(name: str) -> str:
        while name in source:
            name = source[name]
        return name

    roots = {root(name) for name in written}
    return tuple(i for i, p in enumerate(program.params) if p.name in roots)
