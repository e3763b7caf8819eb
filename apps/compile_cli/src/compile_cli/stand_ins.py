"""A module stands in for one that torch imports in time and hardly ever asks for anything."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module, util
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class StandIn:
    """`standing_in` while another module of torch is imported, whoever is the first to do that."""

    def __init__(self, importer: str, name: str, *functions: str) -> None:
        self._importer, self._given = importer, (name, *functions)
        if importer not in sys.modules:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Of the importer: as it is found elsewhere, but for what stands in."""
        if name != self._importer:
            return None
        sys.meta_path.remove(self)
        spec = util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def within(module: ModuleType) -> None:
                with standing_in(*self._given):
                    execute(module)

            spec.loader.exec_module = within  # type: ignore[method-assign]  # once, of this spec
        return spec


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
