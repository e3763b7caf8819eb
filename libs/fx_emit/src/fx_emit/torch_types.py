"""Element types, devices and operators of the IR as those of torch, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fx_emit.errors import UnknownOperator, UnknownTorchEnum
from wrapper_ir import Device, DType, TorchEnum

TORCH_DTYPE: dict[DType, torch.dtype] = {
    DType.bool_: torch.bool, DType.u8: torch.uint8, DType.u16: torch.uint16,
    DType.u32: torch.uint32, DType.u64: torch.uint64, DType.i8: torch.int8,
    DType.i16: torch.int16, DType.i32: torch.int32, DType.i64: torch.int64,
    DType.f16: torch.float16, DType.bf16: torch.bfloat16, DType.f32: torch.float32,
    DType.f64: torch.float64, DType.f8e4m3: torch.float8_e4m3fn, DType.f8e5m2: torch.float8_e5m2,
    DType.c32: torch.complex32, DType.c64: torch.complex64, DType.c128: torch.complex128,
}  # fmt: skip
IR_DTYPE: dict[torch.dtype, DType] = {v: k for k, v in TORCH_DTYPE.items()}

# Their results share the storage of the argument although their schemas do not say so.
_UNDECLARED = frozenset({"aten::_unsafe_view", "aten::_reshape_alias"})

_ENUM_TYPES: dict[str, type] = {
    "layout": torch.layout, "memory_format": torch.memory_format,
}  # fmt: skip


def torch_device(device: Device) -> torch.device:
    return torch.device(str(device))


def torch_enum(value: TorchEnum) -> Any:
    """`layout strided` -> `torch.strided`. Raises UnknownTorchEnum."""
    found = getattr(torch, value.name, None)
    expected = _ENUM_TYPES.get(value.kind, object)
    if found is None or not isinstance(found, expected):
        raise UnknownTorchEnum(value.kind, value.name)
    return found


def operator_of(target: str, operators: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """`aten.add.Tensor` -> `torch.ops.aten.add.Tensor`, unless `operators` has another.

    Raises UnknownOperator."""
    if target in operators:
        return operators[target]
    found: Any = torch.ops
    try:
        for part in target.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise UnknownOperator(target) from error
    if not callable(found):
        raise UnknownOperator(target)
    return found  # type: ignore[no-any-return]


def may_alias(operator: Callable[..., Any], index: int) -> bool:
    """Whether result `index` may share the storage of an argument, by the operator's schema."""
    schema: Any = getattr(operator, "_schema", None)
    if schema is None:
        return False
    returns = schema.returns
    declared = returns[min(index, len(returns) - 1)].alias_info if returns else None
    return declared is not None or schema.name in _UNDECLARED
