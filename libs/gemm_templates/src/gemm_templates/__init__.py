"""Matmul kernels with fused epilogues, chosen by measurement.

The vendor's matmul is hard to beat alone; what it cannot do is take the elementwise work that
follows into the same kernel. These templates can, as plain `@triton.jit` files, and `choose`
uses them only where they were measured to be faster."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemm_templates.public import *  # noqa: F403  (its `__all__` is this one's)


def __getattr__(name: str) -> Any:
    """The names of `public`, which loads torch: compile workers, which import a template only,
    start in a tenth of the time without."""
    if name == "__all__" or (not name.startswith("_") and name != "public"):
        public = import_module("gemm_templates.public")

        if name in ("__all__", *public.__all__):
            return getattr(public, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
