"""What lowering a graph gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from aten_lowering.attention import Attention
from aten_lowering.conditions import Conditions
from aten_lowering.extern import Fallback
from aten_lowering.seeds import draw
from aten_lowering.user_kernels import KernelObject
from loop_ir import Graph, Layers, unfold


@dataclass(frozen=True)
class Control:
    """How data decides which subgraphs are called: "if", "while", "trace" or "scan", which take
    `carries` values that they give anew, and steps of `over` tensors (wrapper_ir's
    `DefineControl`)."""

    form: str
    subgraphs: tuple[str, ...]
    carries: int
    over: int


@dataclass(frozen=True)
class Lowered:
    """A lowered graph, and what it names.

    constants: the tensors of its constants, by name.
    fallbacks: what has no kernel of ours, and why.
    kernels: the user's Triton kernels, by the key that a `UserKernel` has.
    conditions: what was assumed of the sizes.
    operators: what an `Extern` calls that is no operator of torch, by its target.
    attentions: those of `operators` that are attention.
    subgraphs: the subgraphs that an `Extern` calls, by name.
    controls: how data decides on calls of subgraphs, by name.
    layers: what was left out of `graph` that is like the rest of it; `whole` puts it back."""

    graph: Graph
    constants: dict[str, torch.Tensor]
    fallbacks: tuple[Fallback, ...]
    kernels: dict[str, KernelObject] = field(default_factory=dict)
    conditions: Conditions = field(default_factory=Conditions)
    operators: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    attentions: Mapping[str, Attention] = field(default_factory=dict)
    subgraphs: Mapping[str, Lowered] = field(default_factory=dict)
    controls: Mapping[str, Control] = field(default_factory=dict)
    layers: Layers | None = None

    def whole(self, graph: Graph) -> Graph:
        """A graph that passes made of `graph`, with what was left out. Raises `Irregular`."""
        if self.layers is None:
            return graph
        return draw(unfold(graph, self.layers), len(self.layers.inputs))
