"""Packages whose public names are imported when one is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any


def imported_later(package: str, modules: Sequence[str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562): a name that it gives away, such as those that it
    imports where types are checked, is what the first of these modules defines so. They are
    imported one after the other until then: first those that load little, so that who needs no more
    starts without the rest. A module of the package is no such name, nor is what one of these
    imports from another package."""

    def find(name: str) -> Any:
        face, whole = sys.modules[package], package.partition(".")[0]
        if name[0] != "_" and importlib.util.find_spec(f"{package}.{name}") is None:
            for module in modules:
                values = vars(importlib.import_module(f"{package}.{module}"))
                found = values.get(name)
                home = getattr(found, "__module__", whole) or whole
                if name in values and home.partition(".")[0] == whole:
                    setattr(face, name, found)
                    return found
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
