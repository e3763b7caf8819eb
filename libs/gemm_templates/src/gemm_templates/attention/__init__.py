"""Attention whose scores a program may change, in one pass over the keys."""

from gemm_templates.attention.plan import (
    Attention,
    Config,
    Function,
    Tensor,
    attention_kernel,
    default_config,
    fitted,
)

__all__ = [
    "Attention",
    "Config",
    "Function",
    "Tensor",
    "attention_kernel",
    "default_config",
    "fitted",
]
