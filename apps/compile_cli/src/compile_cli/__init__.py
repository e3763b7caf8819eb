"""A CUDA compiler for PyTorch: the one place where the stages meet.

compiled = compile_cli.compile(model, (x,))
torch.compile(model, backend="compile_cli")
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from compile_cli.stand_ins import StandIn
from multikernel import imported_later

if TYPE_CHECKING:
    from compile_cli.api import compile as compile
    from compile_cli.compiled_artifact import CompiledArtifact as CompiledArtifact
    from compile_cli.errors import CompileCliError as CompileCliError
    from compile_cli.options import Options as Options
    from compile_cli.result import CompiledModel as CompiledModel
    from compile_cli.standalone import standalone_compile as standalone_compile
    from compile_cli.torch_backend import backend as backend

#: The public names are loaded when they are asked for: Dynamo, torch.export and Triton take seconds
#: to import, and a program that compiles nothing yet needs none of them.
_MODULES = "errors options compiled_artifact api result standalone torch_backend"
__getattr__ = imported_later(__name__, _MODULES.split())

# By name, torch imports its partitions, which draw graphs with networkx, before it does a backend.
StandIn("torch._functorch.partitioners", "networkx", "DiGraph")

# torch.compile finds the backend of an installed package by its entry point.
if "compile_cli" not in entry_points(group="torch_dynamo_backends").names:
    import_module(f"{__name__}.torch_backend")
