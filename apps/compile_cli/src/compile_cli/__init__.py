"""A CUDA compiler for PyTorch: the one place where the stages meet.

compiled = compile_cli.compile(model, (x,))
torch.compile(model, backend="compile_cli")
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compile_cli.api import compile
    from compile_cli.compiled_artifact import CompiledArtifact
    from compile_cli.errors import CompileCliError
    from compile_cli.options import Options
    from compile_cli.result import CompiledModel
    from compile_cli.standalone import standalone_compile
    from compile_cli.torch_backend import compile_cli as backend

__all__ = [
    "CompileCliError",
    "CompiledArtifact",
    "CompiledModel",
    "Options",
    "backend",
    "compile",
    "standalone_compile",
]

_HOMES = {
    "CompileCliError": ("errors", "CompileCliError"),
    "CompiledArtifact": ("compiled_artifact", "CompiledArtifact"),
    "CompiledModel": ("result", "CompiledModel"),
    "Options": ("options", "Options"),
    "backend": ("torch_backend", "compile_cli"),
    "compile": ("api", "compile"),
    "standalone_compile": ("standalone", "standalone_compile"),
}


def __getattr__(name: str) -> Any:
    """The public names, loaded when they are asked for: Dynamo, torch.export and Triton take
    seconds to import, and a program that compiles nothing yet needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    found = getattr(import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = found
    return found


# torch.compile finds the backend of an installed package by its entry point.
if "compile_cli" not in entry_points(group="torch_dynamo_backends").names:
    import_module(f"{__name__}.torch_backend")
