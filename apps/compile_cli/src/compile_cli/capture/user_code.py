"""The user's code: a function as a module, and the line of it that an error came from."""

import functools
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import nn

import aten_lowering


class FunctionModule(nn.Module):
    """A plain function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = _as_forward(function)

    def forward(self, *args: Any) -> Any:
        """Calls the user's function."""
        return self.function(*args)


def _as_forward(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose code is called `forward`: torch.export keeps the lines of frames of
    that name alone, so that operators can be said to come from the function's own."""
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace(co_name="forward")
    args = function.__globals__, function.__name__, function.__defaults__, function.__closure__
    renamed = FunctionType(code, *args)
    renamed.__kwdefaults__ = function.__kwdefaults__
    return functools.wraps(function)(renamed)


def where(error: BaseException) -> str:
    """The innermost frame of the user's code: the last one outside of installed packages."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = (Path(__file__).parents[1], Path(aten_lowering.__file__).parent)
    inside = ("site-packages", *map(str, ours), "<frozen", "importlib")
    own = [f for f in frames if not any(part in f.filename for part in inside)]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    for frame in reversed(own or list(frames)):
        return f"{frame.filename}:{frame.lineno}"
    return "unknown"
