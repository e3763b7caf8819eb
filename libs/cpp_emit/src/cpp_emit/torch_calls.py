"""torch's operators by the names of the IR, without importing torch before one is called."""

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from wrapper_ir import Device, DType, TorchEnum


def torch_schema(target: str) -> str | None:
    """The schema of an operator of torch, None if there is no such operator.

    >>> torch_schema("aten.relu.default")
    'aten::relu(Tensor self) -> Tensor'
    """
    torch = importlib.import_module("torch")
    full = target if target.count(".") > 1 else f"{target}.default"
    try:
        return str(_operator(torch, full)._schema)
    except AttributeError:
        return None


def call_torch(target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls an operator of torch with arguments of the IR."""
    torch = importlib.import_module("torch")
    return _operator(torch, target)(
        *(_torch_value(torch, a) for a in args),
        **{key: _torch_value(torch, value) for key, value in kwargs.items()},
    )


def _operator(torch: Any, target: str) -> Any:
    return functools.reduce(getattr, target.split("."), torch.ops)


def _torch_value(torch: Any, value: Any) -> Any:
    if isinstance(value, tuple):
        return [_torch_value(torch, v) for v in value]
    if isinstance(value, DType):
        return getattr(torch, value.torch_name)
    if isinstance(value, Device):
        return torch.device(str(value))
    if isinstance(value, TorchEnum):
        return getattr(torch, value.name)
    return value
