"""A host program -> what calls it: its kernels compiled, emitted, and its inputs prepared."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compile_cli.hosts import inputs
from compile_cli.hosts.cuda_graphs import graphed, parted, whole
from compile_cli.hosts.emitters import EMITTERS, emit_for
from compile_cli.hosts.nan_asserts import OPERATORS
from compile_cli.hosts.outside import Outside
from compile_cli.options import Options
from compile_cli.record import Record
from cuda_graphs import GraphedCallable, Lending
from wrapper_ir import Program

if TYPE_CHECKING:
    from planner import Kernels


def build_program(
    program: Program,
    kernels: Kernels,
    outside: Outside,
    options: Options,
    record: Record,
    check_inputs: bool = True,
    lending: Lending | None = None,
) -> tuple[Any, inputs.Runner, tuple[GraphedCallable, ...]]:
    """What the emitter made of a host program, what calls that, and the CUDA graphs of its parts.
    check_inputs: off where the caller compares the inputs with the program's itself. lending: see
    `finished_run`."""
    with record.stage("emit"):
        wait_for_kernels = kernels.start_build(program)
        outside = replace(
            outside, operators={**outside.operators, **OPERATORS, inputs.ALIGNED: inputs.aligned}
        )
        emit = EMITTERS[options.emit]
        if options.fx_backend is not None:
            emit = functools.partial(emit_for, options.fx_backend())
        program, parts, graphs = parted(
            program, lambda part: emit(part, kernels, outside, False)[1], lending
        )
        outside = replace(outside, operators={**outside.operators, **parts})
        host, run = emit(program, kernels, outside, check_inputs)
        record.after("cpp" if options.emit == "cpp" else "fx", "emit", host)

    with record.stage("build"):
        wait_for_kernels()
    return host, run, graphs


def finished_run(
    run: inputs.Runner,
    program: Program,
    positions: Sequence[int],
    lazy: Sequence[inputs.LazyInput],
    options: Options,
    lending: Lending | None = None,
    taken: Sequence[int] = (),
) -> tuple[inputs.Runner, tuple[GraphedCallable, ...]]:
    """The host program's `run` with what is done to inputs first, and the CUDA graphs of all of
    it, if asked for and possible, which lend results so. taken: positions of inputs that it writes
    to, which are its own."""
    run = inputs.aligned_run(run, positions)  # in the graph: what is in place is looked at once
    graphs: tuple[GraphedCallable, ...] = ()
    if options.cuda_graphs and whole(program, options):
        graphs = (run := graphed(run, program, lending),)
    return inputs.in_memory_run(inputs.owned_run(run, taken), lazy), graphs
