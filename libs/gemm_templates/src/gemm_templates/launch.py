"""From a rendered kernel to a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gemm_templates.errors import InvalidArguments
from gemm_templates.problem import Config, Problem
from gemm_templates.render import TemplateKernel, source
from triton_rt import Cache, CompilePool, LazyKernel


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


def bind(
    problem: Problem,
    config: Config,
    *,
    cache: Cache | None = None,
    pool: CompilePool | None = None,
) -> Callable[[Inputs], None]:
    """A function that runs the template on tensors of exactly this problem. It is compiled at
    its first call; with a pool, and a GPU, from now on in the background."""
    kernel = source(problem, config, "matmul")
    grid = kernel.grid(problem.m, problem.n)
    lazy = LazyKernel(kernel.source, cache=cache, pool=pool)
    if pool is not None and torch.cuda.is_available():
        lazy.prefetch()

    def run(inputs: Inputs) -> None:
        if grid[0]:
            lazy(grid, *arguments(problem, kernel, inputs))

    return run
