"""When Python looks for garbage: not while a graph is compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_later() -> Iterator[None]:
    """Inside, Python looks for no cycles that nobody refers to. It would look, again and again, at
    millions of objects that stay, torch's and those of graphs: a tenth of a compilation."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
