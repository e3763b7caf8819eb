"""Device functions for what `triton.language` lacks, as text.

Each is copied into a kernel's module only when it is used. They use nothing but `tl`, so that
they run on the GPU and under Triton's interpreter, which has no libdevice. Bounds on their error
are stated in ulp of the result and checked in `tests/test_helpers.py`."""

import re
from collections.abc import Iterable

from symexpr import TRITON_PRELUDE
from triton_emit.atomics import ATOMICS
from triton_emit.elementary import ELEMENTARY
from triton_emit.folds import FOLDS
from triton_emit.integers import INTEGERS
from triton_emit.iterations import ITERATIONS
from triton_emit.powers import POWERS

# The last ones are integer division as symexpr's printed indices call it.
_PRELUDE = TRITON_PRELUDE.replace("@triton.jit\n", "")
_TEXTS = (ELEMENTARY, ATOMICS, POWERS, INTEGERS, ITERATIONS, FOLDS, _PRELUDE)
# Functions, with the comments before them, by name: a blank line ends each.
_SOURCES = {
    found[1]: block.strip("\n")
    for block in "\n\n".join(_TEXTS).split("\n\n")
    if (found := re.search(r"^def (\w+)", block, re.MULTILINE))
}


def called(text: str) -> list[str]:
    """Helpers that a kernel's text calls."""
    return [name for name in dict.fromkeys(re.findall(r"\b[a-z]\w*", text)) if name in _SOURCES]


def helper_text(names: Iterable[str]) -> str:
    """Source of the named helpers and of those that they call, callees first."""
    done: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in done:
            return
        body = _SOURCES[name]
        for callee in sorted(set(re.findall(r"\b([a-z]\w*)\(", body)) - {name}):
            if callee in _SOURCES:
                visit(callee)
        comment, _, code = body.rpartition("def " + name)
        done[name] = f"{comment}@triton.jit\ndef {name}{code}"

    for name in names:
        visit(name)
    return "\n\n\n".join(done.values())
