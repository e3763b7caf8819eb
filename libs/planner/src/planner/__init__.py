"""What each node of a fused graph becomes: kernels, schedules, templates, vendor calls.

A loop nest can run under many schedules, a matmul as many templates or the vendor's call, and which
is best differs by size and by GPU. Planning decides, from rules and measured times, and says why.
"""

from typing import TYPE_CHECKING

from multikernel import imported_later

if TYPE_CHECKING:
    from planner.convolution import ChannelsLast as ChannelsLast
    from planner.errors import CacheNotWritten as CacheNotWritten
    from planner.errors import LoopsNotBuilt as LoopsNotBuilt
    from planner.errors import PlannerError as PlannerError
    from planner.errors import UnboundSize as UnboundSize
    from planner.errors import UnsafeCache as UnsafeCache
    from planner.errors import UserKernelFailed as UserKernelFailed
    from planner.kernels import Kernels as Kernels
    from planner.kernels import expected_variants as expected_variants
    from planner.kernels import kernel_source as kernel_source
    from planner.kernels import start_workers as start_workers
    from planner.plan import Decided as Decided
    from planner.plan import Decision as Decision
    from planner.plan import NodePlan as NodePlan
    from planner.planning import Planned as Planned
    from planner.planning import plan_graph as plan_graph
    from planner.program import assemble as assemble
    from planner.schedules.chosen import NO_TIME as NO_TIME
    from planner.schedules.chosen import Chosen as Chosen
    from planner.schedules.lists import gather as gather
    from planner.schedules.tuning import ScheduleTuner as ScheduleTuner
    from planner.settings import Settings as Settings
    from planner.sources import source_digest as source_digest
    from planner.streams import gives_alone as gives_alone
    from planner.streams import overlap as overlap


#: What runs a program that was planned before needs `Kernels`, and not the lowering that planning
#: stands on.
_MODULES = """
errors settings sources kernels plan program schedules.chosen schedules.lists schedules.tuning
convolution planning streams
"""
__getattr__ = imported_later(__name__, _MODULES.split())
