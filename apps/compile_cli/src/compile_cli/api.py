"""`compile_cli.compile`: a module and example inputs -> something to call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from compile_cli.capture import Captured, capture, export, input_names
from compile_cli.compiled import CompiledModel
from compile_cli.config import Options
from compile_cli.errors import BadInput, CompileFailed
from compile_cli.loading import FunctionModule
from compile_cli.pipeline import compile_graph
from compile_cli.proof import difference
from compile_cli.runtime import start_workers
from compile_cli.stages import Record

# Workers to start before there is a graph that says how many kernels it may have.
_USUAL_KERNELS = 4


def compile(
    model: nn.Module | torch.export.ExportedProgram | Any,
    args: tuple[Any, ...],
    *,
    dynamic: Mapping[int | str, set[int]] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    record: Record | None = None,
) -> CompiledModel:
    """Compiles a module, function or exported program for inference.

    args: example inputs; their device is where it will run.
    dynamic: input (position or name) -> dimensions that may differ from call to call; one
        compilation then serves every size of them.
    Raises a `CompileCliError`: the model cannot be captured, an option is unknown, inputs do not
    fit.

    >>> import torch
    >>> f = compile(lambda x: x.sin() + 1, (torch.ones(4),))
    >>> bool(torch.allclose(f(torch.zeros(4)), torch.ones(4)))
    True
    """
    settings = options if isinstance(options, Options) else Options.from_mapping(options)
    record = record or Record()
    start_workers(settings, _tensors(model, args), _USUAL_KERNELS)
    with record.stage("capture"):
        if isinstance(model, torch.export.ExportedProgram):
            module, program = None, model
            if dynamic:
                raise BadInput("an exported program says itself which dimensions are dynamic")
        else:
            module = model if isinstance(model, nn.Module) else FunctionModule(model)
            dims = _by_position(module, args, dynamic or {})
            program = export(module, args, dims)
        captured = capture(program)
    record.after("aten", "capture", captured.graph)
    graph = compile_graph(captured.graph, settings, record, check_inputs=False)

    def prove(call: tuple[Any, ...], env: dict[str, int]) -> str | None:
        return _same_when(module, captured, call, env)

    return CompiledModel(captured, graph, prove)


def _tensors(model: Any, args: tuple[Any, ...]) -> Iterator[Any]:
    """What says where the model will run."""
    yield from pytree.tree_leaves(args)
    if isinstance(model, nn.Module):
        yield from model.parameters()


def _by_position(
    module: nn.Module, args: tuple[Any, ...], dynamic: Mapping[int | str, set[int]]
) -> dict[int, set[int]]:
    names = input_names(module, args)
    out: dict[int, set[int]] = {}
    for key, dims in dynamic.items():
        position = names.index(key) if isinstance(key, str) and key in names else key
        if not isinstance(position, int) or not 0 <= position < len(args):
            raise BadInput(
                f"no input {key!r} to make dynamic\n  the inputs are: {', '.join(names)}"
            )
        out[position] = set(dims)
    return out


def _same_when(
    module: nn.Module | None, captured: Captured, args: tuple[Any, ...], env: dict[str, int]
) -> str | None:
    """None where the model, captured for exactly these inputs, is the graph that was compiled."""
    if module is None:
        return "an exported program cannot be captured again"
    try:
        static = capture(export(module, args, {}))
    except CompileFailed as error:
        return str(error).splitlines()[0]
    return difference(captured.graph, static.graph, env)
