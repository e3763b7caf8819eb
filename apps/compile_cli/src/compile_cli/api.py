"""`compile_cli.compile`: a module and example inputs -> something to call."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from aten_lowering import module_of
from compile_cli import capture as capturing
from compile_cli.errors import BadInput
from compile_cli.options import Options
from compile_cli.pipeline import compile_graph
from compile_cli.record import Record
from compile_cli.refusals import refusals, require_useful
from compile_cli.result import CAPTURING, CompiledGraph, CompiledModel, Regime, Source, twin
from planner import start_workers

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
    dynamic: input (position or name) -> dimensions that may differ from call to call (-1 is the
        last); one compilation then serves every size of them, but for sizes whose values the model
        itself needs (`torch.linspace(0, 1, n)`): for each of those it is compiled again.
    Raises a `CompileCliError`: the model cannot be captured, an option is unknown or does nothing
    where the model runs, inputs do not fit.

    >>> import torch
    >>> f = compile(lambda x: x.sin() + 1, (torch.ones(4),))
    >>> bool(torch.allclose(f(torch.zeros(4)), torch.ones(4)))
    True
    """
    settings = options if isinstance(options, Options) else Options.from_mapping(options)
    record = record or Record()
    capturing.require_model(model)
    args = capturing.require_inputs(args)
    require_useful(settings, _tensors(model, args))
    start_workers(settings, _tensors(model, args), _USUAL_KERNELS)
    with record.stage("capture"), CAPTURING:
        if isinstance(model, torch.export.ExportedProgram):
            if dynamic:
                raise BadInput("an exported program says itself which dimensions are dynamic")
            again: nn.Module | str = module_of(model)
            captured, dims = capturing.capture(model), {}
        else:
            module = model if isinstance(model, nn.Module) else capturing.FunctionModule(model)
            dims = _by_position(module, args, dynamic or {})
            again = twin(module) if dims else "it has no dynamic size"
            captured = capturing.capture(capturing.export(module, args, dims))
    record.after("aten", "capture", captured.graph)

    def compile_again(graph: torch.fx.GraphModule) -> CompiledGraph:
        with refusals():
            return compile_graph(graph, settings, Record(), check_inputs=False)

    with refusals():
        at_call = settings.tune_at == "first_call"
        given = captured.given(pytree.tree_leaves(args)) if at_call else ()
        graph = compile_graph(captured.graph, settings, record, check_inputs=False, given=given)
    return CompiledModel([Regime(captured, graph)], Source(again, compile_again, dims))


def _tensors(model: Any, args: tuple[Any, ...]) -> Iterator[Any]:
    """What says where the model will run."""
    yield from pytree.tree_leaves(args)
    if isinstance(model, nn.Module):
        yield from model.parameters()


def _by_position(
    module: nn.Module, args: tuple[Any, ...], dynamic: Mapping[int | str, set[int]]
) -> dict[int, set[int]]:
    """Position among the flattened inputs -> dimensions, checked."""
    names = capturing.input_names(module, args)
    counts = [len(pytree.tree_leaves(a)) for a in args]
    out: dict[int, set[int]] = {}
    for key, dims in dynamic.items():
        position = names.index(key) if isinstance(key, str) and key in names else key
        if not isinstance(position, int) or not 0 <= position < len(args):
            raise BadInput(
                f"no input {key!r} to make dynamic\n  the inputs are: {', '.join(names)}"
            )
        value = args[position]
        if not isinstance(value, torch.Tensor):
            raise BadInput(f"input {position} is no tensor, so it has no dynamic dimension")
        for dim in dims:
            if not -value.dim() <= dim < value.dim():
                raise BadInput(
                    f"input {position} has no dimension {dim}\n  got: sizes {list(value.shape)}"
                )
        if dims:
            out[sum(counts[:position])] = {dim % value.dim() for dim in dims}
    return out
