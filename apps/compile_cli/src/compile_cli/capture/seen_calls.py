"""What a model's own code calls while it is captured."""

from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from compile_cli.torch_compat import asserting, in_transform


def _asserted(condition: Any, message: str = "") -> None:
    """`asserting`, when the graph runs."""
    if isinstance(condition, torch.Tensor):
        torch.ops.aten._assert_async.msg(condition, message)
    else:
        assert condition, message


def _none_of(condition: torch.Tensor) -> bool:
    """`torch.any` where a function would raise if there were some."""
    _asserted(~condition.any(), "var has negative entry/entries")
    return False


_nll: Any = torch.nn.functional.gaussian_nll_loss
_OF_GRAPHS: dict[Any, Callable[..., Any]] = {
    asserting: _asserted,
    _nll: FunctionType(  # which asks nothing of data
        _nll.__code__,
        {
            **_nll.__globals__,
            "torch": SimpleNamespace(**{**vars(torch), "any": _none_of}),
            "has_torch_function_variadic": lambda *_: False,
        },
        argdefs=_nll.__defaults__,
    ),
}


class SeenCalls(TorchFunctionMode):
    """While it is entered, notes whether torch's functions are called inside of a transform of
    `torch.func` (`transforms`); of methods that give a tensor another rank (`x.unsqueeze_(0)`) the
    name, the shape before, and the tensor (`reshaped`)."""

    def __init__(self) -> None:
        super().__init__()
        self.transforms = False
        self.reshaped: list[tuple[str, torch.Size, torch.Tensor]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs `func`, a function of torch's or a method of tensors, as it is; `x.data`, which
        tracing does not see, as `x.detach()`, and `x.data = y` as `x.set_(y)`; what raises an error
        by what a tensor holds as an operator that does (`_OF_GRAPHS`)."""
        if getattr(func, "__self__", None) is torch.Tensor.data:
            read = func.__name__ == "__get__"
            func, args = (torch.Tensor.detach, args[:1]) if read else (torch.Tensor.set_, args[:2])
        func = _OF_GRAPHS.get(func, func)
        self.transforms |= in_transform()
        before = args[0].shape if args and isinstance(args[0], torch.Tensor) else None
        result = func(*args, **(kwargs or {}))
        if before is not None and result is args[0] and len(before) != result.dim():
            self.reshaped.append((getattr(func, "__name__", ""), before, result))
        return result
