"""From a rendered kernel to a call."""

import functools
import os
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Any

import torch

from gemm_templates.errors import InvalidArguments
from gemm_templates.plan import TemplateKernel, Workspace
from gemm_templates.problem import Config, Problem
from gemm_templates.registry import make_plan
from gemm_templates.tensor_maps import TensorMaps
from triton_rt import Binary, Cache, CompilePool, LazyKernel, Target, shared_pool

InTime = Callable[[Collection[Future[Binary]]], bool]

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
    values = _tensors(problem, _operand_names(problem), inputs) | dict(workspaces or {})
    return tuple(_Order(problem, kernel).filled(values, problem.m))


# Of `Inputs`: single tensors, each the parameter of its name.
_TENSORS = tuple(f.name for f in fields(Inputs) if f.name not in ("operands", "before"))


def _tensors(
    problem: Problem, names: tuple[list[str], list[str]], inputs: Inputs
) -> dict[str, Any]:
    """What a call brings, by the names of the parameters. Raises InvalidArguments."""
    operands, before = names
    if len(operands) != len(inputs.operands) or len(before) != len(inputs.before):
        raise InvalidArguments(
            f"{problem}: {len(inputs.operands)} operands for {operands}, and "
            f"{len(inputs.before)} before the sums for {before}"
        )
    values = {name: getattr(inputs, name) for name in _TENSORS}
    values.update(zip(operands, inputs.operands, strict=True))
    values.update(zip(before, inputs.before, strict=True))
    return values


def _operand_names(problem: Problem) -> tuple[list[str], list[str]]:
    parts = (problem.prologue_a, problem.prologue_b, problem.block_scale, problem.pick_b)
    epilogue = problem.epilogue.operands if problem.epilogue else ()
    return [p.name for p in epilogue], [p.name for part in parts if part for p in part.operands]


def written(problem: Problem, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """The tensors that a kernel for this problem writes: `out`, then mutated operands."""
    operands = problem.epilogue.operands if problem.epilogue else ()
    found = [inputs.out, *(v for p, v in zip(operands, inputs.operands, strict=True) if p.mutated)]
    return tuple(tensor for tensor in found if tensor is not None)


class Bound:
    """A template on one problem: `bound(inputs)` runs it. Where M is dynamic, `bound(inputs, m)`
    runs it on m rows; every other size and stride is the problem's."""

    def __init__(
        self,
        problem: Problem,
        config: Config,
        cache: Cache | None,
        pool: CompilePool | None,
        in_time: InTime | None = None,
    ) -> None:
        self.problem = problem
        self._in_time = in_time
        self.plan = make_plan(problem, config, None)
        self._names = _operand_names(problem)
        lazy = functools.partial(LazyKernel, cache=cache, pool=pool)
        self._steps = [(kernel, lazy(kernel.source)) for kernel in self.plan.steps]
        self._order = [_Order(problem, kernel) for kernel in self.plan.steps]
        self._grids = [kernel.grid(problem.m, problem.n) for kernel in self.plan.steps]
        self._zeroed: dict[tuple[str, torch.device, int], torch.Tensor] = {}

    def __call__(self, inputs: Inputs, m: int | None = None) -> None:
        problem, rows = self.problem, self.problem.m if m is None else m
        usual = rows == problem.m
        if not usual and "M" not in problem.dynamic:
            raise InvalidArguments(f"{problem}: {rows} rows, and M is not dynamic")
        if not (rows and problem.n):
            return
        values = self._values(inputs, rows)
        for (kernel, lazy), order, grid in zip(self._steps, self._order, self._grids, strict=True):
            here = grid if usual else kernel.grid(rows, problem.n)
            lazy.launch(here, *order.filled(values, rows))

    def prepare(self, inputs: Inputs, m: int | None = None) -> None:
        """Starts to compile, in the pool, the variants that these tensors need; in most cases
        they are the expected ones, which are under way already."""
        rows = self.problem.m if m is None else m
        if not (rows and self.problem.n and torch.cuda.is_available()):
            return
        values = self._values(inputs, rows)
        for (_, lazy), order in zip(self._steps, self._order, strict=True):
            if lazy.pool is not None:
                lazy.prefetch(alignment=lazy.alignment(*order.filled(values, rows)))

    def compile(self, target: Target | None = None) -> list[Future[Binary]]:
        """Starts to compile the variants that `expected_alignment` names, one for each launch."""
        return [
            lazy.prefetch(target, expected_alignment(self.problem, kernel))
            for kernel, lazy in self._steps
        ]

    def is_late(self) -> bool:
        """Whether its kernels are still compiled elsewhere when there is no more time to wait."""
        return self._in_time is not None and not self._in_time(self.compile())

    def _values(self, inputs: Inputs, m: int) -> dict[str, Any]:
        """What changes from call to call, by the names of the parameters."""
        values = _tensors(self.problem, self._names, inputs)
        for workspace in self.plan.workspaces:
            values[workspace.name] = self._memory(workspace, inputs.a.device, m)
        return values

    def _memory(self, workspace: Workspace, device: torch.device, m: int) -> torch.Tensor:
        """Of this call; what is zeroed is kept by stream, since the calls on one follow each
        other. A graph being captured gets its own, and zeroes it at each replay."""
        count = workspace.elements(m, self.problem.n)
        dtype = _WORKSPACE_DTYPES[workspace.dtype]
        if not workspace.zeroed:
            return torch.empty(count, dtype=dtype, device=device)
        if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return torch.zeros(count, dtype=dtype, device=device)
        key = (workspace.name, device, torch.cuda.current_stream(device).cuda_stream)
        found = self._zeroed.get(key)
        if found is None or found.numel() < count:
            found = self._zeroed[key] = torch.zeros(count, dtype=dtype, device=device)
        return found


class _Order:
    """A kernel's arguments: those that never change, with gaps, and the places of the others."""

    def __init__(self, problem: Problem, kernel: TemplateKernel) -> None:
        dims = problem.dims()
        names = [param.name for param in kernel.source.params]
        mapped = dict(kernel.maps)
        self.problem = problem
        self.fixed = [dims.get(name) for name in names]
        self.rows = names.index("M") if "M" in names else None
        moving = [(place, name) for place, name in enumerate(names) if name not in dims]
        self.moving = [(place, name, name in mapped) for place, name in moving]
        self.maps = TensorMaps(kernel.maps, dims)

    def filled(self, values: Mapping[str, Any], m: int) -> list[Any]:
        """The arguments for m rows. Raises InvalidArguments."""
        out: list[Any] = self.fixed.copy()
        for place, name, mapped in self.moving:
            value = values.get(name)
            if value is None:
                raise InvalidArguments(f"{self.problem}: no tensor for {name!r}")
            out[place] = self.maps(name, value, m) if mapped else value
        if self.rows is not None:
            out[self.rows] = m
        return out


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
    in_time: InTime | None = None,
) -> Bound:
    """A function that runs the template on tensors of exactly this problem. It is compiled at
    its first call; with a pool, and a GPU, from now on in the background. in_time: for `choose`;
    waits for kernels, and says whether they are compiled. By default it waits for all."""
    bound = Bound(problem, config, cache, pool, in_time)
    if pool is not None and torch.cuda.is_available():
        bound.compile()
    return bound


@functools.lru_cache(maxsize=1)
def default_build() -> functools.partial[Bound]:
    """`bind` with the kernel cache of the user, and workers of this process that compile the
    candidates of one problem side by side."""
    return functools.partial(
        bind, cache=Cache(), pool=shared_pool(max(1, min(6, os.cpu_count() or 1)))
    )
