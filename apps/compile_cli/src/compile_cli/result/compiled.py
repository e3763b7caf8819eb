"""A flat graph, compiled: every stage's artifact, and the function that runs it."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import gemm_templates
from aten_lowering import Conditions, Fallback
from compile_cli.hosts import LazyInput, Runner
from compile_cli.record import Record
from cuda_graphs import GraphedCallable
from loop_ir import FusionReport, Graph
from planner import Chosen, Decided
from triton_rt import Binary
from wrapper_ir import Program


@dataclass(frozen=True)
class CompiledGraph:
    """One flat graph, compiled: every stage's artifact, and `run(*flat inputs)`.

    loop, fused: loop IR before and after fusion. program: the host program. host: what the
    emitter made of it (a GraphModule, or the text of a C++ library). run: calls it. constants: the
    tensors that the program names. fallbacks: operators without a lowering, and why. matmuls: what
    was measured for each; decided: what came of it. explain: decisions on fusion, matmuls and
    schedules in words. conditions: what capturing and lowering assumed of the sizes. schedules:
    those of kernels that move much, by name and sizes, and what was measured of them. aligned:
    positions of inputs that must start at a multiple of 16 bytes. lazy: see `lazy_inputs`. graphs:
    the CUDA graphs of `run`, or of parts of it, if asked for. taken: positions of inputs that are
    written to, though no caller asked for it, and copied where another holds them. late: candidates
    that were not compiled in time. binaries: gives those of the program's kernels."""

    loop: Graph
    fused: Graph
    program: Program
    host: Any
    run: Runner
    fusion: FusionReport
    constants: Mapping[str, Tensor]
    fallbacks: tuple[Fallback, ...]
    matmuls: Mapping[str, gemm_templates.Choice]
    decided: Mapping[str, tuple[Decided, ...]]
    explain: Callable[[], str]
    record: Record
    conditions: Conditions
    schedules: Mapping[tuple[str, tuple[int, ...]], Chosen]
    aligned: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()
    lazy: tuple[LazyInput, ...] = ()
    graphs: tuple[GraphedCallable, ...] = ()
    late: tuple[Future[Any], ...] = ()
    binaries: Callable[[], tuple[Binary, ...]] = tuple


def lazy_inputs(gm: torch.fx.GraphModule) -> tuple[LazyInput, ...]:
    """The inputs that the graph was captured with as lazily conjugated or negated, or that may be
    so: a tangent need not be as it was traced."""
    lazy = []
    for i, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        example = node.meta.get("val")
        if not isinstance(example, Tensor) or not (
            example.is_complex() or example.is_floating_point()
        ):
            continue
        conj, neg = example.is_conj(), example.is_neg()
        if conj or neg or str(node.target).startswith("tangents"):
            lazy.append((i, conj, neg))
    return tuple(lazy)
