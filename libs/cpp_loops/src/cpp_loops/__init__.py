"""Loop nests printed as C++ functions that run on the CPU: vectors along memory, threads over what
is left. It writes text; a C++ compiler makes a library of it."""

from cpp_loops.emit import CppKernel, emit
from cpp_loops.errors import CppLoopsError, UnsupportedKernel
from cpp_loops.units import WAYS, headers, translation_unit

__all__ = [
    "WAYS",
    "CppKernel",
    "CppLoopsError",
    "UnsupportedKernel",
    "emit",
    "headers",
    "translation_unit",
]
