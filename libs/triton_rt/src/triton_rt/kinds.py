"""Element types by the short names of this project, and what they are to torch and to Triton."""

from __future__ import annotations

from typing import Any

import torch

#: kind -> (Triton's signature name, bytes of a scalar argument, torch dtypes a tensor may have)
KINDS: dict[str, tuple[str, int, tuple[torch.dtype, ...]]] = {
    "bool": ("i1", 1, (torch.bool,)),
    "u8": ("u8", 1, (torch.uint8,)),
    "u16": ("u16", 2, (torch.uint16,)),
    "u32": ("u32", 4, (torch.uint32,)),
    "u64": ("u64", 8, (torch.uint64,)),
    "i8": ("i8", 1, (torch.int8,)),
    "i16": ("i16", 2, (torch.int16,)),
    "i32": ("i32", 4, (torch.int32,)),
    "i64": ("i64", 8, (torch.int64,)),
    "f16": ("fp16", 2, (torch.float16,)),
    "bf16": ("bf16", 2, (torch.bfloat16,)),
    "f32": ("fp32", 4, (torch.float32,)),
    "f64": ("fp64", 8, (torch.float64,)),
    "f8e4m3": ("fp8e4nv", 1, (torch.float8_e4m3fn,)),
    "f8e5m2": ("fp8e5", 1, (torch.float8_e5m2,)),
}

TORCH_KINDS: dict[torch.dtype, str] = {d: k for k, (_, _, ds) in KINDS.items() for d in ds}

#: Kinds that a scalar parameter may have.
SCALARS = tuple(k for k in KINDS if not k.startswith("f8"))


def triton_name(kind: str) -> str:
    """`*bf16` -> `*bf16`, `f32` -> `fp32`, `bool` -> `i1`."""
    return "*" + KINDS[kind[1:]][0] if kind.startswith("*") else KINDS[kind][0]


def triton_type(kind: str) -> Any:
    """The `triton.language` dtype of a scalar kind."""
    import triton.language as tl

    names = {"i1": "int1", **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)}}
    names |= {f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)}
    name = KINDS[kind][0]
    return tl.dtype(names.get(name, name))
