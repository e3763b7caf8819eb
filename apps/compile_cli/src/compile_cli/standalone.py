"""`standalone_compile`: an FX graph -> an artifact to call, and to keep in a file.

For compilers and servers that capture by themselves (in a backend of `torch.compile`, say), compile
each piece once, and load what they compiled before in another process."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import torch
from torch import Tensor, fx

from aten_lowering import decompositions, own_composites
from aten_lowering.passes.readable_masks import make_masks_readable
from aten_lowering.passes.writable_views import writable_views
from compile_cli import torch_compat as compat
from compile_cli.artifact import Artifact
from compile_cli.compiled_artifact import CompiledArtifact, Source
from compile_cli.errors import BadInput, NoArtifact
from compile_cli.graph_cache import GraphCode
from compile_cli.options import Options
from compile_cli.pipeline import compile_graph
from compile_cli.record import Record, copy_graph
from compile_cli.refusals import refusals
from compile_cli.result import CompiledGraph

DynamicShapes = Literal["from_graph", "from_tracing_context", "from_example_inputs"]


def standalone_compile(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    dynamic_shapes: DynamicShapes = "from_graph",
    options: Options | Mapping[str, Any] | None = None,
) -> CompiledArtifact:
    """Compiles a graph of torch or ATen operators for inference; `gm` is not changed.

    dynamic_shapes: where sizes that may differ between calls are symbols: in the fake tensors of
    the graph's placeholders (`from_graph`: `meta["example_value"]` or `meta["val"]`), in the
    ambient `TracingContext`, for whose fake mode `example_inputs` are fake tensors or become some
    (`from_tracing_context`); or nowhere: all sizes are the example's (`from_example_inputs`).
    Raises a `CompileCliError`."""
    settings = options if isinstance(options, Options) else Options.from_mapping(options)
    own = fx.GraphModule(gm, copy_graph(gm.graph))
    inputs, mode = _fake_inputs(own, example_inputs, dynamic_shapes)
    made: list[tuple[CompiledGraph, tuple[Source, ...] | NoArtifact]] = []

    def compile_flat(graph: fx.GraphModule, _: Sequence[Any]) -> GraphCode:
        facts = compat.TracingContext.get().fw_metadata
        with refusals():
            compiled = compile_graph(graph, settings, Record())
        made.append((compiled, _sources(facts)))
        return GraphCode(compiled.run, lambda: Artifact.of(compiled, settings))

    make_masks_readable(own)
    writable_views(own)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(own_composites())
        if mode is not None:
            stack.enter_context(compat.tracing(compat.TracingContext(mode)))
        call: Callable[..., Sequence[Any]] = compat.aot_autograd(
            fw_compiler=compile_flat,
            inference_compiler=compile_flat,
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )(own, inputs)
    ((compiled, sources),) = made
    return CompiledArtifact(call, _kept(own, compiled, sources, settings))


def _fake_inputs(
    gm: fx.GraphModule, examples: Sequence[Any], dynamic_shapes: str
) -> tuple[list[Any], Any]:
    """The inputs to trace with, and their fake mode where it is not the ambient one."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    if len(placeholders) != len(examples):
        raise BadInput(f"the graph takes {len(placeholders)} inputs, got {len(examples)} examples")
    if dynamic_shapes == "from_tracing_context":
        if compat.TracingContext.try_get() is None:
            raise BadInput("dynamic_shapes='from_tracing_context', and nothing is being traced")
        return list(examples), None
    if dynamic_shapes == "from_graph":
        known = [n.meta.get("example_value", n.meta.get("val")) for n in placeholders]
        for node, value in zip(placeholders, known, strict=True):
            if value is None:
                raise BadInput(
                    f"placeholder {node.name} has no example_value and no val in its meta\n"
                    "  to do: dynamic_shapes='from_example_inputs'"
                )
        if len({v.fake_mode for v in known if isinstance(v, compat.FakeTensor)}) < 2:
            return known, compat.detect_fake_mode(known) or compat.FakeTensorMode(
                shape_env=compat.ShapeEnv()
            )
        dynamic_shapes = "from_example_inputs"  # `make_fx` knows no symbols: a mode for each tensor
    if dynamic_shapes != "from_example_inputs":
        raise BadInput(
            f"dynamic_shapes={dynamic_shapes!r} is not known\n"
            "  expected: from_graph, from_tracing_context or from_example_inputs"
        )
    mode = compat.FakeTensorMode(shape_env=compat.ShapeEnv())
    fakes = [
        mode.from_tensor(x, static_shapes=True) if isinstance(x, Tensor) else x for x in examples
    ]
    return fakes, mode


def _sources(facts: Any) -> tuple[Source, ...] | NoArtifact:
    """Where the graph's results are from, by what AOTAutograd found of them."""
    if facts.mutated_inp_runtime_indices:
        return NoArtifact("it changes more of an input than its elements")
    sources: list[Source] = []
    for i, info in enumerate(facts.output_info):
        if info.output_type.name == "is_input":
            sources.append(("input", info.base_idx))
        elif info.output_type.name == "alias_of_input":
            return NoArtifact(f"result {i} is a view of input {info.base_idx}")
        else:
            sources.append(("result", i))
    return tuple(sources)


def _kept(
    gm: fx.GraphModule,
    compiled: CompiledGraph,
    sources: tuple[Source, ...] | NoArtifact,
    options: Options,
) -> tuple[Artifact, tuple[Source, ...]] | NoArtifact:
    own = [name for name, _ in (*gm.named_parameters(), *gm.named_buffers())]
    if own:
        return NoArtifact(f"the graph has {own[0]} of its own: make it an input")
    if isinstance(sources, NoArtifact):
        return sources
    try:
        return Artifact.of(compiled, options), sources
    except NoArtifact as why:
        return why
