"""Matmul nodes: the vendor's call, or a template with the epilogue that fusion found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

import gemm_templates
from compile_cli.assemble import LaunchPlan
from compile_cli.config import Options
from compile_cli.gemm_task import MatmulTask, make_task
from compile_cli.runtime import (
    Kernels,
    as_layout,
    define_kernel,
    layout_at,
    random_tensor,
    torch_value,
)
from fx_emit.torch_types import operator_of
from loop_ir import CopyBack, Extern, Graph, Kernel, Matmul, TensorRef, UserKernel
from symexpr import evaluate
from triton_emit import TritonEmitError, default_schedule, emit

# Multiply-adds below which a matmul is not worth measuring: the launch is the cost.
WORTH = 64 * 64 * 64


@dataclass
class MatmulPlanner:
    """Decides for each matmul of a graph.

    choices: what was measured, by the name of the node. needs_alignment: inputs of the graph that
    a chosen template reads through a tensor map, which must start at a multiple of 16 bytes.
    """

    options: Options
    kernels: Kernels
    graph: Graph
    choices: dict[str, gemm_templates.Choice] = field(default_factory=dict)
    needs_alignment: set[str] = field(default_factory=set)
    _decided: dict[str, gemm_templates.Config | None] = field(default_factory=dict)
    _tasks: dict[str, MatmulTask | None] = field(default_factory=dict)

    @functools.cached_property
    def aligned(self) -> frozenset[str]:
        """Buffers that are, or can be made, 16-byte aligned: what kernels write (the program
        allocates it), and inputs that nobody writes (a caller's odd one is copied first)."""
        written = {node.dst.buffer for node in self.graph.nodes if isinstance(node, CopyBack)}
        made: set[str] = set()
        for node in self.graph.nodes:
            if isinstance(node, Extern | UserKernel):
                written.update(node.mutates)
            elif isinstance(node, Kernel):
                made.update(b.name for b in node.buffers if b.written)
            elif isinstance(node, Matmul) and node.epilogue is not None:
                made.update(b.name for b in node.epilogue.buffers if b.written)
        return frozenset((made | self.inputs) - (written & self.inputs))

    @functools.cached_property
    def inputs(self) -> frozenset[str]:
        return frozenset(i.name for i in self.graph.inputs)

    def __call__(self, node: Matmul, hints: Mapping[str, int]) -> LaunchPlan | None:
        """A template's launch, or None for the vendor's call (and the epilogue's own kernel)."""
        task = self._task(node, hints)
        config = None if task is None else self._config(task, hints)
        if task is None or config is None:
            return None
        if config.template == "tma":
            self.needs_alignment |= self.inputs & set(task.buffers.values())
        return task.launch(config)

    def prefetch(self, hints: Mapping[str, int]) -> None:
        """Compiles, side by side, all candidates that will be measured for the graph's matmuls."""
        if self.options.gemm != "auto" or self.kernels.pool is None:
            return
        nodes = [node for node in self.graph.nodes if isinstance(node, Matmul)]
        tasks = [task for node in nodes if (task := self._task(node, hints)) is not None]
        if tasks:
            futures = gemm_templates.prefetch(
                [task.problem for task in tasks],
                pool=self.kernels.pool,
                cache=self.kernels.cache,
                store=self.store,
            )
            wait(futures)

    @functools.cached_property
    def store(self) -> gemm_templates.Store:
        """Choices on disk."""
        return gemm_templates.Store(self.options.cache_path / "gemm")

    def _task(self, node: Matmul, hints: Mapping[str, int]) -> MatmulTask | None:
        """The node as a problem for templates; None where they cannot or need not be asked."""
        if node.out not in self._tasks:
            self._tasks[node.out] = self._make_task(node, hints)
        return self._tasks[node.out]

    def _make_task(self, node: Matmul, hints: Mapping[str, int]) -> MatmulTask | None:
        on_cuda = node.type.device.kind == "cuda"
        auto = self.options.gemm == "auto"
        if self.options.gemm == "extern" or (auto and not on_cuda) or len(node.type.size) != 2:
            return None
        try:
            task = make_task(node, hints, self.aligned | ({node.out} if on_cuda else set()))
        except (gemm_templates.UnsupportedProblem, TritonEmitError):
            return None
        return None if auto and task.problem.flops < 2 * WORTH else task

    def _config(self, task: MatmulTask, hints: Mapping[str, int]) -> gemm_templates.Config | None:
        problem = task.problem
        if problem.key in self._decided:
            return self._decided[problem.key]
        if self.options.gemm == "template":
            on_cuda = task.node.type.device.kind == "cuda" and torch.cuda.is_available()
            device = "cuda" if on_cuda else gemm_templates.H200
            config: gemm_templates.Config | None = gemm_templates.best_config(problem, device)
        else:
            build = functools.partial(
                gemm_templates.bind, pool=self.kernels.pool, cache=self.kernels.cache
            )
            # Under torch.compile fake tensors are in force; what is measured is real.
            with unset_fake_temporarily():
                choice = gemm_templates.choose(
                    problem,
                    lambda: task.inputs(hints),
                    self._extern(task, hints),
                    build=build,
                    store=self.store,
                )
            self.choices[task.node.out] = choice
            config = choice.config
        self._decided[problem.key] = config
        return config

    def _extern(
        self, task: MatmulTask, hints: Mapping[str, int]
    ) -> Callable[[gemm_templates.Inputs], Tensor]:
        """The vendor's call and then the epilogue as a kernel of its own: what would run if the
        template did not. Everything but the two calls is done beforehand."""
        node = task.node
        operator = operator_of(node.extern.target, {})
        finish = self._separate_epilogue(task, hints)

        def run(inputs: gemm_templates.Inputs) -> Tensor:
            given: dict[str, Tensor | None] = {
                node.a.buffer: inputs.a, node.b.buffer: inputs.b
            }  # fmt: skip
            if node.bias is not None:
                given[node.bias.buffer] = inputs.bias

            def value(x: Any) -> Any:
                if isinstance(x, TensorRef):
                    tensor = given[x.buffer]
                    assert tensor is not None
                    return as_layout(tensor, x.type, hints)
                if isinstance(x, tuple):
                    return [value(item) for item in x]
                return int(evaluate(x, hints)) if isinstance(x, sympy.Expr) else torch_value(x)

            if not prepared:
                prepared.append(
                    ([value(a) for a in node.extern.args],
                     {k: value(v) for k, v in node.extern.kwargs})
                )  # fmt: skip
            args, kwargs = prepared[0]
            out: Tensor = operator(*args, **kwargs)
            return finish(out, inputs)

        prepared: list[tuple[list[Any], dict[str, Any]]] = []
        return run

    def _separate_epilogue(
        self, task: MatmulTask, hints: Mapping[str, int]
    ) -> Callable[[Tensor, gemm_templates.Inputs], Tensor]:
        node, source = task.node, task.epilogue
        if node.epilogue is None or source is None:
            size, stride = layout_at(node.type, hints)
            return lambda out, _: out.as_strided(size, stride)
        emitted = emit(node.epilogue, default_schedule(node.epilogue, hints))
        kernel = self.kernels.load(define_kernel(emitted))
        grid = tuple(int(evaluate(g, hints)) for g in emitted.grid)
        made = {b.name: random_tensor(b.type, hints) for b in node.epilogue.buffers if b.written}
        sizes = [None if isinstance(a, str) else int(evaluate(a, hints)) for a in emitted.args]
        result = as_layout(made[source.out], task.out_type, hints)

        def finish(out: Tensor, inputs: gemm_templates.Inputs) -> Tensor:
            known: dict[str, Any] = {node.out: out, **made}
            known.update(zip((str(a) for a in source.args), inputs.operands, strict=True))
            args = [
                known[a] if isinstance(a, str) else size
                for a, size in zip(emitted.args, sizes, strict=True)
            ]
            kernel(grid, *args)
            return result

        return finish
