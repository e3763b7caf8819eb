"""Numbers in the place of the only tensors that an operator takes.

    y = _to_copy(2, dtype=float32)     ->     t = scalar_tensor(2, dtype=int64)
                                              y = _to_copy(t, dtype=float32)

Gradients of products with complex numbers (`_conj(1j)`) and functions over batches (`vmap`) bring
them along. Operators that also take a tensor know what to do with a number beside it.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from aten_lowering.passes.base import call, tensor
from aten_lowering.torch_compat import FakeTensor

aten = torch.ops.aten
# As torch makes tensors of numbers.
_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def numbers_alone(graph: fx.Graph) -> None:
    """Changes the graph; new nodes have fake tensors, too."""
    for node in list(graph.nodes):
        out = tensor(node)
        if out is None or not isinstance(node.target, OpOverload):
            continue
        if any(tensor(n) is not None for n in node.all_input_nodes):
            continue
        for place, (given, wanted) in enumerate(
            zip(node.args, node.target._schema.arguments, strict=False)
        ):
            if isinstance(wanted.type, torch.TensorType) and type(given) in _DTYPES:
                node.update_arg(place, _scalar(graph, node, given, out))


def _scalar(graph: fx.Graph, user: fx.Node, number: Any, like: Tensor) -> fx.Node:
    with (
        graph.inserting_before(user),
        like.fake_mode if isinstance(like, FakeTensor) else nullcontext(),
    ):
        kwargs = {"dtype": _DTYPES[type(number)], "device": like.device}
        return call(graph, aten.scalar_tensor.default, number, **kwargs)
