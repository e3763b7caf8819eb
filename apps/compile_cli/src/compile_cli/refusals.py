"""What libraries refuse, as errors of the app: the one place that knows both."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

import planner
from aten_lowering import DependsOnData, UnsupportedGraph
from compile_cli import errors
from compile_cli.options import Options
from cpp_emit.errors import CompilerKilled, CompilerNotFound, TorchNotFound


@contextmanager
def refusals() -> Iterator[None]:
    """Errors of a compilation that are no bugs, by their class here."""
    try:
        yield
    except UnsupportedGraph as error:
        kind, what = (
            errors.UnsupportedModel,
            "the model needs something that compiled programs do not have",
        )
        if isinstance(error, DependsOnData):
            kind, what = errors.DataDependent, "a result depends on what the inputs hold"
        raise kind(
            f"{what}\n  where: {error.source or 'unknown'}: {error.node}\n"
            f"  why:   {error.reason}\n  to do: {error.hint}, or use torch.compile(model, "
            'backend="compile_cli"), which may split it'
        ) from error
    except (CompilerKilled, CompilerNotFound, TorchNotFound) as error:
        raise errors.NoCompiler(error) from error


@contextmanager
def plan_refusals() -> Iterator[None]:
    """Errors of planning, by their class here; of every compilation, torch.compile's included."""
    try:
        yield
    except planner.UserKernelFailed as error:
        raise errors.UserKernelFailed(str(error)) from error
    except planner.UnsafeCache as error:
        raise errors.UnsafeCache(str(error)) from error
    except planner.PlannerError as error:
        raise errors.CompileFailed(str(error)) from error


def require_useful(options: Options, tensors: Iterable[Any]) -> None:
    """Raises `UnknownOption` for an option that does nothing to a model without a tensor on a GPU.
    (Of the graphs that torch.compile makes of a model, some may be such.)"""
    on_gpu = any(isinstance(t, Tensor) and t.device.type == "cuda" for t in tensors)
    if options.cuda_graphs and not on_gpu:
        raise errors.UnknownOption(
            "option cuda_graphs=True does nothing on CPU tensors\n"
            "  to do: drop it, or give a model and inputs on a GPU"
        )
