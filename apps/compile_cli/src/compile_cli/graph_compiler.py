"""The flat graphs that AOTAutograd makes of one graph of Dynamo's, compiled."""

import functools
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import torch

from aten_lowering import UnsupportedGraph
from compile_cli import pipeline
from compile_cli.artifact import Artifact
from compile_cli.capture import view_written_inputs
from compile_cli.errors import NoArtifact
from compile_cli.graph_cache import GraphCode
from compile_cli.hosts import backward_run
from compile_cli.options import Options
from compile_cli.partition import SAVED, partition
from compile_cli.ranks import Ranks, agreed, digest, here
from compile_cli.record import Record
from compile_cli.result import CompiledGraph, lazy_inputs
from compile_cli.torch_compat import TracingContext, in_data_parallel, untraced
from compile_cli.undecided import awaiting
from cuda_graphs import Lending, Loans
from loop_ir import Graph, TensorRef
from planner import ChannelsLast


class GraphCompiler:
    """What forward and backward are compiled by, and what one half tells the other."""

    def __init__(self, settings: Options, began: float) -> None:
        """began: when the compilation of the first of them did, by `perf_counter`."""
        self.settings = settings
        self._began: float | None = began
        self.last, self.loans = ChannelsLast(settings), Loans()
        self.owned = frozenset[str]()  # names of what forward keeps for backward alone
        self._data_parallel, self._follows = in_data_parallel(), True

    def compile(self, graph: torch.fx.GraphModule) -> GraphCode:
        """A flat graph -> something to call, which the cache may keep."""
        if (context := TracingContext.try_get()) and context.fw_metadata:
            view_written_inputs(graph, context.fw_metadata)
            context.fw_metadata.bw_donated_idxs = []  # else torch refuses to retain a graph
        if self.settings.tune_at == "first_call":
            why = functools.partial(_no_artifact, "it is compiled when it is first called")
            return GraphCode(_FirstCall(self, graph), why)
        return self.code(graph)

    def code(self, graph: torch.fx.GraphModule, given: Sequence[Any] = ()) -> GraphCode:
        """given: the inputs of a call, which kernels are measured on. Of ranks that compile the
        same, the first decides: backward passes of others are its, too, if the forward passes are,
        of which it knows what is kept."""
        shared = digest(graph, self.settings, self._data_parallel)
        ranks = Ranks.of(shared)
        if ranks is not None and ranks.rank > 0 and self._follows:
            if (told := ranks.told()) is not None:
                artifact = here(told, self.settings)
                return GraphCode(artifact.load(), lambda: artifact)
            self._follows = False
        code: GraphCode | None = None
        try:
            code = self._compiled(graph, given, shared)
        finally:
            if ranks is not None and ranks.rank == 0:
                ranks.tell(_told(code))
        return code

    def _compiled(
        self, graph: torch.fx.GraphModule, given: Sequence[Any], shared: str
    ) -> GraphCode:
        settings = self.settings
        began, self._began = self._began, None
        try:
            saved = range(graph.meta.get(SAVED, sys.maxsize), sys.maxsize)
            how: dict[str, Any] = {"last": self.last, "lending": Lending(saved, self.loans)}
            if not settings.cuda_graphs:  # which lend what they keep
                how["owned"] = self.owned
            compiled = pipeline.compile_graph(
                graph, settings, Record(), began=began, given=given, **how
            )
            if SAVED in graph.meta:
                self.owned = _kept_alone(graph, compiled.fused, saved.start)
        except UnsupportedGraph as error:
            warnings.warn(f"compile_cli leaves a graph to eager: {error}", stacklevel=2)
            run = backward_run(graph.forward, lazy_inputs(graph))
            return GraphCode(run, functools.partial(_no_artifact, str(error)))
        kept = functools.partial(_kept, compiled, settings, shared)
        return GraphCode(compiled.run, functools.cache(kept) if shared else kept)

    def partition(self, joint: torch.fx.GraphModule, *inputs: Any, **more: Any) -> Any:
        """The joint graph of forward and backward -> the two graphs. How convolutions lie is
        decided for all ranks at once: else they would have no graph in common."""
        shared = digest(joint, self.settings, self._data_parallel)
        self.last.decide = functools.partial(agreed, shared)
        try:
            return partition(self.last, self.settings, joint, *inputs, **more)
        finally:
            self.last.decide = functools.partial(agreed, "")


class _FirstCall:
    """A graph that is compiled when it is called, for what it is called with."""

    def __init__(self, compiler: GraphCompiler, graph: torch.fx.GraphModule) -> None:
        self._compiler, self._graph = compiler, graph
        self._lock, self._code = Lock(), list[GraphCode]()

    def __call__(self, *args: Any) -> Any:
        return self.boxed(list(args))

    def boxed(self, args: list[Any]) -> Any:
        """The results for a list, which is emptied."""
        with self._lock:
            if not self._code:
                self._code.append(untraced(self._compiler.code)(self._graph, tuple(args)))
        return self._code[0](args)


def _kept_alone(graph: torch.fx.GraphModule, made: Graph, first: int) -> frozenset[str]:
    """Of the results from `first` on, those whose memory no input or constant has, and no other
    result."""
    held = Counter(out.buffer for out in made.outputs if isinstance(out, TensorRef))
    held.update((*(i.name for i in made.inputs), *(name for name, _ in made.constants)))
    nodes: Any = graph.graph.output_node().args[0]
    later = list(zip(nodes, made.outputs, strict=True))[first:]
    return frozenset(n.name for n, r in later if isinstance(r, TensorRef) and held[r.buffer] == 1)


def _told(code: GraphCode | None) -> Artifact | None:
    """What other ranks get, if they may run it."""
    try:
        return None if code is None else code.artifact()
    except NoArtifact:
        return None


def _kept(compiled: CompiledGraph, settings: Options, shared: str) -> Artifact:
    """What the cache keeps. Raises `NoArtifact`."""
    return awaiting(replace(Artifact.of(compiled, settings), shared=shared), compiled.late)


def _no_artifact(why: str) -> Artifact:
    raise NoArtifact(why)
