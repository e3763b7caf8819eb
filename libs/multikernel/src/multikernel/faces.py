"""Packages whose public names are imported when one is asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any


def imported_later(package: str, modules: Sequence[str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562): a name of its `__all__` is that of the first of
    these modules that has it, which are imported one after the other until then: first those that
    load little, so that who needs no more starts without the rest."""

    def find(name: str) -> Any:
        face = sys.modules[package]
        if name in face.__all__:
            for module in modules:
                found = vars(importlib.import_module(f"{package}.{module}"))
                if name in found:
                    setattr(face, name, found[name])
                    return found[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
