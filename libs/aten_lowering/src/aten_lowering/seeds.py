"""Seeds of the random operators of a graph: torch's generator makes them, one call a device."""

from collections.abc import Callable

import sympy
import torch
from torch import fx
from torch._ops import OpOverload

from aten_lowering.builder import Operand
from aten_lowering.drawn import ROW
from aten_lowering.errors import require
from aten_lowering.meta import device_of
from loop_ir import Device, DType, Extern, TensorRef, TensorType

_RANGE = (0, 2**63 - 1)


class Seeds:
    """A number of 63 bits for each random operator, drawn by one `aten.randint` a device each time
    the graph runs. So the generator's state decides what is random and moves on, on the device, and
    CUDA graphs replay as they do any of torch's random operators. Each seed is a buffer of its own:
    kernels that differ in nothing else are alike.

    fresh: names a new buffer."""

    def __init__(self, graph: fx.Graph, fresh: Callable[[str], str]) -> None:
        self.fresh = fresh
        self.devices: dict[fx.Node, Device] = {}
        self.drawn: dict[Device, dict[fx.Node, Operand]] = {}
        for node in graph.nodes:
            target, fake = node.target, node.meta.get("val")
            fake = fake[0] if isinstance(fake, list | tuple) and fake else fake
            if not isinstance(target, OpOverload) or not isinstance(fake, torch.Tensor):
                continue
            if torch.Tag.nondeterministic_seeded in target.tags:
                self.devices[node] = device_of(fake.device)

    def of(self, node: fx.Node) -> Operand:
        """The seed of a random operator, the first number of a buffer."""
        require(node in self.devices, "a random operator without a seed")
        device = self.devices[node]
        drawn = self.drawn.setdefault(device, {})
        if node not in drawn:
            type = TensorType(DType.i64, (sympy.Integer(ROW),), (sympy.S.One,), device)
            drawn[node] = Operand(TensorRef(self.fresh("seed"), type), type)
        return drawn[node]

    def nodes(self) -> list[Extern]:
        """The calls that make the seeds that are used."""
        made: list[Extern] = []
        for device, drawn in self.drawn.items():
            outs = tuple((x.ref.buffer, x.type) for x in drawn.values())
            (name, row), several = outs[0], len(outs) > 1
            if several:
                size, stride = (sympy.Integer(len(outs)), *row.size), (row.size[0], sympy.S.One)
                name, row = self.fresh("seeds"), TensorType(DType.i64, size, stride, device)
            kwargs = ("dtype", DType.i64), ("device", device), ("pin_memory", False)
            draw = "aten.randint.low", (*_RANGE, row.size), kwargs, ((name, row),)
            made.append(Extern(*draw, fallback=False))
            if several:
                rows = "aten.unbind.int", (TensorRef(name, row), 0), (), outs
                made.append(Extern(*rows, tuple_result=True, fallback=False))
        return made
