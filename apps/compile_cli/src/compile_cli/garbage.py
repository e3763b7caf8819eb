"""When Python looks for garbage: not while a graph is compiled."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_later() -> Iterator[None]:
    """Inside, Python looks for no cycles that nobody refers to. It would look, again and again, at
    millions of objects that stay, torch's and those of graphs: a tenth of a compilation. What was
    made inside counts as old afterwards, or else the next look, right away, were at all of it."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if not gc.get_freeze_count():  # of the caller, who wants it kept
                gc.freeze()
                gc.unfreeze()
            gc.enable()
