"""Attention whose scores a program may change, in one pass over the keys, and its gradients."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemm_templates.attention.plan import *  # noqa: F403  (its `__all__` is this one's)


def __getattr__(name: str) -> Any:
    """The names of `plan`, which loads torch: compile workers import a kernel only."""
    if name == "__all__" or not name.startswith("_"):
        plan = import_module("gemm_templates.attention.plan")
        if name in ("__all__", *plan.__all__):
            return getattr(plan, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
