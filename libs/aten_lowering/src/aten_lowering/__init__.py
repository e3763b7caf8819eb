"""ATen graphs lowered to loop nests.

An ATen op is a contract in words; a loop nest is what can be fused. This library is the bridge:
one small function an op, and an exact extern call for every op that has none."""

from typing import TYPE_CHECKING

from multikernel import imported_later

if TYPE_CHECKING:
    from aten_lowering.attention import Attention
    from aten_lowering.conditions import Conditions
    from aten_lowering.decomposition import decompositions
    from aten_lowering.errors import AtenLoweringError, DependsOnData, UnsupportedGraph
    from aten_lowering.extern import UNFILLED
    from aten_lowering.functional import StatesOfLSTMs, decompose
    from aten_lowering.lower_graph import lower, lower_with_report
    from aten_lowering.lowered import Lowered
    from aten_lowering.memory import in_memory, lazy_memory, size_hints, storage_key
    from aten_lowering.subgraphs import constants_of
    from aten_lowering.tensors import Fallback
    from aten_lowering.user_kernels import KernelObject, run_captured
    from aten_lowering.whole import own_composites

__all__ = [
    "UNFILLED",
    "AtenLoweringError",
    "Attention",
    "Conditions",
    "DependsOnData",
    "Fallback",
    "KernelObject",
    "Lowered",
    "StatesOfLSTMs",
    "UnsupportedGraph",
    "constants_of",
    "decompose",
    "decompositions",
    "in_memory",
    "lazy_memory",
    "lower",
    "lower_with_report",
    "own_composites",
    "run_captured",
    "size_hints",
    "storage_key",
]

#: What runs a graph that was compiled before needs the first few, and no lowering.
_MODULES = """
errors memory whole user_kernels extern conditions decomposition attention functional tensors
lowered lower_graph subgraphs
"""
__getattr__ = imported_later(__name__, _MODULES.split())
