"""Seeds of the random operators of a graph: torch's generator makes them, one call a device."""

from collections.abc import Callable

import sympy
import torch
from torch import fx
from torch._ops import OpOverload

from aten_lowering.builder import KernelBuilder, Operand, Value
from aten_lowering.errors import require
from aten_lowering.meta import device_of
from loop_ir import Device, DType, Extern, TensorRef, TensorType

_RANGE = (0, 2**63 - 1)


class Seeds:
    """A number of 63 bits for each random operator, drawn by `aten.randint` each time the graph
    runs. So the generator's state decides what is random and moves on, on the device, and CUDA
    graphs replay as they do any of torch's random operators.

    fresh: names a new buffer."""

    def __init__(self, graph: fx.Graph, fresh: Callable[[str], str]) -> None:
        self.fresh = fresh
        self.places: dict[fx.Node, tuple[Device, int]] = {}
        self.counts: dict[Device, int] = {}
        self.tensors: dict[Device, Operand] = {}
        for node in graph.nodes:
            target, fake = node.target, node.meta.get("val")
            fake = fake[0] if isinstance(fake, list | tuple) and fake else fake
            if not isinstance(target, OpOverload) or not isinstance(fake, torch.Tensor):
                continue
            if torch.Tag.nondeterministic_seeded in target.tags:
                device = device_of(fake.device)
                count = self.counts.get(device, 0)
                self.places[node] = (device, count)
                self.counts[device] = count + 1

    def load(self, k: KernelBuilder, node: fx.Node) -> Value:
        """The seed of a random operator."""
        require(node in self.places, "a random operator without a seed")
        device, place = self.places[node]
        if device not in self.tensors:
            size = (sympy.Integer(self.counts[device]),)
            type = TensorType(DType.i64, size, (sympy.S.One,), device)
            self.tensors[device] = Operand(TensorRef(self.fresh("seeds"), type), type)
        return k.load(self.tensors[device], (sympy.Integer(place),))

    def nodes(self) -> list[Extern]:
        """The calls that make the seeds that are used."""
        return [
            Extern(
                "aten.randint.low",
                (*_RANGE, x.type.size),
                (("dtype", DType.i64), ("device", device), ("pin_memory", False)),
                ((x.ref.buffer, x.type),),
                fallback=False,
            )
            for device, x in self.tensors.items()
        ]
