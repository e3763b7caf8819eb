"""Results that share the memory of inputs, as in eager.

A functional graph gives values: an input that the model writes and returns is a new tensor there,
and so is each view of it. What the model returned says the program before it was made functional.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.export.graph_signature import ExportGraphSignature, OutputKind
from torch.fx import GraphModule, Node

from aten_lowering import storage_key

aten = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


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
    torch's fake of `channel_shuffle` where nothing moves is its operand, which is copied."""
    key, at = storage_key(value.meta["val"]), value
    while at.op == "call_function":
        op = at.target
        if isinstance(op, OpOverload) and not any(r.alias_info for r in op._schema.returns):
            # Composite ones, such as dropout that drops nothing, return operands without a word.
            return not op.has_kernel_for_dispatch_key(_COMPOSITE)
        tensors = [n for n in at.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
        same = [n for n in tensors if storage_key(n.meta["val"]) == key]
        if not same:
            break
        at = same[0]
    return False


def return_inputs(graph: GraphModule, returned: Sequence[tuple[int, Tensor] | None]) -> None:
    """Makes results the inputs' memory where `returned` says so, and new memory where it does not.
    The results of `graph` are those of the model, its writes to inputs are nodes."""
    inputs = graph.graph.find_nodes(op="placeholder")
    keys = [storage_key(n.meta["val"]) for n in inputs if isinstance(n.meta.get("val"), Tensor)]
    (output,) = graph.graph.find_nodes(op="output")
    results = list(_results(graph))
    tensors = [i for i, n in enumerate(results) if isinstance(n, Node)]
    with graph.graph.inserting_before(output):
        for i in tensors:
            value, place = results[i].meta.get("val"), returned[i]
            if not isinstance(value, Tensor):
                continue
            if place is not None and storage_key(value) != storage_key(place[1]):
                results[i] = _view(graph, inputs[place[0]], place[1])
            elif place is None and storage_key(value) in keys:
                results[i] = graph.graph.call_function(aten.clone.default, (results[i],))
                results[i].meta["val"] = value.clone()
    output.args = (tuple(results),)


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
