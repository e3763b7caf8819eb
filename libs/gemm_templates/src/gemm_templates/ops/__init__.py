"""Products as functions on tensors, and as custom ops that any torch.compile backend can call."""

from gemm_templates.ops import custom  # which registers the custom ops
from gemm_templates.ops.public import (
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
