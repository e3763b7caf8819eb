"""What templates are asked for the matmuls of a graph, and at which numbers of rows.

A matmul whose sizes are known is asked about once, one with a dynamic number of rows at each rung
of `planner.matmul.ladder`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

import sympy
import torch

import gemm_templates
from loop_ir import GatedPair, Graph, Matmul, gated_halves, gated_pairs
from planner.kernels import Kernels
from planner.matmul.ladder import Rung, rungs
from planner.matmul.problem import GraphFacts, MatmulTask, bytes_of, make_gated_task, make_task
from planner.settings import Settings
from planner.torch_compat import unset_fake_temporarily
from symexpr import evaluate, symbol
from triton_emit import TritonEmitError

# Multiply-adds below which a matmul is not worth measuring: the launch is the cost.
WORTH = 64 * 64 * 64

# So many rows and less vendors' calls refuse: templates alone run them, and none is measured.
REFUSED = {"aten._int_mm.default": 16}


@dataclass
class MatmulTasks:
    """The problems of a graph's matmuls. listed: kernels that are launched with others."""

    options: Settings
    kernels: Kernels
    graph: Graph
    listed: Set[str] = frozenset()
    _tasks: dict[tuple[str, int, bool, str], MatmulTask | None] = field(default_factory=dict)
    _steps: dict[str, list[Rung]] = field(default_factory=dict)

    @functools.cached_property
    def facts(self) -> GraphFacts:
        """The facts about the graph."""
        return GraphFacts(self.graph)

    @functools.cached_property
    def _halves(self) -> dict[str, tuple[Matmul, GatedPair]]:
        """Pairs that are halves of one product, by the kernel that reads both."""
        halves = gated_halves(self.graph)
        return {name: half for name, half in halves.items() if name not in self.listed}

    @functools.cached_property
    def pairs(self) -> dict[str, GatedPair]:
        """Pairs that one template may multiply, by the result of the matmul with the epilogue."""
        return gated_pairs(self.graph) | {n.out: pair for n, pair in self._halves.values()}

    @property
    def _matmuls(self) -> list[Matmul]:
        return [node for node in self.graph.nodes if isinstance(node, Matmul)]

    def _by_model(self, node: Matmul, rung: Rung) -> bool:
        """Whether the model alone decides between templates, and there is no other way."""
        return self.options.gemm == "template" or rung.rows <= REFUSED.get(node.extern.target, 0)

    def _rungs(self, node: Matmul, hints: Mapping[str, int]) -> list[Rung]:
        """Where to decide: at several numbers of rows if that is what is dynamic, and only that."""
        if node.out not in self._steps:
            self._steps[node.out] = self._find_rungs(node, hints)
        return self._steps[node.out]

    def _find_rungs(self, node: Matmul, hints: Mapping[str, int]) -> list[Rung]:
        rows = node.a.type.size[-2]
        here = [Rung(int(evaluate(rows, hints)), hints, None)]
        if not rows.free_symbols or self.options.multikernel == "off":
            return here
        found = rungs(rows, self.graph.symbols, hints)
        room = self._room(node)
        fits = next((i for i, r in enumerate(found) if bytes_of(node, r.hints) > room), len(found))
        if fits < len(found):
            found = found[: max(fits, 1)]
            found[-1] = replace(found[-1], condition=None, exact=False)
        tasks = [
            task
            for rung in found
            for find in (self._task, self._fused)
            if (task := find(node, rung)) is not None
        ]
        moving = {"M", "stride_ab", "stride_ob"}
        settled = all(t.problem.dynamic <= moving and not t.batch.free_symbols for t in tasks)
        return found if settled else here

    def _room(self, node: Matmul) -> float:
        """Bytes that measuring one matmul may take."""
        if node.type.device.kind != "cuda" or not torch.cuda.is_available():
            return float("inf")
        with unset_fake_temporarily():
            return float(torch.cuda.mem_get_info()[0]) / 4

    def _task(self, node: Matmul, rung: Rung) -> MatmulTask | None:
        """The node, its operands made, as a problem for templates; None where they cannot or need
        not be asked."""
        return self._find_task(node, rung, "plain")

    def _fused(self, node: Matmul, rung: Rung) -> MatmulTask | None:
        """Likewise with its prologues; None where it has none."""
        return self._find_task(node, rung, "fused") if node.prologues else None

    def _gated(self, node: Matmul, rung: Rung) -> MatmulTask | None:
        """Both products of its pair; None where it has none."""
        return self._find_task(node, rung, "gated") if node.out in self.pairs else None

    def _find_task(self, node: Matmul, rung: Rung, kind: str) -> MatmulTask | None:
        key = (node.out, rung.rows, rung.exact, kind)
        if key not in self._tasks:
            self._tasks[key] = self._make_task(node, rung, kind)
        return self._tasks[key]

    def _make_task(self, node: Matmul, rung: Rung, kind: str) -> MatmulTask | None:
        on_cuda = node.type.device.kind == "cuda"
        auto = self.options.gemm == "auto"
        if self.options.gemm == "extern" or (auto and not on_cuda):
            return None
        exact = (
            {symbol(n): sympy.Integer(rung.hints[n]) for n in _row_sizes(node)}
            if rung.exact
            else {}
        )
        aligned = self.facts.aligned | ({node.out} if on_cuda else set())
        symbols, pair = self.graph.symbols, self.pairs.get(node.out)
        try:
            if kind == "gated" and pair is not None:
                task = make_gated_task(node, pair, rung.hints, aligned, exact, symbols)
            else:
                task = make_task(node, rung.hints, aligned, exact, symbols, kind == "fused")
        except (gemm_templates.UnsupportedProblem, TritonEmitError):
            return None
        small = task.problem.flops < 2 * WORTH and not self._by_model(node, rung)
        return None if auto and small else task


def _row_sizes(node: Matmul) -> list[str]:
    return [str(s) for s in node.a.type.size[-2].free_symbols]
