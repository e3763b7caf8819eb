"""A module stands in for one that torch imports in time and hardly ever asks for anything."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any


@contextmanager
def standing_in(name: str, *functions: str) -> Iterator[None]:
    """Inside, the module `name` is imported once one of its functions is called, or any other
    attribute is asked for, unless it is imported already."""
    if name in sys.modules:
        yield
        return
    later = ModuleType(name)

    def imported(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)  # the statement that imports asks for some
        if sys.modules.get(name) is later:
            del sys.modules[name]
        return getattr(import_module(name), attribute)

    def calls(function: str) -> Callable[..., Any]:
        return lambda *args, **more: imported(function)(*args, **more)

    vars(later)["__getattr__"] = imported
    vars(later).update((function, calls(function)) for function in functions)
    sys.modules[name] = later
    try:
        yield
    finally:
        if sys.modules.get(name) is later:
            del sys.modules[name]
