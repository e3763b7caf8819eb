"""Numbers in the place of the only tensors that an operator takes.

    y = _conj(1j)     ->     t = scalar_tensor(1j, dtype=complex128)
                             y = _conj_physical(t)

Gradients of products with complex numbers and functions over batches (`vmap`) bring them along.
Operators that also take a tensor know what to do with a number beside it."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from aten_lowering.passes.base import call, replace, tensor
from aten_lowering.torch_compat import FakeTensor

aten = torch.ops.aten
# As torch makes tensors of numbers.
_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
# What torch computes where it has no memory to look at in another way.
_COMPUTED = {
    aten._conj.default: aten._conj_physical.default,
    aten._neg_view.default: aten.neg.default,
}


def numbers_alone(graph: fx.Graph) -> None:
    """Changes the graph; new nodes have fake tensors, too."""
    for node in list(graph.nodes):
        out = tensor(node)
        if out is None or not isinstance(node.target, OpOverload):
            continue
        if any(tensor(n) is not None for n in node.all_input_nodes):
            continue
        wanted = node.target._schema.arguments[: len(node.args)]
        places = [n for n, a in enumerate(wanted) if isinstance(a.type, torch.TensorType)]
        numbers = [n for n in places if type(node.args[n]) in _DTYPES]
        with (
            graph.inserting_before(node),
            out.fake_mode if isinstance(out, FakeTensor) else nullcontext(),
        ):
            for place in numbers:
                number: Any = node.args[place]
                kind = {"dtype": _DTYPES[type(number)], "device": out.device}
                scalar = call(graph, aten.scalar_tensor.default, number, **kind)
                node.update_arg(place, scalar)
            if numbers:
                target = _COMPUTED.get(node.target, node.target)
                replace(node, call(graph, target, *node.args, **node.kwargs))
