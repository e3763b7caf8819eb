"""What each node of a fused graph becomes: kernels, schedules, templates, vendor calls.

A loop nest can run under many schedules, a matmul as many templates or the vendor's call, and which
is best differs by size and by GPU. Planning decides, from rules and measured times, and says why.
"""

from typing import TYPE_CHECKING

from multikernel import imported_later

if TYPE_CHECKING:
    from planner.convolution import ChannelsLast
    from planner.errors import (
        CacheNotWritten,
        LoopsNotBuilt,
        PlannerError,
        UnboundSize,
        UnsafeCache,
        UserKernelFailed,
    )
    from planner.kernels import Kernels, expected_variants, kernel_source, start_workers, uses_cuda
    from planner.plan import Decided, Decision, NodePlan
    from planner.planning import Planned, plan_graph
    from planner.program import assemble
    from planner.schedules.chosen import NO_TIME, Chosen
    from planner.schedules.lists import gather
    from planner.schedules.tuning import ScheduleTuner
    from planner.settings import Settings
    from planner.sources import source_digest

__all__ = [
    "NO_TIME",
    "CacheNotWritten",
    "ChannelsLast",
    "Chosen",
    "Decided",
    "Decision",
    "Kernels",
    "LoopsNotBuilt",
    "NodePlan",
    "Planned",
    "PlannerError",
    "ScheduleTuner",
    "Settings",
    "UnboundSize",
    "UnsafeCache",
    "UserKernelFailed",
    "assemble",
    "expected_variants",
    "gather",
    "kernel_source",
    "plan_graph",
    "source_digest",
    "start_workers",
    "uses_cuda",
]

#: What runs a program that was planned before needs `Kernels`, and not the lowering that planning
#: stands on.
_MODULES = """
errors settings sources kernels plan program schedules.chosen schedules.lists schedules.tuning
convolution planning
"""
__getattr__ = imported_later(__name__, _MODULES.split())
