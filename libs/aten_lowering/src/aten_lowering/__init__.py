"""ATen graphs lowered to loop nests.

An ATen op is a contract in words; a loop nest is what can be fused. This library is the bridge:
one small function an op, and an exact extern call for every op that has none."""

from typing import TYPE_CHECKING

from multikernel import imported_later

if TYPE_CHECKING:
    from aten_lowering.attention import Attention as Attention
    from aten_lowering.conditions import Conditions as Conditions
    from aten_lowering.decomposition import decompositions as decompositions
    from aten_lowering.errors import AtenLoweringError as AtenLoweringError
    from aten_lowering.errors import DependsOnData as DependsOnData
    from aten_lowering.errors import UnsupportedGraph as UnsupportedGraph
    from aten_lowering.extern import UNFILLED as UNFILLED
    from aten_lowering.extern import Fallback as Fallback
    from aten_lowering.functional import StatesOfLSTMs as StatesOfLSTMs
    from aten_lowering.functional import decompose as decompose
    from aten_lowering.functional import module_of as module_of
    from aten_lowering.lower_graph import lower as lower
    from aten_lowering.lower_graph import lower_with_report as lower_with_report
    from aten_lowering.lowered import Lowered as Lowered
    from aten_lowering.memory import in_memory as in_memory
    from aten_lowering.memory import lazy_memory as lazy_memory
    from aten_lowering.memory import size_hints as size_hints
    from aten_lowering.memory import storage_key as storage_key
    from aten_lowering.subgraphs import constants_of as constants_of
    from aten_lowering.user_kernels import KernelObject as KernelObject
    from aten_lowering.user_kernels import run_captured as run_captured
    from aten_lowering.whole import own_composites as own_composites


#: What runs a graph that was compiled before needs the first few, and no lowering.
_MODULES = """
errors memory whole user_kernels extern conditions decomposition attention functional lowered
lower_graph subgraphs
"""
__getattr__ = imported_later(__name__, _MODULES.split())
