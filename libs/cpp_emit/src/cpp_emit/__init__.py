"""Host programs as C++ shared libraries.

The text speaks torch's stable C ABI and the CUDA driver API only, so that a compiler needs about a
second for it and no CUDA toolkit: `emit` writes it, `build` compiles it, `load` makes it callable.
"""

from cpp_emit.build import build as build
from cpp_emit.build import build_plain as build_plain
from cpp_emit.build import find_compiler as find_compiler
from cpp_emit.build import headers as headers
from cpp_emit.callbacks import Callbacks as Callbacks
from cpp_emit.emit import emit as emit
from cpp_emit.errors import CompilerKilled as CompilerKilled
from cpp_emit.errors import CompilerNotFound as CompilerNotFound
from cpp_emit.errors import CppEmitError as CppEmitError
from cpp_emit.load import LoadedProgram as LoadedProgram
from cpp_emit.load import load as load
from cpp_emit.torch_calls import call_torch as call_torch
from cpp_emit.torch_calls import torch_schema as torch_schema
