"""What the passes ask of a node before they drop or merge it."""

import operator
from collections import Counter

import torch
from torch import fx
from torch._ops import OpOverload

from aten_lowering.memory import storage_key
from aten_lowering.opaque import Opaque
from aten_lowering.user_kernels import writes_in_place


def mutates(graph: fx.Graph) -> bool:
    """Any op of the graph writes to an argument in place. What inputs are given at the end, after
    everything else has run, does not count (`written_inputs`)."""
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    while nodes and _gives_back(nodes[-1]):
        nodes.pop()
    return any(
        writes_in_place(n)
        or (isinstance(n.target, Opaque) and n.target.written)
        or (isinstance(n.target, OpOverload) and n.target._schema.is_mutable)
        for n in nodes
    )


def written_inputs(graph: fx.Graph) -> set[int]:
    """Storages of the inputs that `copy_` writes to."""
    copies = [n for n in graph.nodes if n.op == "call_function" and _gives_back(n)]
    return {storage_key(n.args[0].meta["val"]) for n in copies}


def _gives_back(node: fx.Node) -> bool:
    target = node.args[0] if node.target is torch.ops.aten.copy_.default else None
    return isinstance(target, fx.Node) and target.op == "placeholder"


def is_pure(node: fx.Node) -> bool:
    """The same arguments always give the same result, and nothing else happens."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    tags = node.target.tags
    random = torch.Tag.nondeterministic_seeded in tags or torch.Tag.nondeterministic_bitwise in tags
    return not node.target._schema.is_mutable and not random and bool(node.target._schema.returns)


def escaping_storages(graph: fx.Graph) -> Counter[int]:
    """Storages of the graph's inputs, constants and results, how many lie in each: what a caller
    can see or write."""
    ends = [n for n in graph.nodes if n.op in ("placeholder", "get_attr")]
    ends += graph.output_node().all_input_nodes
    values = (n.meta.get("val") for n in ends)
    return Counter(storage_key(v) for v in values if isinstance(v, torch.Tensor))
