"""The prologues of a matmul as kernels of their own, before the vendor's call or a template.

matmul y, prologue_b widen: w = bf16(q)*s    ->    w = alloc; launch widen (q, s, w); <y of x @ w>
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

import gemm_templates
from compile_cli.gemm_task import MatmulTask
from compile_cli.plans import Blocks, LaunchArg, LaunchPlan, Steps
from compile_cli.runtime import Kernels, define_kernel, random_tensor, view_of
from compile_cli.schedules import default_schedule
from compile_cli.select import plan_launch
from loop_ir import Extern, GraphArg, Kernel, Matmul, TensorRef
from symexpr import evaluate
from triton_emit import emit

Hints = Mapping[str, int]
Run = Callable[[gemm_templates.Inputs], Tensor]


def produced(node: Matmul) -> list[tuple[str, Kernel, TensorRef]]:
    """The operands that prologues make: "a" or "b", how, and as what they are read."""
    both = (("a", node.prologue_a, node.a), ("b", node.prologue_b, node.b))
    return [(name, kernel, ref) for name, kernel, ref in both if kernel is not None]


def with_producers(node: Matmul, steps: Steps, hints: Hints, suffix: str) -> Steps:
    """`steps`, which read the operands of `node`, after the launches that make these: in buffers of
    their own, since other choices make them, too."""
    names = {ref.buffer: f"{ref.buffer}{suffix}" for _, _, ref in produced(node)}
    launches: list[LaunchPlan] = []
    allocate = []
    for _, kernel, ref in produced(node):
        named = replace(kernel, name=f"{kernel.name}{suffix}")
        launches.append(plan_launch(emit(named, default_schedule(kernel, hints))))
        storage = next(b.type for b in kernel.buffers if b.name == ref.buffer)
        allocate.append((names[ref.buffer], storage))
    renamed = tuple(_renamed(step, names) for step in (*launches, *steps.steps))
    return Steps(renamed, (*allocate, *steps.allocate))


def _renamed(step: LaunchPlan | Extern, names: Mapping[str, str]) -> LaunchPlan | Extern:
    if isinstance(step, LaunchPlan):
        return replace(step, args=tuple(_argument(a, names) for a in step.args))
    args = tuple(_value(a, names) for a in step.args)
    return replace(step, args=args, kwargs=tuple((k, _value(v, names)) for k, v in step.kwargs))


def _argument(arg: LaunchArg, names: Mapping[str, str]) -> LaunchArg:
    if isinstance(arg, Blocks):
        return replace(arg, tensor=_reference(arg.tensor, names))
    if isinstance(arg, TensorRef):
        return _reference(arg, names)
    return names.get(arg, arg) if isinstance(arg, str) else arg


def _value(arg: GraphArg, names: Mapping[str, str]) -> GraphArg:
    if isinstance(arg, TensorRef):
        return _reference(arg, names)
    return tuple(_value(a, names) for a in arg) if isinstance(arg, tuple) else arg


def _reference(ref: TensorRef, names: Mapping[str, str]) -> TensorRef:
    return replace(ref, buffer=names.get(ref.buffer, ref.buffer))


def run_apart(
    kernels: Kernels, fused: MatmulTask, plain: MatmulTask, run: Run, hints: Hints
) -> Run:
    """A function of the fused task's inputs: each operand by a kernel of its own, then `run`, which
    takes the inputs of the plain task. Everything but the launches is done beforehand."""
    given = plain.inputs(hints)
    storages: dict[str, Tensor] = {}
    operands: dict[str, Tensor] = {}
    launches: list[tuple[Any, tuple[int, ...], list[str | int]]] = []
    for operand, kernel, ref in produced(fused.node):
        storage = next(b.type for b in kernel.buffers if b.name == ref.buffer)
        storages[ref.buffer] = random_tensor(storage, hints)
        operands[operand] = view_of(storages[ref.buffer], ref.type, hints)
        emitted = emit(kernel, default_schedule(kernel, hints))
        grid = tuple(int(evaluate(g, hints)) for g in emitted.grid)
        args = [a if isinstance(a, str) else int(evaluate(a, hints)) for a in emitted.args]
        launches.append((kernels.load(define_kernel(emitted)), grid, args))

    def both(inputs: gemm_templates.Inputs) -> Tensor:
        known = fused.named(inputs) | storages
        for kernel, grid, args in launches:
            kernel(grid, *(known[a] if isinstance(a, str) else a for a in args))
        a, b = operands.get("a", inputs.a), operands.get("b", inputs.b)
        return run(
            replace(given, a=a, b=b, bias=inputs.bias, operands=inputs.operands)
        )  # fmt: skip

    return both
