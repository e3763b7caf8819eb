"""From a rendered kernel to a call."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from gemm_templates.errors import InvalidArguments
from gemm_templates.problem import Config, Problem
from gemm_templates.render import TemplateKernel, source
from triton_rt import Binary, Cache, CompilePool, LazyKernel, Target


@dataclass(frozen=True)
class Inputs:
    """The tensors of one matmul: `out` is None where the epilogue stores; `operands` are the
    run-time values of the epilogue's operands. What is written (`out`, and operands marked
    `mutated`) is not read, and shares no memory with the others."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor | None
    bias: torch.Tensor | None = None
    operands: tuple[Any, ...] = ()


def arguments(problem: Problem, kernel: TemplateKernel, inputs: Inputs) -> tuple[Any, ...]:
    """`inputs` in the order of the kernel's parameters. Raises InvalidArguments."""
    operands = problem.epilogue.operands if problem.epilogue else ()
    if len(operands) != len(inputs.operands):
        raise InvalidArguments(
            f"{problem}: {len(inputs.operands)} operands for {[p.name for p in operands]}"
        )
    values: dict[str, Any] = {"a": inputs.a, "b": inputs.b, "bias": inputs.bias, "out": inputs.out}
    values.update(problem.dims())
    values.update({p.name: v for p, v in zip(operands, inputs.operands, strict=True)})
    missing = [p.name for p in kernel.source.params if values[p.name] is None]
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
        self.kernel = source(problem, config, "matmul")
        self.grid = self.kernel.grid(problem.m, problem.n)
        self._lazy = LazyKernel(self.kernel.source, cache=cache, pool=pool)

    def __call__(self, inputs: Inputs) -> None:
        if self.grid[0]:
            self._lazy(self.grid, *arguments(self.problem, self.kernel, inputs))

    def prepare(self, inputs: Inputs) -> None:
        """Starts to compile, in the pool, the variant that these tensors need; in most cases it
        is the expected one, which is under way already."""
        if self.grid[0] and self._lazy.pool is not None and torch.cuda.is_available():
            values = arguments(self.problem, self.kernel, inputs)
            self._lazy.prefetch(alignment=self._lazy.alignment(*values))

    def compile(self, target: Target | None = None) -> Future[Binary]:
        """Starts to compile the variant that `expected_alignment` names."""
        return self._lazy.prefetch(target, expected_alignment(self.problem, self.kernel))


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
