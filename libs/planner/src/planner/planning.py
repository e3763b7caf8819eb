"""A fused graph -> plans of its nodes, in one call: what is decided travels with the plans.

kernels begin to compile -> matmuls' candidates too -> other schedules, by workers that are left ->
matmuls are measured as theirs are compiled -> schedules are measured -> a plan a node
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import gemm_templates
from aten_lowering import Attention, Fallback, KernelObject
from loop_ir import CopyBack, Graph
from loop_ir.ir import hints_of
from planner.attention import plan_attention
from planner.kernels import Kernels
from planner.matmul.decide import MatmulPlanner
from planner.plan import Decided, Decision, NodePlan
from planner.schedules.chosen import Chosen
from planner.schedules.lists import Lists
from planner.schedules.tuning import ScheduleTuner
from planner.select import measured_sizes, select
from planner.settings import Settings
from planner.user_kernels.plan_launch import UserKernelPlanner


@dataclass(frozen=True)
class Planned:
    """The plans of a graph's nodes, in order, and what was decided on the way.

    schedules: those of kernels that move much, by name and sizes, and what was measured of them.
    explain: what runs each matmul and each large kernel, and why, in words. finish: begins to
    compile what there was no time to measure, for the next compilation."""

    plans: tuple[NodePlan | CopyBack, ...]
    schedules: Mapping[tuple[str, tuple[int, ...]], Chosen]
    explain: Callable[[], str]
    finish: Callable[[], None]

    @property
    def decided(self) -> dict[str, tuple[Decided, ...]]:
        """What runs each matmul for which something was decided, by the name of its result."""
        return {decision.out: decision.decided for decision in _decisions(self.plans)}

    @property
    def measured(self) -> dict[str, gemm_templates.Choice]:
        """What was measured of matmuls, by name, with the number of rows where that is dynamic."""
        return {label: c for decision in _decisions(self.plans) for label, c in decision.measured}

    @property
    def aligned(self) -> frozenset[str]:
        """Inputs of the graph that must start at a multiple of 16 bytes."""
        return frozenset(name for plan in _nodes(self.plans) for name in plan.aligned)

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """Launches of the user's kernels that operators stand in for, and why."""
        return tuple(fallback for plan in _nodes(self.plans) for fallback in plan.fallbacks)


def plan_graph(
    graph: Graph,
    settings: Settings,
    kernels: Kernels,
    table: Mapping[str, KernelObject] | None = None,
    lists: Lists | None = None,
    tuner: ScheduleTuner | None = None,
    attentions: Mapping[str, Attention] | None = None,
) -> Planned:
    """Plans all nodes of a fused graph. table: the user's kernels by name. lists: kernels that are
    one launch, by the name of the first (`gather`). tuner: made when the compilation began, where
    the time of that counts. attentions: calls of attention, by target. Raises a `PlannerError`."""
    tuner = tuner or ScheduleTuner(settings, kernels)
    tuner.start(measured_sizes(graph, settings, lists or {}))
    listed = {kernel.name for alike in (lists or {}).values() for kernel in alike}
    matmuls = MatmulPlanner(settings, kernels, graph, listed)
    if matmuls.prefetch(hints_of(graph.symbols)):
        tuner.begin_candidates()
    users = UserKernelPlanner(settings, kernels, graph, table or {})
    matmuls.measure()
    tuner.measure()
    attend = functools.partial(plan_attention, attentions=attentions or {}, options=settings)
    absorbed = matmuls.absorbed
    plans = select(graph, settings, matmuls, users, lists, tuner, tuner.emit, attend, absorbed)

    def explain() -> str:
        lines = [
            f"{decision.out}: {'; '.join(map(str, decision.decided))}"
            for decision in _decisions(plans)
        ]
        lines = ["matmuls:", *lines] if lines else []
        return "\n".join(filter(None, ("\n  ".join(lines), tuner.explain())))

    def finish() -> None:
        tuner.finish()
        matmuls.chooser.finish()

    return Planned(plans, dict(tuner.chosen), explain, finish)


def _nodes(plans: tuple[NodePlan | CopyBack, ...]) -> list[NodePlan]:
    return [plan for plan in plans if isinstance(plan, NodePlan)]


def _decisions(plans: tuple[NodePlan | CopyBack, ...]) -> list[Decision]:
    return [plan.decision for plan in _nodes(plans) if plan.decision is not None]
