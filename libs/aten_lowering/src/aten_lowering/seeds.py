"""Seeds of the random operators of a graph: torch's generator makes them, one call a device."""

from collections.abc import Callable
from dataclasses import replace

import sympy
import torch
from torch import fx
from torch._ops import OpOverload

from aten_lowering.builder import Operand
from aten_lowering.drawn import ROW
from aten_lowering.errors import require
from aten_lowering.meta import device_of
from loop_ir import DType, Extern, Graph, GraphInput, TensorRef, TensorType
from loop_ir.ir import fresh_name, writes

_RANGE = (0, 2**63 - 1)


def is_drawn(node: fx.Node) -> bool:
    """Whether an operator draws random numbers."""
    target, fake = node.target, node.meta.get("val")
    fake = fake[0] if isinstance(fake, list | tuple) and fake else fake
    if not isinstance(target, OpOverload) or not isinstance(fake, torch.Tensor):
        return False
    return torch.Tag.nondeterministic_seeded in target.tags


def seed_name(node: fx.Node) -> str:
    """What the seed of a random operator is called."""
    return f"seed_{node.name}"


class Seeds:
    """A number of 63 bits for each random operator, drawn by one `aten.randint` a device each time
    the graph runs (`draw`). So the generator's state decides what is random and moves on, on the
    device, and CUDA graphs replay as they do any of torch's random operators. Each seed is a buffer
    of its own: kernels that differ in nothing else are alike.

    fresh: names a new buffer. drawn: the seeds that are used."""

    def __init__(self, fresh: Callable[[str], str]) -> None:
        self.fresh = fresh
        self.drawn: dict[fx.Node, GraphInput] = {}

    def of(self, node: fx.Node) -> Operand:
        """The seed of a random operator, the first number of a buffer."""
        require(is_drawn(node), "a random operator without a seed")
        if node not in self.drawn:
            fake = node.meta["val"]
            fake = fake[0] if isinstance(fake, list | tuple) else fake
            size, device = (sympy.Integer(ROW),), device_of(fake.device)
            type = TensorType(DType.i64, size, (sympy.S.One,), device)
            self.drawn[node] = GraphInput(self.fresh(seed_name(node)), type)
        seed = self.drawn[node]
        assert seed.type is not None
        return Operand(TensorRef(seed.name, seed.type), seed.type)


def draw(graph: Graph, inputs: int) -> Graph:
    """The graph with the calls that make its seeds: its inputs but for the first `inputs`."""
    made: list[Extern] = []
    taken = {i.name for i in graph.inputs}.union(*map(writes, graph.nodes))
    seeds = [(i.name, i.type) for i in graph.inputs[inputs:] if i.type is not None]
    for device in dict.fromkeys(type.device for _, type in seeds):
        outs = tuple(seed for seed in seeds if seed[1].device == device)
        (name, row), several = outs[0], len(outs) > 1
        if several:
            size, stride = (sympy.Integer(len(outs)), *row.size), (row.size[0], sympy.S.One)
            name, row = fresh_name("seeds", taken), TensorType(DType.i64, size, stride, device)
        kwargs = ("dtype", DType.i64), ("device", device), ("pin_memory", False)
        drawn = "aten.randint.low", (*_RANGE, row.size), kwargs, ((name, row),)
        made.append(Extern(*drawn, fallback=False))
        if several:
            rows = "aten.unbind.int", (TensorRef(name, row), 0), (), outs
            made.append(Extern(*rows, tuple_result=True, fallback=False))
    return replace(graph, inputs=graph.inputs[:inputs], nodes=(*made, *graph.nodes))
