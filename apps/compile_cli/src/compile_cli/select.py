"""A plan for each node: which kernels run it, under which schedules.

kernel of a static size     -> one launch
kernel of a dynamic size    -> a launch for each of two hints, where they want different
                               schedules; the nearest hint is picked by integer comparison
the user's Triton kernel    -> its launch, with one of its configs
matmul                      -> the vendor's operator, or a template with its epilogue
everything else             -> its operator
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import sympy

from compile_cli.assemble import LaunchPlan, NodePlan
from compile_cli.config import Options
from compile_cli.runtime import define_kernel
from loop_ir import CopyBack, Extern, Graph, Kernel, Matmul, TensorType, UserKernel
from multikernel import compare_chain
from symexpr import parse
from triton_emit import Schedule, TritonKernel, default_schedule, emit

# How far apart the two hints of a dynamic kernel are: below this, one schedule serves both well.
HINT_RATIO = 64

MatmulPlanner = Callable[[Matmul, Mapping[str, int]], LaunchPlan | None]
UserKernelPlanner = Callable[[UserKernel, Mapping[str, int]], NodePlan]


def hints_of(graph: Graph) -> dict[str, int]:
    """A typical value for every symbol."""
    return {s.name: s.hint if s.hint is not None else max(s.low or 1, 8) for s in graph.symbols}


def select(
    graph: Graph,
    options: Options,
    plan_matmul: MatmulPlanner,
    plan_user_kernel: UserKernelPlanner,
) -> tuple[NodePlan | CopyBack, ...]:
    """Plans of all nodes, in order. `plan_matmul` gives a template's launch, or None for the
    vendor's operator."""
    hints = hints_of(graph)
    made = {i.name for i in graph.inputs} | {name for name, _ in graph.constants}
    plans: list[NodePlan | CopyBack] = []
    for node in graph.nodes:
        if isinstance(node, CopyBack):
            plans.append(node)
        elif isinstance(node, Extern):
            made.update(out[0] for out in node.outs if out is not None)
            plans.append(NodePlan(extern=node, origins=node.origins))
        elif isinstance(node, UserKernel):
            made.update(name for name, _ in node.outs)
            plans.append(plan_user_kernel(node, hints))
        elif isinstance(node, Kernel):
            plans.append(_kernel(node, hints, options, made))
        else:
            plans.extend(_matmul(node, hints, options, made, plan_matmul))
    return tuple(plans)


def _matmul(
    node: Matmul,
    hints: Mapping[str, int],
    options: Options,
    made: set[str],
    plan_matmul: MatmulPlanner,
) -> list[NodePlan]:
    template = plan_matmul(node, hints)
    if template is not None:
        if node.epilogue is None:
            made.add(node.out)
            allocate: tuple[tuple[str, TensorType], ...] = ((node.out, node.type),)
        else:
            allocate = _new_buffers(node.epilogue, made)
        origins = node.origins + (node.epilogue.origins if node.epilogue is not None else ())
        return [NodePlan(allocate, None, ((None, template),), origins)]
    made.update(out[0] for out in node.extern.outs if out is not None)
    plans = [NodePlan(extern=replace(node.extern, origins=node.origins))]
    if node.epilogue is not None:
        plans.append(_kernel(node.epilogue, hints, options, made))
    return plans


def _new_buffers(kernel: Kernel, made: set[str]) -> tuple[tuple[str, TensorType], ...]:
    """The buffers that a kernel is the first to write, which are made for it."""
    new = tuple((b.name, b.type) for b in kernel.buffers if b.written and b.name not in made)
    made.update(name for name, _ in new)
    return new


def _kernel(node: Kernel, hints: Mapping[str, int], options: Options, made: set[str]) -> NodePlan:
    allocate = _new_buffers(node, made)
    first = default_schedule(node, hints)
    low, high = _hint_pair(node, hints)
    other = default_schedule(node, high) if low != high else first
    if options.multikernel == "off" or low == high or same_schedule(first, other):
        return NodePlan(allocate, None, ((None, plan_launch(emit(node, first))),), node.origins)
    (name,) = [n for n in low if low[n] != high[n]]
    chain = compare_chain((low[name], high[name]))
    choices: list[tuple[sympy.logic.boolalg.Boolean | None, LaunchPlan]] = []
    for branch in chain:
        at = (low[name], high[name])[branch.variant]
        schedule = (first, other)[branch.variant]
        variant = replace(node, name=f"{node.name}_{name}_{at}")
        condition = parse(branch.text([name])) if branch.comparisons else None
        choices.append((condition, plan_launch(emit(variant, schedule))))
    return NodePlan(allocate, None, tuple(choices), node.origins)


def same_schedule(a: Schedule, b: Schedule) -> bool:
    return a == b


def _hint_pair(node: Kernel, hints: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """The hints, and the same with the one symbol of the kernel's extents `HINT_RATIO` times
    larger (at most its upper bound). Equal where there is not exactly one symbol."""
    axes = [*node.axes, *(axis for phase in node.phases for axis in phase.axes)]
    names = sorted({str(s) for axis in axes for s in axis.extent.free_symbols})
    low = dict(hints)
    if len(names) != 1:
        return low, low
    (name,) = names
    symbol = next(s for s in node.symbols if s.name == name)
    large = low[name] * HINT_RATIO
    if symbol.high is not None:
        large = min(large, symbol.high)
    return low, {**low, name: max(large, low[name])}


def plan_launch(kernel: TritonKernel) -> LaunchPlan:
    """An emitted kernel as an op of the host program."""
    return LaunchPlan(define_kernel(kernel), kernel.grid, kernel.args)
