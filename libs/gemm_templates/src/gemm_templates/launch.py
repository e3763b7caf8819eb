"""From a rendered kernel to a call."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from gemm_templates.errors import InvalidArguments
from gemm_templates.families import make_plan
from gemm_templates.plan import TemplateKernel, Workspace
from gemm_templates.problem import Config, Problem
from triton_rt import Binary, Cache, CompilePool, LazyKernel, Target

_WORKSPACE_DTYPES = {"f32": torch.float32, "i32": torch.int32}


@dataclass(frozen=True)
class Inputs:
    """The tensors of one matmul: `out` is None where the epilogue stores; `operands` are the
    run-time values of the epilogue's operands. What is written (`out`, and operands marked
    `mutated`) is not read, and shares no memory with the others. `offs`: the ends of the groups of
    a jagged problem, an i32 vector. `before`: the run-time values of the prologues' operands, `a`'s
    first, then of the block scale's."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor | None
    bias: torch.Tensor | None = None
    operands: tuple[Any, ...] = ()
    b2: torch.Tensor | None = None
    offs: torch.Tensor | None = None
    before: tuple[Any, ...] = ()


def arguments(
    problem: Problem,
    kernel: TemplateKernel,
    inputs: Inputs,
    workspaces: Mapping[str, torch.Tensor] | None = None,
) -> tuple[Any, ...]:
    """`inputs` in the order of the kernel's parameters. Raises InvalidArguments."""
    operands = problem.epilogue.operands if problem.epilogue else ()
    if len(operands) != len(inputs.operands):
        raise InvalidArguments(
            f"{problem}: {len(inputs.operands)} operands for {[p.name for p in operands]}"
        )
    values: dict[str, Any] = {"a": inputs.a, "b": inputs.b, "bias": inputs.bias, "out": inputs.out}
    values["b2"] = inputs.b2
    values["offs"] = inputs.offs
    values.update(workspaces or {})
    values.update(problem.dims())
    values.update({p.name: v for p, v in zip(operands, inputs.operands, strict=True)})
    parts = (problem.prologue_a, problem.prologue_b, problem.block_scale)
    before = [p for part in parts if part for p in part.operands]
    if len(before) != len(inputs.before):
        raise InvalidArguments(
            f"{problem}: {len(inputs.before)} operands before the sums for "
            f"{[p.name for p in before]}"
        )
    values.update({p.name: v for p, v in zip(before, inputs.before, strict=True)})
    missing = [p.name for p in kernel.source.params if values.get(p.name) is None]
    if missing:
        raise InvalidArguments(f"{problem}: no tensor for {missing}")
    return tuple(values[p.name] for p in kernel.source.params)


def written(problem: Problem, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """The tensors that a kernel for this problem writes: `out`, then mutated operands."""
    operands = problem.epilogue.operands if problem.epilogue else ()
    found = [inputs.out, *(v for p, v in zip(operands, inputs.operands, strict=True) if p.mutated)]
    return tuple(tensor for tensor in found if tensor is not None)


class Bound:
    """A template on exactly one problem: `bound(inputs)` runs it."""

    def __init__(
        self, problem: Problem, config: Config, cache: Cache | None, pool: CompilePool | None
    ) -> None:
        self.problem = problem
        self.plan = make_plan(problem, config, "matmul")
        lazy = functools.partial(LazyKernel, cache=cache, pool=pool)
        self._steps = [
            (kernel, kernel.grid(problem.m, problem.n), lazy(kernel.source))
            for kernel in self.plan.steps
        ]
        self._zeroed: dict[tuple[str, torch.device, int], torch.Tensor] = {}

    def __call__(self, inputs: Inputs) -> None:
        if self.problem.m and self.problem.n:
            for (_, grid, lazy), values in zip(self._steps, self._arguments(inputs), strict=True):
                lazy(grid, *values)

    def prepare(self, inputs: Inputs) -> None:
        """Starts to compile, in the pool, the variants that these tensors need; in most cases
        they are the expected ones, which are under way already."""
        if self.problem.m and self.problem.n and torch.cuda.is_available():
            for (_, _, lazy), values in zip(self._steps, self._arguments(inputs), strict=True):
                if lazy.pool is not None:
                    lazy.prefetch(alignment=lazy.alignment(*values))

    def compile(self, target: Target | None = None) -> list[Future[Binary]]:
        """Starts to compile the variants that `expected_alignment` names, one for each launch."""
        return [
            lazy.prefetch(target, expected_alignment(self.problem, kernel))
            for kernel, _, lazy in self._steps
        ]

    def _arguments(self, inputs: Inputs) -> list[tuple[Any, ...]]:
        memory = {w.name: self._memory(w, inputs.a.device) for w in self.plan.workspaces}
        return [arguments(self.problem, k, inputs, memory) for k, _, _ in self._steps]

    def _memory(self, workspace: Workspace, device: torch.device) -> torch.Tensor:
        """Of this call; what is zeroed is kept by stream, since the calls on one follow each
        other. A graph being captured gets its own, and zeroes it at each replay."""
        count = workspace.elements(self.problem.m, self.problem.n)
        dtype = _WORKSPACE_DTYPES[workspace.dtype]
        if not workspace.zeroed:
            return torch.empty(count, dtype=dtype, device=device)
        if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return torch.zeros(count, dtype=dtype, device=device)
        key = (workspace.name, device, torch.cuda.current_stream(device).cuda_stream)
        if key not in self._zeroed:
            self._zeroed[key] = torch.zeros(count, dtype=dtype, device=device)
        return self._zeroed[key]


def expected_alignment(problem: Problem, kernel: TemplateKernel) -> int:
    """Which parameters will be divisible by 16 (a mask, as `triton_rt.compile` takes it): pointers,
    as torch allocates them, sizes and strides whose hints are, and what is promised."""
    dims = problem.dims()
    mask = kernel.source.promised_alignment
    for i, param in enumerate(kernel.source.params):
        hint = dims.get(param.name)
        if param.may_align and (param.kind.startswith("*") if hint is None else hint % 16 == 0):
            mask |= 1 << i
    return mask


def bind(
    problem: Problem,
    config: Config,
    *,
    cache: Cache | None = None,
    pool: CompilePool | None = None,
) -> Bound:
    """A function that runs the template on tensors of exactly this problem. It is compiled at
    its first call; with a pool, and a GPU, from now on in the background."""
    bound = Bound(problem, config, cache, pool)
    if pool is not None and torch.cuda.is_available():
        bound.compile()
    return bound
