"""The compiler, as one function of named steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import fx

from aten_lowering import lower_with_report
from compile_cli.assemble import assemble
from compile_cli.compiled import CompiledGraph, aligned_run, in_memory_run
from compile_cli.config import Options
from compile_cli.convolution_bias import convolution_bias
from compile_cli.convolutions import ChannelsLast
from compile_cli.cuda_graphs import graphed
from compile_cli.emitters import EMITTERS
from compile_cli.gemm import MatmulPlanner
from compile_cli.lists import gather
from compile_cli.nan_asserts import ASSERT_FINITE, OPERATORS
from compile_cli.pad_matmuls import pad_matmuls
from compile_cli.runtime import Kernels
from compile_cli.select import hints_of, measured_sizes, select
from compile_cli.serve_one import serve_one
from compile_cli.stages import Record
from compile_cli.tuning import ScheduleTuner
from compile_cli.user_kernels import UserKernelPlanner
from loop_ir import FuseOptions, Graph, explain, fuse_with_report
from wrapper_ir.passes import DedupeKernels, InsertFrees, PlanMemory, run_passes
from wrapper_ir.passes.pipeline import Pass


def compile_graph(
    gm: torch.fx.GraphModule, options: Options, record: Record, check_inputs: bool = True
) -> CompiledGraph:
    """A flat ATen graph -> something to call. Every step's result is kept, and printable.
    check_inputs: off where the caller compares dtypes, sizes and strides of the inputs itself."""
    kernels = Kernels(options)
    last = ChannelsLast(options)
    tuner = ScheduleTuner(options, kernels)

    with record.stage("lower"):
        lowered = lower_with_report(
            gm,
            on_pass=lambda name, g: record.after("aten", name, (gm, g)),
            before=early_passes(options, last),
            eager_random=options.random == "eager",
        )
        loop = serve_one(lowered.graph)
        record.after("loop", "lower", loop)

    with record.stage("fuse"):
        fused, fusion = fuse_with_report(
            loop, fuse_options(options, loop), lambda name, g: record.after("fused", name, g),
            options.verify,
        )  # fmt: skip
        fused, lists = gather(fused, hints_of(fused)) if options.fuse else (fused, {})
        record.after("fused", "gather", fused)

    with kernels.compiling():
        with record.stage("triton"):
            tuner.start(measured_sizes(fused, options, lists))
            planner = MatmulPlanner(options, kernels, fused)
            planner.prefetch(hints_of(fused))
            user_kernels = UserKernelPlanner(options, kernels, fused, lowered.kernels)
            tuner.measure()
            plans = select(fused, options, planner, user_kernels, lists, tuner, tuner.emit)
            record.after("triton", "emit", plans)

        with record.stage("wrapper"):
            program = assemble(fused, plans, lowered.conditions.known)
            record.after("wrapper", "assemble", program)
            passes: list[Pass] = [DedupeKernels(), InsertFrees()]
            if options.nan_asserts:
                passes.insert(0, ASSERT_FINITE)
                operators = {**lowered.operators, **OPERATORS}
                lowered = replace(lowered, operators=operators)
            if options.plan_memory:
                passes.append(PlanMemory())
            program = run_passes(
                program, passes, options.verify, lambda name, p: record.after("wrapper", name, p)
            )

        with record.stage("emit"):
            wait_for_kernels = kernels.start_build(program)
            host, run = EMITTERS[options.emit](program, kernels, lowered, check_inputs)
            record.after("cpp" if options.emit == "cpp" else "fx", "emit", host)

        with record.stage("build"):
            wait_for_kernels()
    tuner.finish()

    def explained() -> str:
        fusing = explain(loop, fuse_options(options, loop))
        return "\n".join(filter(None, (fusing, planner.explain(), tuner.explain(), last.explain())))

    graphs = graphed(run, program) if options.cuda_graphs else None
    needed = [i for i, p in enumerate(program.params) if p.name in planner.needs_alignment]
    return CompiledGraph(
        loop, fused, program, host,
        in_memory_run(aligned_run(graphs or run, needed), gm), fusion,
        (*lowered.fallbacks, *user_kernels.fallbacks),
        planner.choices, planner.decided, explained, record, lowered.conditions, tuner.chosen,
        graphs,
    )  # fmt: skip


def early_passes(options: Options, last: ChannelsLast) -> tuple[Callable[[fx.Graph], None], ...]:
    """Passes on the ATen graph that only some compilations run."""
    chosen: tuple[tuple[Callable[[fx.Graph], None], bool], ...] = (
        (pad_matmuls, options.gemm != "extern"),
        (convolution_bias, options.fuse),
        (last, options.channels_last != "off"),
    )
    return tuple(run for run, wanted in chosen if wanted)


def fuse_options(options: Options, graph: Graph) -> FuseOptions:
    """What fusion may do. Prologues and epilogues go into matmuls only where a template may run
    them."""
    on_cuda = any(i.type is not None and i.type.device.kind == "cuda" for i in graph.inputs)
    templates = options.gemm == "template" or (options.gemm == "auto" and on_cuda)
    if options.fuse:
        return FuseOptions(epilogue=templates, prologue=templates)
    return FuseOptions(vertical=False, horizontal=False, inline=False, epilogue=False, split=False)
