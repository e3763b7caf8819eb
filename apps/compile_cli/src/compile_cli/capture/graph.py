"""A module, function or exported program -> one flat ATen graph.

The flat graph takes every tensor it needs as an input: parameters, buffers and constants first
(`lifted`), then the caller's tensors. What the model writes into its inputs or buffers is a
trailing `aten.copy_` into the placeholder."""

import inspect
import logging
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    OutputKind,
    TensorArgument,
)
from torch.fx.experimental.proxy_tensor import make_fx

from aten_lowering import StatesOfLSTMs, decompose, in_memory, own_composites, storage_key
from aten_lowering.fakes import correct_fakes
from aten_lowering.passes.readable_masks import make_masks_readable
from aten_lowering.passes.writable_views import writable_views
from compile_cli.capture.aliases import Window, return_inputs, returned_inputs
from compile_cli.capture.overlaps import (
    refuse_new_layouts,
    refuse_new_ranks,
    refuse_overlaps,
)
from compile_cli.capture.seen_calls import SeenCalls
from compile_cli.capture.user_code import where
from compile_cli.capture.without_gpu import capture_kernels
from compile_cli.errors import CompileFailed, GraphBreak, first_line
from compile_cli.torch_compat import export_at_level

# Of a graph that is functional: the graph that is not.
_WRITTEN = "compile_cli: as it runs"
# Where Triton launches a kernel.
_LAUNCH = str(Path("triton", "runtime", "jit.py"))


@dataclass(frozen=True)
class Captured:
    """A flat ATen graph and how a call of the model maps to it.

    lifted: tensors for the first placeholders, by placeholder name.
    constants: inputs that are no tensors, by position among the flattened inputs: the value that
        the graph was captured with.
    tensor_inputs: positions of the flattened inputs that the graph takes, in order.
    outputs: for each flattened result, a position in the graph's results, or the constant.
    windows: results of the graph that are inputs, of which the model returns a view that reaches
        out of them."""

    graph: torch.fx.GraphModule
    lifted: dict[str, Tensor]
    constants: dict[int, Any]
    tensor_inputs: tuple[int, ...]
    input_names: tuple[str, ...]
    outputs: tuple[tuple[bool, Any], ...]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    windows: Mapping[int, Window]

    @property
    def written(self) -> tuple[int, ...]:
        """Which of the graph's inputs it writes to."""
        inputs = self.graph.graph.find_nodes(op="placeholder")
        copy = torch.ops.aten.copy_.default
        return tuple(
            i
            for i, n in enumerate(inputs)
            if any(u.target is copy and u.args[0] is n for u in n.users)
        )

    def given(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The graph's inputs, of a call with these flattened arguments."""
        return (*self.lifted.values(), *(leaves[i] for i in self.tensor_inputs))

    @property
    def tensors(self) -> tuple[Any, ...]:
        """What the graph was captured with: fake tensors, `lifted` first."""
        return tuple(n.meta.get("val") for n in self.graph.graph.find_nodes(op="placeholder"))


def input_names(model: nn.Module, args: tuple[Any, ...]) -> list[str]:
    """Names of the positional arguments: the parameters of `forward`."""
    names: list[str] = []
    parameters = list(inspect.signature(model.forward).parameters.values())
    for i in range(len(args)):
        if i < len(parameters) and parameters[i].kind is not inspect.Parameter.VAR_POSITIONAL:
            names.append(parameters[i].name)
        else:
            names.append(f"arg{i}")
    return names


def export(
    model: nn.Module, args: tuple[Any, ...], dynamic: Mapping[int, set[int]]
) -> torch.export.ExportedProgram:
    """Captures a module for example arguments. `dynamic`: position among the flattened arguments
    -> dimensions that stay symbolic; one whose value the model itself needs (`linspace(0, 1, n)`)
    is static."""
    leaves, spec = pytree.tree_flatten(args)
    # A tensor that is passed twice is two inputs, which may be different ones in another call; so
    # are two views of one. A view is a tensor of its own: torch would ask about the sizes of its
    # base.
    known: set[int] = set()
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
            leaf = leaf.detach() if leaf._is_view() else leaf
            leaves[i] = _apart(leaf) if storage_key(leaf) in known else leaf
            known.add(storage_key(leaf))
    args = pytree.tree_unflatten(leaves, spec)
    shapes: Any = None
    if dynamic:
        collection: Any = _shapes_collection()
        for i, dims in dynamic.items():
            collection[leaves[i]] = dict.fromkeys(dims, torch.export.Dim.AUTO)
        shapes = collection.dynamic_shapes(model, args)
    seen = SeenCalls()
    correct_fakes()
    try:
        with torch.no_grad(), _quiet(), StatesOfLSTMs(), own_composites(), seen:
            return torch.export.export(model, args, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        # Tracing runs the user's code and raises errors of many classes: none of them a graph.
        refuse_new_ranks(seen.reshaped)
        program = None
        if seen.transforms:
            program = _export_transforms(model, args, shapes, seen)
        elif any(f.filename.endswith(_LAUNCH) for f in traceback.extract_tb(error.__traceback__)):
            program = _export_launches(model, args, shapes)
        if program is not None:
            return program
        raise GraphBreak(where(error), f"{type(error).__name__}: {first_line(error)}") from error


def _export_transforms(
    model: nn.Module, args: tuple[Any, ...], shapes: Any, seen: SeenCalls
) -> torch.export.ExportedProgram | None:
    """A module that calls transforms of `torch.func`, captured below autograd, where the gradients
    that they take are operators like others. (torch.export captures above it, and leaves wrapped
    tensors in the graph.) There the graph is functional already, and says neither what overlaps nor
    which results are inputs: that says a second one."""
    try:
        with torch.no_grad(), _quiet(), StatesOfLSTMs(), own_composites(), seen:
            program: torch.export.ExportedProgram = export_at_level(
                model, args, dynamic_shapes=shapes, strict=False, pre_dispatch=False
            )
            program.graph_module.meta[_WRITTEN] = _as_it_runs(model, program)
    except Exception:  # as above; the caller has an error to raise
        return None
    return program


def _as_it_runs(model: nn.Module, program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
    """What the module calls, writes among it, with the inputs of the program's graph. In front of
    the results stand as many others as the program has for what it writes."""
    signature, spec = program.graph_signature, program.call_spec.in_spec
    written = [None for o in signature.output_specs if o.kind is not OutputKind.USER_OUTPUT]

    def run(*inputs: Any) -> list[Any]:
        given = list(zip(signature.input_specs, inputs, strict=True))
        state = {s.target: x for s, x in given if s.kind in (InputKind.PARAMETER, InputKind.BUFFER)}
        args, kwargs = pytree.tree_unflatten(
            [x for s, x in given if s.kind is InputKind.USER_INPUT], spec
        )
        results = torch.func.functional_call(model, state, args, kwargs)
        return [*written, *pytree.tree_leaves(results)]

    fakes = [n.meta["val"] for n in program.graph.find_nodes(op="placeholder")]
    traced: torch.fx.GraphModule = make_fx(run)(*fakes)
    for node, fake in zip(traced.graph.find_nodes(op="placeholder"), fakes, strict=True):
        node.meta.setdefault("val", fake)
    return traced


def _export_launches(
    model: nn.Module, args: tuple[Any, ...], shapes: Any
) -> torch.export.ExportedProgram | None:
    """A module that launches Triton kernels, which Dynamo captures, and tracing would run."""
    capture_kernels()
    try:
        with torch.no_grad(), _quiet(), own_composites():
            return torch.export.export(model, args, dynamic_shapes=shapes, strict=True)
    except Exception:  # as above
        return None


def _apart(x: Tensor) -> Tensor:
    """A tensor like `x` in memory of its own, whose values do not matter."""
    plain = in_memory(x)
    new = torch.empty_strided(x.shape, x.stride(), dtype=plain.dtype, device=x.device)
    new = new.conj() if x.is_conj() else new
    return torch._neg_view(new) if x.is_neg() else new


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what torch.export prints and logs on its way to an error off the terminal: the error
    says it."""
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        log.setLevel(level)


def _shapes_collection() -> Any:
    return torch.export.dynamic_shapes.ShapesCollection()  # type: ignore[no-untyped-call]  # of torch


def capture(program: torch.export.ExportedProgram) -> Captured:
    """An exported program, decomposed and made flat."""
    signature = program.graph_signature
    lifted: dict[str, Tensor] = {}
    constants: dict[int, Any] = {}
    tensor_inputs: list[int] = []
    names: list[str] = []
    position = 0
    for spec in signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            names.append(spec.arg.name)
            if isinstance(spec.arg, ConstantArgument):
                constants[position] = spec.arg.value
            elif isinstance(spec.arg, TensorArgument):
                tensor_inputs.append(position)
            else:
                raise CompileFailed(
                    f"input {spec.arg.name} is a {type(spec.arg).__name__}\n"
                    "  expected: tensors and plain constants"
                )
            position += 1
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            lifted[spec.arg.name] = _lifted(program, spec.target or "")
        else:
            raise CompileFailed(
                f"the model takes {spec.arg.name}, a {spec.kind.name.lower()}\n"
                "  expected: parameters, buffers, tensors and plain constants"
            )
    as_it_runs = program.graph_module.meta.get(_WRITTEN, program.graph_module)
    refuse_overlaps(as_it_runs)
    refuse_new_layouts(as_it_runs)
    returned = returned_inputs(as_it_runs, signature)
    writable_views(program.graph_module)
    try:
        with torch.no_grad(), _quiet():
            graph = decompose(program)
    except (AssertionError, RuntimeError) as error:  # torch makes no functional graph of it
        raise GraphBreak(where(error), f"{type(error).__name__}: {first_line(error)}") from error
    make_masks_readable(graph)
    placeholders = {n.name: n for n in graph.graph.find_nodes(op="placeholder")}
    for i in constants:
        graph.graph.erase_node(placeholders[names[i]])
    outputs = _write_mutations(graph, signature, placeholders)
    places = [returned[i] for i, (is_result, _) in enumerate(outputs) if is_result]
    windows = return_inputs(graph, places)
    graph.recompile()
    spec = program.call_spec
    if spec.in_spec is None or spec.out_spec is None:
        raise CompileFailed("the exported program does not say how its inputs are nested")
    given, nested = (tuple(tensor_inputs), tuple(names)), (spec.in_spec, spec.out_spec)
    return Captured(graph, lifted, constants, *given, outputs, *nested, windows)


def _lifted(program: torch.export.ExportedProgram, target: str) -> Tensor:
    if target in program.state_dict:
        value = program.state_dict[target]
    else:
        value = program.constants[target]
    if not isinstance(value, Tensor):
        raise CompileFailed(f"constant {target} is a {type(value).__name__}, not a tensor")
    return value.detach()


def _write_mutations(
    graph: torch.fx.GraphModule,
    signature: ExportGraphSignature,
    placeholders: dict[str, torch.fx.Node],
) -> tuple[tuple[bool, Any], ...]:
    """Results that stand for mutations become `aten.copy_` into their placeholder; the rest stay
    results of the graph."""
    (output,) = (n for n in graph.graph.nodes if n.op == "output")
    by_target = {
        spec.target: placeholders[spec.arg.name]
        for spec in signature.input_specs
        if spec.target is not None and spec.arg.name in placeholders
    }
    kept: list[Any] = []
    results: list[tuple[bool, Any]] = []
    for spec, value in zip(signature.output_specs, output.args[0], strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            if isinstance(spec.arg, ConstantArgument):
                results.append((False, spec.arg.value))
            else:
                results.append((True, len(kept)))
                kept.append(value)
        elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            target = spec.target or ""
            place = by_target.get(target) or placeholders[target]
            with graph.graph.inserting_before(output):
                node = graph.graph.call_function(torch.ops.aten.copy_.default, (place, value))
                node.meta["val"] = place.meta["val"]
        else:
            raise CompileFailed(f"the model returns a {spec.kind.name.lower()}")
    output.args = (tuple(kept),)
    return tuple(results)
