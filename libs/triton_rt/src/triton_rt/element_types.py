"""Element types by short names, and what they are to torch and to Triton; imports neither."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: kind -> (Triton's name in a signature, torch's name of the dtype)
KINDS: dict[str, tuple[str, str]] = {
    "bool": ("i1", "bool"),
    **{f"u{bits}": (f"u{bits}", f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"i{bits}": (f"i{bits}", f"int{bits}") for bits in (8, 16, 32, 64)},
    "f16": ("fp16", "float16"),
    "bf16": ("bf16", "bfloat16"),
    "f32": ("fp32", "float32"),
    "f64": ("fp64", "float64"),
    "f8e4m3": ("fp8e4nv", "float8_e4m3fn"),
    "f8e5m2": ("fp8e5", "float8_e5m2"),
}

#: Kinds that a scalar parameter may have.
SCALARS = tuple(k for k in KINDS if not k.startswith("f8"))


_DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[(\d+(?:, ?\d+)*)\]>")


@functools.cache
def parse_descriptor(kind: str) -> tuple[str, tuple[int, ...]] | None:
    """`tensordesc<bf16[64,32]>` -> `("bf16", (64, 32))`: the element and the block of a tensor
    descriptor; None for what is none."""
    match = _DESCRIPTOR.fullmatch(kind)
    if match is None:
        return None
    return match[1], tuple(int(n) for n in match[2].split(","))


@functools.cache
def torch_dtype(kind: str) -> torch.dtype:
    """The dtype of a tensor for a pointer to `kind`."""
    import torch

    dtype: torch.dtype = getattr(torch, KINDS[kind][1])
    return dtype


@functools.cache
def kind_of(dtype: torch.dtype) -> str:
    """The kind of a torch dtype; `KeyError` for one that kernels do not take."""
    return {torch_dtype(kind): kind for kind in KINDS}[dtype]


def triton_name(kind: str, layout: bool = False) -> str:
    """`*bf16` -> `*bf16`, `f32` -> `fp32`, `bool` -> `i1`, `tensordesc<f32[8]>` ->
    `tensordesc<fp32[8]>`, with a `layout`, as Gluon's kernels want it,
    `tensordesc<fp32[8],NVMMASharedLayout(...)>`: the default one of the block."""
    if (descriptor := parse_descriptor(kind)) is not None:
        element, block = descriptor
        end = f",{_default_layout(element, block)!r}" if layout else ""
        return f"tensordesc<{KINDS[element][0]}{list(block)}{end}>"
    return "*" + KINDS[kind[1:]][0] if kind.startswith("*") else KINDS[kind][0]


def _default_layout(element: str, block: tuple[int, ...]) -> Any:
    """Of a block in shared memory: the widest swizzle that its rows are a multiple of."""
    from triton.experimental.gluon.language import NVMMASharedLayout

    return NVMMASharedLayout.get_default_for(list(block), triton_type(element))


def triton_type(kind: str) -> Any:
    """The `triton.language` dtype of a scalar kind."""
    import triton.language as tl

    names = {"i1": "int1", **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)}}
    names |= {f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)}
    name = KINDS[kind][0]
    return tl.dtype(names.get(name, name))
