"""Matmul kernels with fused epilogues, chosen by measurement.

The vendor's matmul is hard to beat alone; what it cannot do is take the elementwise work that
follows into the same kernel. These templates can, as plain `@triton.jit` files, and `choose`
uses them only where they were measured to be faster."""

from typing import TYPE_CHECKING

from multikernel import RecordStore, imported_later
from triton_rt import KernelParam

if TYPE_CHECKING:
    from gemm_templates.choice import Choice as Choice
    from gemm_templates.choice import choose as choose
    from gemm_templates.choice import prefetch as prefetch
    from gemm_templates.device import A100 as A100
    from gemm_templates.device import B200 as B200
    from gemm_templates.device import H100 as H100
    from gemm_templates.device import H200 as H200
    from gemm_templates.device import DeviceInfo as DeviceInfo
    from gemm_templates.device import device_info as device_info
    from gemm_templates.errors import GemmError as GemmError
    from gemm_templates.errors import InvalidArguments as InvalidArguments
    from gemm_templates.errors import InvalidConfig as InvalidConfig
    from gemm_templates.errors import InvalidProblem as InvalidProblem
    from gemm_templates.errors import UnsupportedProblem as UnsupportedProblem
    from gemm_templates.families.tiled.family import CONFIGS as CONFIGS
    from gemm_templates.families.tma.family import tma_configs as tma_configs
    from gemm_templates.fused import BlockScale as BlockScale
    from gemm_templates.fused import Epilogue as Epilogue
    from gemm_templates.fused import Pick as Pick
    from gemm_templates.fused import Prologue as Prologue
    from gemm_templates.launch import Bound as Bound
    from gemm_templates.launch import Inputs as Inputs
    from gemm_templates.launch import arguments as arguments
    from gemm_templates.launch import bind as bind
    from gemm_templates.launch import written as written
    from gemm_templates.model import Candidate as Candidate
    from gemm_templates.model import best_config as best_config
    from gemm_templates.model import candidates as candidates
    from gemm_templates.model import explain as explain
    from gemm_templates.model import is_legal as is_legal
    from gemm_templates.model import offered as offered
    from gemm_templates.ops import addmm as addmm
    from gemm_templates.ops import baddbmm as baddbmm
    from gemm_templates.ops import bmm as bmm
    from gemm_templates.ops import gated_linear as gated_linear
    from gemm_templates.ops import grouped_mm as grouped_mm
    from gemm_templates.ops import linear_act as linear_act
    from gemm_templates.ops import mixed_mm as mixed_mm
    from gemm_templates.ops import mm as mm
    from gemm_templates.ops import scaled_mm as scaled_mm
    from gemm_templates.plan import Plan as Plan
    from gemm_templates.plan import TemplateKernel as TemplateKernel
    from gemm_templates.plan import Workspace as Workspace
    from gemm_templates.problem import FAST_K as FAST_K
    from gemm_templates.problem import Config as Config
    from gemm_templates.problem import Problem as Problem
    from gemm_templates.prologues import block_scale_of as block_scale_of
    from gemm_templates.ranges import RangeChoice as RangeChoice
    from gemm_templates.ranges import choose_range as choose_range
    from gemm_templates.registry import family_of as family_of
    from gemm_templates.registry import make_plan as make_plan
    from gemm_templates.registry import source as source

Store = RecordStore
Param = KernelParam

#: Compile workers, which import a template only, start in a tenth of the time without torch; a
#: compiler, which calls none of the products, does not register them as custom ops.
_MODULES = """
errors fused device problem plan prologues registry families.tiled.family families.tma.family model
launch choice ranges ops
"""
__getattr__ = imported_later(__name__, _MODULES.split())
