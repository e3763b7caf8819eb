"""An exported program -> one functional graph of decomposed ATen operators.

`ExportedProgram.run_decompositions` is for programs that are saved: it makes a module of the
program, traces it twice, names, checks and describes the result. This traces the graph once.
The one place that touches what torch uses to trace."""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from keyword import iskeyword
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.export import ExportedProgram, ExportGraphSignature
from torch.export.exported_program import (
    _override_composite_implicit_decomp,
    _split_decomp_table_to_cia_and_python_decomp,
)
from torch.export.graph_signature import InputKind
from torch.fx.experimental.proxy_tensor import (
    make_fx,
    maybe_disable_thunkify,
    maybe_enable_thunkify,
)
from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts, ShapeEnv
from torch.overrides import TorchFunctionMode

from aten_lowering import torch_compat as compat
from aten_lowering.decomposition import decompositions
from aten_lowering.whole import Kernels, exchanged, own_composites

aten = torch.ops.aten

Rules = dict[Any, Callable[..., Any]]


def decompose(program: ExportedProgram) -> fx.GraphModule:
    """The graph of a program with `decompositions()` applied. Its inputs and results are those of
    `program.graph_signature`; what the program writes into its inputs are `aten.copy_` at the end.
    Raises `RuntimeError` or `AssertionError` where torch makes no functional graph of it."""
    source = program.graph_module
    _fill_with_numbers(source.graph)
    _squeeze_states(source.graph)
    places = source.graph.find_nodes(op="placeholder")
    inputs = [n.meta["val"] for n in places]
    fakes = next((x.fake_mode for x in inputs if isinstance(x, compat.FakeTensor)), None)
    if fakes is None:
        fakes = compat.FakeTensorMode(shape_env=ShapeEnv(), export=True)
    mode = compat.FunctionalTensorMode(_allow_token_discovery=True)
    written: list[int] = []

    @maybe_enable_thunkify()
    def functional(*given: Any) -> list[Any]:
        fakes.epoch += 1  # sizes that depend on data are other symbols than when they were exported
        inside = [compat.to_fun(x) for x in given]
        with maybe_disable_thunkify(), fx.traceback.preserve_node_meta():
            results = PropagateUnbackedSymInts(source).run(*inside)
        tensors = [i for i, x in enumerate(inside) if isinstance(x, Tensor)]
        written.extend(i for i in tensors if compat.has_data_mutation(inside[i]))
        return [compat.from_fun(x) for x in (*(inside[i] for i in written), *results)]

    with compat.unset_fake_temporarily(), ExitStack() as stack:
        kernels, rules, table = _prepared()
        for context in (
            torch.no_grad(),
            compat.without_functionalization(),
            compat.functorch_config.patch(decompose_custom_triton_ops=False),
            compat.ignore_backend_decomps(),
            compat.compiling_state(),
            own_composites(),
            exchanged(kernels),
            _fake_rules(rules),
            fakes,
            compat.tracing(compat.TracingContext(fakes)),
            compat.enable_python_dispatcher(),
            mode,
        ):
            stack.enter_context(context)
        _ask(program, inputs, fakes.shape_env)
        traced: fx.GraphModule = make_fx(functional, table, _disable_torch_fn_metadata_mode=True)(
            *inputs
        )
    if mode._tokens:
        raise RuntimeError("the model calls operators that must run in order")
    graph = traced.graph
    compat.assert_functional_graph(graph)
    _name_inputs(graph, places)
    _write(graph, written, program.graph_signature)
    _declare_states(graph)
    graph.eliminate_dead_code()
    traced.recompile()
    return traced


def _ask(program: ExportedProgram, inputs: list[Any], shapes: Any) -> None:
    """A program that was loaded from a file has its guards as code alone: asked of the inputs, they
    are in the `ShapeEnv` again."""
    if program._guards_code and not shapes.guards:
        specs = program.graph_signature.input_specs
        users = [x for s, x in zip(specs, inputs, strict=True) if s.kind is InputKind.USER_INPUT]
        module_of(program).get_submodule("_guards_fn")(*users)


def module_of(program: ExportedProgram) -> torch.nn.Module:
    """`program.module()`, of which torch writes Python: with parameters that have names there."""
    held = {**program.state_dict, **program.constants}
    odd = {n for n in held if not all(a.isidentifier() and not iskeyword(a) for a in n.split("."))}
    if not odd:
        return program.module()
    names = {n: f"held_{i}" if n in odd else n for i, n in enumerate(held)}
    named, signature = copy.copy(program), copy.deepcopy(program.graph_signature)
    for spec in (*signature.input_specs, *signature.output_specs):
        if spec.target in odd:
            spec.target = names[spec.target]
    named._graph_signature = signature
    named._state_dict = {names[n]: x for n, x in program.state_dict.items()}
    named._constants = {names[n]: x for n, x in program.constants.items()}
    return named.module()


def _name_inputs(graph: fx.Graph, names: list[fx.Node]) -> None:
    """Gives the inputs the names, and the fake tensors, of those of another graph."""
    inputs = graph.find_nodes(op="placeholder")
    taken = {n.name for n in names}
    for node in graph.nodes:
        if node.op != "placeholder" and node.name in taken:
            node._rename(node.name)
    for node, name in zip(inputs, names, strict=True):
        node.name = node.target = name.name
        node.meta["val"] = name.meta["val"]


def _write(graph: fx.Graph, written: list[int], signature: ExportGraphSignature) -> None:
    """The first results are what these inputs hold in the end: copies into them in place of
    results. `self.count = new` is exported as `self.count.copy_(new)`: `new` is copied but once."""
    (output,) = graph.find_nodes(op="output")
    inputs = graph.find_nodes(op="placeholder")
    values = output.args[0]
    state = {*signature.inputs_to_buffers, *signature.inputs_to_parameters}
    with graph.inserting_before(output):
        for i, value in zip(written, values, strict=False):
            if inputs[i].name in state and value.target is aten.copy.default:
                value = value.args[1]
            copy = graph.call_function(aten.copy_.default, (inputs[i], value))
            copy.meta["val"] = inputs[i].meta["val"]
    output.args = (tuple(values[len(written) :]),)


class StatesOfLSTMs(TorchFunctionMode):
    """While it is open, the states that torch traces of an LSTM are eager's, of rank 3: its fake
    tensors keep the dimension of one step that they add, and lose a batch of one in its place."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not torch.lstm or not isinstance(result[1], Tensor):
            return result
        return result[0], *(s.squeeze(1) if s.dim() == 4 else s for s in result[1:])


def _squeeze_states(graph: fx.Graph) -> None:
    """As `StatesOfLSTMs`, for programs that were exported without it."""
    for node in graph.find_nodes(op="call_function", target=aten.lstm.input):
        for state in [n for n in node.users if n.meta["val"].dim() == 4]:
            if all(user.target is aten.squeeze.dim for user in state.users):
                continue
            with graph.inserting_after(state):
                squeezed = graph.call_function(aten.squeeze.dim, (state, 1))
            squeezed.meta["val"] = state.meta["val"].squeeze(1)
            state.replace_all_uses_with(squeezed, lambda user, new=squeezed: user is not new)


def _declare_states(graph: fx.Graph) -> None:
    """What `StatesOfLSTMs` squeezes are the results of the operator itself."""
    for node in graph.find_nodes(op="call_function", target=aten.lstm.input):
        values = list(node.meta["val"])
        for state in [n for n in node.users if n.meta["val"].dim() == 4]:
            for squeezed in list(state.users):
                values[state.args[1]] = state.meta["val"] = squeezed.meta["val"]
                squeezed.replace_all_uses_with(state)
                graph.erase_node(squeezed)
        node.meta["val"] = tuple(values)


def _fill_with_numbers(graph: fx.Graph) -> None:
    """`copy_(x, 0.1) -> fill_(x, 0.1)`: torch looks for the node that is copied."""
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        if isinstance(node.args[1], bool | int | float | complex):
            node.target = aten.fill_.Scalar


@functools.cache
def _prepared() -> tuple[Kernels, Rules, Rules]:
    """The Python kernels and the rules for fake tensors of the composite operators that do not
    decompose as they do by themselves, those that stay whole among them; and the decompositions
    of the operators that are not composite. What is registered later decomposes by itself."""
    rules: Rules = dict(decompositions().items())
    composite, table = _split_decomp_table_to_cia_and_python_decomp(rules)
    own = compat.COMPOSITE
    kept = {
        op: rule
        for op, rule in composite.items()
        # torch's table has a `partial` for a rule in C++, and the function itself in Python.
        if not isinstance(rule, functools.partial) and rule is not op.py_kernels.get(own)
    }
    fakes = [op for op in kept if op not in compat.op_implementations_dict]
    with own_composites(), _override_composite_implicit_decomp(kept):
        kernels = {op: dict(op.py_kernels) for op in kept if isinstance(op, OpOverload)}
        return kernels, {op: compat.op_implementations_dict[op] for op in fakes}, table


@contextmanager
def _fake_rules(rules: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """While it is open, fake tensors follow these rules, of operators for which they have none."""
    compat.op_implementations_dict.update(rules)
    try:
        yield
    finally:
        for op in rules:
            compat.op_implementations_dict.pop(op)
