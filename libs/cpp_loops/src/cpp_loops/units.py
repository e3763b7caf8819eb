"""Kernels as one translation unit, and the header that it includes."""

from collections.abc import Iterable
from pathlib import Path

from symexpr import CPP_FUNCTIONS

# Numbers stay torch's: no sum of another order than loops say, no fused operation that was two.
_MEANING = "-fwrapv -ffp-contract=off -fno-math-errno -fno-trapping-math"
_FLAGS = f"-std=c++17 -O2 -funswitch-loops -shared -fPIC {_MEANING} -Wl,-z,defs".split()
_NATIVE = [*_FLAGS, "-march=native", "-fopenmp"]

WAYS = ([*_NATIVE, "-DCPP_LOOPS_VECTOR_MATH", "-lmvec", "-lm"], [*_NATIVE, "-lm"], [*_FLAGS, "-lm"])
"""Arguments of a compiler for a translation unit, the best first: with the vector functions of
glibc 2.35, without them, and for a compiler without OpenMP."""

_HEADER = Path(__file__).parent / "include" / "cpp_loops" / "loops.h"


def translation_unit(sources: Iterable[str]) -> str:
    """The text of a library that has these kernels, each as the C function `kernel_NAME`."""
    body = "\n".join(sources)
    head = ['#include "cpp_loops/loops.h"']
    # The library's own headers take longer than all else: few texts need them.
    head += ["#include <algorithm>", "#include <cmath>"] if "std::" in body else []
    head += ["", CPP_FUNCTIONS] if "symexpr::" in body else [""]
    return "\n".join([*head, "namespace loops {", "", body, "}  // namespace loops", ""])


def headers() -> dict[str, str]:
    """The headers of this library that such a text includes, by their include paths."""
    return {"cpp_loops/loops.h": _HEADER.read_text()}
