"""What each node of a graph becomes, before these are one program: launches and operators over
buffers that they name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import sympy

import gemm_templates
from loop_ir import Extern, Origin, TensorRef
from planner.kernels import ALIKE
from symexpr import sstr
from wrapper_ir import DefineKernel, Device, DType, KernelParam, TensorType, ops

if TYPE_CHECKING:  # the types alone: what runs a planned program needs no lowering
    from aten_lowering import Fallback
    from triton_emit import TritonKernel
    from triton_rt import KernelSource

Key: TypeAlias = tuple[str, DType, Device]


@dataclass(frozen=True)
class Blocks:
    """A tensor that a kernel takes as a descriptor with this block."""

    tensor: TensorRef
    block: tuple[int, ...]


@dataclass(frozen=True)
class Zeroed:
    """An argument of a launch: memory of this type at least, which it finds all zero and leaves all
    zero. Launches of a program that name the same memory share it: they follow each other on one
    stream."""

    name: str
    type: TensorType

    @property
    def key(self) -> Key:
        """Equal for uses that share a buffer."""
        return self.name, self.type.dtype, self.type.device


LaunchArg: TypeAlias = str | TensorRef | Blocks | Zeroed | sympy.Expr | int | float | bool


@dataclass(frozen=True)
class LaunchPlan:
    """One kernel and how to launch it: grid in size symbols; args are buffers (by name), views of
    buffers, descriptors of those, memory that is zero, sizes and numbers."""

    define: ops.DefineKernel
    grid: tuple[sympy.Expr, sympy.Expr, sympy.Expr]
    args: tuple[LaunchArg, ...]


@dataclass(frozen=True)
class Steps:
    """Launches and operators one after the other, and the buffers that only they use. What the
    operators make is theirs, too: a result that others read is a buffer of the node's that an
    `out=` operator writes."""

    steps: tuple[LaunchPlan | Extern, ...]
    allocate: tuple[tuple[str, TensorType], ...] = ()


Choice: TypeAlias = LaunchPlan | Steps
Condition: TypeAlias = "sympy.logic.boolalg.Boolean | None"
Choices: TypeAlias = tuple[tuple[Condition, Choice], ...]


@dataclass(frozen=True)
class Decided:
    """What runs a matmul where `condition` holds (None: everywhere else), by its label."""

    condition: Condition
    label: str

    def __str__(self) -> str:
        return self.label if self.condition is None else f"{sstr(self.condition)}: {self.label}"


@dataclass(frozen=True)
class Decision:
    """What was decided for the matmul that makes `out`: what runs where, and what was measured, by
    the name of the node, with the number of rows where that is dynamic."""

    out: str
    decided: tuple[Decided, ...]
    measured: tuple[tuple[str, gemm_templates.Choice], ...] = ()


@dataclass(frozen=True)
class MatmulPlan:
    """What runs a matmul. choices: each with its condition; empty where the vendor's call runs it
    everywhere. decision: how that came about; None where templates were not asked. aligned: inputs
    of the graph that a template reads through a tensor map, which must start at a multiple of 16
    bytes. absorbed: another matmul computes the result by itself. more: such results of others."""

    choices: Choices = ()
    decision: Decision | None = None
    aligned: frozenset[str] = frozenset()
    absorbed: bool = False
    more: tuple[tuple[str, TensorType], ...] = ()


@dataclass(frozen=True)
class NodePlan:
    """What a node becomes.

    allocate: the buffers it makes. extern: the operator to call, if any, before the launches.
    checks: what must hold before.
    choices: what to run, each with the condition under which it is the one; the last has none.
    Empty when the operator does everything. nested: each condition implies those after it.
    decision: how a matmul's choices came about; None of other nodes, and where nothing was to
    decide. aligned: buffers that must start at a multiple of 16 bytes. fallbacks: what could not be
    said by a launch, and why."""

    allocate: tuple[tuple[str, TensorType], ...] = ()
    extern: Extern | None = None
    choices: Choices = ()
    origins: tuple[Origin, ...] = ()
    checks: tuple[ops.Assert, ...] = ()
    nested: bool = False
    decision: Decision | None = None
    aligned: frozenset[str] = frozenset()
    fallbacks: tuple[Fallback, ...] = ()

    @property
    def launches(self) -> Iterator[LaunchPlan]:
        """The launches of every choice."""
        for _, choice in self.choices:
            steps = choice.steps if isinstance(choice, Steps) else (choice,)
            yield from (step for step in steps if isinstance(step, LaunchPlan))

    @property
    def zeroed(self) -> Iterator[Zeroed]:
        """The zeroed memory of all launches."""
        yield from (a for launch in self.launches for a in launch.args if isinstance(a, Zeroed))

    @property
    def names(self) -> Iterator[str]:
        """The names of all buffers that it makes."""
        yield from (name for name, _ in self.allocate)
        inner = [choice for _, choice in self.choices if isinstance(choice, Steps)]
        yield from (name for steps in inner for name, _ in steps.allocate)
        externs = [step for steps in inner for step in steps.steps if isinstance(step, Extern)]
        for call in (self.extern, *externs):
            if call is not None:
                yield from (out[0] for out in call.outs if out is not None)


def define_source(source: KernelSource) -> DefineKernel:
    """The same kernel as the host program names it; it has no constants that refer to globals."""
    params = tuple(KernelParam(p.name, p.kind, p.mutated, p.aligned) for p in source.params)
    alike: dict[str, Any] = {name: getattr(source, name) for name in ALIKE}
    return DefineKernel(source=source.text, params=params, overlap=source.pdl, **alike)


def define_kernel(kernel: TritonKernel) -> DefineKernel:
    """An emitted kernel as a definition of the host program."""
    params = tuple(KernelParam(name, kind, mutated) for name, kind, mutated in kernel.params)
    if (zeroed := kernel.zeroed) is not None:
        params += (KernelParam(zeroed.name, f"*{zeroed.type.dtype.value}", True),)
    shape = kernel.num_warps, kernel.num_stages
    define = DefineKernel(kernel.name, kernel.source, params, kernel.constants, *shape)
    return replace(define, overlap=kernel.schedule.overlap)


def plan_launch(kernel: TritonKernel) -> LaunchPlan:
    """An emitted kernel as an op of the host program."""
    args: tuple[LaunchArg, ...] = kernel.args
    if (zeroed := kernel.zeroed) is not None:
        args += (Zeroed(zeroed.name, zeroed.type),)
    return LaunchPlan(define_kernel(kernel), kernel.grid, args)
