"""A plan for each node: which kernels run it, under which schedules.

kernel on the CPU           -> one launch of C++ loops, where they can be said in it
kernel of a static size     -> one launch
alike kernels side by side  -> one launch of all of them
kernel of dynamic sizes     -> a launch for each schedule that sizes in range want, at most
                               `MAX_VARIANTS`; integer comparisons pick the nearest; one
                               more for sizes whose index arithmetic takes 64 bits, and one
                               that holds rows about as long as the hint
the user's Triton kernel    -> its launch, with one of its configs
matmul                      -> the vendor's operator, or a template with its epilogue; either one
                               by the number of rows where that is dynamic
everything else             -> its operator
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Literal

import sympy

from aten_lowering import Fallback
from loop_ir import (
    CopyBack,
    Extern,
    Graph,
    Kernel,
    Matmul,
    TensorType,
    UserKernel,
)
from loop_ir.ir import hints_of
from multikernel import Decision, DecisionTable, compare_chain, sample_hints
from planner.loops import define_loops, on_cpu, wants_loops
from planner.plan import Choice, Condition, LaunchPlan, MatmulPlan, NodePlan, Steps, plan_launch
from planner.schedules.lists import Lists, by_likeness
from planner.schedules.proposals import default_schedule, list_schedule
from planner.schedules.sizes import held_rows, in_32_bits
from planner.settings import Settings
from symexpr import DivisionByZero, parse
from triton_emit import Schedule, TritonKernel, emit, emit_list, index_bits

# How far from its hint a dynamic size is looked at: beyond, the farthest schedule serves.
HINT_RATIO = 64

# Kernels that one node of dynamic sizes becomes at most, and the sizes that are looked at for it,
# for each dynamic size.
MAX_VARIANTS = 3
SAMPLES = 8

MatmulPlanner = Callable[[Matmul, Mapping[str, int]], MatmulPlan]
UserKernelPlanner = Callable[[UserKernel, Mapping[str, int]], NodePlan]
ExternPlanner = Callable[[Extern], NodePlan | None]
Scheduler = Callable[[Kernel, Mapping[str, int]], Schedule]
Emitter = Callable[[Kernel, Schedule], TritonKernel]


def select(
    graph: Graph,
    options: Settings,
    plan_matmul: MatmulPlanner,
    plan_user_kernel: UserKernelPlanner,
    lists: Lists | None = None,
    schedule: Scheduler = default_schedule,
    text: Emitter = emit,
    plan_extern: ExternPlanner = lambda node: None,
    absorbed: Mapping[str, Matmul] | None = None,
) -> tuple[NodePlan | CopyBack, ...]:
    """Plans of all nodes, in order; of `lists`, one for all kernels of each. `plan_matmul` gives
    what to run under which conditions, each of which implies those after it, or no choices for the
    vendor's operator. `schedule` gives the schedule of a kernel at some sizes, `text` the
    kernel under it. `plan_extern` gives what runs in place of a call, or None. absorbed: kernels,
    by name, that are epilogues of matmuls which are no nodes."""
    lists = lists or {}
    hints = hints_of(graph.symbols)
    made = {i.name for i in graph.inputs} | {name for name, _ in graph.constants}
    plans: list[NodePlan | CopyBack] = []
    planned = {kernel.name for kernels in lists.values() for kernel in kernels[1:]}
    for node in graph.nodes:
        if isinstance(node, Kernel) and node.name in planned:
            continue
        if absorbed and isinstance(node, Kernel):
            node = absorbed.get(node.name, node)
        if isinstance(node, Kernel) and node.name in lists:
            plans.append(_list(lists[node.name], hints, options, made))
        elif isinstance(node, CopyBack):
            plans.append(node)
        elif isinstance(node, Extern):
            made.update(out[0] for out in node.outs if out is not None)
            plans.append(plan_extern(node) or NodePlan(extern=node, origins=node.origins))
        elif isinstance(node, UserKernel):
            made.update(name for name, _ in node.outs)
            plans.append(plan_user_kernel(node, hints))
        elif isinstance(node, Kernel):
            plans.append(_kernel(node, hints, options, made, schedule, text))
        else:
            plans.extend(_matmul(node, hints, options, made, plan_matmul))
    return tuple(plans)


def _matmul(
    node: Matmul,
    hints: Mapping[str, int],
    options: Settings,
    made: set[str],
    plan_matmul: MatmulPlanner,
) -> list[NodePlan]:
    plan = plan_matmul(node, hints)
    if plan.absorbed:
        return []
    if plan.choices:
        if node.epilogue is None:
            made.add(node.out)
            made.update(name for name, _ in plan.more)
            allocate: tuple[tuple[str, TensorType], ...] = ((node.out, node.type), *plan.more)
        else:
            allocate = _new_buffers(node.epilogue, made)
        origins = node.origins + (node.epilogue.origins if node.epilogue is not None else ())
        chosen = NodePlan(allocate, None, plan.choices, origins, nested=True)
        return [replace(chosen, decision=plan.decision, aligned=plan.aligned)]
    plans = [_kernel(prologue, hints, options, made) for prologue in node.prologues]
    made.update(out[0] for out in node.extern.outs if out is not None)
    call = replace(node.extern, origins=node.origins)
    plans.append(NodePlan(extern=call, decision=plan.decision))
    if node.epilogue is not None:
        plans.append(_kernel(node.epilogue, hints, options, made))
    return plans


def _new_buffers(kernel: Kernel, made: set[str]) -> tuple[tuple[str, TensorType], ...]:
    """The buffers that a kernel is the first to write, which are made for it."""
    new = tuple((b.name, b.type) for b in kernel.buffers if b.written and b.name not in made)
    made.update(name for name, _ in new)
    return new


def _list(
    kernels: tuple[Kernel, ...], hints: Mapping[str, int], options: Settings, made: set[str]
) -> NodePlan:
    allocate = tuple(new for kernel in kernels for new in _new_buffers(kernel, made))
    origins = tuple(dict.fromkeys(o for kernel in kernels for o in kernel.origins))
    loops = [_loops(kernel, options) for kernel in kernels]
    launches = tuple(launch for launch, _ in loops if launch is not None)
    if len(launches) == len(kernels):
        return NodePlan(allocate, None, ((None, Steps(launches)),), origins)
    alike = by_likeness(kernels)
    schedules = [list_schedule(each, hints) for each in alike]
    launch = plan_launch(emit_list(alike, schedules))
    fallbacks = tuple(fallback for _, each in loops for fallback in each)
    return NodePlan(allocate, None, ((None, launch),), origins, fallbacks=fallbacks)


def _loops(kernel: Kernel, options: Settings) -> tuple[LaunchPlan | None, tuple[Fallback, ...]]:
    """A kernel on the CPU as C++, or why its loops cannot be said in it; neither of other
    kernels."""
    if not (on_cpu(kernel) and wants_loops(options)):
        return None, ()
    import cpp_loops  # what a program on a GPU does without

    try:
        define, args = define_loops(kernel)
    except cpp_loops.UnsupportedKernel as error:
        source = next((o.source for o in kernel.origins), "")
        return None, (Fallback(f"kernel {kernel.name}", source, f"interpreted: {error.reason}"),)
    return LaunchPlan(define, (sympy.S.One,) * 3, args), ()


def measured_sizes(
    graph: Graph, options: Settings, lists: Lists
) -> Iterator[tuple[Kernel, Mapping[str, int]]]:
    """The kernels that are launched alone, each with the sizes that its schedule may be measured
    at: the hints, and with `tune="max"` all that `select` looks at."""
    hints = hints_of(graph.symbols)
    listed = {kernel.name for kernels in lists.values() for kernel in kernels}
    for node in graph.nodes:
        if isinstance(node, Kernel) and node.name not in listed:
            names = [n for n in _dynamic(node) if hints[n] >= 1]
            held = held_rows(node, hints) if names else None
            yield node if held is None else held[0], hints
            if names and options.multikernel == "auto" and options.tune == "max":
                for sizes in _samples(node, names, hints)[1:]:
                    yield node, {**hints, **dict(zip(names, sizes, strict=True))}


def _kernel(
    node: Kernel,
    hints: Mapping[str, int],
    options: Settings,
    made: set[str],
    scheduler: Scheduler = default_schedule,
    text: Emitter = emit,
) -> NodePlan:
    allocate = _new_buffers(node, made)
    launch, fallbacks = _loops(node, options)
    if launch is not None:
        return NodePlan(allocate, None, ((None, launch),), node.origins)
    names = [n for n in _dynamic(node) if hints[n] >= 1]  # no number of elements is below
    schedules: list[tuple[Schedule, tuple[int, ...]]] = []
    table = DecisionTable(())
    if names and options.multikernel != "off":
        schedules, table = _schedules(node, names, hints, scheduler)
    held = held_rows(node, hints) if schedules else None
    fits = in_32_bits(node, hints) if schedules else None
    if len(schedules) < 2 and fits is None and held is None:
        schedule = schedules[0][0] if schedules else scheduler(node, hints)
        # no condition asks for sizes whose places 32 bits hold, though they may be measured so
        plan = plan_launch(text(node, replace(schedule, index_bits=index_bits(node))))
        return NodePlan(allocate, None, ((None, plan),), node.origins, fallbacks=fallbacks)
    launches: dict[int, LaunchPlan] = {}

    def launched(
        kernel: Kernel, schedule: Schedule, at: tuple[int, ...], short: bool, what: str = ""
    ) -> LaunchPlan:
        sizes = "_".join(f"{n}_{size}" for n, size in zip(names, at, strict=True))
        named = replace(kernel, name=f"{kernel.name}{what}_{sizes}")
        bits: Literal[32, 64] = 32 if short else index_bits(kernel)
        return plan_launch(text(named, replace(schedule, index_bits=bits)))

    choices: list[tuple[Condition, Choice]] = []
    if held is not None:
        kernel, conditions = held
        if (small := in_32_bits(kernel, hints)) is not None:
            conditions = (*conditions, small)
        one = launched(kernel, scheduler(kernel, hints), schedules[0][1], small is not None)
        choices.append((sympy.And(*conditions), one))
    for branch in compare_chain(table):
        if branch.variant not in launches:
            schedule, at = schedules[branch.variant]
            launches[branch.variant] = launched(node, schedule, at, fits is not None)
        near = parse(branch.text(names)) if branch.comparisons else None
        both = [c for c in (fits, near) if c is not None]
        choices.append((sympy.And(*both) if both else None, launches[branch.variant]))
    if fits is not None:
        largest = max(schedules, key=lambda s: prod(s[1]))
        choices.append((None, launched(node, *largest, False, "_long")))
    return NodePlan(allocate, None, tuple(choices), node.origins, fallbacks=fallbacks)


def _dynamic(node: Kernel) -> list[str]:
    """The symbols of a kernel's extents."""
    axes = [*node.axes, *(axis for phase in node.phases for axis in phase.axes)]
    return sorted({str(s) for axis in axes for s in axis.extent.free_symbols})


def _schedules(
    node: Kernel, names: list[str], hints: Mapping[str, int], scheduler: Scheduler
) -> tuple[list[tuple[Schedule, tuple[int, ...]]], DecisionTable]:
    """The schedules that sizes up to `HINT_RATIO` times the hints want, each with the first sizes
    that want it, and which of them serves what sizes. The hints are looked at first, then the
    ends of the ranges; what wants a schedule beyond `MAX_VARIANTS` takes the nearest."""
    found: dict[Schedule, tuple[int, ...]] = {}
    table = DecisionTable(tuple(map(str, range(MAX_VARIANTS))))
    for sizes in _samples(node, names, hints):
        try:
            schedule = scheduler(node, {**hints, **dict(zip(names, sizes, strict=True))})
        except DivisionByZero:
            continue  # such sizes do not exist: `n // (n // 8)` rows of 1
        if schedule in found or len(found) < MAX_VARIANTS:
            found.setdefault(schedule, sizes)
            cell = table.cell(sizes)
            if cell not in table.cells:
                decision = Decision(str(list(found).index(schedule)), {}, sizes)
                table = table.decide(cell, decision)
    return list(found.items()), table


def _samples(
    node: Kernel, names: list[str], hints: Mapping[str, int]
) -> tuple[tuple[int, ...], ...]:
    """The hints, then sizes up to `HINT_RATIO` times them, the ends first."""
    ranges = {s.name: s for s in node.symbols}
    box = []
    for name in names:
        top = hints[name] * HINT_RATIO
        high = ranges[name].high
        low = max(1, ranges[name].low or 1)
        box.append(
            (min(low, hints[name]), max(hints[name], top if high is None else min(top, high)))
        )
    samples = sample_hints(box, min(SAMPLES * len(names), prod(b - a + 1 for a, b in box)))
    typical = tuple(max(1, hints[name]) for name in names)
    return tuple(dict.fromkeys([typical, *samples]))
