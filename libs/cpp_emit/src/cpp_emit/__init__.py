"""Host programs as C++ shared libraries.

The text speaks torch's stable C ABI and the CUDA driver API only, so that a compiler needs about a
second for it and no CUDA toolkit: `emit` writes it, `build` compiles it, `load` makes it callable.
"""

from cpp_emit.build import build, build_plain, find_compiler, headers
from cpp_emit.callbacks import Callbacks
from cpp_emit.emit import emit
from cpp_emit.errors import CompilerNotFound, CppEmitError
from cpp_emit.load import LoadedProgram, load
from cpp_emit.torch_calls import call_torch, torch_schema

__all__ = [
    "Callbacks",
    "CompilerNotFound",
    "CppEmitError",
    "LoadedProgram",
    "build",
    "build_plain",
    "call_torch",
    "emit",
    "find_compiler",
    "headers",
    "load",
    "torch_schema",
]
