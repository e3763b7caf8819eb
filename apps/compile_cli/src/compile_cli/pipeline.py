"""The compiler, as one function of named steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from time import perf_counter
from typing import Any

import torch
from torch import fx

from aten_lowering import (
    UNFILLED,
    Fallback,
    Lowered,
    constants_of,
    in_memory,
    lower_with_report,
)
from aten_lowering.passes import FxPass
from aten_lowering.passes.convolution_bias import convolution_bias
from aten_lowering.passes.pad_matmuls import pad_matmuls
from aten_lowering.passes.pointwise_convolutions import pointwise_convolutions
from compile_cli import hosts
from compile_cli.garbage import collected_later
from compile_cli.options import Options
from compile_cli.record import Record
from compile_cli.refusals import plan_refusals
from compile_cli.result import CompiledGraph, lazy_inputs
from cuda_graphs import Lending
from loop_ir import (
    FuseOptions,
    FusionReport,
    Graph,
    Irregular,
    Kernel,
    OrderNodes,
    TakeOver,
    explain,
    fuse_with_report,
    serve_one,
    verify,
)
from loop_ir import run_passes as fused_passes
from loop_ir.ir import hints_of
from planner import (
    ChannelsLast,
    Kernels,
    LoopsNotBuilt,
    Planned,
    ScheduleTuner,
    assemble,
    gather,
    gives_alone,
    overlap,
    plan_graph,
)
from tensor_ir import Pass
from wrapper_ir import DefineControl, DefineSubgraph, Program
from wrapper_ir.passes import (
    AssertFinite,
    DedupeKernels,
    InsertFrees,
    OverlapBranches,
    OverlapCollectives,
    PlanMemory,
    run_passes,
)

NO_FUSION = FuseOptions(vertical=False, horizontal=False, inline=False, epilogue=False, split=False)


@collected_later()
@plan_refusals()
def compile_graph(
    gm: torch.fx.GraphModule,
    options: Options,
    record: Record,
    check_inputs: bool = True,
    last: ChannelsLast | None = None,
    lending: Lending | None = None,
    began: float | None = None,
    given: Sequence[Any] = (),
    owned: frozenset[str] = frozenset(),
) -> CompiledGraph:
    """A flat ATen graph -> something to call. Every step's result is kept, and printable.
    check_inputs: off where the caller compares dtypes, sizes and strides of the inputs itself.
    last: what has decided on convolutions of the graph of which this one is the forward or the
    backward half. lending: what one half keeps for the other, if they are CUDA graphs. given: the
    inputs of a call, which kernels are measured on. owned: inputs that a caller hands over, whose
    memory the graph may write to."""
    last = last or ChannelsLast(options)

    def compiled_from(fold_layers: bool) -> CompiledGraph:
        with record.stage("lower"):
            lowered = lower_with_report(
                gm,
                on_pass=lambda name, g: record.after("aten", name, (gm, g)),
                before=early_passes(options, last, lending is not None and bool(lending.positions)),
                eager_random=options.random == "eager",
                fold_layers=fold_layers,
            )
            lowered = serve_one_of(lowered)
            record.after("loop", "lower", lowered.graph)
        fusing = fuse_options(options, lowered.graph)
        return compile_loop(
            lowered, fusing, options, record, check_inputs, lending, began, given, owned
        )

    try:
        compiled = compiled_from(options.fuse and not record.keep)  # what is kept has all layers
    except Irregular:
        compiled = compiled_from(False)

    def explained() -> str:
        return "\n".join(filter(None, (compiled.explain(), last.explain())))

    lazy = lazy_inputs(gm)
    run = hosts.in_memory_run(compiled.run, lazy)
    return replace(compiled, run=run, lazy=lazy, explain=explained)


def compile_loop(
    lowered: Lowered,
    fusing: FuseOptions,
    options: Options,
    record: Record,
    check_inputs: bool = True,
    lending: Lending | None = None,
    began: float | None = None,
    given: Sequence[Any] = (),
    owned: frozenset[str] = frozenset(),
) -> CompiledGraph:
    """The steps from loop IR on, which `lowered.graph` is."""
    kernels = Kernels(options, began=began or perf_counter())
    with kernels.compiling():
        made = host_program(lowered, fusing, options, record, kernels, given=given, owned=owned)
        program, planned = made.program, made.planned
        outside = hosts.Outside(constants_of(lowered), made.operators)
        build = partial(
            hosts.build_program,
            kernels=kernels,
            outside=outside,
            options=options,
            record=record,
            lending=lending,
        )
        try:
            host, run, parts = build(program, check_inputs=check_inputs)
            found = None
            if made.beside is not None:
                beside = cache(partial(build, made.beside, check_inputs=check_inputs))
                if options.streams == "auto":
                    found = overlap(
                        program,
                        made.beside,
                        lambda: (run, beside()[1]),  # built where it is measured
                        options,
                        kernels.defined.values(),
                    )
                if found is None or found.pays:
                    program, host, run, parts = made.beside, *beside()
                    record.after("wrapper", OverlapBranches.name, program)
        except LoopsNotBuilt as error:
            warnings.warn(f"kernels on the CPU are interpreted: {error}", stacklevel=2)
            plain = replace(options, cpu_kernels="interpreter")
            other = compile_loop(
                lowered, fusing, plain, record, check_inputs, lending, began, given, owned
            )
            why = Fallback("kernels on the CPU", "", str(error))
            return replace(other, fallbacks=(why, *other.fallbacks))
    for each in made.every():
        each.planned.finish()

    def explained() -> str:
        texts = [t for m in made.every() for t in (explain(m.loop, fusing), m.planned.explain())]
        return "\n".join(filter(None, (*texts, str(found or ""))))

    needed = tuple(i for i, p in enumerate(program.params) if p.name in planned.aligned)
    taken = tuple(i for i in hosts.mutated_inputs(program) if program.params[i].name in owned)
    finished, graphs = hosts.finished_run(run, program, needed, (), options, lending, taken)
    return CompiledGraph(
        loop=made.loop,
        fused=made.fused,
        program=program,
        host=host,
        run=finished,
        fusion=made.fusion,
        constants=constants_of(lowered),
        fallbacks=tuple(f for m in made.every() for f in (*m.fallbacks, *m.planned.fallbacks)),
        matmuls={k: v for m in made.every() for k, v in m.planned.measured.items()},
        decided={k: v for m in made.every() for k, v in m.planned.decided.items()},
        explain=explained,
        record=record,
        conditions=lowered.conditions,
        schedules={k: v for m in made.every() for k, v in m.planned.schedules.items()},
        aligned=needed,
        taken=taken,
        graphs=(*parts, *graphs),
        late=tuple(kernels.late),
        binaries=partial(kernels.binaries, program),
    )


@dataclass(frozen=True)
class Made:
    """The host program of a graph and what it was made from. inner: those of its subgraphs.
    beside: the same with branches on two streams, where it has some."""

    loop: Graph
    fused: Graph
    fusion: FusionReport
    planned: Planned
    program: Program
    fallbacks: tuple[Fallback, ...]
    own: Mapping[str, Callable[..., Any]]
    inner: tuple[Made, ...]
    beside: Program | None = None

    def every(self) -> Iterator[Made]:
        """It, and those of all subgraphs."""
        yield self
        for made in self.inner:
            yield from made.every()

    @property
    def operators(self) -> dict[str, Callable[..., Any]]:
        """What the programs call that is no operator of torch."""
        return {target: call for made in self.every() for target, call in made.own.items()}


def host_program(
    lowered: Lowered,
    fusing: FuseOptions,
    options: Options,
    record: Record,
    kernels: Kernels,
    called: bool = False,
    given: Sequence[Any] = (),
    owned: frozenset[str] = frozenset(),
) -> Made:
    """The steps from loop IR to the host program, those of subgraphs first. called: it is a
    subgraph. given, owned: as of `compile_graph`."""
    inner = tuple(
        host_program(each, fusing, options, Record(), kernels, True)
        for each in lowered.subgraphs.values()
    )
    tuner = ScheduleTuner(options, kernels)
    loop = lowered.graph
    named = zip((i.name for i in loop.inputs), given, strict=False)
    kernels.given = {n: in_memory(t.detach()) for n, t in named if isinstance(t, torch.Tensor)}

    with record.stage("fuse"):
        fused, fusion = fuse_with_report(
            loop, fusing, lambda name, g: record.after("fused", name, g), options.verify
        )
        if lowered.layers is not None:
            loop, fused = lowered.whole(loop), lowered.whole(fused)
            fusion = replace(fusion, before=loop, after=fused)
            if options.verify:
                verify(fused)
        fused = OrderNodes().run(fused) if options.fuse else fused
        record.after("fused", OrderNodes.name, fused)
        fused = named_apart(fused) if called else fused
        fused = fused_passes(fused, [TakeOver(owned)], check=options.verify)
        listed = options.fuse and options.emit != "hop"  # others may lay out arguments otherwise
        fused, lists = gather(fused, hints_of(fused.symbols)) if listed else (fused, {})
        record.after("fused", "gather", fused)

    with record.stage("triton"):
        planned = plan_graph(
            fused, options, kernels, lowered.kernels, lists, tuner, lowered.attentions
        )
        record.after("triton", "emit", planned.plans)

    with record.stage("wrapper"):
        sizes = lowered.conditions
        program = assemble(fused, planned.plans, sizes.known, sizes.checked)
        defines = [*(DefineSubgraph(m.program) for m in inner)]
        controls = [DefineControl(name, *astuple(c)) for name, c in lowered.controls.items()]
        program = replace(program, ops=(*defines, *controls, *program.ops))
        if called:
            program = hosts.align_inputs(program, planned.aligned)
        record.after("wrapper", "assemble", program)
        passes: list[Pass[Program]] = [DedupeKernels(), OverlapCollectives()]
        if options.nan_asserts:
            passes.insert(0, AssertFinite(hosts.ASSERT_FINITE, UNFILLED))
        memory: list[Pass[Program]] = [InsertFrees(), *[PlanMemory()] * options.plan_memory]
        if options.cuda_graphs and not called:
            passes.append(hosts.partition(options, memory))
        finish = partial(
            run_passes, verify=options.verify, on_pass=lambda n, p: record.after("wrapper", n, p)
        )
        ordered = finish(program, passes)
        beside = None
        if not called and tries_streams(options):
            split = OverlapBranches(gives_alone).run(ordered)
            beside = finish(split, memory) if split is not ordered else None
        program = finish(ordered, memory)
    own = lowered.operators
    return Made(loop, fused, fusion, planned, program, lowered.fallbacks, own, inner, beside)


def tries_streams(options: Options) -> bool:
    """Whether branches may run on two streams: where the host does not take longer than the GPU, or
    nobody minds a longer compilation."""
    tried = options.tune != "off" and (options.cuda_graphs or options.tune == "max")
    return options.streams == "on" or (options.streams == "auto" and tried)


def named_apart(graph: Graph) -> Graph:
    """The graph of a subgraph with kernels that are named after it: one program has them all."""
    nodes = (
        replace(n, name=f"{graph.name}_{n.name}") if isinstance(n, Kernel) else n
        for n in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def serve_one_of(lowered: Lowered) -> Lowered:
    """`serve_one` of a graph and its subgraphs."""
    inner = {name: serve_one_of(each) for name, each in lowered.subgraphs.items()}
    return replace(lowered, graph=serve_one(lowered.graph), subgraphs=inner)


def early_passes(
    options: Options, last: ChannelsLast, half: bool = False
) -> tuple[Pass[fx.Graph], ...]:
    """Passes on the ATen graph that only some compilations run. half: it is the forward half of a
    training graph, of which statistics follow each convolution, and products gain nothing. To
    choose many products takes several times what all else of a compilation does."""
    products = options.fuse and not half and options.tune == "max"
    chosen: tuple[tuple[Pass[fx.Graph], bool], ...] = (
        (FxPass(pad_matmuls), options.gemm != "extern"),
        (FxPass(convolution_bias), options.fuse),
        (last, options.channels_last != "off"),
        (FxPass(pointwise_convolutions), products),
    )
    return tuple(one for one, wanted in chosen if wanted)


def fuse_options(options: Options, graph: Graph) -> FuseOptions:
    """What fusion may do. Prologues and epilogues go into matmuls only where a template may run
    them."""
    on_cuda = any(i.type is not None and i.type.device.kind == "cuda" for i in graph.inputs)
    templates = options.gemm == "template" or (options.gemm == "auto" and on_cuda)
    if options.fuse:
        return FuseOptions(epilogue=templates, prologue=templates)
    return NO_FUSION
