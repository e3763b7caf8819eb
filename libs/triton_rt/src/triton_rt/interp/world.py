"""What parts of the interpreter need of the whole, which is `lang.Interpreter`."""

from collections.abc import Callable
from typing import Any, Protocol

from triton.language import core


class World(Protocol):
    """One interpreter. tensor: the class of its tensors. semantic: Triton's, over `builder`."""

    builder: Any
    tensor: Any
    semantic: Any

    def translate(self, value: Any) -> Any:
        """What an interpreted kernel gets where a compiled one would see `value`."""
        ...

    def bind(self, builtin: Callable[..., Any]) -> Callable[..., Any]:
        """A Triton builtin with its `_semantic` argument filled in."""
        ...


def plain(value: Any) -> Any:
    """The value of a `constexpr`; anything else as it is."""
    return value.value if isinstance(value, core.constexpr) else value
