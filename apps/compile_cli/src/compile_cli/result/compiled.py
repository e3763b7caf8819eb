"""A flat graph, compiled: every stage's artifact, and the function that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import gemm_templates
from aten_lowering import Conditions, Fallback, lazy_memory
from compile_cli.record import Record
from cuda_graphs import GraphedCallable
from loop_ir import FusionReport, Graph
from planner import Chosen, Decided
from wrapper_ir import Program

Runner = Callable[..., Sequence[Any]]
LazyInput = tuple[int, bool, bool]
"""The position of an input, and whether it was conjugated and negated when it was captured."""


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
    the CUDA graphs of `run`, if asked for.
    """

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
    lazy: tuple[LazyInput, ...] = ()
    graphs: GraphedCallable | None = None


def aligned_run(run: Runner, positions: Sequence[int]) -> Runner:
    """`run`, with a copy in place of each argument at `positions` (which are only read) whose
    first element does not lie at a multiple of 16 bytes: tensor maps take no other address."""
    if not positions:
        return run

    def checked(*args: Any) -> Sequence[Any]:
        if any(args[i].data_ptr() % 16 for i in positions):
            fixed = list(args)
            for i in positions:
                if args[i].data_ptr() % 16:
                    like = args[i]
                    fixed[i] = torch.empty_strided(
                        like.shape, like.stride(), dtype=like.dtype, device=like.device
                    ).copy_(like)
            return run(*fixed)
        return run(*args)

    return checked


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


def in_memory_run(run: Runner, lazy: Sequence[LazyInput]) -> Runner:
    """`run`, with the memory in place of each argument that is lazy, or was when captured."""
    if not lazy:
        return run

    def resolved(*args: Any) -> Sequence[Any]:
        given = list(args)
        for i, conj, neg in lazy:
            tensor = given[i]
            if conj or neg or tensor.is_conj() or tensor.is_neg():
                given[i] = lazy_memory(tensor, conj, neg)
        return run(*given)

    return resolved
