"""Lets Dynamo see Triton kernels on a machine without a GPU, where ours run interpreted.

Dynamo asks torch for a device that Triton supports before it takes a `@triton.jit` function for
one, and torch asks Triton's driver what to compile for before it finds out which tensors a kernel
writes. Without a GPU both say no. The one place that answers for them; nothing else is changed,
and nothing at all where there is a GPU."""

import functools
import sys
from typing import Any

import torch
import torch.utils._triton as torch_triton

from compile_cli.torch_compat import kernel_wrap

_ASKS = "torch._dynamo.variables.builder"


class TargetOnly:
    """What is asked of a Triton driver to make a kernel's IR: never to run one."""

    def get_current_target(self) -> Any:
        """The GPU that IRs are made for where there is none."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def capture_kernels() -> None:
    """From here on, Dynamo captures launches of Triton kernels on CPU tensors."""
    # `is_available` starts CUDA, which no fork of this process survives.
    if torch.cuda.device_count() or not torch_triton.has_triton_package():
        return
    if getattr(torch_triton.has_triton, "without_gpu", False):
        return
    found, mutated = torch_triton.has_triton, kernel_wrap.identify_mutated_tensors

    @functools.wraps(found)
    def has_triton() -> bool:
        return sys._getframe(1).f_globals.get("__name__") == _ASKS or found()

    @functools.wraps(mutated)
    def identify_mutated_tensors(*args: Any, **kwargs: Any) -> list[str]:
        from triton.runtime import driver

        before = driver._active
        driver.set_active(TargetOnly())
        try:
            return mutated(*args, **kwargs)
        finally:
            driver._active = before

    def has_descriptors() -> bool:
        return sys._getframe(1).f_globals.get("__name__") in (_ASKS, kernel_wrap.__name__)

    has_triton.without_gpu = True  # type: ignore[attr-defined]  # our mark
    torch_triton.has_triton_tensor_descriptor_host_tma = has_descriptors  # type: ignore[assignment]  # torch's, replaced
    torch_triton.has_triton = has_triton  # type: ignore[assignment]  # torch's, replaced
    kernel_wrap.identify_mutated_tensors = identify_mutated_tensors
