"""A CUDA compiler for PyTorch: the one place where the stages meet.

compiled = compile_cli.compile(model, (x,))
torch.compile(model, backend="compile_cli")
"""

from compile_cli.api import compile
from compile_cli.backend import compile_cli as backend
from compile_cli.backend import register
from compile_cli.config import Options
from compile_cli.errors import CompileCliError
from compile_cli.model import CompiledModel

register()

__all__ = ["CompileCliError", "CompiledModel", "Options", "backend", "compile"]
