"""The public names, which `gemm_templates` gives away one by one."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gemm_templates.choice import Choice, choose, prefetch
from gemm_templates.device import A100, B200, H100, H200, DeviceInfo, device_info
from gemm_templates.errors import (
    GemmError,
    InvalidArguments,
    InvalidConfig,
    InvalidProblem,
    UnsupportedProblem,
)
from gemm_templates.families.tiled.family import CONFIGS
from gemm_templates.families.tma.family import tma_configs
from gemm_templates.fused import BlockScale, Epilogue, Pick, Prologue
from gemm_templates.launch import Bound, Inputs, arguments, bind, written
from gemm_templates.model import Candidate, best_config, candidates, explain, is_legal, offered
from gemm_templates.plan import Plan, TemplateKernel, Workspace
from gemm_templates.problem import FAST_K, Config, Problem
from gemm_templates.prologues import block_scale_of
from gemm_templates.ranges import RangeChoice, choose_range
from gemm_templates.registry import family_of, make_plan, source
from multikernel import RecordStore as Store
from triton_rt import KernelParam as Param

if TYPE_CHECKING:
    from gemm_templates.ops import (
        addmm,
        baddbmm,
        bmm,
        gated_linear,
        grouped_mm,
        linear_act,
        mixed_mm,
        mm,
        scaled_mm,
    )

__all__ = [
    "A100",
    "B200",
    "CONFIGS",
    "FAST_K",
    "H100",
    "H200",
    "BlockScale",
    "Bound",
    "Candidate",
    "Choice",
    "Config",
    "DeviceInfo",
    "Epilogue",
    "GemmError",
    "Inputs",
    "InvalidArguments",
    "InvalidConfig",
    "InvalidProblem",
    "Param",
    "Pick",
    "Plan",
    "Problem",
    "Prologue",
    "RangeChoice",
    "Store",
    "TemplateKernel",
    "UnsupportedProblem",
    "Workspace",
    "addmm",
    "arguments",
    "baddbmm",
    "best_config",
    "bind",
    "block_scale_of",
    "bmm",
    "candidates",
    "choose",
    "choose_range",
    "device_info",
    "explain",
    "family_of",
    "gated_linear",
    "grouped_mm",
    "is_legal",
    "linear_act",
    "make_plan",
    "mixed_mm",
    "mm",
    "offered",
    "prefetch",
    "scaled_mm",
    "source",
    "tma_configs",
    "written",
]


def __getattr__(name: str) -> Any:
    """The products, which are custom ops: a compiler, which calls none, does not register them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("gemm_templates.ops"), name)
