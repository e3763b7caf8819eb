"""Results that share the memory of inputs, as in eager.

A functional graph gives values: an input that the model writes and returns is a new tensor there,
and so is each view of it. What the model returned says the program before it was made functional.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.export.graph_signature import ExportGraphSignature, OutputKind
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from aten_lowering import storage_key
from compile_cli.torch_compat import COMPOSITE, OutputType, ViewAndMutationMeta

aten = torch.ops.aten


def returned_inputs(
    graph: GraphModule, signature: ExportGraphSignature
) -> list[tuple[int, Tensor] | None]:
    """For each result of the model: which input's memory it lies in, and how it sees it."""
    inputs = {
        storage_key(n.meta["val"]): i
        for i, n in reversed(list(enumerate(graph.graph.find_nodes(op="placeholder"))))
        if isinstance(n.meta.get("val"), Tensor)
    }
    found: list[tuple[int, Tensor] | None] = []
    for spec, value in zip(signature.output_specs, _results(graph), strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            fake = value.meta.get("val") if isinstance(value, Node) else None
            if isinstance(fake, Tensor) and storage_key(fake) in inputs and not _is_new(value):
                found.append((inputs[storage_key(fake)], fake))
            else:
                found.append(None)
    return found


def _is_new(value: Node) -> bool:
    """Whether an operator made the memory of a value that, by its fake tensor, is another's:
    torch's fake of `channel_shuffle` where nothing moves is its operand, which is copied on the
    CPU, and where it is not contiguous."""
    key, at = storage_key(value.meta["val"]), value
    while at.op == "call_function":
        op = at.target
        if isinstance(op, OpOverload) and not any(r.alias_info for r in op._schema.returns):
            if op is aten.channel_shuffle.default:
                fake = at.meta["val"]
                return fake.device.type == "cpu" or not fake.is_contiguous()
            # Composite ones, such as dropout that drops nothing, return operands without a word.
            return not op.has_kernel_for_dispatch_key(COMPOSITE)
        tensors = [n for n in at.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
        same = [n for n in tensors if storage_key(n.meta["val"]) == key]
        if not same:
            break
        at = same[0]
    return False


@dataclass(frozen=True)
class Window:
    """How a result sees the memory of an input that it reaches out of. start: elements from where
    the input begins."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    start: int

    def of(self, x: Tensor) -> Tensor:
        """The view. Raises a `RuntimeError` where the storage of `x` ends before."""
        return x.as_strided(self.size, self.stride, x.storage_offset() + self.start)


def return_inputs(
    graph: GraphModule, returned: Sequence[tuple[int, Tensor] | None]
) -> dict[int, Window]:
    """Makes results the inputs' memory where `returned` says so, and new memory where it does not.
    The results of `graph` are those of the model, its writes to inputs are nodes. Gives those which
    reach out of their input, for which the graph returns the input itself."""
    windows: dict[int, Window] = {}
    inputs = graph.graph.find_nodes(op="placeholder")
    keys = [storage_key(n.meta["val"]) for n in inputs if isinstance(n.meta.get("val"), Tensor)]
    copies = graph.graph.find_nodes(op="call_function", target=aten.copy_.default)
    written = {n.args[0]: n.args[1] for n in copies}
    made: dict[Node, Node] = {}
    (output,) = graph.graph.find_nodes(op="output")
    results = list(_results(graph))
    tensors = [i for i, n in enumerate(results) if isinstance(n, Node)]
    with graph.graph.inserting_before(output):
        for i in tensors:
            value, place = results[i].meta.get("val"), returned[i]
            if not isinstance(value, Tensor):
                continue
            window = None if place is None else _window(inputs[place[0]].meta["val"], place[1])
            if place is not None and window is not None:
                results[i], windows[i] = inputs[place[0]], window
            elif place is not None and results[i] is written.get(inputs[place[0]]):
                results[i] = inputs[place[0]]
            elif (before := results[i]) in made:
                results[i] = made[before]
            elif place is not None and storage_key(value) != storage_key(place[1]):
                results[i] = made[before] = _view(graph, inputs[place[0]], place[1])
            elif place is None and storage_key(value) in keys:
                results[i] = made[before] = graph.graph.call_function(aten.clone.default, (before,))
                results[i].meta["val"] = value.clone()
    output.args = (tuple(results),)
    return windows


def view_written_inputs(graph: GraphModule, metadata: ViewAndMutationMeta) -> None:
    """Makes results that are views of inputs which the graph writes views of these: of the values
    that it writes, they begin at 0, and AOTAutograd reads of a result where in the memory of the
    input it begins. Of a backward graph, nothing."""
    inputs = graph.graph.find_nodes(op="placeholder")
    copies = graph.graph.find_nodes(op="call_function", target=aten.copy_.default)
    written: dict[Any, Node] = {n.args[1]: n.args[0] for n in copies if n.args[0] in inputs}
    if not written or any(n.name.startswith("tangents_") for n in inputs):
        return
    results: list[Any] = list(_results(graph))
    (output,) = graph.graph.find_nodes(op="output")
    for i, info in enumerate(metadata.output_info, len(metadata.mutated_inp_runtime_indices)):
        chain: list[tuple[OpOverload, Node]] = []
        node = results[i]
        while node not in written and isinstance(node, Node) and (op := _view_op(node)):
            chain.append((op, node))
            node = node.args[0]
        if info.output_type is not OutputType.alias_of_input or node not in written:
            continue
        place = written[node]
        for op, view in reversed(chain):
            seen = (place, *view.args[1:])
            with graph.graph.inserting_before(output):
                place = graph.graph.call_function(op, seen, view.kwargs)
            args, kwargs = map_arg((seen, view.kwargs), lambda n: n.meta["val"])
            with view.meta["val"].fake_mode:
                place.meta["val"] = op(*args, **kwargs)
        results[i] = place
    output.args = (tuple(results),)
    graph.recompile()


def retyped_input(graph: GraphModule) -> str | None:
    """Why a graph of Dynamo's must run as it is: a result of symbolic sizes is an input at another
    type. AOTAutograd takes it for a view of the input's own. None where there is no such result."""
    values = [n.meta.get("example_value") for n in graph.graph.find_nodes(op="placeholder")]
    inputs = {storage_key(v): v for v in values if isinstance(v, Tensor)}
    for node in _results(graph):
        value = node.meta.get("example_value") if isinstance(node, Node) else None
        if not isinstance(value, Tensor) or storage_key(value) not in inputs:
            continue
        types = value.dtype, inputs[storage_key(value)].dtype
        symbolic = any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
        if symbolic and types[0] != types[1] and not any(t.is_complex for t in types):
            return f"{node.name} is an input at another type, of symbolic sizes"
    return None


def _view_op(node: Node) -> OpOverload | None:
    op = node.target
    return op if isinstance(op, OpOverload) and op._schema.returns[0].alias_info else None


def _window(x: Tensor, view: Tensor) -> Window | None:
    """None for a view that lies inside of `x`, or whose place is not known."""
    numbers = [n for t in (x, view) for n in (*t.shape, *t.stride(), t.storage_offset())]
    alike = (x.dtype, x.is_conj(), x.is_neg()) == (view.dtype, view.is_conj(), view.is_neg())
    if not alike or not all(isinstance(n, int) for n in numbers) or 0 in view.shape:
        return None
    start = view.storage_offset() - x.storage_offset()
    ends = [sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) for t in (x, view)]
    if start >= 0 and start + ends[1] <= ends[0]:
        return None
    return Window(tuple(view.shape), view.stride(), int(start))


def _view(graph: GraphModule, place: Node, fake: Tensor) -> Node:
    """`fake`, which lies in the memory of `place`, as a node."""
    node = place
    if place.meta["val"].dtype != fake.dtype:
        node = graph.graph.call_function(aten.view.dtype, (node, fake.dtype))
        node.meta["val"] = fake
    layout = (list(fake.shape), list(fake.stride()), fake.storage_offset())
    node = graph.graph.call_function(aten.as_strided.default, (node, *layout))
    node.meta["val"] = fake
    return node


def _results(graph: GraphModule) -> Sequence[Node]:
    (output,) = graph.graph.find_nodes(op="output")
    results: Sequence[Node] = output.args[0]
    return results
