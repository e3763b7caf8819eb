"""Element types, devices and operators of the IR as those of torch, and back."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fx_emit.errors import UnknownOperator, UnknownTorchEnum
from wrapper_ir import Device, DType, TorchEnum

TORCH_DTYPE: dict[DType, torch.dtype] = {d: getattr(torch, d.torch_name) for d in DType}
IR_DTYPE: dict[torch.dtype, DType] = {v: k for k, v in TORCH_DTYPE.items()}

# Their results share the storage of the argument although their schemas do not say so.
_UNDECLARED = frozenset({"aten::_unsafe_view", "aten::_reshape_alias"})

_ENUM_TYPES: dict[str, type] = {"layout": torch.layout, "memory_format": torch.memory_format}


def torch_device(device: Device) -> torch.device:
    """The device as torch has it."""
    return torch.device(str(device))


def torch_enum(value: TorchEnum) -> Any:
    """`layout strided` -> `torch.strided`. Raises UnknownTorchEnum."""
    found = getattr(torch, value.name, None)
    expected = _ENUM_TYPES.get(value.kind, object)
    if found is None or not isinstance(found, expected):
        raise UnknownTorchEnum(value.kind, value.name)
    return found


def torch_value(value: Any) -> Any:
    """An argument of an operator that is no tensor and no expression, as torch takes it."""
    if isinstance(value, tuple):
        return tuple(map(torch_value, value))
    if isinstance(value, DType):
        return TORCH_DTYPE[value]
    if isinstance(value, Device):
        return torch_device(value)
    return torch_enum(value) if isinstance(value, TorchEnum) else value


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
    return found  # type: ignore[no-any-return]  # found by name


def may_alias(operator: Callable[..., Any], index: int) -> bool:
    """Whether result `index` may share the storage of an argument, by the operator's schema."""
    schema: Any = getattr(operator, "_schema", None)
    if schema is None:
        return False
    returns = schema.returns
    declared = returns[min(index, len(returns) - 1)].alias_info if returns else None
    return declared is not None or schema.name in _UNDECLARED
