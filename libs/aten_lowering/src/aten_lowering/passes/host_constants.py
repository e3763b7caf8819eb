"""What a program for a GPU computes on the CPU of constants alone is computed once.

    s = sqrt(lift_fresh_copy(192.0)); y = x / s          ->   y = x / 13.856406
    i = lift_fresh_copy([0, 2]); y = index(x, [None, i])  ->   y = index(x, [None, i on the GPU])
    m = _to_copy(lift_fresh_copy(3.0), device=cuda)       ->   m = full([], 3.0, device=cuda)

Models write `torch.tensor(...)` of numbers and short lists. Each use of one would be an operator of
torch's, and each copy to a GPU would wait for it."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from aten_lowering.opaque import attribute
from aten_lowering.passes.base import tensor
from aten_lowering.passes.purity import is_pure, mutates
from aten_lowering.torch_compat import FakeTensor, unset_fake_temporarily

aten = torch.ops.aten
_MOST = 4096  # elements that are computed here
_MOVES = (aten._to_copy.default, torch.ops.prims.device_put.default)
# What also takes tensors of the CPU, of more than a number, beside those of a GPU, and moves them.
_TAKE_ANY = (*_MOVES, aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default)
# On a GPU these take a number of the CPU as it is, unrounded to the other operand's type.
_OF_NUMBERS = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)


def host_constants(root: torch.nn.Module, graph: fx.Graph) -> None:
    """Changes the graph. What it adds are numbers, and constants that nodes carry themselves."""
    fakes = {node: value for node in graph.nodes if (value := tensor(node)) is not None}
    if not any(value.is_cuda for value in fakes.values()) or mutates(graph):
        return
    known: dict[fx.Node, Tensor] = {}
    made: dict[tuple[fx.Node, torch.device], fx.Node] = {}
    with unset_fake_temporarily(), torch.no_grad():
        for node, fake in fakes.items():
            if not fake.is_cuda:
                if (value := _value(root, node, fake, known)) is not None:
                    known[node] = value
                continue
            given = [n for n in node.all_input_nodes if n in known]
            if not torch.cuda.is_available() or node.target not in _TAKE_ANY:
                given = [n for n in given if not fakes[n].dim()]
            if not given:
                continue
            if node.target in _MOVES and not fake.dim():
                kind: dict[str, Any] = {"dtype": fake.dtype, "device": fake.device}
                node.args, node.kwargs = ([], known[given[0]].to(fake.dtype).item()), kind
                node.target = aten.full.default
                continue
            beside = [fakes.get(n) for n in node.all_input_nodes if n not in known]
            alike = all(other is not None and other.dtype == fake.dtype for other in beside)
            alike = alike and node.target in _OF_NUMBERS
            new: dict[fx.Node, Any] = {}
            for n in given:
                with graph.inserting_before(node):
                    number = alike and not fakes[n].dim()
                    value = known[n]
                    new[n] = value.item() if number else _constant(graph, n, value, fake, made)
            node.args, node.kwargs = _with(new, (node.args, node.kwargs))


def _with(new: Mapping[fx.Node, Any], arguments: Any) -> Any:
    """The arguments, nodes replaced."""
    return fx.node.map_arg(arguments, lambda n: new.get(n, n))


def _value(
    root: torch.nn.Module, node: fx.Node, fake: Tensor, known: dict[fx.Node, Tensor]
) -> Tensor | None:
    """What a node on the CPU gives, if that is known and short."""
    if not all(isinstance(n, int) for n in fake.shape) or fake.numel() > _MOST:
        return None
    if node.op == "get_attr":
        value = attribute(root, node)
        return value if isinstance(value, Tensor) and not isinstance(value, FakeTensor) else None
    computed = is_pure(node) and isinstance(node.target, OpOverload)
    if not computed or not known.keys() >= set(node.all_input_nodes):
        return None
    args, kwargs = _with(known, (node.args, node.kwargs))
    value = node.target(*args, **kwargs)  # type: ignore[operator]  # an operator is called
    return value.resolve_conj().resolve_neg() if isinstance(value, Tensor) else None


def _constant(
    graph: fx.Graph,
    node: fx.Node,
    value: Tensor,
    beside: Tensor,
    made: dict[tuple[fx.Node, torch.device], fx.Node],
) -> fx.Node:
    """The constant: a number is one of the CPU still, which kernels are told; what is more lies
    where `beside` does, if that is here."""
    if (node, device := beside.device) not in made:
        value = value.to(device) if value.dim() else value.clone()
        new = graph.get_attr(f"{node.name}_known")
        new.meta = {**node.meta, "constant": value}
        if value.dim():
            with beside.fake_mode if isinstance(beside, FakeTensor) else nullcontext():
                new.meta["val"] = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device=device
                )
        made[node, device] = new
    return made[node, device]
