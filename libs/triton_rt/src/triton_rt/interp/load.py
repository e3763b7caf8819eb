"""A kernel's function for a GPU or for the CPU, with the same `fn[grid](...)`."""

from typing import Any

from triton_rt.element_types import SCALARS
from triton_rt.errors import NotInterpretable
from triton_rt.interp.executor import InterpretedKernel
from triton_rt.source import KernelSource


def load_jit(source: KernelSource, interpret: bool = False) -> Any:
    """The kernel's function, ready for `fn[grid](*args, **constants)`.

    `interpret=False`: Triton's `JITFunction`. `interpret=True`: an `InterpretedKernel` for CPU
    tensors. Neither depends on TRITON_INTERPRET, nor changes it."""
    if not interpret:
        return source.jit_function()
    if source.is_gluon:
        raise NotInterpretable(
            f"{source.name} is a @gluon.jit kernel, whose layouts and barriers only a GPU has: "
            "use CUDA tensors, or a @triton.jit kernel"
        )
    scalars = {p.name: p.kind for p in source.params if p.kind in SCALARS}
    constants = tuple(source.constant_values())
    return InterpretedKernel(source.function, scalars, constants, tma=source.tma)
