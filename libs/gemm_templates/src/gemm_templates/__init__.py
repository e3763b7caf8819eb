"""Matmul kernels with fused epilogues, chosen by measurement.

The vendor's matmul is hard to beat alone; what it cannot do is take the elementwise work that
follows into the same kernel. These templates can, as plain `@triton.jit` files, and `choose`
uses them only where they were measured to be faster.
"""

from gemm_templates.device import A100, B200, H100, H200, DeviceInfo, device_info
from gemm_templates.errors import (
    GemmError,
    InvalidArguments,
    InvalidConfig,
    InvalidProblem,
    UnsupportedProblem,
)
from gemm_templates.model import CONFIGS, Candidate, best_config, candidates, explain
from gemm_templates.problem import Config, Epilogue, Param, Problem
from gemm_templates.render import TemplateKernel, source

__all__ = [
    "A100",
    "B200",
    "CONFIGS",
    "H100",
    "H200",
    "Candidate",
    "Config",
    "DeviceInfo",
    "Epilogue",
    "GemmError",
    "InvalidArguments",
    "InvalidConfig",
    "InvalidProblem",
    "Param",
    "Problem",
    "TemplateKernel",
    "UnsupportedProblem",
    "best_config",
    "candidates",
    "device_info",
    "explain",
    "source",
]
